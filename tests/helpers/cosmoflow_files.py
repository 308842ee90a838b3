"""One small CosmoFlow data set in several formats, and loaders over it."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.cosmoflow import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool
from mlhpc.cosmoflow.data.sample import list_samples, suffix_of, write_sample
from mlhpc.cosmoflow.data.source import Batch, CosmoFlowSource

SHAPE = (24, 24, 24, 4)
DTYPES = ("int16", "float32", "float16", "bfloat16")


def counts(index: int) -> npt.NDArray[np.int16]:
    """Poisson in a lognormal density, as of a universe; every third has tables in several blocks."""
    rng = np.random.default_rng(index)
    x = rng.poisson(rng.lognormal(-0.3, 1.2, (*SHAPE[:3], 1)) * [0.5, 0.8, 1, 1.2])
    if index % 3 == 0:
        x[12:] = rng.integers(0, 2, (12, *SHAPE[1:])) + 500
    return x.astype(np.int16)


def targets(index: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng([index, 1]).uniform(-1, 1, 4).astype(np.float32)


def make(folder: Path, codec: str, samples: int) -> Path:
    folder.mkdir()
    for index in range(samples):
        path = folder / f"{index:03}{suffix_of(codec)}"
        write_sample(path, counts(index), targets(index), codec)
    return folder


def open_loader(folder: Path, codec: str | None, batch: int = 2, **more: Any) -> Loader[Batch]:
    """``more``: settings of ``Loading``, and ``augment``."""
    files = list_samples(folder)
    pool, augment = Pool(len(files), 1), more.pop("augment", False)
    return Loader(
        RankSamples(files, files, pool, pool, 0),
        CosmoFlowSource(Loading(workers=2, prefetch=2, **more), SHAPE, 4, augment, codec),
        local_batch_size=batch,
        eval_batch_size=batch,
        steps=len(files) // batch,
        seed=5,
    )
