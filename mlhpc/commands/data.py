"""Commands for data sets: data make, convert, bench, index, verify, show."""

import argparse
import os
from importlib import import_module
from pathlib import Path

from mlhpc.commands.parser import Commands, Parser, add_benchmark, add_command, print_help
from mlhpc.errors import UserError, count, did_you_mean

BENCH_SIZES = {"deepcam": (32, 2), "resnet50": (512, 32)}
"""Samples and batch of ``data bench``, of those benchmarks that have loaders to compare."""


def add(commands: Commands) -> None:
    data = add_command(commands, "data", print_help, "make, convert, index, verify and show data sets")
    actions = data.add_subparsers(title="commands", metavar="", parser_class=Parser)
    make = add_command(actions, "make", _data_make, "make the data set of a preset in its official layout")
    add_benchmark(make)
    make.add_argument("--out", type=Path, help="where (default: data/BENCHMARK-PRESET)")
    make.add_argument(
        "--raw", action="store_true", help="write whole universes as HDF5, as before preparation"
    )
    make.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes of this rank"
    )
    convert = add_command(actions, "convert", _data_convert, "convert a data set to what is trained from")
    convert.add_argument(
        "benchmark",
        metavar="BENCHMARK",
        help="cosmoflow: raw HDF5 universes to TFRecord files; deepcam: HDF5 samples to .npy pairs; "
        "resnet50: folders of JPEG to one of three formats of few files",
    )
    convert.add_argument("source", type=Path)
    convert.add_argument("out", type=Path)
    convert.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    cosmoflow = convert.add_argument_group("cosmoflow")
    cosmoflow.add_argument("--sample", type=int, help="voxels along a side of a sample (default: 128)")
    cosmoflow.add_argument("--plain", action="store_true", help="no GZIP, as in round 0.7")
    cosmoflow.add_argument("--validation", type=float, help="share of universes held out (default: 1/9)")
    convert.add_argument_group("deepcam").add_argument(
        "--float16", action="store_true", help="fields normalised, in half the bytes: open division alone"
    )
    convert.add_argument_group("resnet50").add_argument(
        "--to", choices=("tfrecord", "lmdb", "raw"), help="TFRecord shards, LMDB, or decoded pixels"
    )
    bench = add_command(actions, "bench", _data_bench, "compare the loaders of a benchmark on a data set")
    bench.add_argument("benchmark", metavar="BENCHMARK", help=", ".join(BENCH_SIZES))
    bench.add_argument("data", type=Path)
    bench.add_argument(
        "--samples", type=int, help="training samples to read (default: deepcam 32, resnet50 512)"
    )
    bench.add_argument("--batch", type=int, help="samples of a batch (default: deepcam 2, resnet50 32)")
    bench.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    bench.add_argument("--rounds", type=int, default=3, help="turns of each loader (default: 3)")
    bench.add_argument("--evict", action="store_true", help="drop the data set from the page cache first")
    index = add_command(
        actions, "index", _data_index, "write the manifest of a data set: sizes and checksums"
    )
    index.add_argument("data", type=Path)
    index.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    verify = add_command(actions, "verify", _data_verify, "compare a data set with its manifest")
    verify.add_argument("data", type=Path)
    verify.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    show = add_command(actions, "show", _data_show, "draw a sample as a picture")
    show.add_argument("benchmark", metavar="BENCHMARK", help="cosmoflow, deepcam, resnet50")
    show.add_argument("sample", type=Path, help="a file; resnet50: the data set, many of its images")
    show.add_argument("--out", type=Path, default=Path("sample.png"))


