"""One .npy file per sample: 16 coordinates and the class, float32."""

from pathlib import Path

import numpy as np

from mlhpc.benchmarks.schema import Data
from mlhpc.common.data import manifest
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World

CLASSES = 8


def make(data: Data, out: Path, world: World, workers: int) -> None:
    """Write ``train/`` and ``validation/`` below ``out``, and the manifest. Called by all ranks."""
    on_rank0(world, lambda: _write(data, out))
    manifest.index(out, {"benchmark": "blobs", "made_by": "mlhpc data make blobs"}, world, workers)


def _write(data: Data, out: Path) -> None:
    random = np.random.default_rng(2026)
    centres = random.normal(size=(CLASSES, *data.sample_shape))
    for folder, samples in (("train", data.train_samples), ("validation", data.eval_samples)):
        (out / folder).mkdir(parents=True, exist_ok=True)
        for n in range(samples):
            sample = np.append(centres[n % CLASSES] + random.normal(size=data.sample_shape), n % CLASSES)
            np.save(out / folder / f"{n:05}.npy", sample.astype(np.float32))
