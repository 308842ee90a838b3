"""What a loader needs before it touches data."""

from mlhpc.common.pytorch import dali, workers


def prepare(loader: str, module: str) -> None:
    """Import what ``loader`` needs, and start the fork server for the workers of ``module``: both take seconds,
    which are spent before the clock starts. Raises UserError when DALI is not installed."""
    if loader == "workers":
        workers.start(module)
    elif loader == "dali":
        dali.load()