def _data_make(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load
    from mlhpc.common.ranks import launch
    from mlhpc.run import BACKENDS

    run = load.load(options.benchmark, options.preset, options.set)
    if options.raw and options.benchmark != "cosmoflow":
        raise UserError(f"--raw is for cosmoflow: the data set of {options.benchmark} has no raw form")
    more = {"raw": True} if options.raw else {}
    out = options.out or Path("data") / f"{options.benchmark}-{options.preset}"
    simulate = import_module(f"mlhpc.{options.benchmark}.synthetic.simulate")
    with launch.joined(BACKENDS[options.benchmark]) as world:
        simulate.make(run.data, out, world, options.workers, **more)
    return 0


def _data_convert(options: argparse.Namespace) -> int:
    from mlhpc.common.ranks import launch
    from mlhpc.run import BACKENDS

    if options.benchmark not in BACKENDS:
        raise UserError(f"no benchmark {options.benchmark!r}; {did_you_mean(options.benchmark, BACKENDS)}")
    asked = {name: getattr(options, name) for name in ("sample", "plain", "validation", "float16", "to")}
    for name, value in asked.items():
        owner = {"float16": "deepcam", "to": "resnet50"}.get(name, "cosmoflow")
        if value not in (None, False) and options.benchmark != owner:
            raise UserError(f"--{name} is for {owner}")
    with launch.joined(BACKENDS[options.benchmark]) as world:
        if options.benchmark == "deepcam":
            from mlhpc.deepcam.data.convert import convert as convert_deepcam

            convert_deepcam(options.source, options.out, options.float16, world, options.workers)
            return 0
        if options.benchmark == "resnet50":
            from mlhpc.resnet50.data.convert import convert as convert_resnet50

            if options.to is None:
                raise UserError("data convert resnet50: give --to tfrecord, lmdb or raw")
            convert_resnet50(options.source, options.out, options.to, world, options.workers)
            return 0
        from mlhpc.cosmoflow.data.convert import convert

        convert(
            options.source,
            options.out,
            sample=128 if options.sample is None else options.sample,
            gzip=not options.plain,
            validation_fraction=1 / 9 if options.validation is None else options.validation,
            world=world,
            workers=options.workers,
        )
    return 0


def _data_bench(options: argparse.Namespace) -> int:
    from rich.console import Console

    if options.benchmark not in BENCH_SIZES:
        raise UserError(
            f"no loaders to compare for {options.benchmark!r}; data bench is for {' and '.join(BENCH_SIZES)}"
        )
    samples, batch = BENCH_SIZES[options.benchmark]
    given = {
        "samples": samples if options.samples is None else options.samples,
        "batch": batch if options.batch is None else options.batch,
        "workers": options.workers,
        "rounds": options.rounds,
    }
    for name, value in given.items():
        if value < 1:
            raise UserError(f"--{name} {value}: give 1 or more")
    module = import_module(f"mlhpc.{options.benchmark}.data.bench")
    same = module.bench(options.data, **given, evict=options.evict, console=Console())
    return 0 if same else 1


def _data_index(options: argparse.Namespace) -> int:
    from mlhpc.common.data import manifest
    from mlhpc.common.ranks import launch

    known = manifest.load(options.data).facts if (options.data / manifest.NAME).exists() else {}
    # What was counted when it was made may be otherwise now: that is why one indexes again.
    known = {key: value for key, value in known.items() if key not in ("samples", "staged")}
    with launch.joined("horovod") as world:
        found = manifest.index(options.data, known, world, options.workers)
        if world.rank == 0:
            print(f"{options.data}: {count(len(found.files), 'file')} indexed")
    return 0


def _data_verify(options: argparse.Namespace) -> int:
    from mlhpc.common.data import manifest

    problems = manifest.verify(options.data, options.workers)
    for problem in problems:
        print(problem)
    print(f"{options.data}: {count(len(problems), 'problem') if problems else 'no problems'}")
    return 1 if problems else 0


def _data_show(options: argparse.Namespace) -> int:
    from mlhpc.run import BACKENDS

    if options.benchmark not in BACKENDS:
        raise UserError(f"no benchmark {options.benchmark!r}; {did_you_mean(options.benchmark, BACKENDS)}")
    import_module(f"mlhpc.{options.benchmark}.synthetic.show").show(options.sample, options.out)
    print(options.out)
    return 0
