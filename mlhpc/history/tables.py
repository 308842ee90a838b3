"""Records of a history as tables in the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from mlhpc.common.pages.blocks import number, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.quantities import count, digits, duration_text

Row = dict[str, Any]


def print_rows(rows: Sequence[Row], total: int, console: Console) -> None:
    """The rows, and how many of ``total`` are not shown."""
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
        say(console, f"the newest {len(rows)} of {count(total, 'record')}; all: --csv or --json")


def _unusual(status: str | None) -> str:
    return "" if status in (None, "success", "pass", "scored") else status
