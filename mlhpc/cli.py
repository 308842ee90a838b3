"""The command line. Each command imports what it needs when it runs, so that ``--help`` is quick."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from mlhpc import __version__
from mlhpc.common.errors import UserError, did_you_mean

INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C
BENCH_SIZES = {"deepcam": (32, 2), "resnet50": (512, 32)}
"""Samples and batch of ``data bench``, of those benchmarks that have loaders to compare."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see: {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            what = action.dest if action.option_strings else "command"
            raise UserError(f"no {what} {value!r}; {did_you_mean(str(value), map(str, action.choices))}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 the result is bad news (target missed, findings),
    2 the user has something to mend."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    try:
        parser = _parser()
        options, unknown = parser.parse_known_args([word for word in argv if word != "--debug"])
        if unknown:
            flags = [flag for action in options.parser._actions for flag in action.option_strings]
            hint = (
                f"; {did_you_mean(unknown[0].partition('=')[0], flags)}" if unknown[0].startswith("-") else ""
            )
            raise UserError(f"unknown argument {unknown[0]!r}{hint}")
        options.argv = argv
        status: int = options.command(options)
        return status
    except UserError as error:
        if debug:
            raise
        print(f"mlhpc: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mlhpc: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mlhpc",
        description="Training benchmarks for HPC systems: time to train, data staging included.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mlhpc {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(parser=parser, command=_help)
    commands = parser.add_subparsers(title="commands", metavar="", parser_class=_Parser)

    def command(name: str, run: object, summary: str, within: object = commands) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = within.add_parser(  # type: ignore[attr-defined]
            name, help=summary, description=summary, allow_abbrev=False
        )
        made.set_defaults(command=run, parser=made)
        return made

    run = command("run", _run, "train a benchmark to its target, staging included")
    _add_benchmark(run)
    run.add_argument("--data", type=Path, help="the data set (default: data/BENCHMARK-PRESET)")
    run.add_argument("--stage", type=Path, help="node-local folder to copy the data set to, inside the clock")
    run.add_argument(
        "--out", type=Path, help="folder for the results (default: results/BENCHMARK-PRESET-NUMBER)"
    )
    run.add_argument("--ranks", type=int, default=0, help="start so many ranks on this machine")
    run.add_argument("--seed", type=int, help="default: drawn anew for every run, and logged")
    run.add_argument(
        "--evict", action="store_true", help="drop the data set from the page cache before the run"
    )
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on from the checkpoint of another run")

    campaign = command("campaign", _campaign, "make the runs that one score is made from")
    _add_benchmark(campaign)
    campaign.add_argument("--data", type=Path, help="the data set (default: data/BENCHMARK-PRESET)")
    campaign.add_argument("--stage", type=Path, help="as for run; runs at the same time share it")
    campaign.add_argument(
        "--out", type=Path, help="folder for the runs (default: results/BENCHMARK-PRESET-campaign)"
    )
    campaign.add_argument("--ranks", type=int, default=0, help="ranks of each run")
    campaign.add_argument("--runs", type=int, help="how many in all (default: what a score needs)")
    campaign.add_argument(
        "--instances", type=int, default=1, help="how many at the same time: throughput, not time to solution"
    )
    campaign.add_argument("--number", type=int, help="make only this run: for the tasks of a job array")

    study = command("study", _study, "measure throughput under varied settings, several runs each")
    _add_benchmark(study)
    study.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="batch (local), ranks, data (folders), storage (shared,staged), or a setting; all combinations",
    )
    study.add_argument("--data", type=Path, help="the data set (default: data/BENCHMARK-PRESET)")
    study.add_argument(
        "--stage", type=Path, help="node-local folder to copy the data set to, before the steps"
    )
    study.add_argument(
        "--out", type=Path, help="folder of the study, which grows (default: results/BENCHMARK-PRESET-study)"
    )
    study.add_argument("--repeats", type=int, default=5, help="runs of each combination (default: 5)")
    study.add_argument("--steps", type=int, default=20, help="steps that are measured (default: 20)")
    study.add_argument("--warmup", type=int, default=5, help="steps before them (default: 5)")
    study.add_argument("--number", type=int, help="make only this run: for the tasks of a job array")

    data = command("data", _help, "make, convert, index, verify and show data sets")
    actions = data.add_subparsers(title="commands", metavar="", parser_class=_Parser)
    make = command("make", _data_make, "make the data set of a preset in its official layout", actions)
    _add_benchmark(make)
    make.add_argument("--out", type=Path, help="where (default: data/BENCHMARK-PRESET)")
    make.add_argument(
        "--raw", action="store_true", help="write whole universes as HDF5, as before preparation"
    )
    make.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes of this rank"
    )
    convert = command("convert", _data_convert, "convert a data set to what is trained from", actions)
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
    bench = command("bench", _data_bench, "compare the loaders of a benchmark on a data set", actions)
    bench.add_argument("benchmark", metavar="BENCHMARK", help=", ".join(BENCH_SIZES))
    bench.add_argument("data", type=Path)
    bench.add_argument(
        "--samples", type=int, help="training samples to read (default: deepcam 32, resnet50 512)"
    )
    bench.add_argument("--batch", type=int, help="samples of a batch (default: deepcam 2, resnet50 32)")
    bench.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    bench.add_argument("--rounds", type=int, default=3, help="turns of each loader (default: 3)")
    bench.add_argument("--evict", action="store_true", help="drop the data set from the page cache first")
    index = command("index", _data_index, "write the manifest of a data set: sizes and checksums", actions)
    index.add_argument("data", type=Path)
    index.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    verify = command("verify", _data_verify, "compare a data set with its manifest", actions)
    verify.add_argument("data", type=Path)
    verify.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    show = command("show", _data_show, "draw a sample as a picture", actions)
    show.add_argument("benchmark", metavar="BENCHMARK", help="cosmoflow, deepcam, resnet50")
    show.add_argument("sample", type=Path, help="a file; resnet50: the data set, many of its images")
    show.add_argument("--out", type=Path, default=Path("sample.png"))

    rules = command("rules", _rules, "show the rules of the closed division, or hold a preset to them")
    rules.add_argument("benchmark", metavar="BENCHMARK", nargs="?")
    rules.add_argument("--ruleset", help="1.0.0, 2.0.0 or 3.0.0 (default: the newest that times staging)")
    rules.add_argument("--preset", help="say what speaks against a run of this preset")
    rules.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting")
    rules.add_argument("--data", type=Path, help="the data set of the run")
    rules.add_argument("--stage", type=Path, help="where it would be staged")
    check = command("check", _check, "have runs checked: the official checkers, and our own findings")
    _add_results(check)
    score = command("score", _score, "score sets of runs as MLPerf does, with the verdict of their check")
    _add_results(score)
    report = command("report", _report, "tell where the time went: of one run, or of many side by side")
    report.add_argument(
        "path", type=Path, nargs="+", help="a run, a folder of runs, a log or a submission tree"
    )
    report.add_argument(
        "--out", type=Path, metavar="FILE", help="default: RUN/report.html of one run, else comparison.html"
    )
    report.add_argument(
        "--predict", action="append", default=[], metavar="UNITS[:BATCH]", help="a configuration not run"
    )
    doctor = command("doctor", _doctor, "check this machine before a run, or describe it for a submission")
    doctor.add_argument("benchmark", metavar="BENCHMARK", nargs="?", help="start its backend too")
    doctor.add_argument("--data", type=Path, help="the data set of the run to come")
    doctor.add_argument("--stage", type=Path, help="where it would be staged (default: $TMPDIR, /tmp)")
    doctor.add_argument("--out", type=Path, help="the folder for results; with --system, the file to write")
    doctor.add_argument("--ranks", type=int, default=0, help="start so many ranks on this machine")
    doctor.add_argument("--system", action="store_true", help="the official system description, as JSON")
    doctor.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of --system"
    )
    pack = command("pack", _pack, "pack runs into the official tree of a submission, and check it")
    pack.add_argument("runs", type=Path, nargs="*", help="folders of runs, campaigns, logs")
    pack.add_argument("--org", required=True, help="who submits")
    pack.add_argument("--system", type=Path, required=True, help="from mlhpc doctor --system --out FILE")
    pack.add_argument(
        "--out", type=Path, default=Path("results/submission"), help="default: results/submission"
    )
    pack.add_argument("--ruleset", default="2.0.0", choices=("1.0.0", "2.0.0", "3.0.0"))
    pack.add_argument(
        "--weak", type=Path, nargs="+", default=[], metavar="RUN", help="throughput's instances"
    )
    pack.add_argument("--prune", type=Path, nargs="+", default=[], metavar="RUN", help="instances left out")
    pack.add_argument("--despite-errors", action="store_true", help="pack what would not be accepted")
    unpack = command("unpack", _unpack, "unpack such an archive, every file held against its checksum")
    unpack.add_argument("archive", type=Path)
    unpack.add_argument("out", type=Path)
    presets = command("presets", _presets, "list the presets of a benchmark, or show one resolved")
    presets.add_argument("benchmark", metavar="BENCHMARK")
    presets.add_argument("preset", nargs="?")
    return parser


