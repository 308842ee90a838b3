"""What a loader needs that has nothing to do with data."""

from mlhpc.common.pytorch import dali, workers


def prepare(loader: str, module: str) -> None:
    """Import what ``loader`` needs, and start the process that the workers of ``module`` come from: seconds that
    are spent before the clock. Raises UserError when DALI is not installed."""
    if loader == "workers":
        workers.start(module)
    elif loader == "dali":
        dali.load()
