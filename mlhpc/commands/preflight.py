"""Commands before a run: presets, rules, doctor."""

import argparse
import os
import sys
from pathlib import Path

from mlhpc.commands.parser import Commands, add_command, folder
from mlhpc.errors import UserError


def add(commands: Commands) -> None:
    presets = add_command(
        commands, "presets", _presets, "list the presets of a benchmark, or show one resolved"
    )
    presets.add_argument("benchmark", metavar="BENCHMARK")
    presets.add_argument("preset", nargs="?")
    rules = add_command(
        commands, "rules", _rules, "show the rules of the closed division, or check a preset against them"
    )
    rules.add_argument("benchmark", metavar="BENCHMARK", nargs="?")
    rules.add_argument("--ruleset", help="1.0.0, 2.0.0 or 3.0.0 (default: the newest that times staging)")
    rules.add_argument("--preset", help="list rule violations of this preset")
    rules.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting")
    rules.add_argument("--data", type=Path, help="the data set of the run")
    rules.add_argument("--stage", type=Path, help="where it would be staged")
    doctor = add_command(
        commands, "doctor", _doctor, "check this machine before a run, or describe it for a submission"
    )
    doctor.add_argument("benchmark", metavar="BENCHMARK", nargs="?", help="also start its framework")
    doctor.add_argument("--data", type=folder, help="the data set of the planned run")
    doctor.add_argument("--stage", type=folder, help="where it is staged (default: $TMPDIR, /tmp)")
    doctor.add_argument("--out", type=folder, help="folder for results; or the file to write")
    doctor.add_argument("--ranks", type=int, default=0, help="number of local ranks")
    doctor.add_argument("--site", metavar="NAME", help="write a first run_scripts/sites/NAME.sh")
    doctor.add_argument(
        "--calibrate", action="store_true", help="measure this machine into a machine file, --out FILE.toml"
    )
    doctor.add_argument("--system", action="store_true", help="the official system description, as JSON")
    doctor.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of --system"
    )


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


def _rules(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.rules import document, print_rules, print_violations

    if options.benchmark is None:
        print(document(), end="")
        return 0
    if options.preset is None:
        print_rules(options.benchmark, options.ruleset, Console())
        return 0
    return print_violations(
        options.benchmark,
        options.preset,
        options.set,
        ruleset=options.ruleset,
        data=options.data,
        stage=options.stage,
        console=Console(),
    )


def _doctor(options: argparse.Namespace) -> int:
    from mlhpc.common.ranks.local import run_local

    if options.ranks < 0:
        raise UserError(f"--ranks {options.ranks}: give 1 or more")
    if options.ranks > 1 and "MLHPC_RANK" not in os.environ:
        return run_local(options.ranks, [sys.executable, "-m", "mlhpc", *options.argv])
    from rich.console import Console

    from mlhpc.doctor.command import describe_system, doctor
    from mlhpc.doctor.node import Folders

    if options.site is not None:
        from mlhpc.doctor.site import write_site

        return write_site(options.site, options.out, Console(stderr=True))
    if options.calibrate:
        from mlhpc.doctor.calibrate import calibrate

        return calibrate(options.out, options.stage, Console(stderr=True))
    if options.system:
        return describe_system(options.set, options.out, Console(stderr=True))
    if options.set:
        raise UserError("--set is for the system description: add --system")
    folders = Folders(options.data, options.stage, options.out)
    return doctor(options.benchmark, folders, Console())
