"""The content of pages as data: sections of figures, tables and facts. ``html.render`` renders a page."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union
from urllib.parse import quote

from markupsafe import Markup

from mlhpc.common.pages.text import printable

if TYPE_CHECKING:  # a table in a terminal needs no charts, whose library takes half a second to import
    from mlhpc.common.pages.charts import Figure

Item = TypeVar("Item")
_ESCAPED = {ord(c): quote(c) for c in "%#'&<>\r\n\t"}
"""Characters that HTML and URLs do not allow between single quotes. All others stay unescaped to save space, since
a page may contain thousands of rows."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, small lines below it, and its value in downloads (default: the text), to
    twelve digits. ``swatch``: the part of a run whose colour is shown before the text. ``tone``: error,
    warning or expected. ``link``: the target of a link on the text, relative to the page."""

    text: str = ""
    notes: tuple[str, ...] = ()
    value: Any = None
    swatch: str = ""
    tone: str = ""
    bold: str = ""
    link: str = ""

    @property
    def raw(self) -> Any:
        """The cell's value in downloads."""
        raw = " ".join(filter(None, (self.bold, self.text))) if self.value is None else self.value
        if isinstance(raw, float):
            return float(f"{raw:.12g}") if math.isfinite(raw) else None
        return raw if isinstance(raw, int | float) else printable(raw)


@dataclass(frozen=True)
class Table:
    """A table: rows under a header. ``name``: base name of saved CSV and JSON files. The first ``text_columns``
    columns contain text, the others numbers. ``prose``: the columns that contain sentences."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: tuple[Cell, ...] = ()
    text_columns: int = 1
    prose: tuple[int, ...] = ()
    style: str = ""
    kind: ClassVar[str] = "table"

    @property
    def empty(self) -> bool:
        """Whether the table has no rows."""
        return not self.rows

    def is_number(self, column: int) -> bool:
        """Return whether a column contains numbers, which are aligned to the right."""
        return column >= self.text_columns and column not in self.prose

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows, each as a dictionary with the column titles as keys."""
        head = [printable(title) for title in self.head]
        return [dict(zip(head, (cell.raw for cell in row), strict=True)) for row in self.rows]

    @property
    def json_link(self) -> Markup:
        """A link that saves the table as a JSON file."""
        lines = ",\n".join(
            json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in self.records
        )
        return _link("application/json", f"[{lines}]\n")

    @property
    def csv_link(self) -> Markup:
        """A link that saves the table as a CSV file."""
        head = [printable(title) for title in self.head]
        return _link("text/csv", csv_text(head, ([cell.raw for cell in row] for row in self.rows)))


Columns = Mapping[str, Callable[[Item], Cell | str]]
"""Titles of columns, each with a function from an item to a cell or a text."""


def table(name: str, items: Iterable[Item], columns: Columns[Item], **layout: Any) -> Table:
    """A table with one row for each of ``items``. ``layout``: other fields of ``Table``."""

    def cell(shown: Cell | str) -> Cell:
        return Cell(shown) if isinstance(shown, str) else shown

    rows = tuple(tuple(cell(show(item)) for show in columns.values()) for item in items)
    return Table(name, tuple(columns), rows, **layout)


def number(value: float | None, write: Callable[[float], str], *notes: str, none: str = "") -> Cell:
    """A cell with ``value``, formatted by ``write``. For None, the cell has the text ``none`` and no value."""
    return Cell(none, value="") if value is None else Cell(write(value), notes, value)


def _link(kind: str, text: str) -> Markup:
    """The target of a link that saves ``text`` as a file."""
    return Markup(f"data:{kind};charset=utf-8,") + Markup(text.translate(_ESCAPED))


def csv_text(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table as CSV; text that a spreadsheet would interpret as a formula has a leading apostrophe."""
    text = io.StringIO()
    csv.writer(text).writerows(map(_spreadsheet, row) for row in (head, *rows))
    return text.getvalue()


def _spreadsheet(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


@dataclass(frozen=True)
class Facts:
    """Names and values in two columns; values that are None are left out."""

    items: Mapping[str, Any]
    kind: ClassVar[str] = "facts"

    @property
    def empty(self) -> bool:
        """Whether all values are None."""
        return all(value is None for value in self.items.values())


@dataclass(frozen=True)
class Banner:
    """A prominent sentence. ``tone``: empty or bad."""

    text: str
    strong: str = ""
    tone: str = ""
    kind: ClassVar[str] = "banner"


@dataclass(frozen=True)
class Grid:
    """Figures side by side, ``columns`` per row on a wide screen."""

    figures: "Sequence[Figure]"
    columns: int = 2
    kind: ClassVar[str] = "grid"

    @property
    def empty(self) -> bool:
        """Whether the grid has no figures."""
        return not self.figures


@dataclass(frozen=True)
class Legend:
    """Marks with their names. Each entry is (number of the series, or -1 for a reference; letter; text; whether
    the mark is filled)."""

    entries: tuple[tuple[int, str, str, bool], ...]
    kind: ClassVar[str] = "legend"

    def sign(self, series: int, filled: bool) -> str:
        """The character that resembles the marker of a series (-1: the marker of a reference)."""
        return ("●■▲◆▼✚" if filled else "○□△◇▽✢")[max(series, 0) % 6]


@dataclass(frozen=True)
class Details:
    """Blocks that are collapsed on the screen and shown in print."""

    summary: str
    blocks: tuple[Any, ...]
    open: bool = False
    kind: ClassVar[str] = "details"


@dataclass(frozen=True)
class Section:
    """A titled card of a page."""

    title: str
    about: str = ""
    blocks: tuple[Any, ...] = ()
    kind: ClassVar[str] = "section"


Block = Union[Table, Facts, Banner, Grid, Legend, Details, "Figure"]
