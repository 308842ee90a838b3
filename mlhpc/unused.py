"""Settings that change nothing in a run, given its other settings."""

from mlhpc.benchmarks.schema import Run

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
