"""Figures 1 and 2 of paper 001: the time to solution of each set by part, and its scaling.

Figure 2 has four plots with logarithmic axes that are shared along rows and columns: from the number of units to
the batch size (a), from there to the epochs (b); from the units to the epoch rate (c), from there to the
resulting time (d).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mlhpc.common.pages import bars, charts, plots
from mlhpc.common.pages.blocks import Cell, Details, Grid, Legend, Table, number, table
from mlhpc.common.pages.charts import Figure, LogAxis
from mlhpc.errors import few
from mlhpc.perf.scaling import Point
from mlhpc.submission.logs.phases import PARTS
from mlhpc.submission.report.compare import DETAILED, references
from mlhpc.submission.report.entry import Entry
from mlhpc.submission.report.spread import Spread
from mlhpc.submission.report.summary import duration, plain, time_unit, whole

BARS = 24
"""Maximum number of sets in one bar chart; the others are only in the table."""
_LABELS = {key: label for key, (label, _) in PARTS.items()}
_WHISKERS = "bars: ± standard deviation"
_LETTERS = 8
"""Maximum number of letters in the label of overlapping marks."""
_NEAR = 0.05
"""Marks closer than this share of both axes get a common label."""


def breakdown(shown: Sequence[Entry]) -> tuple[Grid, Details]:
    """Figure 1 of paper 001, in minutes and as shares."""
    drawn = shown[:BARS]
    unit, scale = time_unit(max(e.total_s for e in drawn))
    sets = [
        bars.Bar(
            f"{e.letter}  {e.name}, {duration(e.total_s)}", e.parts_s, f"{e.letter} {e.name}: {e.made_from}"
        )
        for e in drawn
    ]
    draw = partial(bars.stacked_bars, sets, parts=_LABELS, write=duration, unit=scale, static_width=480)
    absolute = draw("Time by part", value_title=f"mean time to solution, {unit}", title="Absolute")
    shares = "share of the time to solution"
    relative = draw("Share of the time by part", value_title=shares, relative=True, title="Relative")
    return (Grid((absolute, relative)), Details("In numbers", (_table(shown),)))


def _table(shown: Sequence[Entry]) -> Table:
    def part(entry: Entry, key: str) -> Cell:
        seconds = entry.parts_s[key]
        if key == "first_epoch_excess" and all(r.phases.first_epoch_excess is None for r in entry.runs):
            return Cell("not known", value="")
        return number(seconds / 60, plain, f"{seconds / entry.total_s:.1%}")

    columns: dict[str, Callable[[Entry], Cell]] = {
        "minutes and share": lambda e: Cell(e.name, bold=e.letter),
        **{label: partial(part, key=key) for key, label in _LABELS.items()},
        "sum": lambda e: number(e.total_s / 60, plain),
    }
    return table("breakdown", shown, columns)


@dataclass(frozen=True)
class _Plane:
    """The content of one plot: x and y of each set by its letter, its axes and its level lines. With
    ``spreads`` x is the convergence of a division, and each set has a whisker."""

    title: str
    note: str
    x_axis: LogAxis
    y_axis: LogAxis
    x: Mapping[str, float]
    y: Mapping[str, float]
    levels: Sequence[dict[str, Any]]
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    reference: Sequence[Point] = ()


def planes(group: Sequence[Entry]) -> tuple[Grid, Legend] | None:
    """Figure 2: epoch scaling and throughput scaling, connected by the batch size; None if no set of
    ``group`` has all quantities."""
    shown = [e for e in group if e.measured][:DETAILED]
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
        _Plane("b) Epoch scaling", f"dotted: the same number of steps; {_WHISKERS}", x_epochs, y_batch, epochs,
               batches, levels(x_epochs, y_batch, train, "{1} steps"), spreads, reference),
        _Plane("c) Throughput scaling", "dotted: samples/s per unit, including evaluation", x_units,
               y_rate, units, rates, levels(x_units, y_rate, 3600 / samples, "{0:g}/s per unit")),
        _Plane("d) Time to compute", f"dotted: the same T_epoch · epochs; {_WHISKERS}", x_epochs, y_rate, epochs,
               rates, plots.level_lines(x_epochs, y_rate, _times(epochs, rates)), spreads),
    )  # fmt: skip
    machines = _machines(shown)
    legend = [
        (machines.index(_machine(e)), e.letter, f"{e.name}, {e.made_from}", e.is_closed_score) for e in shown
    ]
    if reference:
        legend.append((-1, "ref", "reference convergence points (mlperf-logging)", False))
    figures = tuple(_draw(plane, shown) for plane in drawn)
    return (Grid(figures), Legend(tuple(legend)))


def _draw(plane: _Plane, shown: Sequence[Entry]) -> Figure:
    rows = [_row(plane, e) for e in sorted(shown, key=lambda e: (e.scale or 0, e.batch or 0))]
    reference = [
        {"x": p.value[0], "y": float(p.size), "letter": "ref", "values": "",
         "set": f"reference: {plain(p.value[0])} epochs at batch size {whole(p.size)}"}
        for p in sorted(plane.reference, key=lambda p: p.size)
    ]  # fmt: skip
    says = [" ".join(filter(None, (row["set"], row["values"]))) for row in [*rows, *reference]]
    return plots.curves(
        rows,
        f"{plane.title}. {few(says, BARS, '; ')}",
        x_axis=plane.x_axis,
        y_axis=plane.y_axis,
        series=_machines(shown),
        tooltip=[("set", "set"), ("values", "values")],
        levels=plane.levels,
        reference=reference,
        labels=_labels([*rows, *reference], plane),
        title=plane.title,
        note=plane.note,
        height=300,
        static_width=440,
    )


def _row(plane: _Plane, entry: Entry) -> dict[str, Any]:
    x, y = plane.x[entry.letter], plane.y[entry.letter]
    spread = plane.spreads.get(entry.letter)
    low, high = (spread and _whisker(spread)) or (None, None)
    return {
        "x": x,
        "y": y,
        "x_low": low,
        "x_high": high,
        "series": _machine(entry),
        "join": entry.division if plane.spreads else "",
        "hollow": not entry.is_closed_score,
        "letter": entry.letter,
        "set": f"{entry.letter} {entry.name}: {entry.made_from}",
        "values": f"{plain(x)} {plane.x_axis.title}, {plain(y)} {plane.y_axis.title}",
    }


def _labels(rows: Sequence[dict[str, Any]], plane: _Plane) -> list[dict[str, Any]]:
    """Letters at their marks; overlapping marks share one label with a few letters."""
    labels: list[dict[str, Any]] = []
    for row in rows:
        at = plane.x_axis.fraction(row["x"]), plane.y_axis.fraction(row["y"])
        near = (
            label for label in labels if max(abs(a - b) for a, b in zip(label["at"], at, strict=True)) < _NEAR
        )
        if (label := next(near, None)) is None:
            labels.append({"x": row["x"], "y": row["y"], "at": at, "letters": [row["letter"]]})
        elif row["letter"] not in label["letters"]:
            label["letters"].append(row["letter"])
    return [
        {"x": label["x"], "y": label["y"], "text": few(label["letters"], _LETTERS, " ")} for label in labels
    ]


def _machine(entry: Entry) -> str:
    """The name of the line of a machine (``Entry.line``)."""
    org, _, model = entry.line
    return f"{org} · {model}"


def _machines(shown: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(map(_machine, shown)))


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
