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

from mlhpc.common.pages.text import printable, slug

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
TEXT_ON = {
    "staging": ("#fdfdfd", "#111417"),
    **dict.fromkeys(("exchange", "step", "training", "rest"), ("#fefefe", "#fefefd")),
    **dict.fromkeys(("first_epoch_excess", "data_wait", "evaluation"), ("#111417", "#111418")),
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
        # Numbers to a hundredth of a pixel.
        attributes = r' (?:d|transform|[xy][12]?|width|height)="[^"]*"'
        return re.sub(attributes, lambda found: re.sub(r"\.(\d\d)\d+", r".\1", found[0]), svg)

    @property
    def name(self) -> str:
        """Base name of the files that the reader saves."""
        return slug(self.title or self.alt_text[:40]) or "chart"


def figure(
    chart: alt.LayerChart | alt.FacetChart,
    alt_text: str,
    *,
    title: str = "",
    note: str = "",
    height: int = 200,
    static_width: int = STATIC_WIDTH,
) -> Figure:
    """The figure of an Altair chart, as wide as its container and ``height`` pixels high."""
    alt_text = printable(alt_text, ALT_TEXT)
    size: Any = {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    spec = _finite(chart.properties(description=alt_text, **size).to_dict(validate=False))
    return Figure({**spec, "config": THEME}, alt_text, title, note, static_width)


def chart_of(rows: Rows) -> alt.Chart:
    """A chart of ``rows``, without marks yet."""
    return alt.Chart(alt.InlineData(values=list(rows)))


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
    def channel(self) -> dict[str, Any]:
        """The scale and the axis of an Altair channel."""
        scale = alt.Scale(type="log", domain=[self.low, self.high], nice=False)
        axis = alt.Axis(title=self.title, values=list(self.ticks), grid=True, labelExpr=NUMBER_LABEL)
        return {"scale": scale, "axis": axis}

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
    powers = [
        float(base) ** n for n in range(math.floor(math.log(low, base)), math.ceil(math.log(high, base)) + 1)
    ]

    def inside(factors: Sequence[int]) -> list[float]:
        return [factor * power for power in powers for factor in factors if low <= factor * power <= high]

    marks = inside([1]) if base == 2 or high / low > 300 else []
    if base == 10 and len(marks) < 3:
        marks = inside([1, 2, 5])
    if len(marks) < 3:
        marks = [mark for mark in ticks(low, high) if mark > 0]
    step = math.ceil(len(marks) / 7) or 1
    return LogAxis(low, high, tuple(marks[::-1][::step][::-1]), title)


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
