"""The rules of the closed division. Most of them are checked before a run starts.

The official checker reads logs, so it reports violations only after a run, and only violations that logs show. The
numbers are in the benchmark's TOML file (``closed_fixes``, ``closed_free``, ``closed_data``, ``closed_results``),
the rules in ``setting_rules.py`` and ``conduct_rules.py``. ``docs/reference/rules.md`` is generated from the
rules: the first paragraph of a docstring is the requirement, the line ``Source:`` the requirement's origin. "HPC
rules" are the MLPerf HPC training rules 3.0, and "training rules" the MLPerf training rules on which they build
(both mlcommons/training_policies).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from mlhpc.benchmarks import conduct_rules, setting_rules
from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.rule_context import RunContext
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError

__all__ = [
    "RULES", "RunContext", "enforce", "enforce_on_data", "findings",
    "name_of", "requirement", "sentence", "source",
]  # fmt: skip

Rule = Callable[[RunContext], Iterator[Finding]]
When = Literal["before the run", "when the data set is opened", "after the run", "in a campaign"]

RULES: dict[When, tuple[Rule, ...]] = {
    "before the run": (
        setting_rules.closed_division,
        setting_rules.submitter,
        setting_rules.target,
        setting_rules.training_set,
        setting_rules.evaluation_set,
        setting_rules.evaluation_frequency,
        setting_rules.sample,
        setting_rules.network,
        setting_rules.preprocessing,
        setting_rules.optimizer,
        setting_rules.momentum,
        setting_rules.epsilon,
        setting_rules.lamb,
        setting_rules.schedule,
        setting_rules.training_method,
        setting_rules.free_hyperparameters,
        setting_rules.computed_steps,
        setting_rules.from_the_start,
        conduct_rules.data_not_in_memory,
        conduct_rules.staging_is_timed,
        conduct_rules.caches,
    ),
    "when the data set is opened": (conduct_rules.data_of_benchmark, conduct_rules.codec),
    "after the run": (conduct_rules.init_time,),
    "in a campaign": (conduct_rules.seeds, conduct_rules.number_of_runs),
}


def findings(context: RunContext) -> list[Finding]:
    """The known violations of the rules by a run in the closed division; empty for a run in the open division."""
    if context.run.division != "closed":
        return []
    return [
        replace(finding, rule=f"rules/{name_of(rule)}")
        for rules in RULES.values()
        for rule in rules
        for finding in rule(context)
    ]


def enforce(context: RunContext) -> list[Finding]:
    """Return the rule violations of severity "warning" or "expected". Raises UserError for the first violation of
    severity "error", since the run then does not qualify as closed."""
    violations = findings(context)
    if errors := [finding for finding in violations if finding.severity == "error"]:
        first, more = errors[0], len(errors) - 1
        others = (
            f" (and {more} more: mlhpc rules {context.run.benchmark} with the same options)" if more else ""
        )
        raise UserError(f"not a closed run: {sentence(first)}{others}")
    return violations


def enforce_on_data(run: Run, facts: Mapping[str, Any]) -> None:
    """Call ``enforce`` for a run on a data set whose manifest contains ``facts``."""
    enforce(RunContext(run, facts=facts))


def sentence(finding: Finding) -> str:
    """A finding in one line."""
    return f"{finding.where}: {finding.expected}, not {finding.actual}; {finding.remedy}"


def requirement(rule: Rule) -> str:
    """What a rule requires, in a sentence or two."""
    return _paragraphs(rule)[0]


def source(rule: Rule) -> str:
    """The source of a rule."""
    return _paragraphs(rule)[1].removeprefix("Source: ").removesuffix(".")


def name_of(rule: Rule) -> str:
    """The name under which a rule is reported."""
    return rule.__name__.replace("_", "-")


def _paragraphs(rule: Rule) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in (rule.__doc__ or "").split("\n\n")]
