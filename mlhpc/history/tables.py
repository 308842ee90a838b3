"""Prints the records of a history as tables in the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from mlhpc.common.pages.blocks import Cell, Columns, number, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.history.gate import Gate, Ratio, Test
from mlhpc.history.rows import BY_KIND
from mlhpc.quantities import count, digits, duration_text

Row = dict[str, Any]


def print_rows(rows: Sequence[Row], total: int, console: Console) -> None:
    """Print the rows as a table, and how many of ``total`` rows are not shown."""
    if not rows:
        say(console, "no records")
        return
    columns = {
        "name": lambda row: row["name"][:12],
        "date": lambda row: (row["when"] or "not known")[:10],
        "kind": lambda row: ", ".join(filter(None, (row["kind"], _unusual(row["status"])))),
        "benchmark": lambda row: " ".join(filter(None, (row["benchmark"], row["preset"]))),
        "system": lambda row: row["system"] or "",
        "time to train": lambda row: number(row["time_to_train_s"], duration_text),
        "epochs": lambda row: number(row["epochs"], digits),
        "s/epoch": lambda row: number(row["epoch_s"], digits),
    }
    print_table(table("history", rows, columns, text_columns=5), console)
    if total > len(rows):
        say(console, f"only the newest {len(rows)} of {count(total, 'record')}; --csv or --json lists all")


def _unusual(status: str | None) -> str:
    return "" if status in (None, "success", "pass", "scored") else status


_TONES = {"slower": "error", "undecided": "warning"}


def print_gate(gate: Gate, console: Console) -> None:
    """Print the tests of a gate, the part that changed most, other differences, and the verdict."""
    columns: Columns[Test] = {
        "figure": lambda test: " ".join(filter(None, (test.node, test.metric, _noted(test)))),
        "baseline": lambda test: _mean(test.baseline),
        "new": lambda test: _mean(test.new),
        "worse by": lambda test: ratio_text(test.ratio),
        "allowed": lambda test: f"{test.tolerance:.1%}",
        "verdict": lambda test: Cell(test.verdict, tone=_TONES.get(test.verdict, "")),
    }
    print_table(table("gate", gate.tests, columns, prose=(3, 5)), console)
    for line in gate_lines(gate):
        say(console, line)


def _noted(test: Test) -> str:
    note = test.when[:10] if test.counts else "shown"
    return f"({note})" if note else ""


def gate_lines(gate: Gate) -> list[str]:
    """Sentences on the part of a run that changed most, the further runs needed, other differences, and the
    verdict."""
    lines = []
    if gate.moved and (total := sum(change for _, change in gate.moved)):
        part, change = gate.moved[0]
        lines.append(f"moved most: {part.replace('_', ' ')}, {change:+.3g} s of {total:+.3g} s per run")
    for test in gate.tests:
        if test.counts and not test.node and test.verdict == "undecided":
            lines.append(f"{test.metric}: {_needed(test)}")
    lines += [f"differs: {mark}" for mark in gate.marks]
    words = {0: "passed", 1: "slower than allowed", 3: "undecided"}
    return [*lines, f"gate: {words[gate.status]}"]


def _needed(test: Test) -> str:
    if test.metric in BY_KIND and not test.new and not test.baseline:
        return "no kind of counter measured all of these runs (runs that missed the target have no joules)"
    if not test.new or not test.baseline:
        which = "run of the baseline" if test.new else "new run"
        return f"no {which} has this figure (runs that missed the target have none)"
    if test.further is None:
        return "undecided for any number of new runs: the baseline has too few runs, or the deviation is too large"
    return f"about {count(test.further, 'further new run')} would decide, if they resemble these"


def ratio_text(ratio: Ratio | None) -> str:
    """A ratio and its interval as text: ``+3.1% (+1.0% to +5.2%)``."""
    if ratio is None:
        return "not known"
    middle, low, high = (value - 1 for value in ratio)
    return f"{middle:+.1%} ({low:+.1%} to {high:+.1%})" if high < 1e6 else f"{middle:+.1%}, no interval"


def _mean(values: Sequence[float]) -> Cell:
    mean = sum(values) / len(values) if values else None
    return number(mean, digits, f"of {count(len(values), 'run')}", none="none")
