"""CosmoFlow's loader against the public reference's tf.data pipeline, side by side.

    python tests/perf/cosmoflow_input.py [--reference DIR] [--side 128] [--batch 4] [--samples 16]

DIR is the cosmoflow folder of a checkout of mlcommons/hpc (its imports need Horovod). Without it a tf.data
pipeline of the same stages is compared: TFRecordDataset, parse, decode, logarithm, batch, prefetch. Both
sides end at float32 logarithms of whole batches: for the loader, which hands out int16, the logarithm that
belongs to the training step is taken here with ``step.log_counts``, compiled, and counted. Samples are made
in a temporary folder and lie in the page cache. Rounds alternate; the ratio is taken round by round, and its
median is the result. Samples per second of CPU are given too: they are what is left to compare by where
other programs take turns on the same cores, and what a loader takes away from a training on CPUs.
"""

import argparse
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.cosmoflow import Loading
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool, steps_per_epoch
from mlhpc.common.formats.tf_example import encode_example
from mlhpc.common.formats.tfrecord import write_records
from mlhpc.cosmoflow.data.sample import list_samples
from mlhpc.cosmoflow.data.source import CosmoFlowSource
from mlhpc.cosmoflow.tf.step import log_counts


def make_samples(folder: Path, samples: int, shape: tuple[int, ...], gzip: bool) -> None:
    (folder / "train").mkdir(parents=True)
    rng = np.random.default_rng(1)
    for i in range(samples):
        x = rng.poisson(rng.lognormal(-0.3, 1.2, shape)).astype(np.int16)
        example = encode_example(x, rng.uniform(-1, 1, 4).astype(np.float32))
        write_records(folder / "train" / f"{i:06d}.tfrecord", [example], gzip)


def tf_data(
    folder: Path, shape: tuple[int, ...], batch: int, gzip: bool, reference: Path | None
) -> Callable[[], Iterable[object]]:
    compression = "GZIP" if gzip else None
    samples = len(list_samples(folder / "train"))
    if reference:
        sys.path.insert(0, str(reference))
        dataset, _ = importlib.import_module("data.cosmo").construct_dataset(
            str(folder / "train"), samples, batch, 1, shape, compression=compression, shuffle=True, prefetch=4
        )
        return lambda: dataset
    features = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([4], tf.float32)}

    def parse(record: object) -> tuple[object, object]:
        example = tf.io.parse_single_example(record, features)
        x = tf.reshape(tf.io.decode_raw(example["x"], tf.int16), shape)
        return log_counts(x), example["y"]

    files = tf.data.Dataset.list_files(str(folder / "train" / "*.tfrecord"))
    records = tf.data.TFRecordDataset(files, compression_type=compression)
    pipeline = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(batch, drop_remainder=True)
    return lambda: pipeline.prefetch(4)


def ours(
    folder: Path, shape: tuple[int, ...], batch: int, logarithm: bool, augment: bool = False
) -> Callable[[], Iterable[object]]:
    files = list_samples(folder / "train")
    pool = Pool(len(files), 1)
    steps = steps_per_epoch([pool], batch)
    loader = Loader(
        RankSamples(files, files, pool, pool, 0),
        CosmoFlowSource(Loading(workers=2, prefetch=2), shape, 4, augment),
        local_batch_size=batch,
        eval_batch_size=batch,
        steps=steps,
        seed=1,
    )
    log = tf.function(log_counts, input_signature=[tf.TensorSpec([None, *shape], tf.int16)])
    if logarithm:
        return lambda: (log(x) for x, _ in loader.train_epoch(0))
    return lambda: loader.train_epoch(0)


def rates(batches: Callable[[], Iterable[object]], samples: int, least_seconds: float) -> tuple[float, float]:
    """Samples a second of wall clock, and of CPU."""
    wall, cpu, epochs = time.perf_counter(), time.process_time(), 0
    while not epochs or time.perf_counter() - wall < least_seconds:
        for _ in batches():
            pass
        epochs += 1
    read = samples * epochs
    return read / (time.perf_counter() - wall), read / (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reference", type=Path, help="cosmoflow folder of a checkout of mlcommons/hpc")
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--samples", type=int, default=16, help="made, and read in an epoch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="at least so long is each round of a way")
    args = parser.parse_args()

    shape = (args.side,) * 3 + (4,)
    table = Table("files", "", "samples/s", "ratio", "per CPU second", "ratio")
    with tempfile.TemporaryDirectory(prefix="cosmoflow-input-") as scratch:
        for gzip in (False, True):
            folder = Path(scratch) / ("gzip" if gzip else "plain")
            make_samples(folder, args.samples, shape, gzip)
            theirs = "reference" if args.reference else "tf.data"
            ways = {
                theirs: tf_data(folder, shape, args.batch, gzip, args.reference),
                "mlhpc": ours(folder, shape, args.batch, logarithm=True),
                "mlhpc, int16": ours(folder, shape, args.batch, logarithm=False),
                "mlhpc, int16, turned": ours(folder, shape, args.batch, logarithm=False, augment=True),
            }
            samples = args.samples // args.batch * args.batch
            for way in ways.values():
                rates(way, samples, 0)
            rounds = []
            for turn in range(args.rounds):
                order = sorted(ways, reverse=bool(turn % 2))
                rounds.append({name: rates(ways[name], samples, args.seconds) for name in order})
            for name in ways:
                cells = []
                for clock in range(2):
                    cells.append(f"{statistics.median(r[name][clock] for r in rounds):.0f}")
                    cells.append(
                        f"{statistics.median(r[name][clock] / r[theirs][clock] for r in rounds):.2f}"
                    )
                table.add_row("GZIP" if gzip else "plain", name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
