"""Measures epochs of a PyTorch loader."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlhpc.common.data.loader import Loader
from mlhpc.common.data.loader_bench import Arrays, Figures, measure
from mlhpc.common.pytorch.devices import first_device, wait_for
from mlhpc.common.pytorch.loading import as_array

DEVICE = first_device().type
"""The device to which batches are moved."""


def measure_batches(loader: Loader[Any], files: Sequence[Path]) -> Figures:
    """``measure`` a loader that yields ``x`` [b, channels, H, W] and ``y``, including the transfer of each ``x``
    to ``DEVICE``."""

    def arrays(batch: Any) -> Arrays:
        x, y = batch
        return as_array(x.permute(0, 2, 3, 1).cpu()), y.cpu().numpy()

    return measure(
        loader,
        files,
        use=lambda batch: batch[0].to(DEVICE, non_blocking=True),
        wait=lambda: wait_for(first_device()),
        arrays=arrays,
    )
