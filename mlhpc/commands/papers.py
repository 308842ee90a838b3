"""The command ``mlhpc papers``, which compares figures of the papers with this suite's values."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlhpc.commands.parser import Commands, add_command, add_json, print_json
from mlhpc.errors import UserError

if TYPE_CHECKING:
    from mlhpc.papers.registry import Figure

LOGS, OUT = Path("data/hpc_results_v0.7"), Path("results/papers")


def add(commands: Commands) -> None:
    papers = add_command(
        commands, "papers", _papers, "compare figures of five papers with this suite's values"
    )
    papers.add_argument("paper", metavar="PAPER", nargs="?", help="such as architectural-requirements")
    papers.add_argument("label", metavar="LABEL", nargs="?", help='run this figure, such as "Figure 5"')
    papers.add_flag("--all", "run all figures that need neither an accelerator nor a cluster")
    papers.add_folder("--logs", f"a clone of hpc_results_v0.7 (default: {LOGS})", default=LOGS)
    papers.add_folder("--out", f"folder for values and pages (default: {OUT})", default=OUT)
    add_json(papers)


def _papers(options: argparse.Namespace) -> int:
    from rich.console import Console

    from mlhpc.common.pages.terminal import print_table, say
    from mlhpc.papers import page
    from mlhpc.papers.registry import figures_of
    from mlhpc.papers.run import stored
    from mlhpc.papers.verdict import judge, record

    if options.all and options.label:
        raise UserError(f"--all runs every figure; omit it, or {options.label!r}")
    figures, failed = figures_of(options.paper, options.label), 0
    if options.all or options.label:
        failed = _run(options, [figure for figure in figures if options.label or not figure.needs])
    known = stored(options.out)
    rows = [(figure, known.get(figure.name)) for figure in figures]
    console = Console()
    if options.json:
        print_json("papers", {"figures": [record(figure, measured) for figure, measured in rows]})
    elif options.label:
        (figure, measured), verdict = rows[0], judge(*rows[0])
        for content, optional in ((page.comparison(figure, measured), 2), (page.tests(figure, measured), 1)):
            if not content.empty:
                print_table(content, console, optional=optional)
        if figure.full:
            say(console, f"at the paper's size: {figure.full}")
        say(console, f"{verdict.word}: {verdict.details}" if verdict.details else verdict.word, "bold")
    else:
        print_table(page.listing(rows), console)
        say(console, page.summary(rows))
    return 1 if failed else 0


def _run(options: argparse.Namespace, figures: "Sequence[Figure]") -> int:
    """Run ``figures`` and write their pages. With several figures, print a line for each that fails, and return
    the number of failures. A single figure that fails raises UserError."""
    from mlhpc.common.host.progress import progress
    from mlhpc.common.pages.html import write
    from mlhpc.common.ranks.local import signals_as_ctrl_c
    from mlhpc.papers.page import page
    from mlhpc.papers.run import Runner

    runner, failed = Runner(options.out, options.logs), 0
    commands = sum(len(figure.run) for figure in figures)
    with signals_as_ctrl_c(), progress(commands, "papers", "commands") as advance:
        for figure in figures:
            try:
                measured = runner.measure(figure, advance)
            except UserError as error:
                if options.label:
                    raise
                sys.stderr.write(f"mlhpc: {figure.command}: {error}\n")
                failed += 1
                continue
            path = options.out / f"{figure.name}.html"
            write(path, page(figure, measured))
            if not options.json:
                sys.stderr.write(f"page: {path}\n")
    return failed
