"""Bars of stacked parts, and columns.

Rows are dictionaries with the fields named in each function; ``tooltip`` lists the (field, title) pairs
shown on hover.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import altair as alt

from mlhpc.common.pages import charts
from mlhpc.common.pages.charts import INK, NUMBER_LABEL, PARTS, Figure, Rows, Shown, chart_of

_LABELLED = 0.05
"""Smallest share of a bar that fits its number."""


def _part_colour(
    parts: Mapping[str, str], colours: Mapping[str, tuple[str, str]], **legend: Any
) -> alt.Color:
    """The ``colours`` of the parts of a run (key to label), by their labels."""
    scale = alt.Scale(domain=list(parts.values()), range=[colours[key][0] for key in parts])
    return alt.Color("part:N", scale=scale, legend=alt.Legend(symbolType="square", **legend))


class Bar(NamedTuple):
    """A bar of stacked parts: its name, written above it, the size of each part by its key, and its name on
    hover, if different."""

    name: str
    sizes: Mapping[str, float]
    about: str = ""


def stacked_bars(
    bars: Sequence[Bar],
    says: str,
    *,
    parts: Mapping[str, str],
    value_title: str,
    write: Callable[[float], str] | None = None,
    unit: float = 1.0,
    relative: bool = False,
    bar_height: int = 26,
    **caption: Any,
) -> Figure:
    """Horizontal bars of stacked ``parts`` (key to label); parts without a size are left out.

    ``says``: what the bars show; the alternative text has the share of each part after it. ``write`` formats
    a size; the axis divides it by ``unit``. ``relative``: all bars span 100%. Shares are written on the parts
    of such bars, and of a single bar.
    """
    rows, alt_texts = [], []
    for n, bar in enumerate(bars):
        whole = sum(bar.sizes.values())
        shares = {key: bar.sizes[key] / whole for key in parts if bar.sizes.get(key, 0.0) > 0}
        for key, share in shares.items():
            size = bar.sizes[key]
            label = f"{share:.0%}" if share >= _LABELLED and (relative or len(bars) == 1) else ""
            rows.append(
                {"bar": n, "what": bar.about or bar.name, "part": parts[key], "value": size / unit, "label": label,
                 "size": write(size) if write else "", "share": f"{share:.1%}"}
            )  # fmt: skip
        listed = ", ".join(f"{parts[key]} {share:.1%}" for key, share in shares.items())
        alt_texts.append(": ".join(filter(None, (" ".join(bar.name.split()), listed))))
    named = any(bar.name for bar in bars)
    shown = [("part", "part"), ("share", "share")]
    if named:
        shown.insert(0, ("what", "of"))
    if write:
        shown.append(("size", "time"))
    picked = charts.picked_by("part")
    stack: Literal["normalize", "zero"] = "normalize" if relative else "zero"
    numbers: Any = {"format": "%"} if relative else {"labelExpr": NUMBER_LABEL, "tickCount": 10}
    x = alt.X("value:Q", title=value_title, stack=stack, axis=alt.Axis(**numbers, grid=True))
    y = alt.Y("bar:N", sort=None, axis=None)
    offset = 10 if named else 0
    base = chart_of(_in_order(rows, parts)).encode(
        x=x, y=y, order=alt.Order("order:Q"), tooltip=charts.tooltips(shown)
    )
    drawn = base.mark_bar(height=bar_height, yOffset=offset)
    labels = base.mark_text(fontWeight="bold", fontSize=13, yOffset=offset).encode(
        x=alt.X("value:Q", stack=stack, bandPosition=0.5), text="label:N"
    )
    layers = [
        drawn.encode(color=_part_colour(parts, PARTS), opacity=charts.faded_unless(picked)).add_params(
            picked
        ),
        labels.encode(
            color=_part_colour(parts, charts.TEXT_ON).legend(None), opacity=charts.faded_unless(picked, 0)
        ),
    ]
    if named:
        names = chart_of([{"bar": n, "name": bar.name} for n, bar in enumerate(bars)])
        above: Any = {"yOffset": offset - bar_height / 2 - 9, "limit": alt.ExprRef("width")}
        text = names.mark_text(align="left", color=INK[0], **above)
        layers.append(text.encode(y=y, x=alt.value(0), text="name:N"))
    chart = alt.layer(*layers).resolve_scale(color="independent")
    height = len(bars) * (bar_height + 8 + 2 * offset)
    return charts.figure(chart, f"{says}: {'; '.join(alt_texts)}", height=height, **caption)


def _in_order(rows: Rows, parts: Mapping[str, str]) -> Rows:
    """The rows, with the position of each part in its stack."""
    labels = list(parts.values())
    return [{**row, "order": labels.index(row["part"])} for row in rows]


def columns(
    rows: Rows,
    alt_text: str,
    *,
    x_title: str,
    y_title: str,
    tooltip: Shown,
    parts: Mapping[str, str] | None = None,
    part_colours: Mapping[str, tuple[str, str]] = PARTS,
    beside: bool = False,
    y_max: float | None = None,
    colours: Sequence[str] = (),
    long_names: bool = False,
    points: Rows = (),
    **caption: Any,
) -> Figure:
    """Vertical columns from zero. Rows: ``x`` (drawn in the order of the rows), ``y``; with ``parts`` (key to
    label) also ``part`` (a label), stacked or ``beside`` each other; with ``low`` and ``high`` a whisker;
    with ``top`` a text above. ``colours`` of the columns; with ``long_names`` a legend names them instead of
    the axis. ``points``: marks over the columns (``x``, ``y``, ``shape``).
    """
    x = alt.X("x:N", sort=None, title=x_title, axis=alt.Axis(labelAngle=0, labels=not long_names))
    y_scale = alt.Scale(domain=[0, y_max]) if y_max else alt.Scale(zero=True)
    y = alt.Y("y:Q", title=y_title, scale=y_scale, axis=alt.Axis(labelExpr=NUMBER_LABEL, tickCount=5))
    tops: Rows = [row | {"above": row.get("high", row["y"])} if "top" in row else row for row in rows]
    if parts and not beside:
        tops = _in_order(tops, parts)
    base = chart_of(tops).encode(x=x, tooltip=charts.tooltips(tooltip))
    bars = base.mark_bar().encode(y=y, color=alt.value(charts.ACCENT[0]))
    if parts:
        picked = charts.picked_by("part")
        colour = _part_colour(parts, part_colours, columns=3)
        bars = bars.encode(color=colour, opacity=charts.faded_unless(picked)).add_params(picked)
        offset: Any = {"xOffset": alt.XOffset("part:N", sort=None)}
        bars = bars.encode(**(offset if beside else {"order": alt.Order("order:Q")}))
    elif colours:
        scale = alt.Scale(domain=[row["x"] for row in rows], range=list(colours))
        legend = alt.Legend(orient="bottom", columns=1, symbolType="square") if long_names else None
        bars = bars.encode(color=alt.Color("x:N", scale=scale, legend=legend))
    layers = [bars]
    if any("low" in row for row in rows):
        layers.append(base.mark_rule(color=INK[0], strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2="high:Q"))
    if any("top" in row for row in rows):
        layers.append(base.mark_text(dy=-7).encode(y=alt.Y("above:Q"), text="top:N"))
    if points:
        marks = chart_of(points).mark_point(filled=True, size=90, color=INK[0])
        layers.append(marks.encode(x=x, y=y, shape=alt.Shape("shape:N", scale=None, legend=None)))
    return charts.figure(alt.layer(*layers), alt_text, **caption)
