"""Prints tables of pages, and sentences, to a terminal or a pipe."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from mlhpc.common.pages.blocks import Cell, Table
from mlhpc.common.pages.text import printable

_NARROW = 12
"""Minimum width, in characters, to which a text column may be folded if its longest word does not fit."""

_STYLES = {"error": "red", "warning": "yellow", "expected": "cyan", "good": "green"}
"""Style for each tone of a cell."""


def say(console: Console, sentence: str | Text, style: str = "") -> None:
    """Print a sentence: wrapped to the width of a terminal, but otherwise in a single line, so that it can be
    searched and paths are not split. A ``str`` is printed without markup."""
    text = sentence if isinstance(sentence, Text) else Text(sentence, style)
    console.print(text, soft_wrap=not console.is_terminal)


def print_facts(facts: Iterable[tuple[str | Text, str | Text]], console: Console) -> None:
    """Print names and values in two columns, folding what does not fit. A ``str`` is printed without markup."""
    grid = Grid.grid(padding=(0, 2))
    for _ in range(2):
        grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in (name, value)))
    console.print(grid)


def print_table(
    table: Table, console: Console, *, styles: dict[int, str] | None = None, optional: int = 0
) -> None:
    """Print ``table`` without the small lines below its cells. Text is folded to the console's width, within a
    word only if the word does not fit. Numbers are never folded: if the columns do not fit side by side, the last
    ``optional`` columns are left out and named below; if that does not suffice, each row is printed as lines of a
    title and a value. ``styles``: styles of rows, by row number."""
    rows = [[_text(cell) for cell in row] for row in (*table.rows, *filter(None, [table.foot]))]
    columns = [_Column(table.head, rows, n, number=table.is_number(n)) for n in range(len(table.head))]
    while _edges(columns) + sum(column.least for column in columns) > console.width and optional:
        columns, optional = columns[:-1], optional - 1
    left_out = ", ".join(map(printable, table.head[len(columns) :]))
    if _edges(columns) + sum(column.least for column in columns) > console.width:
        return _print_records(table.head, rows, console)
    grid = _grid(columns, console.width)
    for n, cells in enumerate(rows):
        if n == len(table.rows):
            grid.add_section()
        grid.add_row(*cells[: len(columns)], style=(styles or {}).get(n))
    console.print(grid)
    if left_out:
        console.print(Text(f"not shown in {console.width} columns: {left_out}", "dim"))


def print_texts(head: Sequence[str], rows: Sequence[Sequence[Text]], console: Console) -> None:
    """Print texts of one or more lines in columns if no word has to be broken; otherwise print each row as lines
    of a title and a value."""
    columns = [_Column(head, rows, n, number=False) for n in range(len(head))]
    if _edges(columns) + sum(column.longest for column in columns) > console.width:
        return _print_records(head, rows, console)
    grid = _grid(columns, console.width)
    grid.show_lines = True
    for cells in rows:
        grid.add_row(*cells)
    console.print(grid)


class _Column:
    """A column's widths in characters: ``natural``: with each text in one line; ``longest``: without breaking a
    word; ``least``: the minimum."""

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[Text]], n: int, *, number: bool) -> None:
        self.title, self.number = printable(head[n]), number
        cells = [line for row in rows for line in row[n].plain.splitlines()]
        words = [word for text in (self.title, *cells) for word in text.split()]
        self.natural = max(map(len, (self.title, *cells)))
        self.longest = max(map(len, [*self.title.split(), *cells] if number else words), default=1)
        self.least = self.longest if number else min(self.longest, _NARROW)


def _edges(columns: Sequence[_Column]) -> int:
    """Number of blanks needed: one at each edge and one between adjacent columns."""
    return len(columns) + 1


def _grid(columns: Sequence[_Column], most: int) -> Grid:
    """An empty grid at most ``most`` characters wide. Columns get room for their longest words, columns with short
    words first, so that keys are kept whole before paths are. The remaining room goes to whichever column is
    folded into the most lines."""
    widths = [column.least for column in columns]
    spare = most - _edges(columns) - sum(widths)
    for n in sorted(range(len(columns)), key=lambda n: columns[n].longest):
        grown = min(columns[n].longest - widths[n], spare)
        widths[n] += grown
        spare -= grown
    wide = spare >= len(columns) - 1  # two blanks between columns
    for _ in range(spare - (len(columns) - 1) * wide):
        folded = max(range(len(columns)), key=lambda n: columns[n].natural / widths[n])
        widths[folded] += columns[folded].natural > widths[folded]
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(wide), 0, 0))
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(
            Text(column.title), justify="right" if column.number else "left", overflow="fold", width=width
        )
    return grid


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
