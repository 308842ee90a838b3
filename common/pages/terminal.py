"""Prints tables of pages, and sentences, to a terminal or a pipe."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from mlhpc.common.pages.blocks import Cell, Table
from mlhpc.common.pages.text import printable

_NARROW = 12
"""Width in characters to which a text column may be wrapped."""

_STYLES = {"error": "red", "warning": "yellow", "expected": "cyan", "good": "green"}
"""Styles by the tone of a cell."""


def say(console: Console, sentence: str | Text, style: str = "") -> None:
    """Prints a sentence: on a terminal wrapped to its width, otherwise in a single line, so that it can be
    searched and paths are not split. A ``str`` is printed without markup."""
    text = sentence if isinstance(sentence, Text) else Text(sentence, style)
    console.print(text, soft_wrap=not console.is_terminal)


def print_table(
    table: Table, console: Console, *, styles: dict[int, str] | None = None, optional: int = 0
) -> None:
    """Prints ``table`` without the small lines below its cells. Text is wrapped to the console's width,
    numbers are not: if they do not fit side by side, the last ``optional`` columns are omitted and named
    below; if that is not enough, each row is printed as lines of title and value. ``styles``: of rows, by
    their number."""
    numbers = [table.is_number(column) for column in range(len(table.head))]
    rows = [[_text(cell) for cell in row] for row in (*table.rows, *filter(None, [table.foot]))]
    least = []
    for title, number, *cells in zip(map(printable, table.head), numbers, *rows, strict=True):
        whole = [*title.split(), *(cell.plain for cell in cells)]
        words = [word for text in whole for word in text.split()]
        least.append(max(map(len, whole)) if number else min(max(map(len, words), default=1), _NARROW))
    # One space at either edge and, at least, between columns.
    while sum(least) + len(least) + 1 > console.width and optional:
        least, optional = least[:-1], optional - 1
    left_out = ", ".join(map(printable, table.head[len(least) :]))
    if sum(least) + len(least) + 1 > console.width:
        return _print_records(table.head, rows, console)
    wide = sum(least) + 2 * len(least) <= console.width
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(wide), 0, 0))
    for title, width, number in zip(table.head, least, numbers, strict=False):
        if number:
            grid.add_column(Text(printable(title)), justify="right", width=width)
        else:
            grid.add_column(Text(printable(title)), overflow="fold", min_width=width)
    for n, cells in enumerate(rows):
        if n == len(table.rows):
            grid.add_section()
        grid.add_row(*cells[: len(least)], style=(styles or {}).get(n))
    console.print(grid)
    if left_out:
        console.print(Text(f"not shown in {console.width} columns: {left_out}", "dim"))


def _print_records(head: Sequence[str], rows: Sequence[Sequence[Text]], console: Console) -> None:
    console.print()
    for first, *others in rows:
        console.print(Text.assemble((f"{printable(head[0])} ", "dim"), first))
        for title, text in zip(head[1:], others, strict=True):
            if text:
                console.print(Text.assemble((f"  {printable(title)}: ", "dim"), text))
    console.print()


def _text(cell: Cell) -> Text:
    bold, words = printable(cell.bold), printable(cell.text)
    return Text.assemble((bold, "bold"), " " * bool(bold), (words, _STYLES.get(cell.tone, "")))
