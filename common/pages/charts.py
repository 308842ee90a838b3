"""The style of all charts: palette, theme, and the conversion of Vega-Altair charts to figures of a page.

Charts use the colours of the light theme. The page draws it in the browser, with hover, legend
toggling and saving as SVG or PNG, and swaps each colour for its dark counterpart if the reader's system is
dark. Without scripts and in print it shows a static SVG.

All series colours differ for readers with deuteranopia, protanopia and tritanopia (simulated after Machado,
Oliveira and Fernandes 2009, severity 1; compared in OKLab), which tests/unit/common/pages/test_charts.py checks;
markers and dashes differ as well.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import altair as alt

from mlhpc.common.pages.text import printable

# (light, dark)
INK = ("#16191d", "#e9ecef")
SOFT = ("#586069", "#a2abb5")
LINE = ("#dfe3e8", "#303741")
CARD = ("#ffffff", "#191d23")
ACCENT = ("#0067a3", "#63b4ea")
BAD = ("#b02a12", "#ff8e73")
SERIES = (
    ("#115ac2", "#4a8fff"),
    ("#c1440f", "#dc6d2c"),
    ("#14b5a9", "#51ceb6"),
    ("#754168", "#a55999"),
    ("#e18e14", "#ffdb42"),
    ("#39232d", "#ecfff6"),
)
PARTS = {
    "staging": ("#d02e0c", "#df861d"),
    "exchange": ("#3d2414", "#c14610"),
    "first_epoch_excess": ("#dbc0f0", "#ca93f0"),
    "data_wait": ("#f1b009", "#f3d031"),
    "step": ("#0d4595", "#5066ea"),
    "training": ("#0d4595", "#5066ea"),
    "evaluation": ("#53ac98", "#75ecce"),
    "rest": ("#666f7c", "#8c6684"),
}
# Text on a part of a bar. Each pair has a unique light colour, by which the page finds the dark one.
_WHITE, _BLACK = ("#fefefe", "#fefefd"), ("#111417", "#111418")
_WHITE_THEN_BLACK = ("#fdfdfd", "#111417")
TEXT_ON = {
    "staging": _WHITE_THEN_BLACK,
    "exchange": _WHITE,
    "first_epoch_excess": _BLACK,
    "data_wait": _BLACK,
    "step": _WHITE,
    "training": _WHITE,
    "evaluation": _BLACK,
    "rest": _WHITE,
}
DARK = dict([INK, SOFT, LINE, CARD, ACCENT, BAD, *SERIES, *PARTS.values(), *TEXT_ON.values()])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (4, 2), (10, 4))

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif'
STATIC_WIDTH = 350
ALT_TEXT = 20_000
"""In characters: a few hundred for each of the maximum number of bars on a page."""
_AXIS = {
    "labelColor": SOFT[0],
    "titleColor": INK[0],
    "gridColor": LINE[0],
    "domain": False,
    "ticks": False,
    "labelPadding": 6,
    "titlePadding": 8,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "labelOverlap": "greedy",
    "labelSeparation": 6,
}
THEME = {
    "background": None,
    "font": FONT,
    "axis": _AXIS,
    "axisX": {"grid": False},
    "view": {"stroke": None},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": INK[0],
        "labelFontSize": 12,
        "labelLimit": 400,
        "symbolSize": 120,
        "padding": 0,
        "offset": 12,
        "columnPadding": 14,
    },
    # Descriptions of single marks would pass titles through Vega's expression language, which unescapes them.
    "mark": {"aria": False},
    "text": {"fontSize": 12, "color": INK[0]},
    "bar": {"color": ACCENT[0]},
}


Rows = Sequence[dict[str, Any]]
Shown = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Figure:
    """A chart with its caption. ``alt_text`` describes in words what the chart shows."""

    spec: dict[str, Any]
    alt_text: str
    title: str = ""
    note: str = ""
    static_width: int = STATIC_WIDTH
    kind: ClassVar[str] = "figure"

    @cached_property
    def svg(self) -> str:
        """The chart as a static SVG of ``static_width`` pixels, in the light theme."""
        import vl_convert

        svg: str = vl_convert.vegalite_to_svg(json.dumps({**self.spec, "width": self.static_width}))
        # Clip paths of several pictures in one page must not share their names.
        svg = re.sub(r'(id="|url\(#)(?=clip|gradient)', rf"\g<1>{self.name}-", svg)
        svg = re.sub(r' (?:aria-hidden="true"|font-family="[^"]*")', "", svg)  # the page has both
        return re.sub(r' (?:d|transform|[xy][12]?|width|height)="[^"]*"', _rounded, svg)

    @property
    def name(self) -> str:
        """Base name of the files that the reader saves."""
        words = re.sub(r"[^a-z0-9]+", "-", (self.title or self.alt_text[:40]).lower()).strip("-")
        return words or "chart"


def figure(
    chart: alt.Chart | alt.LayerChart | alt.FacetChart,
    alt_text: str,
    *,
    title: str = "",
    note: str = "",
    height: int | None = 200,
    static_width: int = STATIC_WIDTH,
) -> Figure:
    """The figure of an Altair chart, as wide as its container. ``height`` in pixels; None if the
    chart sets its own."""
    alt_text = printable(alt_text, ALT_TEXT)
    sized = chart.properties(
        width="container", description=alt_text, autosize={"type": "fit-x", "contains": "padding"}
    )
    if height is not None:
        sized = sized.properties(height=height)
    spec = _finite(sized.to_dict(validate=False))
    spec["config"] = THEME
    return Figure(spec, alt_text, title, note, static_width)


def data(rows: Rows) -> alt.InlineData:
    """Rows as the data of a chart."""
    return alt.InlineData(values=list(rows))


def tooltips(shown: Shown) -> list[alt.Tooltip]:
    """Tooltips for (field, title) pairs; fields are shown verbatim, so rows contain formatted text."""
    return [alt.Tooltip(field=field, type="nominal", title=title) for field, title in shown]


def picked_by(field: str) -> alt.Parameter:
    """The selection by clicking legend entries of ``field``; an empty selection means everything."""
    return alt.selection_point(fields=[field], bind="legend", toggle="true")


def faded_unless(picked: alt.Parameter, opacity: float = 0.12, full: float = 1) -> Any:
    """The opacity of marks, by whether they are ``picked``."""
    return alt.condition(picked, alt.value(full), alt.value(opacity))


def series_scales(names: Sequence[str]) -> tuple[alt.Scale, alt.Scale, alt.Scale]:
    """Colour, marker and dash of each series, by its name."""
    numbers = range(len(names))
    return (
        alt.Scale(domain=list(names), range=[SERIES[n % len(SERIES)][0] for n in numbers]),
        alt.Scale(domain=list(names), range=[SHAPES[n % len(SHAPES)] for n in numbers]),
        alt.Scale(domain=list(names), range=[list(DASHES[n % len(DASHES)]) for n in numbers]),
    )


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    if not high > low:  # a clock that was set back
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / about))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= about)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis: its ends, its ticks and its title."""

    low: float
    high: float
    ticks: tuple[float, ...]
    title: str

    @property
    def scale(self) -> alt.Scale:
        return alt.Scale(type="log", domain=[self.low, self.high], nice=False)

    @property
    def axis(self) -> alt.Axis:
        return alt.Axis(title=self.title, values=list(self.ticks), grid=True, labelExpr=NUMBER_LABEL)

    def fraction(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        return math.log(value / self.low) / math.log(self.high / self.low)


_THOUSANDS = "replace(format(datum.value, ',.0f'), /,/g, '\u00a0')"
NUMBER_LABEL = f"datum.value >= 10000 ? {_THOUSANDS} : format(datum.value, '.6~g')"
"""Vega expression: numbers without powers of ten, thousands separated from 10 000 on."""


def log_axis(values: Sequence[float], title: str, base: int = 10, room: float = 1.5) -> LogAxis:
    """A logarithmic axis around positive ``values``, with a factor of ``room`` on either side, and ticks at
    powers of two (``base`` 2) or at 1, 2 and 5 times powers of ten."""
    low, high = min(values) / room, max(values) * room
    if base == 2:
        marks = [2.0**n for n in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1,) if high / low > 300 else (1, 2, 5)
        marks = [factor * 10.0**n for n in decades for factor in factors]
        if sum(low <= mark <= high for mark in marks) < 3:
            marks = [factor * 10.0**n for n in decades for factor in (1, 2, 5)]
    marks = [mark for mark in marks if low <= mark <= high]
    if len(marks) < 3:
        marks = [mark for mark in ticks(low, high) if mark > 0]
    step = math.ceil(len(marks) / 7) or 1
    return LogAxis(low, high, tuple(marks[::-1][::step][::-1]), title)


def _rounded(attribute: re.Match[str]) -> str:
    """The numbers of an attribute to a hundredth of a pixel."""
    return re.sub(r"\.(\d\d)\d+", r".\1", attribute[0])


def _finite(value: Any) -> Any:
    """Without NaN and infinities, which JSON lacks, with printable text only, and numbers to seven digits,
    more than is visible."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return printable(value) if isinstance(value, str) else value
