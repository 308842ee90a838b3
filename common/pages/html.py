"""Pages as data: sections of figures, tables and facts, rendered by Jinja2 templates that escape all text.

A package that has something to show builds ``Section`` objects and calls ``render`` with a template that extends
``page.html``. The result is one self-contained file: styles, scripts (vega, vega-lite, vega-embed) and data
inside, nothing fetched. Its content security policy allows only the two scripts written here, by their hashes.
"""

import base64
import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, ClassVar
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mlhpc import __version__
from mlhpc.common.pages import charts
from mlhpc.common.pages.charts import Figure
from mlhpc.common.pages.text import printable


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, small lines below it, and the value that downloads carry (default: the text).
    ``swatch``: the part of a run whose colour is shown before the text. ``tone``: error, warning or expected."""

    text: str = ""
    notes: tuple[str, ...] = ()
    value: Any = None
    swatch: str = ""
    tone: str = ""
    bold: str = ""

    @property
    def raw(self) -> Any:
        raw = " ".join(filter(None, (self.bold, self.text))) if self.value is None else self.value
        if isinstance(raw, float) and not math.isfinite(raw):
            return None
        return raw if isinstance(raw, int | float) else printable(raw)


@dataclass(frozen=True)
class Table:
    """Rows under a header. ``name`` is the base name of saved CSV and JSON files; the first ``text_columns``
    columns hold text, the others numbers. ``prose``: columns that hold sentences."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: tuple[Cell, ...] = ()
    text_columns: int = 1
    prose: tuple[int, ...] = ()
    style: str = ""
    kind: ClassVar[str] = "table"

    @property
    def records(self) -> list[dict[str, Any]]:
        head = [printable(title) for title in self.head]
        return [dict(zip(head, (cell.raw for cell in row), strict=True)) for row in self.rows]

    @property
    def json_link(self) -> Markup:
        return Markup("data:application/json;charset=utf-8,") + quote(json.dumps(self.records, indent=1))

    @property
    def csv_link(self) -> Markup:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow([_spreadsheet(printable(title)) for title in self.head])
        writer.writerows([_spreadsheet(cell.raw) for cell in row] for row in self.rows)
        return Markup("data:text/csv;charset=utf-8,") + quote(text.getvalue())


def _spreadsheet(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front (CWE-1236)."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


@dataclass(frozen=True)
class Facts:
    """Names and values, two columns."""

    items: Mapping[str, str]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Banner:
    """A sentence that must not be overlooked. ``tone``: empty, bad or good."""

    text: str
    strong: str = ""
    tone: str = ""
    kind: ClassVar[str] = "banner"


@dataclass(frozen=True)
class Grid:
    """Figures side by side, ``columns`` per row on a wide screen."""

    figures: tuple[Figure, ...]
    columns: int = 2
    kind: ClassVar[str] = "grid"


@dataclass(frozen=True)
class Legend:
    """Names beside their marks: (number of the series or -1 for a reference, letter, text, filled or hollow)."""

    entries: tuple[tuple[int, str, str, bool], ...]
    kind: ClassVar[str] = "legend"

    def sign(self, series: int, filled: bool) -> str:
        """The character that looks like the marker of a series; -1: a reference."""
        return ("●■▲◆▼✚" if filled else "○□△◇▽✢")[max(series, 0) % 6]


@dataclass(frozen=True)
class Details:
    """Blocks that are collapsed on the screen, and shown in print."""

    summary: str
    blocks: tuple[Any, ...]
    open: bool = False
    kind: ClassVar[str] = "details"


@dataclass(frozen=True)
class Section:
    """A titled card of a page. ``half``: two of them side by side on a wide screen."""

    title: str
    about: str = ""
    blocks: tuple[Any, ...] = ()
    half: bool = False
    kind: ClassVar[str] = "section"


@dataclass(frozen=True)
class Chapter:
    """Sections under a large heading."""

    title: str
    blocks: tuple[Any, ...]
    kind: ClassVar[str] = "chapter"


def render(package: str, template: str, *, title: str, blocks: Sequence[Any], foot: str, **data: Any) -> str:
    """The whole HTML text of ``templates/<template>`` of ``package``, which extends ``page.html``.

    ``blocks``: ``Section`` and ``Chapter`` objects; None entries are skipped. ``data``: more variables of
    the template.
    """
    shown = [block for block in blocks if block is not None]
    with_charts = any(_figures(shown))
    scripts = (_library(), _own_script()) if with_charts else ()
    return (
        _environment(package)
        .get_template(template)
        .render(
            page_title=title,
            blocks=shown,
            contents=_contents(shown),
            foot=foot,
            version=__version__,
            style=Markup(_style()),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(scripts),
            dark=charts.DARK,
            **data,
        )
    )


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("mlhpc.common.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["slug"] = _slug
    return environment


def _finalize(value: Any) -> Any:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _contents(blocks: Sequence[Any]) -> list[tuple[str, str, int]]:
    """(title, anchor, depth) of chapters and sections; empty if there are few."""
    entries = []
    for block in blocks:
        entries.append((block.title, _slug(block.title), 0))
        if block.kind == "chapter":
            prefix = _slug(block.title)
            sections = (part for part in block.blocks if part is not None and part.kind == "section")
            entries += [(part.title, f"{prefix}-{_slug(part.title)}", 1) for part in sections]
    return entries if len(entries) > 3 else []


def _figures(blocks: Sequence[Any]) -> Iterator[Figure]:
    for block in blocks:
        if block is None:
            continue
        if block.kind == "figure":
            yield block
        yield from getattr(block, "figures", ())
        yield from _figures(getattr(block, "blocks", ()))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@cache
def _resource(name: str) -> str:
    return resources.files("mlhpc.common.pages").joinpath("templates", name).read_text("utf-8")


def _style() -> str:
    """The style sheet, with the palette of the charts as its variables."""
    names = {"ink": charts.INK, "soft": charts.SOFT, "line": charts.LINE, "card": charts.CARD}
    names |= {"accent": charts.ACCENT, "bad": charts.BAD}
    names |= {key: pair for key, pair in charts.PARTS.items()}
    names |= {f"c{n}": pair for n, pair in enumerate(charts.SERIES)}
    light, dark = (" ".join(f"--{name}: {pair[n]};" for name, pair in names.items()) for n in (0, 1))
    return _resource("page.css").replace("/*LIGHT*/", light).replace("/*DARK*/", dark)


@cache
def _library() -> str:
    """vega, vega-lite and vega-embed as one script, from vl-convert."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _own_script() -> str:
    return _resource("page.js")


def _policy(scripts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
