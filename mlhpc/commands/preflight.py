"""Commands before a run: list, scripts, presets, rules, doctor."""

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from mlhpc.commands.parser import (
    NAMES,
    Commands,
    add_command,
    add_hyperparameters_from,
    add_json,
    add_set,
    print_json,
)
from mlhpc.errors import UserError


def add(commands: Commands) -> None:
    listing = add_command(
        commands, "list", _list, "list benchmarks, presets, installed frameworks, codecs, sites and machines"
    )
    add_json(listing)
    scripts = add_command(commands, "scripts", _scripts, "copy batch scripts, site files and documentation")
    scripts.add_folder("--out", "a new folder", required=True)
    presets = add_command(commands, "presets", _presets, "list presets, or show all settings of one")
    presets.add_argument("benchmark", metavar="BENCHMARK", nargs="?", help=f"{NAMES} (default: all)")
    presets.add_argument("preset", metavar="PRESET", nargs="?", help="show all settings of this preset")
    presets.add_flag("--explain", "add meaning, unit, source and closed-division bounds")
    presets.add_flag("--json", "print JSON (docs/reference/json.md)")
    rules = add_command(commands, "rules", _rules, "show closed-division rules, or check a preset")
    rules.add_argument("benchmark", metavar="BENCHMARK", nargs="?")
    rules.add_argument("--ruleset", help="1.0.0, 2.0.0 or 3.0.0 (default: the newest that times staging)")
    rules.add_argument("--preset", help="list this preset's rule violations")
    rules.add_argument(
        "--config", type=Path, metavar="FILE", help="list violations of this config.toml or tuned preset"
    )
    add_set(rules)
    add_hyperparameters_from(rules)
    rules.add_argument("--data", type=Path, help="the data set of the run")
    rules.add_argument("--stage", type=Path, help="the folder to stage the data set to")
    add_json(rules)
    doctor = add_command(commands, "doctor", _doctor, "check or describe this machine")
    doctor.add_argument(
        "benchmark", metavar="BENCHMARK", nargs="?", help="also start this benchmark's framework"
    )
    doctor.add_folder("--data", "the data set of the planned run")
    doctor.add_folder("--stage", "the folder to stage the data set to (default: $TMPDIR, /tmp)")
    doctor.add_folder(
        "--out",
        "the folder for results; the file to write for --site (.sh), --calibrate (.toml) and --system (.json)",
        metavar="DIR|FILE",
    )
    doctor.add_count("--ranks", "number of local ranks", default=0)
    add_json(doctor)
    doctor.add_argument(
        "--site", metavar="NAME", help="write this machine's site file, run_scripts/sites/NAME.sh"
    )
    doctor.add_flag("--calibrate", "measure this machine and write a machine file, --out FILE.toml")
    doctor.add_flag("--system", "write the official system description, as JSON")
    doctor.add_repeatable("--set", "FIELD=VALUE", "set a field of the system description")


def _list(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.preview import listing

    if options.json:
        print_json("list", listing.content())
    else:
        listing.print_list(Console())
    return 0


def _scripts(options: argparse.Namespace) -> int:
    from mlhpc.preview.scripts import copy_scripts

    print(copy_scripts(options.out))
    return 0


def _presets(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.benchmarks import load
    from mlhpc.common.pages.terminal import say
    from mlhpc.preview import presets

    if options.explain and not options.preset:
        raise UserError("--explain requires a preset: mlhpc presets BENCHMARK PRESET --explain")
    if options.json:
        print_json("presets", presets.as_json(options.benchmark, options.preset))
    elif options.explain:
        presets.print_settings(options.benchmark, options.preset, Console())
    elif options.preset:
        say(Console(), load.dumps(load.load(options.benchmark, options.preset)).rstrip())
    else:
        presets.print_presets(options.benchmark, Console())
    return 0


def _rules(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.rules import document, print_rules, print_violations, violations

    if options.json:
        return _rules_json(options)
    if options.benchmark is None:
        print(document(), end="")
        return 0
    if options.preset is None and options.config is None:
        print_rules(options.benchmark, options.ruleset, Console())
        return 0
    name = f"{options.benchmark} {options.config or options.preset}"
    return print_violations(violations(options), name, Console())


def _rules_json(options: argparse.Namespace) -> int:
    from mlhpc.rules import rules_content, violations
    from mlhpc.submission.check.content import findings_content
    from mlhpc.submission.findings import passes, verdict

    if options.benchmark is None:
        raise UserError("--json requires a benchmark: mlhpc rules BENCHMARK --json")
    if options.preset is None and options.config is None:
        print_json("rules", rules_content(options.benchmark, options.ruleset))
        return 0
    found = violations(options)
    content = {"benchmark": options.benchmark, "preset": options.preset, "applies": found is not None}
    listed = found or []
    verdicts = {"passes": passes(listed), "verdict": verdict(listed), "findings": findings_content(listed)}
    print_json("rules", {**content, **verdicts})
    return 0 if passes(listed) else 1


def _doctor(options: argparse.Namespace) -> int:
    from mlhpc.common.host.binding import asked, cores_of_ranks
    from mlhpc.common.ranks.local import program, run_local

    if options.ranks > 1 and "MLHPC_RANK" not in os.environ:
        try:
            cores = cores_of_ranks(asked(None), options.ranks)
        except UserError:
            cores = ()  # the ranks report this as a failed check
        return run_local(options.ranks, program(options.argv), cores=cores)
    from rich.console import Console

    from mlhpc.doctor.command import describe_system, doctor, examine_all
    from mlhpc.doctor.node import Folders

    suffix = ".sh" if options.site else ".toml" if options.calibrate else ".json" if options.system else ""
    if suffix and options.out and options.out.suffix != suffix:
        raise UserError(f"--out {options.out} must end in {suffix}")
    if options.site is not None:
        from mlhpc.doctor.site import write_site

        return write_site(options.site, options.out, Console(stderr=True))
    if options.calibrate:
        from mlhpc.doctor.calibrate import calibrate

        return calibrate(options.out, options.stage, Console(stderr=True))
    if options.system:
        return describe_system(options.set, options.out, Console(stderr=True))
    if options.set:
        raise UserError("--set sets fields of the system description; add --system")
    folders = Folders(options.data, options.stage, options.out)
    if not options.json:
        return doctor(options.benchmark, folders, Console())
    ready, results = examine_all(options.benchmark, folders)
    if results is not None:  # only on rank 0
        print_json("doctor", {"ready": ready, "checks": [asdict(result) for result in results]})
    return 0 if ready else 1
