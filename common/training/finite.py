"""The losses of an epoch on all ranks: finite, or an error that names the files."""

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
    """Raise UserError on all ranks when a loss of one is NaN or infinite: of which step, made from which files
    (``files_of`` the step, from 0), and ``advice``. All ranks call it with the losses of their steps of ``epoch``.
    """
    bad = np.flatnonzero(~np.isfinite(losses))
    mine = int(bad[0]) if len(bad) else len(losses)
    # Through its gradients the first bad loss spoils those of all ranks in the next update: only it is reported.
    earliest = min(world.gather(mine))

    def check() -> None:
        if len(bad) and mine == earliest:
            files = ", ".join(map(str, files_of(mine)))
            raise UserError(
                f"the loss became {losses[mine]} in step {mine + 1} of epoch {epoch}, on {files}; {advice}"
            )

    on_all_ranks(world, check)
