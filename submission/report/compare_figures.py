"""Charts like figures 1 and 2 of Farrell et al. 2021: the time to solution of each set by part, and how it scales.

Figure 2 has four plots with logarithmic axes, shared along rows and columns: batch size over number of units (a)
and over epochs (b); epoch rate over number of units (c) and over epochs, which shows the resulting time (d).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import altair as alt

from mlhpc.common.pages import plots
from mlhpc.common.pages.blocks import Cell, Details, Grid, Legend, Table, number, table
from mlhpc.common.pages.charts import CARD, INK, SOFT, Figure
from mlhpc.common.pages.plots import LogAxis
from mlhpc.errors import few
from mlhpc.quantities import digits, duration_text, plain, seconds_text, time_unit, whole
from mlhpc.record.breakdown import PARTS
from mlhpc.submission.report.compare import DETAILED, references
from mlhpc.submission.report.entry import Entry
from mlhpc.submission.report.spread import Spread

BARS = 24
"""Maximum number of sets in a bar chart; further sets are only in the table."""
_LABELS = {key: PARTS[key][0] for key in ("staging", "first_epoch_excess", "training", "evaluation", "rest")}
_WHISKERS = "bars: ± standard deviation"
_LETTERS = 8
"""Maximum number of letters in the label of overlapping marks."""
_NEAR = 0.05
"""Marks that are closer than this fraction of both axes share a label."""


def breakdown(shown: Sequence[Entry]) -> tuple[Grid, Details]:
    """A chart like figure 1 of Farrell et al. 2021, in minutes and as fractions of the total."""
    drawn = shown[:BARS]
    unit, scale = time_unit(max(e.total_s for e in drawn))
    sets = [
        plots.Bar(
            f"{e.letter}  {e.name}, {duration_text(e.total_s)}",
            e.parts_s,
            f"{e.letter} {e.name}: {e.made_from}",
        )
        for e in drawn
    ]
    time = plots.Measure(f"mean time to solution, {unit}", duration_text, scale)
    share = time._replace(title="share of the time to solution")
    draw = partial(plots.stacked_bars, sets, parts=_LABELS, static_width=480)
    absolute = draw("Time by part", measure=time, title="Absolute")
    relative = draw("Share of the time by part", measure=share, relative=True, title="Relative")
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


def planes(group: Sequence[Entry]) -> tuple[Grid, Legend] | None:
    """Charts like figure 2 of Farrell et al. 2021: epoch scaling and throughput scaling, which share the axis of
    the batch size; None if no set in ``group`` has all quantities."""
    measured = [(e, m) for e in group if (m := e.measured)][:DETAILED]
    if not measured:
        return None
    first = measured[0][0]
    sets = [
        {"units": m.units, "batch": m.batch, "epochs": m.epochs[0], "rate": 3600 / m.epoch_s[0],
         "join": e.division, **_whisker(e.epochs), **_marked(e)}
        for e, m in sorted(measured, key=lambda pair: (pair[1].units, pair[1].batch))
    ]  # fmt: skip
    low, high = min(row["batch"] for row in sets) / 4, max(row["batch"] for row in sets) * 4
    reference = [
        {"epochs": p.value[0], "batch": float(p.size), "letter": "ref",
         "says": f"reference: {plain(p.value[0])} epochs at batch size {whole(p.size)}"}
        for p in references(first) if low <= p.size <= high
    ]  # fmt: skip

    def axis(key: str, title: str, base: int = 10, room: float = 1.5) -> LogAxis:
        keys = (key, "x_low", "x_high") if key == "epochs" else (key,)
        values = [row[key] for row in [*sets, *reference] for key in keys if row.get(key)]
        return plots.log_axis(values, title, base, room)

    x_units = axis("units", " or ".join(dict.fromkeys(f"{e.unit}s" for e, _ in measured)), base=2)
    x_epochs = axis("epochs", "epochs to the target", room=1.3)
    y_batch = axis("batch", "global batch size, samples", base=2)
    y_rate = axis("rate", "epochs per hour")
    train = first.train_samples or 1
    per_unit = 3600 / (train + (first.eval_samples or 0))
    names = list(dict.fromkeys(row["series"] for row in map(_marked, (e for e, _ in measured))))

    def levels(x: LogAxis, y: LogAxis, unit: float, label: str) -> list[alt.Chart]:
        constants = plots.round_constants(x, y, unit)
        return plots.levels(x, y, [(c * unit, label.format(digits(c), whole(1 / c))) for c in constants])

    def plane(
        title: str, note: str, x: tuple[str, LogAxis], y: tuple[str, LogAxis], under: list[alt.Chart],
        reference: Sequence[dict[str, Any]] = (),
    ) -> Figure:  # fmt: skip
        """One of the four plots. ``x`` and ``y``: the key of the value to plot, and the axis."""
        rows = [{**row, "x": row[x[0]], "y": row[y[0]]} for row in [*sets, *reference]]
        own, grey = rows[: len(sets)], rows[len(sets) :]
        for row in own:
            row["says"] += f"; {plain(row['x'])} {x[1].title}, {plain(row['y'])} {y[1].title}"
            if x[0] != "epochs":  # only epochs have intervals and divisions
                row |= {"x_low": None, "x_high": None, "join": ""}
        if grey:
            base = plots.on_axes(grey, x[1], y[1])
            marks = base.mark_point(filled=False, fill=CARD[0], strokeWidth=2, size=70, color=SOFT[0])
            under = [*under, base.mark_line(color=SOFT[0]).encode(order={"value": None}), marks]
        letters = plots.on_axes(_labels(rows, x[1], y[1]), x[1], y[1]).encode(text="text:N")
        style: Any = {"align": "left", "dx": 10, "dy": -8, "fontWeight": "bold", "fontSize": 14}
        return plots.lines(
            plots.on_axes(own, x[1], y[1]),
            f"{title}. {few([row['says'] for row in rows], BARS, '; ')}",
            series=names,
            under=under,
            over=plots.with_halo(letters, INK[0], **style),
            title=title,
            note=note,
            height=300,
            static_width=440,
        )

    units, epochs, batch, rate = (
        ("units", x_units),
        ("epochs", x_epochs),
        ("batch", y_batch),
        ("rate", y_rate),
    )
    times = plots.levels(x_epochs, y_rate, _times([60 * row["epochs"] / row["rate"] for row in sets]))
    figures = (
        plane("a) Choice of the batch size", "dotted: samples of the batch per unit", units, batch,
              levels(x_units, y_batch, 1.0, "{0} per unit")),
        plane("b) Epoch scaling", f"dotted: the same number of steps; {_WHISKERS}", epochs, batch,
              levels(x_epochs, y_batch, train, "{1} steps"), sorted(reference, key=lambda row: row["batch"])),
        plane("c) Throughput scaling", "dotted: samples/s per unit, including evaluation", units, rate,
              levels(x_units, y_rate, per_unit, "{0}/s per unit")),
        plane("d) Time to compute", f"dotted: the same T_epoch · epochs; {_WHISKERS}", epochs, rate, times),
    )  # fmt: skip
    legend = [(names.index(_marked(e)["series"]), e.letter, f"{e.name}, {e.made_from}", e.is_closed_score)
              for e, _ in measured]  # fmt: skip
    if reference:
        legend.append((-1, "ref", "reference convergence points (mlperf-logging)", False))
    return Grid(figures), Legend(tuple(legend))


def _marked(entry: Entry) -> dict[str, Any]:
    """The fields of a set's mark that are the same in all four plots. ``series``: the line to which the mark
    belongs, one per machine."""
    org, _, model = entry.line
    says = f"{entry.letter} {entry.name}: {entry.made_from}"
    return {
        "series": f"{org} · {model}",
        "letter": entry.letter,
        "hollow": not entry.is_closed_score,
        "says": says,
    }


def _labels(rows: Sequence[dict[str, Any]], x: LogAxis, y: LogAxis) -> list[dict[str, Any]]:
    """The labels of the marks, which are the letters of the sets; overlapping marks share a label with at most a
    few letters."""
    labels: list[tuple[tuple[float, float], dict[str, Any], list[str]]] = []
    for row in rows:
        at = x.fraction(row["x"]), y.fraction(row["y"])
        near = (known for (left, up), _, known in labels if max(abs(left - at[0]), abs(up - at[1])) < _NEAR)
        if (letters := next(near, None)) is None:
            labels.append((at, row, [row["letter"]]))
        elif row["letter"] not in letters:
            letters.append(row["letter"])
    return [{"x": row["x"], "y": row["y"], "text": few(letters, _LETTERS, " ")} for _, row, letters in labels]


def _whisker(spread: Spread | None) -> dict[str, float]:
    """The ends of a whisker at mean ± standard deviation, if there are enough runs; the lower end is kept above 0,
    because the axis is logarithmic."""
    if not spread or not spread.has_interval or not spread.sd:
        return {}
    return {"x_low": max(spread.mean - spread.sd, spread.mean / 10), "x_high": spread.mean + spread.sd}


def _times(minutes: Sequence[float]) -> list[tuple[float, str]]:
    """Lines of equal time, for round times near the measured ``minutes``: for each line, the ratio of epoch rate
    (epochs per hour) to epochs, and a label."""
    rounds = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 2880, 7200)
    near = [m for m in rounds if min(minutes) / 2.5 <= m <= max(minutes) * 2.5]
    return [(60 / m, seconds_text(60 * m)) for m in near]
