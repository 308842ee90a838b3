"""The sections of a page that tell where the time went, and what was learnt and read meanwhile."""

import math
from collections.abc import Callable, Mapping
from html import escape

from mlhpc.errors import count
from mlhpc.submission.logs.run_directory import RunDirectory
from mlhpc.submission.report import charts
from mlhpc.submission.report.charts import Piece, Point
from mlhpc.submission.report.html import number, section, table
from mlhpc.submission.report.summary import PARTS, data_rates, duration, parts, rate, size, target_sign


def breakdown(run: RunDirectory) -> str:
    told = parts(run)
    if not told:
        return ""
    pieces = [
        Piece(p.key, p.share, f"{p.label}: {duration(p.seconds)}, {p.share:.1%}") for p in told if p.share > 0
    ]
    says = "Where the time went: " + ", ".join(f"{p.label} {p.share:.1%}" for p in told)
    rows = [
        [
            f'<span class="swatch {escape(p.key)}"></span>{escape(p.label)}<small>{escape(p.what)}</small>',
            p.unknown if p.seconds is None else f"{p.seconds:.2f}",
            "" if p.seconds is None else f"{p.share:.1%}",
        ]
        for p in told
    ]
    whole = sum(p.seconds or 0.0 for p in told)
    drawn = table(["part", "seconds", "share"], rows, foot=["Sum", f"{whole:.2f}", "100.0%"])
    return section(
        "Where the time went",
        "Parts of the interval run_start to run_stop, as rank 0 saw it. They add up to the whole.",
        charts.stacked_bar(pieces, says) + drawn,
    )


def learning_curve(run: RunDirectory) -> str:
    target = run.target
    if target is None:
        return ""
    points, shaded, unit, scale = [], [], "", 1.0
    begun = run.log.first("run_start") if run.log else None
    evaluations = run.log.evaluations(target.metric) if run.log else ()
    if run.log and begun and evaluations:
        start = begun.time_ms
        unit, scale = _time_unit((evaluations[-1].time_ms - start) / 1e3)
        for e in evaluations:
            at = (e.time_ms - start) / 1e3
            epoch = "?" if e.epoch is None else str(e.epoch)
            says = f"epoch {epoch}, {duration(at)}: {e.value:.4g}"
            points.append(Point(at / scale, e.value, epoch, says))
        for interval in run.log.staging:
            left, right = ((edge - start) / 1e3 for edge in (interval.start_ms, interval.stop_ms))
            shaded.append((left / scale, right / scale, f"staging, {duration(interval.seconds)}"))
        x_ticks = charts.ticks(0.0, max(p.x for p in points), 5)
        where = f"over time since run_start in {unit}; epochs along the top" + (
            "; staging shaded" if shaded else ""
        )
    else:
        for done in run.result.epochs if run.result else ():
            value = done.quality(target.metric)
            if value is not None:
                points.append(Point(done.epoch, value, str(done.epoch), f"epoch {done.epoch}: {value:.4g}"))
        x_ticks = []
        where = "over epochs"
    points = [p for p in points if math.isfinite(p.y)]
    if not points:
        return ""
    says = (
        f"{target.label}: {points[0].y:.4g} at epoch {points[0].top}, {points[-1].y:.4g} at epoch "
        f"{points[-1].top}; target {target_sign(target)} {target.value:g}"
    )
    picture = charts.curve(
        points,
        says,
        target=target.value,
        target_label=f"target {target.value:g}",
        x_label=lambda value: f"{value:g} {unit}",
        x_ticks=x_ticks,
        shaded=shaded,
    )
    return section("Learning curve", f"{target.label.capitalize()}, {where}.", picture)


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 300:
        return "s", 1.0
    return ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)


def epoch_times(run: RunDirectory) -> str:
    columns = []
    for e in run.result.epochs if run.result else ():
        times = {"data_wait": e.data_wait_s, "step": e.step_s, "evaluation": e.eval_s}
        pieces = [
            Piece(key, value, f"epoch {e.epoch}, {PARTS[key][0]}: {duration(value)}")
            for key, value in times.items()
            if value is not None
        ]
        columns.append((str(e.epoch), pieces))
    if not any(pieces for _, pieces in columns):
        return ""
    totals = [sum(p.amount for p in pieces) for _, pieces in columns]
    says = f"Seconds an epoch: {totals[0]:.3g} the first, {totals[-1]:.3g} the last, "
    says += f"of {count(len(totals), 'epoch')}"
    key = "".join(
        f'<span><span class="swatch {k}"></span>{PARTS[k][0]}</span>'
        for k in ("data_wait", "step", "evaluation")
    )
    picture = charts.bars(columns, says, "{:g} s".format)
    return section(
        "Time an epoch", "Seconds of each epoch, by part.", f'<div class="key">{key}</div>{picture}'
    )


def throughput_chart(run: RunDirectory) -> str:
    rates = {e.epoch: e.samples_per_s for e in run.result.epochs if e.samples_per_s} if run.result else {}
    return _rates(
        "Throughput", "Samples a second while training, by epoch, all ranks.", rates, rate, "samples/s"
    )


def data_rate_chart(run: RunDirectory) -> str:
    about = (
        "Bytes a second that training read, by epoch, all ranks: the epoch's bytes over its training time."
    )
    return _rates("Data rate", about, data_rates(run), lambda value: size(value, "/s"), "")


def _rates(
    title: str, about: str, rates: Mapping[int, float], write: Callable[[float], str], unit: str
) -> str:
    if not rates:
        return ""
    columns = [
        (str(epoch), [Piece("plain", value, f"epoch {epoch}: {write(value)} {unit}".strip())])
        for epoch, value in rates.items()
    ]
    low, high = min(rates.values()), max(rates.values())
    says = (
        f"{title} by epoch: from {write(low)} to {write(high)} {unit}".strip()
        + f" over {count(len(rates), 'epoch')}"
    )
    return section(title, about, charts.bars(columns, says, lambda value: write(value) if value else "0"))


def epoch_table(run: RunDirectory) -> str:
    if not (run.result and run.result.epochs):
        return ""
    target, speeds = run.result.target, data_rates(run)
    head = [
        "epoch", target.metric, "train loss", "learning rate", "train s", "data wait s", "step s", "eval s",
        "samples", "samples/s", "data rate",
    ]  # fmt: skip
    rows = [
        [
            str(e.epoch), number(e.quality(target.metric)), number(e.train_loss), number(e.learning_rate),
            number(e.train_s), number(e.data_wait_s), number(e.step_s), number(e.eval_s),
            "" if e.samples is None else str(e.samples), number(e.samples_per_s),
            size(speeds[e.epoch], "/s") if e.epoch in speeds else "",
        ]
        for e in run.result.epochs
    ]  # fmt: skip
    drawn = table(head, rows)
    title = f"{'All ' * (len(rows) > 1)}{count(len(rows), 'epoch')} in numbers"
    return f"<section><details><summary>{title}</summary>{drawn}</details></section>"
