"""Loaders over a small DeepCAM data set."""

import torch
from helpers.deepcam_files import CHANNELS, SHAPE

from mlhpc.benchmarks.deepcam import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool
from mlhpc.deepcam.data.hdf5 import read_statistics
from mlhpc.deepcam.data.sample import list_samples
from mlhpc.deepcam.data.source import DeepCamSource

LOADERS = ("threads", "workers", "dali")


def open_loader(root, loader="threads", ranks=1, place=0, batch=2, **more):
    train, validation = list_samples(root / "train"), list_samples(root / "validation")
    loading = {
        "loader": loader,
        "cache": more.pop("cache", False),
        "workers": more.pop("workers", 2),
        "prefetch": more.pop("prefetch", 2),
    }
    pools = Pool(len(train), ranks), Pool(len(validation), ranks)
    source = DeepCamSource(Loading(**loading), SHAPE, read_statistics(root, CHANNELS), **more)
    samples = RankSamples(train, validation, *pools, place)
    source.require_memory(samples)
    return Loader(
        samples,
        source,
        local_batch_size=batch,
        eval_batch_size=batch,
        steps=len(train) // (ranks * batch),
        seed=5,
    )


def same(batches, others):
    pairs = zip(batches, others, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))
