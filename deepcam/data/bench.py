"""Compares the loaders on the user's data set: rate, processor time, memory."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from mlhpc.common.data import manifest
from mlhpc.common.data.loader_bench import Figures, Row, compare
from mlhpc.common.formats import npy
from mlhpc.deepcam.data import hdf5
from mlhpc.deepcam.data.sample import list_samples, sample_shape
from mlhpc.errors import UserError, count

WAYS = ("threads", "workers", "dali", "threads, cached")


def bench(
    data: Path, samples: int, batch: int, workers: int, rounds: int, evict: bool, console: Console
) -> list[Row]:
    """Read the first ``samples`` training samples of ``data`` with every loader, and print the medians.
    Returns whether all read the same samples, bit for bit.

    The loaders take turns, ``rounds`` times, each in a process of its own. With ``evict`` the samples are
    dropped from this machine's page cache before each turn. Raises UserError when the data set cannot be
    read; for a loader that cannot run the reason is printed.
    """
    files = list_samples(data / "train")[:samples]
    shape = sample_shape(files[0])
    hdf5.read_statistics(data, shape[2])
    if not 0 < batch <= len(files):
        raise UserError(f"--batch {batch}: give 1 to {len(files)}, the number of samples to read")
    codec = manifest.load(data).facts.get("codec") if (data / manifest.NAME).exists() else None
    epoch = partial(_epoch, data, files, shape, codec, batch, workers, evict)
    rows = compare(WAYS, epoch, rounds=rounds, close=0.0, console=console)
    cache = "evicted before each" if evict else "as it was"
    console.print(
        f"{count(len(files), 'sample')} {list(shape)} from {data}, batch {batch}, {count(workers, 'worker')}, "
        f"median of {count(rounds, 'round')}, page cache {cache}; the second epoch",
        soft_wrap=True,
        highlight=False,
    )
    return rows


def _epoch(
    data: Path,
    files: Sequence[Path],
    shape: tuple[int, int, int],
    codec: str | None,
    batch: int,
    workers: int,
    evict: bool,
    way: str,
) -> Figures:
    from mlhpc.benchmarks.deepcam import Loading
    from mlhpc.common.data.assign import RankSamples
    from mlhpc.common.data.sharding import Pool
    from mlhpc.common.pytorch.bench import DEVICE, measure_batches
    from mlhpc.deepcam.data.loader import Loader

    samples = RankSamples(list(files), list(files[:batch]), Pool(len(files), 1), Pool(batch, 1), 0)
    loading = {"loader": way.partition(",")[0], "cache": "cached" in way, "workers": workers, "prefetch": 2}
    loader = Loader(
        samples,
        Loading.model_validate(loading),
        sample_shape=shape,
        statistics=hdf5.read_statistics(data, shape[2]),
        local_batch_size=batch,
        eval_batch_size=batch,
        steps=len(files) // batch,
        seed=1,
        device=DEVICE,
        codec=codec,
    )
    paths = [path for file in files for path in {file, npy.label_path(file)} if path.exists()]
    return measure_batches(loader, paths if evict else [])
