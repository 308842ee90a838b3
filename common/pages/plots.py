"""The kinds of charts: lines, columns, and horizontal bars of stacked parts.

Rows are dictionaries whose fields are described at each function; all may have ``says``, a text shown on hover.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import altair as alt

from mlhpc.common.pages import charts
from mlhpc.common.pages.charts import BAD, CARD, PARTS, SOFT, TEXT_ON, Figure, Rows, chart_of
from mlhpc.errors import few
from mlhpc.quantities import digits

_LABELLED = 0.05
"""Smallest share of a bar on which its number fits."""
_LEVELS = 5
"""Maximum number of level lines in a plot."""


WHOLE: Any = {"labelExpr": "datum.value % 1 ? '' : datum.label"}
"""Axis options that label only whole numbers."""


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis from ``low`` to ``high``. Base 2 is for counts: only whole numbers are labelled."""

    low: float
    high: float
    title: str
    base: int = 10

    @property
    def channel(self) -> dict[str, Any]:
        """The title, scale and axis for an Altair channel."""
        scale = alt.Scale(type="log", base=self.base, domain=[self.low, self.high], nice=False)
        whole = WHOLE if self.base == 2 else {}
        return {"title": self.title, "scale": scale, "axis": alt.Axis(grid=True, **whole)}

    def fraction(self, value: float) -> float:
        """Position of ``value`` on the axis, from 0 at the low end to 1 at the high end."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def beside(self, value: float, place: float) -> float:
        """``value`` shifted by ``place`` times 1.2% of the axis, so that intervals at the same value are drawn
        side by side."""
        return value * math.pow(self.high / self.low, 0.012 * place)


def log_axis(values: Sequence[float], title: str, base: int = 10, room: float = 1.5) -> LogAxis:
    """A logarithmic axis around positive ``values``, whose range is extended by the factor ``room`` at both
    ends."""
    return LogAxis(min(values) / room, max(values) * room, title, base)


def on_axes(rows: Rows, x: LogAxis, y: LogAxis) -> alt.Chart:
    """A chart of ``rows`` at their ``x`` and ``y`` on these axes."""
    return chart_of(rows, x=alt.X("x:Q", **x.channel), y=alt.Y("y:Q", **y.channel))


def lines(
    base: alt.Chart,
    alt_text: str,
    *,
    series: Sequence[str] = (),
    series_title: str = "",
    size: int = 70,
    under: Sequence[alt.Chart] = (),
    over: Sequence[alt.Chart] = (),
    **caption: Any,
) -> Figure:
    """Points that are joined, in the order of the rows of ``base``, by a line for each of ``series``. A row has
    ``x``, ``y``, ``series``, and optionally ``y_low`` and ``y_high`` (an interval; or ``x_low`` and ``x_high``),
    ``join`` (only points with the same value are joined) and ``hollow`` (an unfilled mark). ``series_title``:
    title of the legend. ``size``: size of the marks. ``under`` and ``over``: layers drawn below and above."""
    below_each_other: Any = {"columns": 1} if sum(map(len, series)) > 40 else {}
    by: Any = {
        "scale": alt.Scale(domain=list(series)),
        "legend": alt.Legend(title=series_title or None, **below_each_other) if series[1:] else None,
    }
    picked, opacity = charts.pickable("series")
    base = base.encode(color=alt.Color("series:N", **by), opacity=opacity)
    joined: Any = {"detail": alt.Detail("join:N"), "order": alt.OrderValue(None)}
    drawn = base.mark_line(strokeWidth=2).encode(strokeDash=alt.StrokeDash("series:N", **by), **joined)
    rule = base.mark_rule(strokeWidth=1.5)
    whiskers = [
        rule.transform_filter("isValid(datum.y_low)").encode(y=alt.Y("y_low:Q"), y2=alt.Y2("y_high:Q")),
        rule.transform_filter("isValid(datum.x_low)").encode(x=alt.X("x_low:Q"), x2=alt.X2("x_high:Q")),
    ]
    points = base.mark_point(strokeWidth=2, size=size).encode(
        shape=alt.Shape("series:N", **by),
        fill=alt.condition("datum.hollow", alt.value(CARD[0]), alt.Fill("series:N", **by)),
    )
    return charts.figure(
        alt.layer(*under, drawn.add_params(picked), *whiskers, points, *over), alt_text, **caption
    )


class Mark(NamedTuple):
    """A point of a curve, with its interval of y if it has one. ``what``: text shown on hover. ``join``: whether a
    line joins it to the other points of its series that have ``join``."""

    series: str
    x: float
    what: str
    y: float
    y_low: float | None = None
    y_high: float | None = None
    join: bool = True


def curves(marks: Sequence[Mark], x: str, y: str, title: str) -> Figure:
    """A chart of ``marks``, drawn by ``lines`` with one line per series, on logarithmic axes titled ``x`` and
    ``y``."""
    x_axis = log_axis([mark.x for mark in marks], x, base=2, room=1.2)
    ends = [end for mark in marks for end in (mark.y, mark.y_low, mark.y_high) if end]
    says = [f"{mark.series}, {mark.what}: {digits(mark.y)}" for mark in marks]
    rows = [
        {**mark._asdict(), "says": text, "join": "" if mark.join else n}
        for n, (mark, text) in enumerate(zip(marks, says, strict=True))
    ]
    return lines(
        on_axes(rows, x_axis, log_axis(ends, y, room=1.3)),
        f"{title}. {few(says, 60, '; ')}",
        series=list(dict.fromkeys(mark.series for mark in marks)),
        title=title,
        height=260,
    )


def limits(values: Sequence[tuple[float, str]], y: alt.Y) -> list[alt.Chart]:
    """Dashed lines at the given values of y, with their names at the left."""
    base = chart_of([{"y": value, "name": name} for value, name in values], y=y)
    names = base.mark_text(color=BAD[0], align="left", dx=6, dy=-8, fontWeight="bold")
    return [
        base.mark_rule(color=BAD[0], strokeWidth=1.5, strokeDash=[6, 4]),
        names.encode(x=alt.value(0), text="name:N"),
    ]


def levels(x: LogAxis, y: LogAxis, constants: Sequence[tuple[float, str]]) -> list[alt.Chart]:
    """Dotted lines y = constant · x, labelled at their right ends, for (constant, label) pairs. Only some of the
    lines that cross a large part of the plot are drawn."""
    rows = []
    for constant, label in constants:
        left, right = max(x.low, y.low / constant), min(x.high, y.high / constant)
        if left < right and x.fraction(right) - x.fraction(left) > 0.3:
            begin, end = {"x": left, "y": constant * left}, {"x2": right, "y2": constant * right}
            rows.append(begin | end | {"level": label})
    rows = rows[:: math.ceil(len(rows) / _LEVELS) or 1]
    dotted = on_axes(rows, x, y).mark_rule(color=SOFT[0], strokeDash=[2, 5]).encode(x2="x2:Q", y2="y2:Q")
    ends = on_axes([{"x": row["x2"], "y": row["y2"], "level": row["level"]} for row in rows], x, y)
    return [dotted, *with_halo(ends.encode(text="level:N"), SOFT[0], align="right", dx=-4, dy=12)]


def round_constants(x: LogAxis, y: LogAxis, unit: float = 1.0) -> list[float]:
    """The values 1, 2 and 5 times powers of ten, in ``unit``, that span the ratios of y to x in the plot."""
    first, last = y.low / x.high / unit, y.high / x.low / unit
    decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    return [factor * 10.0**n for n in decades for factor in (1, 2, 5)]


def with_halo(texts: alt.Chart, colour: str, **style: Any) -> list[alt.Chart]:
    """The layers of ``texts`` with a halo, which keeps them readable where they cross lines."""
    return [texts.mark_text(stroke=CARD[0], strokeWidth=4, **style), texts.mark_text(color=colour, **style)]


BY_COLUMN = alt.X("x:N", sort=None)
"""The x channel for layers over `columns`, in the order of the rows."""


def columns(
    rows: Rows,
    alt_text: str,
    *,
    titles: tuple[str, str],
    colours: Mapping[str, str] | None = None,
    legend: Literal["top", "bottom"] | None = "top",
    beside: bool = False,
    y_max: float | None = None,
    over: Sequence[alt.Chart] = (),
    **caption: Any,
) -> Figure:
    """Vertical columns from zero. ``titles``: titles of the x and y axes. A row has ``x``, ``y`` and, with
    ``colours``, ``part``, which is a key of ``colours``. Parts are stacked in the order of ``colours``, or placed
    side by side with ``beside``. A ``legend`` at the bottom replaces the labels of the x axis. ``over``: layers
    drawn above."""
    x = BY_COLUMN.copy().title(titles[0]).axis(labels=legend != "bottom")
    scale = alt.Scale(domain=[0, y_max]) if y_max else alt.Scale(zero=True)
    if colours:
        rows = [row | {"order": list(colours).index(row["part"])} for row in rows]
    drawn = chart_of(rows, x=x, y=alt.Y("y:Q", title=titles[1], scale=scale)).mark_bar()
    if colours:
        picked, opacity = charts.pickable("part")
        by = alt.Scale(domain=list(colours), range=list(colours.values()))
        layout: Any = {"orient": legend, "columns": 3 if legend == "top" else 1, "symbolType": "square"}
        colour = alt.Color("part:N", scale=by, legend=alt.Legend(**layout) if legend else None)
        placed: Any = {"xOffset": alt.XOffset("part:N", sort=None)} if beside else {"order": "order:Q"}
        drawn = drawn.encode(color=colour, opacity=opacity, **placed).add_params(picked)
    return charts.figure(alt.layer(drawn, *over), alt_text, **caption)


class Bar(NamedTuple):
    """A bar of stacked parts: its name, which is written above it, the size of each part by key, and the name
    shown on hover, if different."""

    name: str
    sizes: Mapping[str, float]
    about: str = ""


class Measure(NamedTuple):
    """What the sizes of bars mean: the title of their axis, the function that formats a size, and the unit by
    which the axis divides sizes."""

    title: str
    write: Callable[[float], str] = lambda size: ""
    unit: float = 1.0


def stacked_bars(
    bars: Sequence[Bar],
    what: str,
    *,
    parts: Mapping[str, str],
    measure: Measure,
    relative: bool = False,
    bar_height: int = 26,
    **caption: Any,
) -> Figure:
    """Horizontal bars of stacked ``parts`` (key to label); parts without a size are left out.

    ``what``: what the bars show. The alternative text consists of ``what`` and the share of each part.
    ``relative``: all bars span 100%. Shares are written on the parts of relative bars, and of a single bar.
    """
    rows, alt_texts = [], []
    for n, bar in enumerate(bars):
        shown = _parts_of(bar, parts, measure, labelled=relative or len(bars) == 1)
        rows += [row | {"bar": n} for row in shown]
        listed = ", ".join(f"{row['part']} {row['share']}" for row in shown)
        alt_texts.append(": ".join(filter(None, (" ".join(bar.name.split()), listed))))
    named = any(bar.name for bar in bars)
    offset = 10 if named else 0
    picked, opacity = charts.pickable("part")
    size = alt.X("value:Q", title=measure.title, stack="normalize" if relative else "zero")
    axis: Any = {"format": "%"} if relative else {}
    y = alt.Y("bar:N", sort=None, axis=None)
    base = chart_of(rows, x=size.axis(grid=True, **axis), y=y, order="order:Q")
    base = base.encode(opacity=opacity)
    colours = alt.Scale(domain=list(parts.values()), range=[PARTS[key][0] for key in parts])
    legend = alt.Legend(symbolType="square")
    drawn = base.mark_bar(height=bar_height, yOffset=offset).add_params(picked)
    labels = base.mark_text(fontWeight="bold", fontSize=13, yOffset=offset)
    layers = [
        drawn.encode(color=alt.Color("part:N", scale=colours, legend=legend)),
        labels.encode(text="label:N", color=alt.Color("ink:N", scale=None), x=size.copy().bandPosition(0.5)),
    ]
    if named:
        names = chart_of([{"bar": n, "name": bar.name} for n, bar in enumerate(bars)], y=y, text="name:N")
        above: Any = {"yOffset": offset - bar_height / 2 - 9, "limit": alt.ExprRef("width")}
        layers.append(names.mark_text(align="left", **above).encode(x=alt.value(0)))
    height = len(bars) * (bar_height + 8 + 2 * offset)
    return charts.figure(alt.layer(*layers), f"{what}: {'; '.join(alt_texts)}", height=height, **caption)


def _parts_of(
    bar: Bar, parts: Mapping[str, str], measure: Measure, *, labelled: bool
) -> list[dict[str, Any]]:
    """The chart's rows for a bar's parts. ``labelled``: whether shares are written on large parts."""
    rows, whole = [], sum(bar.sizes.values())
    for order, key in enumerate(key for key in parts if bar.sizes.get(key, 0.0) > 0):
        share = bar.sizes[key] / whole
        said = (bar.about or bar.name, parts[key], f"{share:.1%}", measure.write(bar.sizes[key]))
        label = f"{share:.0%}" if share >= _LABELLED and labelled else ""
        rows.append(
            {"part": parts[key], "value": bar.sizes[key] / measure.unit, "order": order, "label": label,
             "share": f"{share:.1%}", "ink": TEXT_ON[key][0], "says": ", ".join(filter(None, said))}
        )  # fmt: skip
    return rows
