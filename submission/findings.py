"""Verdicts on findings, and the output of findings as text and tables."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.common.files.untrusted import printable
from mlhpc.common.pages.blocks import Cell, Table, table
from mlhpc.common.pages.terminal import print_texts, say
from mlhpc.errors import few
from mlhpc.quantities import count

STYLES: dict[Severity, str] = {"error": "bold red", "expected": "cyan", "warning": "yellow"}


def passes(findings: Sequence[Finding]) -> bool:
    """Return whether ``findings`` contains no errors other than expected ones."""
    return not any(f.severity == "error" for f in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """The verdict in one line, with the numbers of findings as merged by ``print_findings``."""
    findings = grouped(findings)
    number = {severity: sum(f.severity == severity for f in findings) for severity in STYLES}
    warnings = f"; {count(number['warning'], 'warning')}" if number["warning"] else ""
    if number["error"]:
        return f"does not pass: {count(number['error'], 'error')}{warnings}"
    if number["expected"]:
        return f"passes ({count(number['expected'], 'expected finding')}){warnings}"
    return f"passes{warnings}"


def grouped(findings: Sequence[Finding]) -> list[Finding]:
    """Merge findings that differ only in place and value, so that a hundred logs without a key yield a single
    finding. The order is that of the first occurrences."""
    groups: dict[Finding, list[Finding]] = {}
    for f in findings:
        groups.setdefault(replace(f, where="", actual=""), []).append(f)
    return [
        replace(
            key,
            where=_distinct([f.where for f in same], ", "),
            actual=_distinct([f.actual for f in same], "; "),
        )
        for key, same in groups.items()
    ]


def _distinct(texts: Sequence[str], between: str) -> str:
    return few(list(dict.fromkeys(texts)), 3, between)


def print_findings(findings: Sequence[Finding], console: Console) -> int:
    """Print the findings as a table, and the verdict as the last line.

    Returns the exit status of ``mlhpc check``: 0 if the run passes, 1 if there are unexpected findings.
    """
    if findings:
        rows = []
        # As printable text, not markup: values and file names may contain brackets and escape sequences.
        for f in grouped(findings):
            rule, where = printable(f.rule), printable(f.where)
            head = Text.assemble((f.severity, STYLES[f.severity]), f" {rule}\n{where}\n", (f.source, "dim"))
            cells = (f.expected, f.actual, f.remedy)
            rows.append([head, *(Text(printable(cell, keep="\n")) for cell in cells)])
        print_texts(("finding", "expected", "found", "what to do"), rows, console)
    good = passes(findings)
    say(console, Text(verdict(findings), style="bold green" if good else "bold red"))
    return 0 if good else 1


def findings_table(findings: Sequence[tuple[str, Finding]]) -> Table:
    """A table of findings, from pairs of the path of a set (or an empty path) and a finding."""

    def finding(path: str, f: Finding) -> Cell:
        return Cell(f.rule, (f.where, path or f.source), tone=f.severity, bold=f.severity)

    return table(
        "findings",
        findings,
        {
            "finding": lambda row: finding(*row),
            "expected": lambda row: row[1].expected,
            "found": lambda row: row[1].actual,
            "what to do": lambda row: row[1].remedy,
        },
        text_columns=4,
        style="findings",
    )


def allowed_value(field: str, actual: str, allowed: Sequence[str]) -> tuple[str, str]:
    """Text for a finding on a field that must have one of the ``allowed`` values: the expected values, and the
    remedy for the ``actual`` value."""
    letters = re.sub("[^a-z]", "", actual.lower())
    folded = {re.sub("[^a-z]", "", each.lower()): each for each in allowed}
    within = [each for each in folded if letters and letters in each]
    near = within or difflib.get_close_matches(letters, folded, n=1, cutoff=0.3)
    remedy = f"write {folded[near[0]]!r}" if near else "write one of these"
    return f"{field}: {' | '.join(allowed)}", remedy + ", exactly so"
