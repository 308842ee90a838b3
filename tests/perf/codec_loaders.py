"""Samples per second of the loader from every format of a benchmark, beside the public reference's input path.

    python tests/perf/codec_loaders.py cosmoflow SAMPLE [--reference DIR] [--rounds 5]
    python tests/perf/codec_loaders.py deepcam SAMPLE.h5 --statistics DATA [--reference DIR]

A data set of ``--samples`` links to one sample is made in a temporary folder for each format, and lies in the
page cache. CosmoFlow is delivered as float16 log(1 + counts), DeepCAM as ``--sample-dtype``. The reference
delivers float32, with batch 4 (CosmoFlow, from GZIP and plain files: its tf.data stages, or with DIR its own
code) or 2 (DeepCAM, only with DIR; cosmoflow/ and deepcam/src/deepCam of a checkout of mlcommons/hpc). Ways take
turns; a ratio is taken round by round, and its median is the result. Targets: CosmoFlow ``lut`` 10 times the
reference's GZIP path and 6 times its plain one; DeepCAM ``delta`` 3 times the reference at half the bytes; batch
1 at most 1.3 times slower than batch 4."""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Loader
from mlhpc.common.data.sharding import Pool

Way = Callable[[], Iterable[Any]]


def cosmoflow(args: argparse.Namespace, root: Path) -> tuple[dict[str, Way], dict[str, int]]:
    from cosmoflow_input import tf_data

    from mlhpc.benchmarks.cosmoflow import Loading
    from mlhpc.cosmoflow.data.sample import NAMES, list_samples, read_counts, suffix_of, write_sample
    from mlhpc.cosmoflow.data.source import CosmoFlowSource

    counts, y = read_counts(args.sample)
    side = round((counts.size / 4) ** (1 / 3))
    shape = (side, side, side, 4)
    ways: dict[str, Way] = {}
    sizes: dict[str, int] = {}
    for codec in args.formats or NAMES:
        folder = root / codec
        first = folder / "train" / f"{0:06d}{suffix_of(codec)}"
        first.parent.mkdir(parents=True)
        write_sample(first, counts.reshape(shape), y, codec)
        links(first, args.samples)
        if codec in ("gzip", "plain"):
            ways[f"reference, {codec}"] = tf_data(folder, shape, 4, codec == "gzip", args.reference)
            sizes[f"reference, {codec}"] = first.stat().st_size
        for decode in ("host", "device") if codec == "lut" else ("host",):
            for batch in (4, 1):
                files = list_samples(folder / "train")
                pool = Pool(len(files), 1)
                loading = Loading(workers=2, prefetch=4, sample_dtype="float16", decode=decode)
                loader = Loader(
                    RankSamples(files, files, pool, pool, 0), CosmoFlowSource(loading, shape, 4, codec=codec),
                    local_batch_size=batch, eval_batch_size=batch, steps=len(files) // batch, seed=1,
                )  # fmt: skip
                name = f"{codec}{', for the device' if decode == 'device' else ''}, batch {batch}"
                ways[name] = lambda loader=loader: loader.train_epoch(0)  # type: ignore[misc]
                sizes[name] = first.stat().st_size
    return ways, sizes


def deepcam(args: argparse.Namespace, root: Path) -> tuple[dict[str, Way], dict[str, int]]:
    import shutil

    from deepcam_input import reference

    from mlhpc.benchmarks.deepcam import Loading
    from mlhpc.deepcam.data import hdf5
    from mlhpc.deepcam.data.codec import CODECS, encode_sample, encoder
    from mlhpc.deepcam.data.source import DeepCamSource

    field, mask = hdf5.read(args.sample)
    low, high = hdf5.read_statistics(args.statistics, field.shape[2])
    ways: dict[str, Way] = {}
    sizes: dict[str, int] = {}
    for codec in args.formats or ("hdf5", *CODECS):
        train = root / codec / "train"
        train.mkdir(parents=True)
        hdf5.write_statistics(root / codec / "stats.h5", hdf5.Statistics(low, high))
        first = train / f"data-{0:06d}{'.h5' if codec == 'hdf5' else '.mlc'}"
        if codec == "hdf5":
            shutil.copy(args.sample, first)
        else:
            first.write_bytes(encode_sample(encoder(codec, None, None, low, high), field, mask.astype("u1")))
        links(first, args.samples)
        files = sorted(train.iterdir())
        for workers in (0, 2) if codec == "hdf5" and args.reference else ():
            theirs = f"reference, {workers} workers"
            ways[theirs] = reference(root / codec, args.reference, 2, workers)
            sizes[theirs] = first.stat().st_size
        pool = Pool(len(files), 1)
        for batch in (4, 1):
            loading = Loading(workers=2, prefetch=2, sample_dtype=args.sample_dtype)
            stored = None if codec == "hdf5" else codec
            rows, columns, channels = field.shape
            source = DeepCamSource(loading, (rows, columns, channels), hdf5.Statistics(low, high), stored)
            loader = Loader(
                RankSamples(files, files, pool, pool, 0), source, local_batch_size=batch, eval_batch_size=batch,
                steps=len(files) // batch, seed=1,
            )  # fmt: skip
            ways[f"{codec}, batch {batch}"] = lambda loader=loader: loader.train_epoch(0)  # type: ignore[misc]
            sizes[f"{codec}, batch {batch}"] = first.stat().st_size
    return ways, sizes


def links(first: Path, samples: int) -> None:
    for number in range(1, samples):
        os.link(first, first.with_name(first.name.replace("000000", f"{number:06d}")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("benchmark", choices=("cosmoflow", "deepcam"))
    parser.add_argument("sample", type=Path)
    parser.add_argument("--statistics", type=Path, help="of deepcam: the data set that the sample is of")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--sample-dtype", default="float32", help="of deepcam (default: %(default)s)")
    parser.add_argument("--formats", nargs="*", help="names as of --codec, or hdf5 (default: all)")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    from cosmoflow_input import rates

    with tempfile.TemporaryDirectory(prefix="codec-loaders-") as scratch:
        ways, sizes = (cosmoflow if args.benchmark == "cosmoflow" else deepcam)(args, Path(scratch))
        for way in ways.values():
            rates(way, args.samples, 0)
        rounds = []
        for turn in range(args.rounds):
            order = sorted(ways, reverse=bool(turn % 2))
            rounds.append({name: rates(ways[name], args.samples, 0.5) for name in order})
    theirs = [name for name in ways if name.startswith("reference")]
    print(
        "| format | MB | samples/s | per CPU second |"
        + "".join(f" × {name} |" for name in theirs)
        + " batch 4 / 1 |"
    )
    print("|---|---|---|---|" + "---|" * len(theirs) + "---|")
    for name in ways:
        rate, cpu = (statistics.median(r[name][clock] for r in rounds) for clock in range(2))
        ratios = [statistics.median(r[name][0] / r[other][0] for r in rounds) for other in theirs]
        other = name.replace("batch 1", "batch 4")
        single = statistics.median(r[other][0] / r[name][0] for r in rounds) if other != name else None
        print(
            f"| {name} | {sizes[name] / 1e6:.2f} | {rate:.1f} | {cpu:.1f} |"
            + "".join(f" {ratio:.1f} |" for ratio in ratios)
            + (f" {single:.2f} |" if single else " |")
        )


if __name__ == "__main__":
    main()
