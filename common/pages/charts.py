"""The style of all charts: palette, theme, and the conversion of Vega-Altair charts to figures of a page.

Charts use the colours of the light theme. The page draws them in the browser, with hover texts, legend toggling
and saving as SVG or PNG, and replaces each colour by its dark counterpart if the reader's system uses a dark
theme. Without scripts, and in print, it shows static SVGs.

Readers with deuteranopia, protanopia and tritanopia can distinguish all series colours (simulated after Machado,
Oliveira and Fernandes 2009, severity 1; compared in OKLab), as tests/unit/common/pages/test_charts.py checks;
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
# Colours of text on a part of a bar. The page finds a dark colour by its light one, so light colours are unique.
TEXT_ON = {
    "staging": ("#fdfdfd", "#111417"),
    **dict.fromkeys(("exchange", "step", "training", "rest"), ("#fefefe", "#fefefd")),
    **dict.fromkeys(("first_epoch_excess", "data_wait", "evaluation"), ("#111417", "#111418")),
}
DARK = dict([INK, SOFT, LINE, CARD, ACCENT, BAD, *SERIES, *PARTS.values(), *TEXT_ON.values()])

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif'
STATIC_WIDTH = 350
ALT_TEXT = 20_000
"""Maximum length of an alternative text, in characters: enough for a few hundred per bar on the largest page."""
THEME = {
    "background": None,
    "font": FONT,
    # Plain decimals, without powers of ten.
    "numberFormat": ",.6~r",
    "axis": {
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
    },
    "axisX": {"grid": False, "labelAngle": 0},
    "axisQuantitative": {"tickCount": 6},
    "view": {"stroke": None},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": INK[0],
        "labelFontSize": 12,
        "labelLimit": 400,
        "symbolSize": 120,
        "symbolStrokeWidth": 0,
        "padding": 0,
        "offset": 12,
        "columnPadding": 14,
    },
    "range": {
        "category": [light for light, _ in SERIES],
        "symbol": ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross"],
    },
    # Vega's descriptions of single marks would unescape titles in its expression language.
    "mark": {"aria": False},
    "text": {"fontSize": 12, "color": INK[0]},
    "bar": {"color": ACCENT[0]},
}


Rows = Sequence[dict[str, Any]]


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
        # The clip paths of the SVGs in a page need different names.
        svg = re.sub(r'(id="|url\(#)(?=clip|gradient)', rf"\g<1>{self.name}-", svg)
        svg = re.sub(r' (?:aria-hidden="true"|font-family="[^"]*")', "", svg)  # the page sets both
        # Round numbers to a hundredth of a pixel.
        attributes = r' (?:d|transform|[xy][12]?|width|height)="[^"]*"'
        return re.sub(attributes, lambda found: re.sub(r"\.(\d\d)\d+", r".\1", found[0]), svg)

    @property
    def name(self) -> str:
        """Base name of the files to which a reader of the page saves the chart."""
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


def chart_of(rows: Rows, **channels: Any) -> alt.Chart:
    """A chart of ``rows``, whose field ``says`` is shown on hover; marks are added later. Pass channels as
    Altair's classes: parsing a channel that is passed as a string takes 4 ms."""
    chart = alt.Chart(alt.InlineData(values=list(rows))).encode(**channels)
    return chart.encode(tooltip=alt.Tooltip("says:N")) if any("says" in row for row in rows) else chart


def pickable(field: str, opacity: float = 0.12, full: float = 1) -> tuple[alt.Parameter, Any]:
    """A selection, made by clicking legend entries of ``field`` and initially of all entries, and the opacity of
    marks depending on whether they are selected."""
    picked = alt.selection_point(fields=[field], bind="legend", toggle="true")
    return picked, alt.OpacityValue(opacity, condition={"param": picked.name, "value": full})


def _finite(value: Any) -> Any:
    """``value`` with None for NaN and infinities, which JSON lacks, with printable text only, and with numbers
    rounded to seven digits, more than is visible."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return printable(value) if isinstance(value, str) else value
