"""The input of the closed division's rules, and the form in which they report violations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.benchmarks.load import definition_of
from mlhpc.benchmarks.schema import Run

OPEN = "run with --set division=open"


@dataclass(frozen=True)
class RunContext:
    """Facts about a run when its rules are checked. A fact that is not yet known is None, and rules about it are
    skipped.

    ``ruleset``: None means the newest one that times staging, which is the strictest. ``data_on``: type of the
    data set's file system. ``staged_before``: whether the staging target contains files of an earlier run.
    ``facts``: the contents of the data set's manifest. ``evicted``: whether page caches were dropped before the
    run. ``init_s``: duration of initialisation in seconds. ``seeds`` and ``runs``: the seeds of a campaign's runs,
    and the planned number of runs.
    """

    run: Run
    ruleset: str | None = None
    resumed: bool | None = None
    data_on: str | None = None
    staged_before: bool | None = None
    facts: Mapping[str, Any] | None = None
    evicted: bool | None = None
    init_s: float | None = None
    seeds: Sequence[int] | None = None
    runs: int | None = None

    @property
    def staging_is_timed(self) -> bool:
        """Whether staging counts towards time to train under this ruleset."""
        benchmark = self.run.benchmark
        return (self.ruleset or default_ruleset(benchmark)) in _results(benchmark)["staging_timed"]


def default_ruleset(benchmark: str) -> str:
    """The newest ruleset that times staging; a run that complies with it also complies with the other rulesets."""
    results = _results(benchmark)
    return str((results["staging_timed"] or results["rulesets"] or ["none"])[-1])


def violation(where: str, expected: str, actual: str, remedy: str, severity: Severity = "error") -> Finding:
    """A finding without the name of the rule, which ``rules.findings`` adds."""
    return Finding("", severity, where, expected, actual, remedy)


def _results(benchmark: str) -> Mapping[str, Any]:
    results: dict[str, Any] = definition_of(benchmark).get(
        "closed_results", {"rulesets": [], "staging_timed": []}
    )
    return results
