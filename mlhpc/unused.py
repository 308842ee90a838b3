"""Settings that change nothing in a run, given its other settings."""

import sys
from collections.abc import Sequence

from mlhpc.benchmarks.schema import Run
from mlhpc.common.ranks.world import World

EXCHANGE = (
    "training.bucket_cap_mib",
    "training.fusion_threshold_mib",
    "training.cycle_time_ms",
    "training.hierarchical_allreduce",
)
"""The exchange of gradients between ranks."""


def unused(run: Run, ranks: int, *, staged: bool) -> dict[str, str]:
    """The settings (dotted names) that change nothing in ``run``, each with the reason, which begins with a
    verb."""
    tables = {
        "network": run.network.unused(),
        "hyperparameters": run.hyperparameters.unused(),
        "staging": dict.fromkeys(() if staged else type(run.staging).model_fields, "applies with --stage"),
    }
    reasons = {f"{table}.{key}": why for table, keys in tables.items() for key, why in keys.items()}
    return reasons | dict.fromkeys(EXCHANGE if ranks == 1 else (), "applies to several ranks")


def warn_of_unused(run: Run, settings: Sequence[str], world: World, *, staged: bool) -> None:
    """On rank 0, warn about ``settings`` (``table.key=value``) that have no effect."""
    reasons = unused(run, world.size, staged=staged)
    keys = dict.fromkeys(setting.partition("=")[0].strip() for setting in settings)
    found = "; ".join(f"{key} {reasons[key]}" for key in keys if key in reasons)
    if found and world.rank == 0:
        sys.stderr.write(f"mlhpc: warning: without effect in this run: {found}\n")
