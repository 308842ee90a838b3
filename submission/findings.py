"""Findings: what a rule has against a run, who says so, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Severity = Literal["error", "expected", "warning"]

_STYLES: dict[Severity, str] = {"error": "bold red", "expected": "cyan", "warning": "yellow"}


@dataclass(frozen=True)
class Finding:
    """What one rule has against a run.

    ``severity`` is ``error`` (no score), ``expected`` (an error of the official checker that this run could
    not avoid, with the reason in ``remedy``) or ``warning`` (worth a look). ``where`` is ``file:line``, or a
    file. ``source`` is ``mlhpc`` or the official checker with its ruleset.
    """

    rule: str
    severity: Severity
    where: str
    expected: str
    actual: str
    remedy: str
    source: str = "mlhpc"


def passes(findings: Sequence[Finding]) -> bool:
    """Whether nothing speaks against the run but what was expected."""
    return not any(f.severity == "error" for f in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """One line that sums the findings up."""
    count = {severity: sum(f.severity == severity for f in findings) for severity in _STYLES}
    warnings = f"; {_plural(count['warning'], 'warning')}" if count["warning"] else ""
    if count["error"]:
        return f"does not pass: {_plural(count['error'], 'finding')}{warnings}"
    if count["expected"]:
        return f"passes but for what was expected ({_plural(count['expected'], 'finding')}){warnings}"
    return f"passes{warnings}"


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
        for f in findings:
            head = Text.assemble(
                (f.severity, _STYLES[f.severity]), f" {f.rule}\n{f.where}\n", (f.source, "dim")
            )
            table.add_row(head, Text(f.expected), Text(f.actual), Text(f.remedy))
        console.print(table)
    good = passes(findings)
    console.print(Text(verdict(findings), style="bold green" if good else "bold red"), soft_wrap=True)
    return 0 if good else 1


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
