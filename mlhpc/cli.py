"""The command line. Each command imports what it needs when it runs, so that ``--help`` is quick."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mlhpc import __version__
from mlhpc.common.errors import UserError, did_you_mean

INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


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
    convert = command("convert", _data_convert, "prepare raw HDF5 universes as TFRecord files", actions)
    convert.add_argument("benchmark", metavar="BENCHMARK")
    convert.add_argument("source", type=Path)
    convert.add_argument("out", type=Path)
    convert.add_argument("--sample", type=int, default=128, help="voxels along a side of a sample")
    convert.add_argument("--plain", action="store_true", help="no GZIP, as in round 0.7")
    convert.add_argument("--validation", type=float, default=1 / 9, help="share of the universes held out")
    convert.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    index = command("index", _data_index, "write the manifest of a data set: sizes and checksums", actions)
    index.add_argument("data", type=Path)
    index.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    verify = command("verify", _data_verify, "compare a data set with its manifest", actions)
    verify.add_argument("data", type=Path)
    verify.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    show = command("show", _data_show, "draw one sample as a picture", actions)
    show.add_argument("sample", type=Path)
    show.add_argument("--out", type=Path, default=Path("sample.png"))

    check = command("check", _check, "have a run checked: the official checkers, and our own findings")
    check.add_argument("path", type=Path, help="the folder of a run, or a log file")
    check.add_argument("--ruleset", default="2.0.0", choices=("1.0.0", "2.0.0", "3.0.0"))
    report = command("report", _report, "print where the time went, and write report.html")
    report.add_argument("path", type=Path, help="the folder of a run")
    presets = command("presets", _presets, "list the presets of a benchmark, or show one resolved")
    presets.add_argument("benchmark", metavar="BENCHMARK")
    presets.add_argument("preset", nargs="?")
    return parser


def _add_benchmark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", metavar="BENCHMARK", help="cosmoflow")
    parser.add_argument("--preset", default="smoke", help="a named size (mlhpc presets BENCHMARK)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting")


def _help(options: argparse.Namespace) -> int:
    options.parser.print_help()
    return 0


def _run(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load
    from mlhpc.common.ranks.local import run_local

    run = load.load(options.benchmark, options.preset, options.set)
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


def _data_make(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load
    from mlhpc.common.ranks import launch
    from mlhpc.cosmoflow import simulate

    run = load.load(options.benchmark, options.preset, options.set)
    out = options.out or Path("data") / f"{options.benchmark}-{options.preset}"
    with launch.joined("horovod") as world:
        simulate.make(run.data, out, world, options.workers, raw=options.raw)
    return 0


def _data_convert(options: argparse.Namespace) -> int:
    from mlhpc.common.ranks import launch
    from mlhpc.cosmoflow.convert import convert

    with launch.joined("horovod") as world:
        convert(
            options.source,
            options.out,
            sample=options.sample,
            gzip=not options.plain,
            validation_fraction=options.validation,
            world=world,
            workers=options.workers,
        )
    return 0


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
    from mlhpc.cosmoflow.show import show

    show(options.sample, options.out)
    print(options.out)
    return 0


def _check(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.submission.check import check, print_findings

    findings = check(options.path, options.ruleset)
    return print_findings(findings, Console())


def _report(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.submission.report import report

    print(report(options.path, Console()))
    return 0


def _presets(options: argparse.Namespace) -> int:
    from mlhpc.benchmarks import load

    if options.preset:
        print(load.dumps(load.load(options.benchmark, options.preset)), end="")
    else:
        for name, description in load.presets(options.benchmark).items():
            print(f"{name:8} {description}")
    return 0
