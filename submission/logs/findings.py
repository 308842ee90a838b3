"""Findings: what a rule has against a run, who says so, and what to do about it."""

from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.errors import count

__all__ = ["STYLES", "Finding", "Severity", "grouped", "passes", "print_findings", "verdict"]

STYLES: dict[Severity, str] = {"error": "bold red", "expected": "cyan", "warning": "yellow"}


def passes(findings: Sequence[Finding]) -> bool:
    """Whether nothing speaks against the run but what was expected."""
    return not any(f.severity == "error" for f in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """One line that sums the findings up."""
    found = {severity: sum(f.severity == severity for f in findings) for severity in STYLES}
    warnings = f"; {count(found['warning'], 'warning')}" if found["warning"] else ""
    if found["error"]:
        return f"does not pass: {count(found['error'], 'finding')}{warnings}"
    if found["expected"]:
        return f"passes but for what was expected ({count(found['expected'], 'finding')}){warnings}"
    return f"passes{warnings}"


def grouped(findings: Sequence[Finding]) -> list[Finding]:
    """What is the same but for its place and what was found there, told once: of a hundred logs that lack one
    key, one finding. The order is that of the first of each."""
    groups: dict[Finding, list[Finding]] = {}
    for f in findings:
        groups.setdefault(replace(f, where="", actual=""), []).append(f)
    return [
        replace(key, where=_some([f.where for f in same], ", "), actual=_some([f.actual for f in same], "; "))
        for key, same in groups.items()
    ]


def _some(texts: Sequence[str], between: str, shown: int = 3) -> str:
    """The first few of the different ones."""
    different = list(dict.fromkeys(texts))
    more = len(different) - shown
    return between.join(different[:shown]) + (f" and {more} more" if more > 0 else "")


def print_findings(findings: Sequence[Finding], console: Console) -> int:
    """Prints the findings as a table, and the verdict as the last line.

    Returns the exit status of ``mlhpc check``: 0 when the run passes, 1 when anything unexpected was found.
    """
    if findings:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=True)
        table.add_column("finding", overflow="fold")
        table.add_column("expected", overflow="fold")
        table.add_column("found", overflow="fold")
        table.add_column("what to do", overflow="fold", ratio=1)
        # Text, not markup: a log's values may hold square brackets.
        for f in grouped(findings):
            head = Text.assemble(
                (f.severity, STYLES[f.severity]), f" {f.rule}\n{f.where}\n", (f.source, "dim")
            )
            table.add_row(head, Text(f.expected), Text(f.actual), Text(f.remedy))
        console.print(table)
    good = passes(findings)
    console.print(Text(verdict(findings), style="bold green" if good else "bold red"), soft_wrap=True)
    return 0 if good else 1
