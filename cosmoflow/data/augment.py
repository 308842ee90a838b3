"""The 48 symmetries of the cube, since a rotated or mirrored universe is equally valid (open division).

They are applied to the stored counts while these are copied into a batch, so that no separate pass is needed.
"""

from itertools import permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt

# Every order of the three axes, times every choice of axes to reverse: the full octahedral group.
SYMMETRIES = tuple(
    (axes, flips) for axes in permutations(range(3)) for flips in product((False, True), repeat=3)
)


def apply_symmetry(sample: npt.NDArray[Any], symmetry: int) -> npt.NDArray[Any]:
    """A view of ``sample [n, n, n, ...]`` under ``symmetry``, a number from 0 (the identity) to 47."""
    axes, flips = SYMMETRIES[symmetry]
    rest = range(3, sample.ndim)
    return sample.transpose(*axes, *rest)[tuple(slice(None, None, -1 if flip else 1) for flip in flips)]


def draw(samples: int, seed: int, epoch: int) -> npt.NDArray[np.int8]:
    """Draw a random symmetry for each sample of an epoch. Returns [samples], in the order of sample indices.

    Symmetries are drawn per sample, not per rank or step, so that a run with a different number of ranks trains on
    the same data.
    """
    # The fourth number makes this stream differ from the permutations of sharding.train_batches.
    return np.random.default_rng([seed, epoch, 0, 48]).integers(len(SYMMETRIES), size=samples, dtype=np.int8)
