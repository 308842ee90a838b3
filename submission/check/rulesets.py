"""Which rules of MLPerf a benchmark is checked against."""

from mlhpc.benchmarks import registry

RULESETS = ("1.0.0", "2.0.0", "3.0.0")
"""The HPC rulesets in mlperf-logging 4.1.68. There is none for round 0.7."""


def rules_of(benchmark: str, ruleset: str) -> str:
    """``hpc_<ruleset>``, or the one training ruleset of a benchmark of MLPerf Training."""
    entry = registry.find_logged(benchmark)
    return f"training_{entry.training_ruleset}" if entry and entry.training_ruleset else f"hpc_{ruleset}"


def in_mlperf(benchmark: str) -> bool:
    """Whether MLPerf has rules for ``benchmark``. True for unknown names: the official checker reports these."""
    entry = registry.find_logged(benchmark)
    return entry is None or entry.mlperf_name is not None
