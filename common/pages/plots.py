"""Lines, and points on logarithmic axes.

Rows are dictionaries with the fields named in each function; ``tooltip`` lists the (field, title) pairs shown
on hover.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from mlhpc.common.pages import charts
from mlhpc.common.pages.charts import (
    ACCENT,
    BAD,
    CARD,
    INK,
    NUMBER_LABEL,
    SOFT,
    Figure,
    LogAxis,
    Rows,
    Shown,
    chart_of,
)


def line(
    rows: Rows,
    alt_text: str,
    *,
    x_title: str,
    y_title: str,
    tooltip: Shown,
    target: tuple[float, str] | None = None,
    shaded: Rows = (),
    zero_x: bool = False,
    series: Sequence[str] = (),
    **caption: Any,
) -> Figure:
    """A line through points. Rows: ``x``, ``y``. ``target``: a dashed level and its name. ``shaded``: spans of x
    (``x``, ``x2``, ``what``). ``series``: several lines, by the field ``series`` of the rows."""
    constant = len({row["y"] for row in rows} | ({target[0]} if target else set())) == 1
    x_axis = alt.Axis(tickMinStep=0 if zero_x else 1, tickCount=8, labelExpr=NUMBER_LABEL)
    y_axis = alt.Axis(tickCount=5, labelExpr=NUMBER_LABEL)
    base = chart_of(rows).encode(
        x=alt.X("x:Q", title=x_title, scale=alt.Scale(zero=zero_x, nice=False), axis=x_axis),
        y=alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=constant), axis=y_axis),
    )
    layers: list[alt.Chart] = []
    if shaded:
        band = chart_of(shaded).mark_rect(color=charts.PARTS["staging"][0], opacity=0.2)
        layers.append(band.encode(x="x:Q", x2="x2:Q", tooltip=charts.tooltips([("what", "span")])))
    if target:
        layers += _limits([target], alt.Y("y:Q"))
    size = 40 if len(rows) <= 60 else 12
    if series:
        colour, shape, dash = charts.series_scales(series)
        picked = charts.picked_by("series")
        legend = alt.Legend(symbolStrokeWidth=0)
        coloured = alt.Color("series:N", scale=colour, legend=legend)
        base = base.encode(color=coloured, opacity=charts.faded_unless(picked))
        dashed = base.mark_line(strokeWidth=2).encode(strokeDash=alt.StrokeDash("series:N", scale=dash))
        layers.append(dashed.add_params(picked))
        points = base.mark_point(filled=True, size=size).encode(shape=alt.Shape("series:N", scale=shape))
    else:
        layers.append(base.mark_line(color=ACCENT[0], strokeWidth=2))
        points = base.mark_point(color=ACCENT[0], fill=CARD[0], filled=False, opacity=1, size=size)
    layers.append(points.encode(tooltip=charts.tooltips(tooltip)))
    return charts.figure(alt.layer(*layers), alt_text, **caption)


def curves(
    rows: Rows,
    alt_text: str,
    *,
    x_axis: LogAxis,
    y_axis: LogAxis,
    series: Sequence[str],
    tooltip: Shown,
    levels: Rows = (),
    reference: Rows = (),
    labels: Rows = (),
    loose: Sequence[str] = (),
    limits: Sequence[tuple[float, str]] = (),
    height: int = 260,
    **caption: Any,
) -> Figure:
    """A curve for each of ``series`` on two logarithmic axes. Rows: ``x``, ``y``, ``series``; with an interval,
    ``low`` and ``high`` of y, or ``x_low`` and ``x_high``; ``join`` if a series is joined in parts, in the
    order of the rows instead of along x; ``hollow`` for an unfilled mark. ``levels``: see ``level_lines``.
    ``reference``: a grey curve (``x``, ``y`` and the fields of ``tooltip``). ``labels``: ``text`` at ``x``,
    ``y``. ``loose``: series whose points are not joined. ``limits``: upper limits of y with their names.
    """
    colour, shape, dash = charts.series_scales(series)
    below_each_other: Any = {"columns": 1} if sum(map(len, series)) > 40 else {}
    legend = alt.Legend(**below_each_other, symbolStrokeWidth=0) if len(series) > 1 else None
    picked = charts.picked_by("series")
    in_row_order: Any = {"value": None}
    joined: Any = {"detail": "join:N", "order": in_row_order} if any("join" in row for row in rows) else {}

    base = on_axes(rows, x_axis, y_axis).encode(
        color=alt.Color("series:N", scale=colour, legend=legend), opacity=charts.faded_unless(picked)
    )
    lined = base.transform_filter(f"indexof({json.dumps(list(loose))}, datum.series) < 0") if loose else base
    lines = lined.mark_line(strokeWidth=2).encode(
        strokeDash=alt.StrokeDash("series:N", scale=dash, legend=legend), **joined
    )
    rule = base.mark_rule(strokeWidth=1.5)
    whiskers = [
        rule.transform_filter("isValid(datum.low)").encode(y="low:Q", y2="high:Q"),
        rule.transform_filter("isValid(datum.x_low)").encode(x="x_low:Q", x2="x_high:Q"),
    ]
    points = base.mark_point(filled=False, strokeWidth=2, size=70).encode(
        shape=alt.Shape("series:N", scale=shape, legend=legend),
        fill=alt.condition(
            "datum.hollow", alt.value(CARD[0]), alt.Fill("series:N", scale=colour, legend=legend)
        ),
        tooltip=charts.tooltips(tooltip),
    )
    layers = _level_layers(levels, x_axis, y_axis)
    layers += _limits(limits, alt.Y("y:Q", scale=y_axis.channel["scale"]))
    if reference:
        grey = on_axes(reference, x_axis, y_axis)
        layers.append(grey.mark_line(strokeWidth=1.5, color=SOFT[0]).encode(order=in_row_order))
        marks = grey.mark_point(filled=False, color=SOFT[0], fill=CARD[0], strokeWidth=2, size=70)
        layers.append(marks.encode(tooltip=charts.tooltips(tooltip)))
    layers += [lines.add_params(picked), *whiskers, points]
    if labels:
        texts = on_axes(labels, x_axis, y_axis).encode(text="text:N")
        layers += with_halo(texts, INK[0], dx=10, dy=-8, fontWeight="bold", fontSize=14)
    return charts.figure(alt.layer(*layers), alt_text, height=height, **caption)


def _limits(limits: Sequence[tuple[float, str]], y: alt.Y) -> list[alt.Chart]:
    """Dashed levels with their names at the left."""
    if not limits:
        return []
    base = chart_of([{"y": level, "name": name} for level, name in limits]).encode(y=y)
    return [
        base.mark_rule(color=BAD[0], strokeWidth=1.5, strokeDash=[6, 4]),
        base.mark_text(color=BAD[0], align="left", dx=6, dy=-8, fontWeight="bold").encode(
            x=alt.value(0), text="name:N"
        ),
    ]


def with_halo(
    texts: alt.Chart, colour: str, align: Literal["left", "right"] = "left", **style: Any
) -> list[alt.Chart]:
    """Texts that remain readable where they cross lines."""
    return [
        texts.mark_text(align=align, stroke=CARD[0], strokeWidth=4, **style),
        texts.mark_text(align=align, color=colour, **style),
    ]


def level_lines(
    x_axis: LogAxis, y_axis: LogAxis, constants: Sequence[tuple[float, str]], most: int = 5
) -> list[dict[str, Any]]:
    """Rows of the lines y = constant · x, for (constant, label) pairs, that cross a large part of the plot:
    at most ``most``. Each line is two rows, ``end`` false and true."""
    lines = []
    for constant, label in constants:
        left, right = max(x_axis.low, y_axis.low / constant), min(x_axis.high, y_axis.high / constant)
        if left < right and x_axis.fraction(right) - x_axis.fraction(left) > 0.3:
            ends = ((left, False), (right, True))
            lines.append([{"x": x, "y": constant * x, "level": label, "end": end} for x, end in ends])
    step = -(-len(lines) // most) or 1
    return [row for line_rows in lines[::step] for row in line_rows]


def round_constants(x_axis: LogAxis, y_axis: LogAxis, unit: float = 1.0) -> list[float]:
    """1, 2 and 5 times powers of ten between the extreme ratios of y and x, in ``unit``."""
    first, last = y_axis.low / x_axis.high / unit, y_axis.high / x_axis.low / unit
    decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    return [factor * 10.0**n for n in decades for factor in (1, 2, 5)]


def on_axes(rows: Rows, x_axis: LogAxis, y_axis: LogAxis) -> alt.Chart:
    """A chart of ``rows`` by their ``x`` and ``y``."""
    return chart_of(rows).encode(x=alt.X("x:Q", **x_axis.channel), y=alt.Y("y:Q", **y_axis.channel))


def _level_layers(levels: Rows, x_axis: LogAxis, y_axis: LogAxis) -> list[alt.Chart]:
    """Dotted lines with their labels at the right ends."""
    if not levels:
        return []
    base = on_axes(levels, x_axis, y_axis)
    lines = base.mark_line(color=SOFT[0], strokeWidth=1, strokeDash=[2, 5]).encode(detail="level:N")
    ends = base.transform_filter("datum.end").encode(text="level:N")
    return [lines, *with_halo(ends, SOFT[0], align="right", dx=-4, dy=12)]
