"""The charts of a run's page: breakdown of time, learning curves, and rates."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlhpc.common.pages import bars, plots
from mlhpc.common.pages.charts import Figure
from mlhpc.errors import count
from mlhpc.submission.logs.mllog import Log
from mlhpc.submission.logs.ranks import PERCENTILES, RankTimes
from mlhpc.submission.logs.run_directory import Epoch, RunDirectory, Target
from mlhpc.submission.report.summary import (
    PARTS,
    Part,
    data_rates,
    digits,
    duration,
    rate,
    size,
    target_sign,
    time_unit,
)

Rows = list[dict[str, Any]]
_BY_EPOCH: Any = {"x_title": "epoch", "height": 170}
_MOST_EPOCHS = 2000
"""Maximum number of points of a curve; with more, every n-th is drawn."""


def breakdown(parts: Sequence[Part]) -> Figure:
    """One stacked bar for the whole run, on a time axis."""
    seconds = {part.key: part.seconds or 0.0 for part in parts}
    unit, scale = time_unit(sum(seconds.values()))
    return bars.stacked_bars(
        [bars.Bar("", seconds)],
        "Breakdown of time to train",
        parts={part.key: part.label for part in parts},
        value_title=f"time since run_start, {unit}",
        write=duration,
        unit=scale,
        bar_height=44,
        static_width=820,
    )


def training(run: RunDirectory, ranks: Sequence[RankTimes]) -> tuple[Figure, ...]:
    """Training by epoch: the figures for which the run has data."""
    epochs = run.result.epochs if run.result else ()
    losses = {e.epoch: e.train_loss for e in epochs}
    learning_rates = {e.epoch: e.learning_rate for e in epochs}
    throughput = {e.epoch: e.samples_per_s or None for e in epochs}
    read = data_rates(epochs)
    most = max(read.values(), default=0.0)
    units = {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}
    unit, factor = next((of for of in units.items() if most >= of[1]), ("B/s", 1.0))
    scaled = {epoch: value / factor for epoch, value in read.items()}
    line, columns = plots.line, bars.columns
    figures = (
        learning_curve(run),
        _by_epoch(line, "Training loss", "training loss", losses, digits, "mean of the epoch"),
        _by_epoch(line, "Learning rate", "learning rate", learning_rates, digits, "at the end of the epoch"),
        epoch_times(epochs),
        _by_epoch(
            columns, "Throughput", "samples/s, all ranks", throughput, lambda v: f"{rate(v)} samples/s"
        ),
        _by_epoch(columns, "Data rate", f"{unit} read, all ranks", scaled, lambda v: size(v * factor, "/s")),
        step_times(ranks),
    )
    return tuple(figure for figure in figures if figure)


def _by_epoch(
    draw: Callable[..., Figure],
    title: str,
    y_title: str,
    values: Mapping[int, float | None],
    write: Callable[[float], str],
    note: str = "",
) -> Figure | None:
    """One value per epoch, drawn by ``draw``; None without a finite value."""
    finite = {epoch: value for epoch, value in values.items() if value is not None and math.isfinite(value)}
    if not finite:
        return None
    rows = [{"x": epoch, "y": y, "epoch": str(epoch), "value": write(y)} for epoch, y in finite.items()]
    low, high = write(min(finite.values())), write(max(finite.values()))
    alt_text = (
        f"{title} by epoch: {rows[0]['value']} at the first, {rows[-1]['value']} at the last of "
        f"{count(len(rows), 'epoch')}; from {low} to {high}"
    )
    tooltip = [("epoch", "epoch"), ("value", title.lower())]
    return draw(
        _thinned(rows), alt_text, y_title=y_title, tooltip=tooltip, title=title, note=note, **_BY_EPOCH
    )


def learning_curve(run: RunDirectory) -> Figure | None:
    """The quality metric over time since run_start; over epochs without a log."""
    target = run.target
    if target is None:
        return None
    rows: Rows = [
        {"x": e.epoch, "y": value, "epoch": str(e.epoch), "time": "not logged"}
        for e in (run.result.epochs if run.result else ())
        if (value := e.quality(target.metric)) is not None
    ]
    x_title = "epoch"
    shaded: Rows = []
    if logged := run.log and _over_time(run.log, target):
        rows, x_title, shaded = logged
    rows = _thinned([row for row in rows if math.isfinite(row["y"]) and math.isfinite(row["x"])])
    if not rows:
        return None
    for row in rows:
        row["value"] = f"{row['y']:.4g}"
    ends = ", ".join(f"{row['value']} at epoch {row['epoch']}" for row in (rows[0], rows[-1]))
    goal = f"target {target_sign(target)} {target.value:g}"
    return plots.line(
        rows,
        f"{target.label}: {ends}; {goal}",
        y_title=target.label,
        tooltip=[("epoch", "epoch"), ("time", "time"), ("value", target.label)],
        target=(target.value, goal),
        shaded=shaded,
        zero_x=True,
        title="Learning curve",
        note="staging shaded" if shaded else "",
        **_BY_EPOCH | {"x_title": x_title},
    )


def _over_time(log: Log, target: Target) -> tuple[Rows, str, Rows] | None:
    """The evaluations in a log, the title of their time axis, and the spans of staging; None without any."""
    start, evaluations = log.first("run_start"), log.evaluations(target.metric)
    if not start or not evaluations:
        return None
    begin = start.time_ms
    unit, scale = time_unit(max(e.time_ms - begin for e in evaluations) / 1e3)

    def at(time_ms: float) -> float:
        return (time_ms - begin) / 1e3 / scale

    rows = [
        {
            "x": at(e.time_ms),
            "y": e.value,
            "epoch": "?" if e.epoch is None else str(e.epoch),
            "time": duration(max(0.0, (e.time_ms - begin) / 1e3)),
        }
        for e in evaluations
    ]
    staging = [
        {"x": at(i.start_ms), "x2": at(i.stop_ms), "what": f"staging, {duration(i.seconds)}"}
        for i in log.staging
    ]
    return rows, f"time since run_start, {unit}", staging


def epoch_times(epochs: Sequence[Epoch]) -> Figure | None:
    """Seconds of each epoch, by part."""
    parts = {key: PARTS[key][0] for key in ("data_wait", "step", "evaluation")}
    rows: Rows = [
        {"x": e.epoch, "y": value, "part": label, "time": duration(value), "epoch": str(e.epoch)}
        for e in epochs
        for label, value in zip(parts.values(), (e.data_wait_s, e.step_s, e.eval_s), strict=True)
        if value is not None and math.isfinite(value)
    ]
    if not rows:
        return None
    totals: dict[int, float] = {}
    for row in rows:
        totals[row["x"]] = totals.get(row["x"], 0.0) + row["y"]
    seconds = list(totals.values())
    ends = f"{seconds[0]:.3g} s the first, {seconds[-1]:.3g} s the last"
    return bars.columns(
        rows,
        f"Time per epoch: {ends}, of {count(len(seconds), 'epoch')}",
        y_title="time, s",
        parts=parts,
        tooltip=[("epoch", "epoch"), ("part", "part"), ("time", "time")],
        title="Time per epoch",
        **_BY_EPOCH,
    )


def step_times(ranks: Sequence[RankTimes]) -> Figure | None:
    """Percentiles of the step time by epoch: in each epoch those of the rank with the largest median."""
    slowest: dict[int, dict[str, float]] = {}
    for rank in ranks:
        for epoch, percentiles in rank.steps.items():
            if "p50" in percentiles and 1e3 * percentiles["p50"] >= slowest.get(epoch, {"p50": 0.0})["p50"]:
                slowest[epoch] = {key: 1e3 * percentiles[key] for key in PERCENTILES if key in percentiles}
    rows: Rows = [
        {"x": epoch, "y": ms, "series": key, "epoch": str(epoch), "time": f"{ms:.4g} ms"}
        for epoch, percentiles in sorted(slowest.items())
        for key, ms in percentiles.items()
    ]
    if not rows:
        return None
    medians = [row["y"] for row in rows if row["series"] == "p50"]
    whose = " of the slowest rank" if len(ranks) > 1 else ""
    return plots.line(
        rows,
        f"Step time by epoch: median {min(medians):.4g} to {max(medians):.4g} ms",
        y_title="step time, ms",
        tooltip=[("epoch", "epoch"), ("series", "percentile"), ("time", "step time")],
        series=PERCENTILES,
        title="Step time",
        note=f"median, 90th and 99th percentile and maximum{whose}",
        **_BY_EPOCH,
    )


def rank_spread(ranks: Sequence[RankTimes]) -> Figure | None:
    """Data wait of every rank, for runs of several ranks."""
    waits = {rank.rank: rank.data_wait_s for rank in ranks if rank.data_wait_s is not None}
    if len(waits) < 2:
        return None
    rows: Rows = [
        {"x": rank, "y": wait, "rank": str(rank), "time": duration(wait)} for rank, wait in waits.items()
    ]
    low, high = min(rows, key=lambda row: row["y"]), max(rows, key=lambda row: row["y"])
    return bars.columns(
        rows,
        f"Data wait by rank: {low['time']} on rank {low['rank']} to {high['time']} on rank {high['rank']}",
        x_title="rank",
        y_title="data wait, s",
        tooltip=[("rank", "rank"), ("time", "data wait")],
        height=120,
        static_width=820,
    )


def _thinned(rows: Sequence[dict[str, Any]]) -> Rows:
    step = -(-len(rows) // _MOST_EPOCHS) or 1
    return list(rows[::-1][::step][::-1])
