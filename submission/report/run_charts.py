"""The charts of a run's page: where the time went, learning curves, and rates."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlhpc.common.pages import plots
from mlhpc.common.pages.charts import Figure
from mlhpc.errors import count
from mlhpc.submission.logs.ranks import PERCENTILES, RankTimes
from mlhpc.submission.logs.run_directory import RunDirectory
from mlhpc.submission.report.summary import (
    PARTS,
    Part,
    data_rates,
    duration,
    rate,
    size,
    target_sign,
    time_unit,
)

_HEIGHT = 170
_MOST_EPOCHS = 2000
"""Maximum points of a curve; of more, every n-th is drawn."""


def breakdown(parts: Sequence[Part]) -> Figure:
    """One stacked bar for the whole run, on a time axis."""
    total = sum(part.seconds or 0.0 for part in parts)
    unit, scale = time_unit(total)
    rows = [
        {
            "bar": "run",
            "name": "",
            "key": part.key,
            "part": part.label,
            "value": part.seconds / scale,
            "label": f"{part.share:.0%}" if part.share >= 0.07 else "",
            "time": duration(part.seconds),
            "share": f"{part.share:.1%}",
        }
        for part in parts
        if part.seconds is not None and part.seconds > 0
    ]
    alt_text = "Where the time went: " + ", ".join(f"{part.label} {part.share:.1%}" for part in parts)
    return plots.stacked_bars(
        rows,
        alt_text,
        parts={part.key: part.label for part in parts},
        value_title=f"time since run_start, {unit}",
        tooltip=[("part", "part"), ("time", "time"), ("share", "share")],
        bar_height=44,
        static_width=820,
    )


def learning_curve(run: RunDirectory) -> Figure | None:
    """The quality metric over time since run_start; over epochs without a log."""
    target = run.target
    if target is None:
        return None
    evaluations = run.log.evaluations(target.metric) if run.log else ()
    start = run.log.first("run_start") if run.log else None
    rows: list[dict[str, Any]] = []
    shaded, x_title = [], "epoch"
    if run.log and start and evaluations:
        seconds = [(e.time_ms - start.time_ms) / 1e3 for e in evaluations]
        unit, scale = time_unit(max(seconds))
        x_title = f"time since run_start, {unit}"
        for e, at in zip(evaluations, seconds, strict=True):
            epoch = "?" if e.epoch is None else str(e.epoch)
            rows.append({"x": at / scale, "y": e.value, "epoch": epoch, "time": duration(max(0.0, at))})
        for interval in run.log.staging:
            left, right = (
                (edge - start.time_ms) / 1e3 / scale for edge in (interval.start_ms, interval.stop_ms)
            )
            shaded.append({"x": left, "x2": right, "what": f"staging, {duration(interval.seconds)}"})
    else:
        for result_epoch in run.result.epochs if run.result else ():
            value = result_epoch.quality(target.metric)
            if value is not None:
                rows.append(
                    {
                        "x": result_epoch.epoch,
                        "y": value,
                        "epoch": str(result_epoch.epoch),
                        "time": "not logged",
                    }
                )
    rows = _thinned([row for row in rows if math.isfinite(row["y"]) and math.isfinite(row["x"])])
    if not rows:
        return None
    for row in rows:
        row["value"] = f"{row['y']:.4g}"
    first, last = rows[0], rows[-1]
    alt_text = (
        f"{target.label}: {first['value']} at epoch {first['epoch']}, {last['value']} at epoch {last['epoch']}; "
        f"target {target_sign(target)} {target.value:g}"
    )
    return plots.line(
        rows,
        alt_text,
        x_title=x_title,
        y_title=target.label,
        tooltip=[("epoch", "epoch"), ("time", "time"), ("value", target.label)],
        target=(target.value, f"target {target_sign(target)} {target.value:g}"),
        shaded=shaded,
        zero_x=True,
        title="Learning curve",
        note="staging shaded" if shaded else "",
        height=_HEIGHT,
    )


def training_curves(run: RunDirectory) -> list[Figure]:
    """Training loss and learning rate by epoch."""
    epochs = run.result.epochs if run.result else ()
    figures = []
    for title, note, values in (
        ("Training loss", "mean of the epoch", {e.epoch: e.train_loss for e in epochs}),
        ("Learning rate", "at the end of the epoch", {e.epoch: e.learning_rate for e in epochs}),
    ):
        finite = {
            epoch: value for epoch, value in values.items() if value is not None and math.isfinite(value)
        }
        if finite:
            figures.append(_by_epoch_line(title, note, finite))
    return figures


def _by_epoch_line(title: str, note: str, values: Mapping[int, float]) -> Figure:
    rows = [{"x": x, "y": y, "epoch": str(x), "value": f"{y:.4g}"} for x, y in values.items()]
    alt_text = f"{title} by epoch: {rows[0]['value']} at the first, {rows[-1]['value']} at the last"
    return plots.line(
        _thinned(rows),
        alt_text,
        x_title="epoch",
        y_title=title.lower(),
        tooltip=[("epoch", "epoch"), ("value", title.lower())],
        title=title,
        note=note,
        height=_HEIGHT,
    )


def epoch_times(run: RunDirectory) -> Figure | None:
    """Seconds of each epoch, by part."""
    parts = {key: PARTS[key][0] for key in ("data_wait", "step", "evaluation")}
    rows: list[dict[str, Any]] = [
        {
            "x": e.epoch,
            "key": key,
            "part": parts[key],
            "value": value,
            "time": duration(value),
            "epoch": str(e.epoch),
        }
        for e in (run.result.epochs if run.result else ())
        for key, value in (("data_wait", e.data_wait_s), ("step", e.step_s), ("evaluation", e.eval_s))
        if value is not None and math.isfinite(value)
    ]
    if not rows:
        return None
    totals: dict[object, float] = {}
    for row in rows:
        totals[row["x"]] = totals.get(row["x"], 0.0) + row["value"]
    first, last = (list(totals.values())[n] for n in (0, -1))
    alt_text = (
        f"Time per epoch: {first:.3g} s the first, {last:.3g} s the last, of {count(len(totals), 'epoch')}"
    )
    return plots.columns(
        rows,
        alt_text,
        x_title="epoch",
        y_title="time, s",
        parts=parts,
        tooltip=[("epoch", "epoch"), ("part", "part"), ("time", "time")],
        title="Time per epoch",
        height=_HEIGHT,
    )


def throughput(run: RunDirectory) -> Figure | None:
    rates = {e.epoch: e.samples_per_s for e in run.result.epochs if e.samples_per_s} if run.result else {}
    return _rates("Throughput", "samples/s, all ranks", rates, lambda value: f"{rate(value)} samples/s")


def data_rate(run: RunDirectory) -> Figure | None:
    """The bytes that training read in an epoch over its training time."""
    rates = data_rates(run)
    most = max(rates.values(), default=0.0)
    unit, factor = next(
        ((u, f) for u, f in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)) if most >= f), ("B/s", 1.0)
    )
    scaled = {epoch: value / factor for epoch, value in rates.items()}
    return _rates("Data rate", f"{unit} read, all ranks", scaled, lambda value: size(value * factor, "/s"))


def _rates(
    title: str, y_title: str, rates: Mapping[int, float], write: Callable[[float], str]
) -> Figure | None:
    rates = {epoch: value for epoch, value in rates.items() if math.isfinite(value)}
    if not rates:
        return None
    rows = [{"x": epoch, "value": v, "epoch": str(epoch), "rate": write(v)} for epoch, v in rates.items()]
    low, high = min(rates.values()), max(rates.values())
    alt_text = f"{title} by epoch: from {write(low)} to {write(high)} over {count(len(rates), 'epoch')}"
    return plots.columns(
        rows,
        alt_text,
        x_title="epoch",
        y_title=y_title,
        tooltip=[("epoch", "epoch"), ("rate", title.lower())],
        title=title,
        height=_HEIGHT,
    )


def step_times(ranks: Sequence[RankTimes]) -> Figure | None:
    """Percentiles of the step time by epoch: in each epoch those of the rank with the largest median."""
    slowest: dict[int, dict[str, float]] = {}
    for rank in ranks:
        for epoch, percentiles in rank.steps.items():
            if "p50" in percentiles and percentiles["p50"] >= slowest.get(epoch, {"p50": 0.0})["p50"]:
                slowest[epoch] = percentiles
    rows: list[dict[str, Any]] = [
        {
            "x": epoch,
            "y": percentiles[key] * 1e3,
            "series": key,
            "epoch": str(epoch),
            "time": f"{percentiles[key] * 1e3:.4g} ms",
        }
        for epoch, percentiles in sorted(slowest.items())
        for key in PERCENTILES
        if key in percentiles
    ]
    if not rows:
        return None
    medians = [row["y"] for row in rows if row["series"] == "p50"]
    alt_text = f"Step time by epoch: median {min(medians):.4g} to {max(medians):.4g} ms"
    return plots.line(
        rows,
        alt_text,
        x_title="epoch",
        y_title="step time, ms",
        tooltip=[("epoch", "epoch"), ("series", "percentile"), ("time", "step time")],
        series=PERCENTILES,
        title="Step time",
        note="median, 90th and 99th percentile and maximum"
        + (" of the slowest rank" if len(ranks) > 1 else ""),
        height=_HEIGHT,
    )


def rank_spread(ranks: Sequence[RankTimes]) -> Figure | None:
    """Data wait of every rank, for runs of several ranks."""
    waits = [(rank.rank, rank.data_wait_s) for rank in ranks if rank.data_wait_s is not None]
    if len(waits) < 2:
        return None
    rows = [{"x": rank, "value": wait, "rank": str(rank), "time": duration(wait)} for rank, wait in waits]
    low, high = min(waits, key=lambda pair: pair[1]), max(waits, key=lambda pair: pair[1])
    alt_text = (
        f"Data wait by rank: {duration(low[1])} on rank {low[0]} to {duration(high[1])} on rank {high[0]}"
    )
    return plots.columns(
        rows,
        alt_text,
        x_title="rank",
        y_title="data wait, s",
        tooltip=[("rank", "rank"), ("time", "data wait")],
        height=120,
        static_width=820,
    )


def _thinned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    step = -(-len(rows) // _MOST_EPOCHS) or 1
    return list(rows[::-1][::step][::-1])
