"""Selects the MLPerf rules under which a set is checked."""

import re
from pathlib import Path

from mlhpc.benchmarks import registry
from mlhpc.record.run_directory import RunDirectory

HPC = ("1.0.0", "2.0.0", "3.0.0")
"""The HPC rulesets in mlperf-logging 4.1.68. There is none for round 0.7."""
TRAINING = ("0.6.0", "0.7.0", "1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0")
"""The training rulesets in mlperf-logging 4.1.68 that have ResNet-50. There is none for round 0.5, and later
rulesets lack ResNet-50."""
RULESETS = tuple(sorted({*HPC, *TRAINING}))
_ROUND = re.compile(r"(?:(hpc|training)_results_)?v(\d+\.\d+)")
"""Names of the repositories and folders of a published round."""


def rules_of(benchmark: str, ruleset: str | None = None, path: Path | None = None) -> str:
    """The name of the rules, such as ``hpc_2.0.0`` or ``training_4.0.0``, for the benchmark that logs call
    ``benchmark``; "" if MLPerf has no rules for this benchmark. The official tools may lack these rules (see
    ``exist``).

    The version is the requested ``ruleset``, if any; otherwise that of the round whose folder contains ``path``
    (``training_results_v0.7/<org>/results/…``). Outside such a folder, it is HPC 2.0.0, the last version that
    times staging, or the last training ruleset that includes the benchmark.
    """
    entry = registry.find_logged(benchmark)
    if entry is not None and entry.mlperf_name is None:
        return ""
    usage, published = _round(path) if path else (None, None)
    if entry is not None:
        usage = "training" if entry.training_ruleset else "hpc"
    default = entry.training_ruleset if entry and entry.training_ruleset else "2.0.0"
    return f"{usage or 'hpc'}_{ruleset or published or default}"


def rules_of_run(run: RunDirectory, ruleset: str | None = None) -> str:
    """The name of the rules under which a single run folder is checked: the rules of the benchmark in its log."""
    logged = run.log.value("submission_benchmark") if run.log else None
    return rules_of(str(logged or registry.logged_name(run.benchmark)), ruleset)


def exist(rules: str) -> bool:
    """Return whether the official tools have ``rules``. Without them, no set can pass."""
    usage, _, ruleset = rules.partition("_")
    return ruleset in {"hpc": HPC, "training": TRAINING}.get(usage, ())


def without_rules(benchmark: str, rules: str) -> str:
    """The reason why there are no rules, as text."""
    if not rules:
        return f"MLPerf has no rules for {benchmark}"
    usage, _, ruleset = rules.partition("_")
    name = {"hpc": "MLPerf HPC", "training": "ResNet-50 in MLPerf Training"}[usage]
    return f"mlperf-logging has no rules of round {ruleset.removesuffix('.0')} for {name}"


def _round(path: Path) -> tuple[str | None, str | None]:
    """Usage and ruleset of the round whose folder contains ``path`` (``<round>/<org>/results/…``; round 0.5 has
    more levels in between). The usage is "hpc" or "training", or None if the name of the folder does not state
    it."""
    parts = path.absolute().parts
    for position in range(len(parts) - 1, 1, -1):
        if parts[position] == "results" and (named := _ROUND.fullmatch(parts[position - 2])):
            return named[1], f"{named[2]}.0"
    rounds = [named for part in parts if (named := _ROUND.fullmatch(part)) and named[1]]
    return (rounds[-1][1], f"{rounds[-1][2]}.0") if rounds else (None, None)
