"""``mlhpc rules``: shows the rules of the closed division, and which of them a planned run violates."""

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.bounds import bounds
from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.load import definition_of, runs_of_a_score, toml_value
from mlhpc.benchmarks.rule_context import default_ruleset
from mlhpc.benchmarks.rules import RULES, RunContext, findings, name_of, requirement, source
from mlhpc.common.data import manifest
from mlhpc.common.files import locks
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.pages.blocks import Cell, Table
from mlhpc.common.pages.terminal import print_table
from mlhpc.errors import UserError
from mlhpc.record.hyperparameters import load_run
from mlhpc.submission.check.rulesets import HPC
from mlhpc.submission.findings import print_findings


def print_rules(benchmark: str, ruleset: str | None, console: Console) -> None:
    """Print the rules of a benchmark as tables: requirements, fixed settings, and free settings with their
    bounds."""
    definition = _closed(benchmark)
    ruleset = _ruleset(benchmark, ruleset)
    for when, rules in RULES.items():
        rows = [(name_of(rule), requirement(rule), source(rule)) for rule in rules]
        console.print(Text(when, style="italic"))
        _print_words(("rule", "requirement", "source"), rows, console)
    fixed = (definition["closed_fixes"] | definition["closed_data"]).items()
    _print_words(("fixed", "to"), [(key, toml_value(value)) for key, value in fixed], console)
    free = definition["closed_free"].items()
    _print_words(("free", "bounds"), [(key, bounds(condition)) for key, condition in free], console)
    timed = "timed" if ruleset in definition["closed_results"]["staging_timed"] else "not timed"
    console.print(f"{runs_of_a_score(benchmark)} runs per score; under ruleset {ruleset} staging is {timed}")


def _print_words(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], console: Console) -> None:
    cells = tuple((Cell(bold=row[0]), *map(Cell, row[1:])) for row in rows)
    print_table(Table(head[0], head, cells, text_columns=len(head)), console)


def rules_content(benchmark: str, ruleset: str | None) -> dict[str, Any]:
    """The content of ``mlhpc rules BENCHMARK --json`` (docs/reference/json.md)."""
    definition = _closed(benchmark)
    ruleset = _ruleset(benchmark, ruleset)
    return {
        "benchmark": benchmark,
        "ruleset": ruleset,
        "runs_of_a_score": runs_of_a_score(benchmark),
        "staging_timed": ruleset in definition["closed_results"]["staging_timed"],
        "rules": [
            {"rule": name_of(rule), "when": when, "requirement": requirement(rule), "source": source(rule)}
            for when, rules in RULES.items()
            for rule in rules
        ],
        "fixed": definition["closed_fixes"] | definition["closed_data"],
        "free": {key: bounds(condition) for key, condition in definition["closed_free"].items()},
    }


def violations(options: argparse.Namespace) -> list[Finding] | None:
    """The violations of a planned run, found from the run's settings and the data set's manifest; None for a run
    in the open division.

    Raises UserError for invalid settings, and for a ruleset that the benchmark does not have.
    """
    data, stage = options.data, options.stage
    log, config = options.hyperparameters_from, options.config
    run = load_run(options.benchmark, options.preset, options.set, config=config, log=log)
    ruleset = _ruleset(options.benchmark, options.ruleset)
    if run.division == "open":
        return None
    has_manifest = data is not None and (data / manifest.NAME).exists()
    context = RunContext(
        run,
        ruleset=ruleset,
        data_on=filesystem_of(data).type if data else None,
        staged_before=stage is not None and (stage / manifest.NAME).exists() and not locks.in_use(stage),
        facts=manifest.load(data).facts if data and has_manifest else None,
    )
    return list(findings(context))


def print_violations(violations: list[Finding] | None, name: str, console: Console) -> int:
    """Print the violations of the planned run ``name``. Returns the exit status: 0 if the run could start,
    otherwise 1."""
    if violations is None:
        console.print(f"{name}: these rules do not apply to the open division")
        return 0
    return print_findings(violations, console)


def document() -> str:
    """The text of ``docs/reference/rules.md``."""
    lines = [
        "# Rules of the closed division",
        "",
        "Written by `mlhpc rules > docs/reference/rules.md` from `benchmarks/rules.py` and the tables `closed_*`",
        "of the benchmarks' TOML files; a test keeps it up to date. `mlhpc rules BENCHMARK --ruleset 2.0.0`",
        "shows the rules of one benchmark. With `--preset`, and `--set`, `--data` and `--stage` as for `run`, it",
        "lists the violations of that run.",
        "",
        "A run of a closed preset is checked before it reads any data. A run that violates a rule does not",
        "start; warnings are printed. HPC rules are the MLPerf HPC training rules 3.0, training rules the",
        "MLPerf training rules that they build on (mlcommons/training_policies).",
        "",
        "Settings that are in neither table of a benchmark are free, for example those for reading samples",
        "(`loading`) and for sending gradients (`training.bucket_cap_mib`, `training.fusion_threshold_mib`,",
        "`training.cycle_time_ms`, `training.hierarchical_allreduce`).",
        "",
        "| rule | when | requirement | source |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name_of(rule)} | {when} | {requirement(rule)} | {source(rule)} |"
        for when, rules in RULES.items()
        for rule in rules
    ]
    for benchmark in (each.name for each in registry.BUILT_IN):
        lines += ["", f"## {benchmark}", "", *_page(benchmark)]
    return "\n".join(lines) + "\n"


def _page(benchmark: str) -> list[str]:
    definition = definition_of(benchmark)
    results = definition["closed_results"]
    return [
        f"{results['runs']} runs per score. Rulesets {', '.join(results['rulesets'])}; staging is timed in "
        f"{', '.join(results['staging_timed']) or 'none of them'}.",
        "",
        "| fixed | to |",
        "|---|---|",
        *(f"| `{key}` | `{toml_value(value)}` |" for key, value in definition["closed_fixes"].items()),
        *(f"| `{key}` of the data set | `{toml_value(v)}` |" for key, v in definition["closed_data"].items()),
        "",
        "| free | bounds |",
        "|---|---|",
        *(f"| `{key}` | {bounds(condition)} |" for key, condition in definition["closed_free"].items()),
    ]


def _closed(benchmark: str) -> dict[str, Any]:
    definition = definition_of(benchmark)
    if "closed_fixes" not in definition:
        raise UserError(f"{benchmark} has no closed division, so no rules apply to it")
    return definition


def _ruleset(benchmark: str, ruleset: str | None) -> str:
    """The requested ``ruleset``, or the benchmark's default. A benchmark of MLPerf Training has only one ruleset,
    which is used even if an HPC ruleset is requested. Raises UserError for an unknown ruleset."""
    known = _closed(benchmark)["closed_results"]["rulesets"]
    if ruleset is None or (registry.find(benchmark).training_ruleset and ruleset in HPC):
        return default_ruleset(benchmark)
    if ruleset not in known:
        raise UserError(f"there is no ruleset {ruleset!r} of {benchmark}; choose from {', '.join(known)}")
    return ruleset
