"""Commands on results: check, score, report, pack, unpack."""

import argparse
import shlex
from pathlib import Path

from mlhpc.commands.parser import (
    Commands,
    add_command,
    add_json,
    add_machine,
    add_results,
    add_ruleset,
    print_json,
)
from mlhpc.errors import UserError


def add(commands: Commands) -> None:
    check = add_command(commands, "check", _check, "check runs against the official rules and this suite's")
    add_results(check)
    add_json(check)
    score = add_command(commands, "score", _score, "compute MLPerf scores of result sets, and check them")
    add_results(score, nargs="?")
    score.add_argument(
        "--acceptance",
        type=Path,
        metavar="FILE",
        help="judge the results by this tender (TOML), or check an archive that --out wrote",
    )
    score.add_folder("--out", "with --acceptance: write the evidence as an archive")
    score.add_argument("--digest", metavar="SHA256", help="digest that the archive's manifest must have")
    add_json(score)
    report = add_command(commands, "report", _report, "break down the time of one run or of several")
    report.add_argument("path", type=Path, nargs="+", help="runs, folders of runs, logs, submission trees")
    report.add_out_file(".html", "the page to write (default: RUN/report.html for one run, none for several)")
    report.add_repeatable("--predict", "UNITS[:BATCH]", "predict a configuration that was not run")
    add_machine(report, "show the breakdown predicted for this machine next to that of the run")
    report.add_argument(
        "--what-if",
        metavar="FACTORS",
        help="recompute the time of one run, for example with storage=2x,compute=2x,ranks=4",
    )
    add_json(report)
    _add_pack(commands)
    unpack = add_command(commands, "unpack", _unpack, "unpack a packed submission, verifying checksums")
    unpack.add_argument("archive", type=Path)
    unpack.add_argument("out", type=Path)


def _add_pack(commands: Commands) -> None:
    pack = add_command(commands, "pack", _pack, "pack runs into the official submission tree, and check it")
    pack.add_argument("runs", type=Path, nargs="*", help="run folders, campaign folders, logs")
    pack.add_argument("--org", required=True, help="submitting organization")
    pack.add_argument(
        "--system",
        type=Path,
        required=True,
        help="system description, written by mlhpc doctor --system --out FILE",
    )
    pack.add_folder(
        "--out",
        "folder for the tree and its archive (default: results/submission)",
        default=Path("results/submission"),
    )
    add_ruleset(pack)
    pack.add_argument(
        "--weak", type=Path, nargs="+", default=[], metavar="RUN", help="instances for the throughput metric"
    )
    pack.add_argument(
        "--prune",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="instances to put into pruned_results",
    )
    pack.add_flag("--despite-errors", "pack despite errors")


def _check(options: argparse.Namespace) -> int:
    if options.json:
        from mlhpc.submission.check.content import check_content

        checked = check_content(options.path, options.ruleset)
        print_json("check", checked)
        return 0 if checked["passes"] else 1
    from rich.console import Console

    from mlhpc.submission.check.console import print_check

    return print_check(options.path, options.ruleset, Console())


def _score(options: argparse.Namespace) -> int:
    if options.acceptance:
        return _acceptance(options)
    if options.out or options.digest:
        raise UserError("--out and --digest require --acceptance; omit them, or add it")
    if options.path is None:
        raise UserError("no results named; pass a path")
    if options.json:
        from mlhpc.submission.check.content import score_content

        scored = score_content(options.path, options.ruleset)
        print_json("score", scored)
        return 0 if scored["passes"] else 1
    from rich.console import Console

    from mlhpc.submission.check.console import print_score

    return print_score(options.path, options.ruleset, Console())


def _acceptance(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.submission.acceptance import evidence
    from mlhpc.submission.acceptance.console import print_acceptance

    given, is_tender = options.acceptance, options.acceptance.suffix == ".toml"
    own = {"--digest": options.digest} if is_tender else {"PATH": options.path, "--out": options.out}
    if unused := [name for name, value in {"--ruleset": options.ruleset, **own}.items() if value]:
        raise UserError(f"--acceptance {given} cannot be combined with {unused[0]}")
    written: dict[str, str] = {}
    if not is_tender:
        accepted = evidence.verify(given, options.digest)
    elif options.out:
        accepted, archive, digest = evidence.write(given, options.path, options.out)
        written = {"archive": str(archive), "digest": digest}
    else:
        accepted = evidence.accept(given, options.path)
    if options.json:
        print_json("score", {**accepted.content, **written})
        return accepted.status
    print_acceptance(accepted, Console())
    if written:
        print(f"evidence: {archive}\ndigest of its manifest (send it separately): {digest}")
        print(f"to check: mlhpc score --acceptance {archive} --digest {digest}")
    elif not is_tender:
        unknown = "" if options.digest else "; the manifest's origin is not checked: pass --digest"
        print(f"checked: all checksums match, and the figures follow from the logs{unknown}")
    return accepted.status


def _report(options: argparse.Namespace) -> int:
    from mlhpc.common.pages import library

    if not options.json and (options.out or len(options.path) == 1):
        library.begin()  # in parallel with the imports, which take as long
    from rich.console import Console

    from mlhpc.perf.what_if import parse
    from mlhpc.submission.report.report import report_on

    configurations = [_configuration(text) for text in options.predict]
    change = parse(options.what_if) if options.what_if is not None else None
    if options.json:
        from mlhpc.observe.report_content import report_content

        if options.out or options.machine:
            raise UserError("--json cannot be combined with --out or --machine")
        print_json("report", report_content(options.path, configurations, change))
        return 0
    page = report_on(options.path, Console(), options.out, configurations, options.machine, change)
    print(page if page else "for a page with all figures and tables: --out FILE.html")
    return 0


def _configuration(text: str) -> tuple[int, int | None]:
    units, _, batch = text.partition(":")
    try:
        configuration = int(units), int(batch) if batch else None
    except ValueError:
        configuration = 0, None
    if configuration[0] < 1 or (configuration[1] is not None and configuration[1] < 1):
        raise UserError(f"--predict {text}: expected UNITS or UNITS:BATCH, such as 1024 or 1024:2048")
    return configuration


def _pack(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.submission.findings import print_findings
    from mlhpc.submission.pack.package import pack

    if not options.runs + options.weak:
        raise UserError("nothing to pack: pass folders of runs, campaigns or logs")
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
        checker = [
            "python",
            "-m",
            "mlperf_logging.package_checker",
            str(packed.tree),
            *packed.rules.split("_"),
        ]
        print(f"official check: {shlex.join(checker)}")
    else:
        print("nothing was written: fix the errors, or pass --despite-errors")
    return status


def _unpack(options: argparse.Namespace) -> int:
    from mlhpc.submission.pack.archive import unpack

    print(unpack(options.archive, options.out))
    return 0