def _add_benchmark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", metavar="BENCHMARK", help="cosmoflow, deepcam, resnet50")
    parser.add_argument("--preset", default="smoke", help="a named size (mlhpc presets BENCHMARK)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting")


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="a run, a log, a folder of runs, or a submission tree")
    parser.add_argument(
        "--ruleset",
        default="2.0.0",
        choices=("1.0.0", "2.0.0", "3.0.0"),
        help="of HPC (default: 2.0.0, the last that times staging); ResNet-50 has its own, training 4.0.0",
    )


def _help(options: argparse.Namespace) -> int:
    options.parser.print_help()
    return 0


def _run(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load, rules
    from mlhpc.common.ranks.local import run_local

    run = load.load(options.benchmark, options.preset, options.set)
    rules.hold(rules.Known(run, resumed=options.resume is not None))
    if options.ranks < 0:
        raise UserError(f"--ranks {options.ranks}: give a number of ranks of 1 or more")
    if options.ranks > 1 and "MLHPC_RANK" not in os.environ:
        return run_local(options.ranks, [sys.executable, "-m", "mlhpc", *options.argv])
    from mlhpc.run import Places, execute

    places = Places(
        data=options.data or Path("data") / f"{options.benchmark}-{options.preset}",
        stage=options.stage,
        out=options.out,
        resume=options.resume,
    )
    return execute(run, places, options.seed, options.evict)


def _campaign(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.benchmarks import load, rules
    from mlhpc.campaign import make
    from mlhpc.campaign_record import Campaign

    run = load.load(options.benchmark, options.preset, options.set)
    words = ["--preset", options.preset]
    for setting in options.set:
        words += ["--set", setting]
    runs = max(rules.runs_needed(options.benchmark), options.instances)
    campaign = Campaign(
        run,
        tuple(words),
        data=options.data or Path("data") / f"{options.benchmark}-{options.preset}",
        stage=options.stage,
        out=options.out or Path("results") / f"{options.benchmark}-{options.preset}-campaign",
        runs=runs if options.runs is None else options.runs,
        instances=options.instances,
        ranks=options.ranks,
    )
    return make(campaign, options.number, Console())


def _study(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.study import Sweep, make, parse_axes

    sweep = Sweep(
        options.benchmark,
        options.preset,
        tuple(options.set),
        parse_axes(options.vary),
        data=options.data or Path("data") / f"{options.benchmark}-{options.preset}",
        stage=options.stage,
        out=options.out or Path("results") / f"{options.benchmark}-{options.preset}-study",
        repeats=options.repeats,
        warmup_steps=options.warmup,
        steps=options.steps,
    )
    return make(sweep, options.number, Console())


def _data_make(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load
    from mlhpc.common.ranks import launch
    from mlhpc.run import BACKENDS

    run = load.load(options.benchmark, options.preset, options.set)
    if options.raw and options.benchmark != "cosmoflow":
        raise UserError(f"--raw is for cosmoflow: the data set of {options.benchmark} has no raw form")
    more = {"raw": True} if options.raw else {}
    out = options.out or Path("data") / f"{options.benchmark}-{options.preset}"
    simulate = import_module(f"mlhpc.{options.benchmark}.simulate")
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
            from mlhpc.deepcam.convert import convert as convert_deepcam

            convert_deepcam(options.source, options.out, options.float16, world, options.workers)
            return 0
        if options.benchmark == "resnet50":
            from mlhpc.resnet50.convert import convert as convert_resnet50

            if options.to is None:
                raise UserError("data convert resnet50: give --to tfrecord, lmdb or raw")
            convert_resnet50(options.source, options.out, options.to, world, options.workers)
            return 0
        from mlhpc.cosmoflow.convert import convert

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
    module = import_module(f"mlhpc.{options.benchmark}.bench")
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
            print(f"{options.data}: {len(found.files)} files indexed")
    return 0


def _data_verify(options: argparse.Namespace) -> int:
    from mlhpc.common.data import manifest

    problems = manifest.verify(options.data, options.workers)
    for problem in problems:
        print(problem)
    print(f"{options.data}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


def _data_show(options: argparse.Namespace) -> int:
    from mlhpc.run import BACKENDS

    if options.benchmark not in BACKENDS:
        raise UserError(f"no benchmark {options.benchmark!r}; {did_you_mean(options.benchmark, BACKENDS)}")
    import_module(f"mlhpc.{options.benchmark}.show").show(options.sample, options.out)
    print(options.out)
    return 0


def _rules(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.rules import against, document, print_rules

    if options.benchmark is None:
        print(document(), end="")
        return 0
    if options.preset is None:
        print_rules(options.benchmark, options.ruleset, Console())
        return 0
    return against(
        options.benchmark,
        options.preset,
        options.set,
        ruleset=options.ruleset,
        data=options.data,
        stage=options.stage,
        console=Console(),
    )


def _check(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.submission.console import print_check

    return print_check(options.path, options.ruleset, Console())


def _score(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.submission.console import print_score

    return print_score(options.path, options.ruleset, Console())


def _report(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.submission.report import report_on

    asked = [_configuration(text) for text in options.predict]
    print(report_on(options.path, Console(), options.out, asked))
    return 0


def _configuration(text: str) -> tuple[int, int | None]:
    units, _, batch = text.partition(":")
    try:
        asked = int(units), int(batch) if batch else None
    except ValueError:
        asked = 0, None
    if asked[0] < 1 or (asked[1] is not None and asked[1] < 1):
        raise UserError(f"--predict {text}: say UNITS or UNITS:BATCH, as 1024 or 1024:2048")
    return asked


def _doctor(options: argparse.Namespace) -> int:
    from mlhpc.common.ranks.local import run_local

    if options.ranks < 0:
        raise UserError(f"--ranks {options.ranks}: give a number of ranks of 1 or more")
    if options.ranks > 1 and "MLHPC_RANK" not in os.environ:
        return run_local(options.ranks, [sys.executable, "-m", "mlhpc", *options.argv])
    from rich.console import Console

    from mlhpc.doctor.command import describe_system, doctor
    from mlhpc.doctor.node import Folders

    if options.system:
        return describe_system(options.set, options.out, Console(stderr=True))
    if options.set:
        raise UserError("--set is for the system description: add --system")
    folders = Folders(options.data, options.stage, options.out)
    return doctor(options.benchmark, folders, Console())


def _pack(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.submission.findings import print_findings
    from mlhpc.submission.package import pack

    if not options.runs + options.weak:
        raise UserError("nothing to pack: give folders of runs, campaigns or logs")
    packed = pack(
        options.runs,
        org=options.org,
        system_file=options.system,
        out=options.out,
        ruleset=options.ruleset,
        weak=options.weak,
        prune=options.prune,
        despite_errors=options.despite_errors,
    )
    status = print_findings(packed.findings, Console())
    print(*packed.sets, sep="\n")
    if packed.archive:
        print(packed.tree, packed.archive, sep="\n")
    else:
        print("nothing was written: mend the errors, or pack with --despite-errors what will not be accepted")
    return status


def _unpack(options: argparse.Namespace) -> int:
    from mlhpc.submission.package import unpack

    print(unpack(options.archive, options.out))
    return 0


def _presets(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load

    if options.preset:
        print(load.dumps(load.load(options.benchmark, options.preset)), end="")
    else:
        presets = load.presets(options.benchmark)
        width = max(map(len, presets))
        for name, description in presets.items():
            print(f"{name:{width}}  {description}")
    return 0
