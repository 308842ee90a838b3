"""Figure 2 of paper 001: epoch scaling and throughput scaling, joined on the batch size.

Four planes with logarithmic axes that are shared along rows and columns: from the number of units to the batch
size (a), from there to the epochs (b); from the units to the epoch rate (c), from there to the time that both give
(d).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from mlhpc.common.pages import charts, plots
from mlhpc.common.pages.charts import CARD, INK, SERIES, SHAPES, SOFT, Figure, LogAxis, data, figure
from mlhpc.common.pages.html import Grid, Legend, Section
from mlhpc.perf.scaling import Point
from mlhpc.submission.report.compare import references
from mlhpc.submission.report.entry import Entry
from mlhpc.submission.report.spread import Spread
from mlhpc.submission.report.summary import plain, whole

_BARS = "bars: ± standard deviation"
_REFERENCE = "reference"
_NEAR = 0.05
"""Marks closer than this share of both axes get one common label."""


@dataclass(frozen=True)
class _Plane:
    """What one plane shows: x and y of each set by its letter, its axes and its level lines. With ``spreads`` x is
    the convergence of a division, and each set has a whisker."""

    title: str
    note: str
    x_axis: LogAxis
    y_axis: LogAxis
    x: Mapping[str, float]
    y: Mapping[str, float]
    levels: Sequence[dict[str, Any]]
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    reference: Sequence[Point] = ()


def planes(group: Sequence[Entry]) -> Section | None:
    """The section of a page; None if no set of ``group`` has all the quantities drawn."""
    shown = [e for e in group if e.measured]
    if not shown:
        return None
    units = {e.letter: float(e.scale or 1) for e in shown}
    batches = {e.letter: float(e.batch or 1) for e in shown}
    spreads = {e.letter: e.epochs for e in shown if e.epochs}
    epochs = {letter: spread.mean for letter, spread in spreads.items()}
    rates = {e.letter: 3600 / e.steady_epoch_s.mean for e in shown if e.steady_epoch_s}
    low, high = min(batches.values()) / 4, max(batches.values()) * 4
    reference = [p for p in references(shown[0]) if low <= p.size <= high]
    kinds = " or ".join(dict.fromkeys(f"{e.unit}s" for e in shown))
    ends = [end for s in spreads.values() for end in _whisker(s) or (s.mean,)]
    x_units = charts.log_axis(list(units.values()), kinds, base=2)
    x_epochs = charts.log_axis([*ends, *(p.value[0] for p in reference)], "epochs to the target", room=1.3)
    y_batch = charts.log_axis(
        [*batches.values(), *(p.size for p in reference)], "global batch size, samples", base=2
    )
    y_rate = charts.log_axis(list(rates.values()), "epochs per hour")
    train = shown[0].train_samples or 1
    samples = train + (shown[0].eval_samples or 0)

    def levels(x: LogAxis, y: LogAxis, unit: float, label: str) -> list[dict[str, Any]]:
        constants = [(c * unit, label.format(c, whole(1 / c))) for c in plots.round_constants(x, y, unit)]
        return plots.level_lines(x, y, constants)

    drawn = (
        _Plane("a) Choice of the batch size", "dotted: samples of the batch per unit", x_units, y_batch, units,
               batches, levels(x_units, y_batch, 1.0, "{0:g} per unit")),
        _Plane("b) Epoch scaling", f"dotted: the same number of steps; {_BARS}", x_epochs, y_batch, epochs,
               batches, levels(x_epochs, y_batch, train, "{1} steps"), spreads, reference),
        _Plane("c) Throughput scaling", "dotted: samples/s per unit, training and evaluation together", x_units,
               y_rate, units, rates, levels(x_units, y_rate, 3600 / samples, "{0:g}/s per unit")),
        _Plane("d) Time to compute", f"dotted: the same T_epoch · epochs; {_BARS}", x_epochs, y_rate, epochs,
               rates, plots.level_lines(x_epochs, y_rate, _times(epochs, rates)), spreads),
    )  # fmt: skip
    about = (
        "Joined on the batch size; planes in a row or column share an axis: read the batch size "
        "across from a to b, the epoch rate across from c to d. Lines join the sets of one machine of a "
        "submitter, in b and d those of one division. An epoch is training and evaluation, without the first "
        "one's excess. Filled: closed division, official data, with a score; hollow: anything else."
    )
    legend = [(_series(e, shown), e.letter, f"{e.name}, {e.made_from}", e.is_closed_score) for e in shown]
    if reference:
        legend.append((-1, "ref", "reference convergence points (mlperf-logging)", False))
    figures = tuple(_draw(plane, shown) for plane in drawn)
    title = "Epoch and throughput scaling"
    return Section(title, about, (Grid(figures), Legend(tuple(legend))))


def _draw(plane: _Plane, shown: Sequence[Entry]) -> Figure:
    rows = [_row(plane, e, shown) for e in sorted(shown, key=lambda e: (e.scale or 0, e.batch or 0))]
    for p in plane.reference:
        description = f"reference: {plain(p.value[0])} epochs at batch size {whole(p.size)}"
        rows.append({"x": p.value[0], "y": float(p.size), "line": _REFERENCE, "series": -1, "fill": CARD[0],
                     "colour": SOFT[0], "shape": "circle", "letter": "ref", "set": description,
                     "values": ""})  # fmt: skip
    base = alt.Chart(data(rows)).encode(
        x=alt.X("x:Q", scale=plane.x_axis.scale, axis=plane.x_axis.axis),
        y=alt.Y("y:Q", scale=plane.y_axis.scale, axis=plane.y_axis.axis),
        color=alt.Color("colour:N", scale=None, legend=None),
    )
    joins = base.mark_line(strokeWidth=1.5).encode(detail="line:N", order="y:Q")
    whiskers = (
        base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    )
    points = base.mark_point(size=90, strokeWidth=2, opacity=1).encode(
        fill=alt.Fill("fill:N", scale=None, legend=None),
        shape=alt.Shape("shape:N", scale=None, legend=None),
        tooltip=plots.tooltips([("set", "set"), ("values", "values")]),
    )
    labels = alt.Chart(data(_labels(rows, plane))).encode(
        x=base.encoding.x, y=base.encoding.y, text="letters:N"
    )
    letters = labels.mark_text(dx=10, dy=-8, align="left", fontWeight="bold", fontSize=14, color=INK[0])
    halo = labels.mark_text(
        dx=10, dy=-8, align="left", fontWeight="bold", fontSize=14, stroke=CARD[0], strokeWidth=4
    )
    layers = [
        *plots.level_layers(plane.levels, plane.x_axis, plane.y_axis),
        joins,
        whiskers,
        points,
        halo,
        letters,
    ]
    says = f"{plane.title}. " + "; ".join(" ".join(filter(None, (row["set"], row["values"]))) for row in rows)
    return figure(alt.layer(*layers), says, title=plane.title, note=plane.note, height=300, static_width=440)


def _row(plane: _Plane, entry: Entry, shown: Sequence[Entry]) -> dict[str, Any]:
    x, y, number = plane.x[entry.letter], plane.y[entry.letter], _series(entry, shown)
    colour = SERIES[number % len(SERIES)][0]
    spread = plane.spreads.get(entry.letter)
    low, high = (spread and _whisker(spread)) or (None, None)
    return {
        "x": x,
        "y": y,
        "low": low,
        "high": high,
        "line": f"{entry.line}{entry.division if plane.spreads else ''}",
        "series": number,
        "colour": colour,
        "fill": colour if entry.is_closed_score else CARD[0],
        "shape": SHAPES[number % len(SHAPES)],
        "letter": entry.letter,
        "set": f"{entry.letter} {entry.name}: {entry.made_from}",
        "values": f"{plain(x)} {plane.x_axis.title}, {plain(y)} {plane.y_axis.title}",
    }


def _labels(rows: Sequence[dict[str, Any]], plane: _Plane) -> list[dict[str, Any]]:
    """Letters at their marks; overlapping marks share one label."""
    labels: list[dict[str, Any]] = []
    for row in rows:
        near = (
            label
            for label in labels
            if abs(plane.x_axis.fraction(label["x"]) - plane.x_axis.fraction(row["x"])) < _NEAR
            and abs(plane.y_axis.fraction(label["y"]) - plane.y_axis.fraction(row["y"])) < _NEAR
        )
        label = next(near, None)
        if label is None:
            labels.append({"x": row["x"], "y": row["y"], "letters": row["letter"]})
        elif row["letter"] not in label["letters"].split():
            label["letters"] += f" {row['letter']}"
    return labels


def _series(entry: Entry, shown: Sequence[Entry]) -> int:
    return list(dict.fromkeys(e.line for e in shown)).index(entry.line)


def _whisker(spread: Spread) -> tuple[float, float] | None:
    """Mean ± standard deviation, if there are enough runs; above 0, as the axis is logarithmic."""
    if not spread.has_interval or not spread.sd:
        return None
    return max(spread.mean - spread.sd, spread.mean / 10), spread.mean + spread.sd


def _times(epochs: Mapping[str, float], rates: Mapping[str, float]) -> list[tuple[float, str]]:
    """Lines of equal time around the measured times: rate = epochs / time."""
    minutes = [60 * epochs[letter] / rates[letter] for letter in epochs if letter in rates]
    rounds = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3000, 6000)
    near = [m for m in rounds if min(minutes) / 2.5 <= m <= max(minutes) * 2.5]
    return [(60 / m, _clock(m)) for m in near]


def _clock(minutes: float) -> str:
    if minutes < 1:
        return f"{60 * minutes:g} s"
    return f"{minutes:g} min" if minutes < 60 else f"{minutes / 60:g} h"
