"""The charts on the page of a run: breakdown of time, learning curves, and rates."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import numpy as np

from mlhpc.common.pages import charts, plots
from mlhpc.common.pages.charts import Figure, chart_of
from mlhpc.quantities import (
    bytes_text,
    count,
    digits,
    duration_text,
    four_digits,
    seconds_text,
    size_unit,
    time_unit,
)
from mlhpc.record.breakdown import PARTS
from mlhpc.record.rank_table import RankTable
from mlhpc.record.result import Epoch
from mlhpc.record.run_directory import RunDirectory
from mlhpc.submission.report import summary
from mlhpc.submission.report.summary import Part

Rows = list[dict[str, Any]]
_MOST_EPOCHS = 2000
"""Maximum number of points of a curve; of more points, only every n-th is drawn."""
MOST_COLUMNS = 64
"""Maximum number of ranks that are drawn as individual columns."""
_HEIGHT = 170
_EPOCH = alt.X(
    "x:Q", title="epoch", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickMinStep=1, **plots.WHOLE)
)


def breakdown(parts: Sequence[Part]) -> Figure:
    """A chart of the whole run as one stacked bar on a time axis."""
    seconds = {part.key: part.seconds or 0.0 for part in parts}
    unit, scale = time_unit(sum(seconds.values()))
    return plots.stacked_bars(
        [plots.Bar("", seconds)],
        "Breakdown of time to train",
        parts={part.key: part.label for part in parts},
        measure=plots.Measure(f"time since run_start, {unit}", duration_text, scale),
        bar_height=44,
        static_width=820,
    )


def training(run: RunDirectory, ranks: RankTable) -> list[Figure]:
    """The charts of how training went, epoch by epoch; charts without data are omitted."""
    epochs = run.result.epochs if run.result else ()
    read = summary.data_rates(epochs)
    unit, scale = size_unit(max(read.values(), default=0.0))

    def rows(of: Callable[[Epoch], float | None], write: Callable[[float], str], by: float = 1.0) -> Rows:
        values = ((e.epoch, value) for e in epochs if (value := of(e)) is not None)
        return [{"x": n, "y": y / by, "series": "", "says": f"epoch {n}: {write(y)}"} for n, y in values]

    losses = rows(lambda e: e.train_loss, four_digits)
    learning_rates = rows(lambda e: e.learning_rate, four_digits)
    throughput = rows(lambda e: e.samples_per_s or None, lambda v: f"{digits(v)} samples/s")
    data_rates = rows(lambda e: read.get(e.epoch), lambda v: bytes_text(v, "/s"), scale)
    figures = (
        learning_curve(run),
        _lines("Training loss", losses, "training loss", note="mean of the epoch"),
        _lines("Learning rate", learning_rates, "learning rate", note="at the end of the epoch"),
        epoch_times(epochs),
        _columns("Throughput", throughput, "samples/s, all ranks"),
        _columns("Data rate", data_rates, f"{unit}/s read, all ranks"),
        step_times(ranks),
    )
    return [figure for figure in figures if figure]


def _columns(title: str, rows: Rows, y_title: str, **options: Any) -> Figure | None:
    """A chart with a column per epoch; None if there are no rows."""
    drawn = _thinned(rows)
    shared: Any = {"titles": ("epoch", y_title), "title": title, "height": _HEIGHT}
    return (
        plots.columns(drawn, _described(f"{title} by epoch", drawn), **shared, **options) if drawn else None
    )


def _lines(
    title: str, rows: Rows, y_title: str, x: alt.X = _EPOCH, what: str = "", **options: Any
) -> Figure | None:
    """A chart over epochs with a line for each of ``series``; None if there are no rows. ``what``: the title in
    the alternative text, if it differs from that of the chart."""
    drawn = _thinned(rows)
    base = chart_of(drawn, x=x, y=alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False)))
    shared: Any = {"size": 40 if len(drawn) <= 60 else 12, "title": title, "height": _HEIGHT}
    series = list(dict.fromkeys(row["series"] for row in drawn))
    return (
        plots.lines(base, _described(what or f"{title} by epoch", drawn), series=series, **shared, **options)
        if drawn
        else None
    )


def _thinned(rows: Rows) -> Rows:
    rows = [row for row in rows if math.isfinite(row["x"]) and math.isfinite(row["y"])]
    places = list(dict.fromkeys(row["x"] for row in rows))
    kept = set(places[::-1][:: math.ceil(len(places) / _MOST_EPOCHS) or 1])
    return [row for row in rows if row["x"] in kept]


def _described(title: str, rows: Rows) -> str:
    """Alternative text: ``title``, followed by the first, last, smallest and largest values of the first series or
    part."""
    if not rows:
        return ""
    kinds = [row.get("series") or row.get("part") for row in rows]
    rows = [row for row, kind in zip(rows, kinds, strict=True) if kind == kinds[0]]
    low, high = (end(rows, key=lambda row: row["y"])["says"] for end in (min, max))
    return f"{title}, from {rows[0]['says']} to {rows[-1]['says']}; lowest at {low}, highest at {high}"


def learning_curve(run: RunDirectory) -> Figure | None:
    """A chart of the quality metric over the time since run_start, with staging marked; without a log, the metric
    over epochs."""
    target, log = run.target, run.log
    if target is None:
        return None
    rows: Rows = []
    x, shaded = _EPOCH, []
    if log and (start := log.first("run_start")) and (evaluations := log.evaluations(target.metric)):

        def since(time_ms: float) -> float:
            return (time_ms - start.time_ms) / 1e3

        unit, scale = time_unit(max(since(e.time_ms) for e in evaluations))
        x = alt.X("x:Q", title=f"time since run_start, {unit}")
        for e in evaluations:
            when = f"epoch {'?' if e.epoch is None else e.epoch}, {duration_text(max(0.0, since(e.time_ms)))}"
            rows.append(
                {"x": since(e.time_ms) / scale, "y": e.value, "says": f"{when}: {digits(e.value, 4)}"}
            )
        for i in log.staging:
            span = {"x": since(i.start_ms) / scale, "x2": since(i.stop_ms) / scale}
            shaded.append(span | {"says": f"staging, {duration_text(i.seconds)}"})
    else:
        for epoch in run.result.epochs if run.result else ():
            if (value := epoch.quality(target.metric)) is not None:
                rows.append(
                    {"x": epoch.epoch, "y": value, "says": f"epoch {epoch.epoch}: {digits(value, 4)}"}
                )
    goal = f"target {summary.target_sign(target)} {digits(target.value, 4)}"
    spans = chart_of(shaded, x="x:Q", x2="x2:Q").mark_rect(color=charts.PARTS["staging"][0], opacity=0.2)
    return _lines(
        "Learning curve",
        [row | {"series": target.label} for row in rows],
        target.label,
        x,
        f"{target.label}, {goal}",
        under=[spans, *plots.limits([(target.value, goal)], alt.Y("y:Q"))],
        note="staging shaded" if shaded else "",
    )


def epoch_times(epochs: Sequence[Epoch]) -> Figure | None:
    """A chart of the seconds of each epoch, by part."""
    names = {key: PARTS[key][0] for key in ("data_wait", "step", "evaluation")}
    rows = []
    for e in epochs:
        parts = zip(names.values(), (e.data_wait_s, e.step_s, e.eval_s), strict=True)
        known = [(part, seconds) for part, seconds in parts if seconds is not None and math.isfinite(seconds)]
        whole = duration_text(sum(seconds for _, seconds in known))
        for part, seconds in known:
            says = f"epoch {e.epoch}: {whole}, {part} {duration_text(seconds)} of it"
            rows.append({"x": e.epoch, "y": seconds, "part": part, "says": says})
    colours = {name: charts.PARTS[key][0] for key, name in names.items()}
    return _columns("Time per epoch", rows, "time, s", colours=colours)


def step_times(ranks: RankTable) -> Figure | None:
    """A chart of percentiles of the step time by epoch, for the rank with the smallest median in each epoch; steps
    of the remaining ranks include more time waiting for data and for each other."""
    rows = [
        {
            "x": epoch,
            "y": 1e3 * seconds,
            "series": key,
            "says": f"epoch {epoch}, {key}: {seconds_text(seconds)}",
        }
        for epoch, percentiles in sorted(ranks.steps.items())
        for key, seconds in percentiles.items()
    ]
    whose = " of the rank that waited least for others" if len(ranks.ranks) > 1 else ""
    note = f"median, 90th and 99th percentile and maximum{whose}"
    return _lines("Step time", rows, "step time, ms", note=note)


def rank_spread(ranks: RankTable) -> Figure | None:
    """A chart of the data wait of each rank; a histogram for more than ``MOST_COLUMNS`` ranks, and None for a
    single rank."""
    waits = ranks.of("data_wait_s")
    if len(waits) < 2:
        return None
    layout: Any = {"height": 120, "static_width": 820}
    if len(waits) > MOST_COLUMNS:
        rows = _histogram(list(waits.values()))
        text = f"Own data wait of {len(waits):,} ranks, in classes: " + "; ".join(row["says"] for row in rows)
        return plots.columns(rows, text, titles=("own data wait, s", "ranks"), **layout)
    rows = [
        {"x": rank, "y": wait, "says": f"rank {rank}: {duration_text(wait)}"}
        for rank, wait in sorted(waits.items())
    ]
    text = _described("Own data wait by rank", rows)
    return plots.columns(rows, text, titles=("rank", "own data wait, s"), **layout)


def _histogram(seconds: Sequence[float]) -> Rows:
    """A histogram with twenty bins of equal width."""
    low, high = min(seconds), max(seconds)
    counts, edges = np.histogram(seconds, np.linspace(low, high, 21 if high > low else 2))
    # Enough digits to tell the bins apart: columns with equal labels would be drawn as one.
    shown = max(4, 2 + math.floor(math.log10(20 * high / (high - low)))) if high > low else 4
    return [
        {"x": (end := digits(edge, shown)), "y": ranks, "says": f"{count(ranks, 'rank')} up to {end} s"}
        for ranks, edge in zip(counts.tolist(), edges[1:].tolist(), strict=True)
    ]
