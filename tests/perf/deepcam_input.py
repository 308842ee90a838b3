"""DeepCAM's loaders against the public reference's, on the same HDF5 files, side by side.

    python tests/perf/deepcam_input.py --reference DIR [--samples 16] [--batch 2] [--workers 2]

DIR is deepcam/src/deepCam of a checkout of mlcommons/hpc. Both sides end at normalised float32 batches of
768 × 1152 × 16 and masks: the reference's as its train.py configures its DataLoader (drop_last, shuffled; in
one process, and with worker processes), ours in each of its ways. Samples of random numbers are made in a
temporary folder and lie in the page cache; the checksums of all samples of both sides must be the same.
Rounds alternate; a ratio is to the quicker of the reference's ways, round by round, and the median is the
result. CPU time is of this process alone, and left out where other processes read.
"""

import argparse
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.deepcam import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool, steps_per_epoch
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.data.convert import convert
from mlhpc.deepcam.data.hdf5 import Statistics, read_statistics, write_statistics
from mlhpc.deepcam.data.sample import list_samples, sample_shape
from mlhpc.deepcam.data.source import DeepCamSource


def make_samples(root: Path, samples: int, shape: tuple[int, int, int]) -> None:
    (root / "train").mkdir(parents=True)
    rng = np.random.default_rng(1)
    scale = np.geomspace(1e-6, 1e5, shape[2], dtype=np.float32)
    x = scale * (rng.random(shape, np.float32) + 1)
    for i in range(samples):
        with h5py.File(root / "train" / f"data-{i:04d}.h5", "w") as file:
            file["climate/data"] = np.roll(x, i, axis=0)
            file["climate/labels_0"] = rng.choice(3, shape[:2], p=(0.986, 0.001, 0.013))
    write_statistics(root / "stats.h5", Statistics(scale, 2 * scale))


def reference(root: Path, code: Path, batch: int, workers: int) -> Callable[[], Iterable[Any]]:
    if str(code) not in sys.path:
        sys.path.insert(0, str(code))
    from data.cam_hdf5_dataset import CamDataset  # type: ignore[import-not-found]
    from torch.utils.data import DataLoader

    samples = CamDataset(str(root / "train"), str(root / "stats.h5"), list(range(16)), shuffle=True)
    return lambda: DataLoader(samples, batch, num_workers=workers, shuffle=True, drop_last=True)


def ours(root: Path, batch: int, workers: int, way: str) -> Callable[[], Iterable[Any]]:
    files = list_samples(root / "train")
    shape, pool = sample_shape(files[0]), Pool(len(files), 1)
    loading = {"loader": way.partition(",")[0], "cache": "cached" in way, "workers": workers, "prefetch": 2}
    loader = Loader(
        RankSamples(files, files, pool, pool, 0),
        DeepCamSource(Loading.model_validate(loading), shape, read_statistics(root, shape[2])),
        local_batch_size=batch,
        eval_batch_size=batch,
        steps=steps_per_epoch([pool], batch),
        seed=1,
    )
    return lambda: loader.train_epoch(0)


def require_equal(theirs: Iterable[Any], batches: Iterable[Any]) -> None:
    """The samples of both, whatever their order, must be the same."""

    def marks(items: Iterable[Any]) -> list[tuple[int, ...]]:
        samples = ((x, y.byte()) for batch in items for x, y in zip(batch[0], batch[1], strict=True))
        return sorted(tuple(zlib.crc32(part.contiguous().numpy()) for part in sample) for sample in samples)

    assert marks(theirs) == marks(batches)


def rates(batches: Callable[[], Iterable[Any]], samples: int) -> tuple[float, float]:
    """Samples a second of wall clock, and of this process's CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in batches():
        pass
    return samples / (time.perf_counter() - wall), samples / (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="deepcam/src/deepCam of mlcommons/hpc")
    parser.add_argument("--samples", type=int, default=16, help="made, and read in an epoch")
    parser.add_argument("--rows", type=int, default=768)
    parser.add_argument("--columns", type=int, default=1152)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    torch.set_num_threads(2)
    shape = (args.rows, args.columns, 16)
    with tempfile.TemporaryDirectory(prefix="deepcam-input-") as scratch:
        root, npy = Path(scratch) / "h5", Path(scratch) / "npy"
        make_samples(root, args.samples, shape)
        convert(root, npy, Solo(), 1)
        theirs = {
            f"reference, {count} workers": reference(root, args.reference, args.batch, count)
            for count in (0, args.workers)
        }
        ways = {
            **theirs,
            "mlhpc threads": ours(root, args.batch, args.workers, "threads"),
            "mlhpc threads, .npy": ours(npy, args.batch, args.workers, "threads"),
            "mlhpc threads, cached": ours(root, args.batch, args.workers, "threads, cached"),
            "mlhpc workers": ours(root, args.batch, args.workers, "workers"),
            "mlhpc dali": ours(root, args.batch, args.workers, "dali"),
        }
        require_equal(next(iter(theirs.values()))(), ways["mlhpc threads"]())
        samples = args.samples // args.batch * args.batch
        for way in ways.values():
            rates(way, samples)
        rounds = []
        for turn in range(args.rounds):
            rounds.append({name: rates(ways[name], samples) for name in sorted(ways, reverse=bool(turn % 2))})
    table = Table("loader", "samples/s", "ratio", "least", "most", "per CPU second")
    for name in ways:
        ratios = [r[name][0] / max(r[other][0] for other in theirs) for r in rounds]
        rate, per_cpu = (statistics.median(r[name][clock] for r in rounds) for clock in range(2))
        table.add_row(
            name,
            f"{rate:.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}",
            f"{max(ratios):.2f}",
            "" if "workers" in name and "0 workers" not in name else f"{per_cpu:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
