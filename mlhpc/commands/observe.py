"""Commands that inspect runs (watch, diff, trace, export), and shell completion."""

import argparse
from pathlib import Path

from mlhpc.commands.parser import Commands, add_command, add_json, print_json, quantity
from mlhpc.errors import UserError, install

DAY_S = 86_400.0


def add(commands: Commands) -> None:
    watch = add_command(commands, "watch", _watch, "show the progress of a run, on this machine or another")
    watch.add_argument("run", type=Path, metavar="RUN", help="the --out folder of the run")
    watch.add_argument(
        "--interval",
        type=quantity,
        default=2.0,
        metavar="SECONDS",
        help="seconds between updates (default: 2)",
    )
    watch.add_flag("--once", "print the current state and exit")
    watch.add_flag("--json", "with --once: print JSON (docs/reference/json.md)")
    diff = add_command(
        commands,
        "diff",
        _diff,
        "show differences between two runs in settings, environment, data and machine",
    )
    diff.add_argument("first", type=Path, metavar="A", help="the --out folder of a run")
    diff.add_argument("second", type=Path, metavar="B", help="the --out folder of another run")
    add_json(diff)
    trace = add_command(commands, "trace", _trace, "write the spans of all ranks as a trace for Perfetto")
    trace.add_argument("run", type=Path, metavar="RUN", help="the --out folder of the run")
    trace.add_out_file(".json", "the trace", required=True)
    export = add_command(commands, "export", _export, "export a run's metrics for other tools")
    export.add_argument("run", type=Path, metavar="RUN", help="the --out folder of the run")
    export.add_argument("--to", required=True, choices=("csv", "tensorboard", "mlflow"), help="the tool")
    export.add_folder("--out", "a new folder", required=True)
    completion = add_command(commands, "completion", _completion, "print the completion script for a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh, fish")


def _watch(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from rich.console import Console

    from mlhpc.observe.watch import exit_status, progress_of, watch

    if options.json and not options.once:
        raise UserError("--json requires --once")
    if options.json:
        now = progress_of(options.run)
        print_json("watch", asdict(now))
        return exit_status(now)
    return watch(options.run, min(options.interval, DAY_S), Console(), once=options.once)


def _diff(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.record.differences import differences, print_differences

    differing = differences(options.first, options.second)
    if options.json:
        rows = [row._asdict() for row in differing]
        print_json("diff", {"a": str(options.first), "b": str(options.second), "differences": rows})
    else:
        print_differences(differing, Console())
    return 1 if differing else 0


def _trace(options: argparse.Namespace) -> int:
    from mlhpc.observe.trace import write_trace

    print(write_trace(options.run, options.out))
    return 0


def _export(options: argparse.Namespace) -> int:
    from mlhpc.observe.export import export

    print(export(options.run, options.to, options.out))
    return 0


def _completion(options: argparse.Namespace) -> int:
    from importlib.util import find_spec

    if find_spec("shtab") is None:
        raise UserError(f"completion needs the package shtab: {install('completion')}")
    import shtab

    print(shtab.complete(options.root, shell=options.shell))
    return 0
