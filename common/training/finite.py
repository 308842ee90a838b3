"""Checks that the losses of an epoch are finite on all ranks; if not, the error names the files."""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from mlhpc.common.ranks.collectives import on_all_ranks
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError


def require_finite(
    losses: npt.NDArray[np.float64],
    epoch: int,
    files_of: Callable[[int], Iterable[object]],
    advice: str,
    world: World,
) -> None:
    """Raise UserError on all ranks if a loss of any rank is NaN or infinite. The message contains the step, the
    files of that step (``files_of(step)``, counted from 0) and ``advice``. Called by all ranks with the ``losses``
    [steps] of their steps in ``epoch``."""
    bad = np.flatnonzero(~np.isfinite(losses))
    first_bad = int(bad[0]) if len(bad) else len(losses)
    # The gradients of the first bad loss spoil all ranks' next step, so only that loss is reported.
    earliest = min(world.gather(first_bad))

    def check() -> None:
        if len(bad) and first_bad == earliest:
            files = ", ".join(map(str, files_of(first_bad)))
            raise UserError(
                f"the loss was {losses[first_bad]} in step {first_bad + 1} of epoch {epoch}, on {files}; "
                f"{advice}"
            )

    on_all_ranks(world, check)
