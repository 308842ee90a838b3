"""An emulation over time, as in figures 1 to 8 of the paper "DLIO": bytes moved, and what ranks do meanwhile."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from mlhpc.common.pages.charts import PARTS, SERIES, Figure, chart_of, figure
from mlhpc.iobench.emulate.record import Run
from mlhpc.iobench.emulate.steps import COLUMNS, EpochTimes
from mlhpc.iobench.formats.counting import Timeline
from mlhpc.quantities import bytes_text, count, digits

_RATES = {"read_bytes": ("read", SERIES[0][0]), "checkpoint_bytes": ("checkpoints", SERIES[1][0])}
_RANKS = {"computing_s": ("compute", PARTS["step"][0]), "waiting_s": ("wait for data", PARTS["data_wait"][0])}


def of_rank(run: Run) -> dict[str, Any]:
    """What a rank did in equal intervals of ``interval_s`` seconds since the ranks met: lists of bytes read, bytes
    of checkpoints, seconds of computing and seconds of waiting for data."""
    start, wait, compute, oversleep = _steps([*run.epochs, *run.evaluations])[:, :4].T
    ready, done = start + wait, start + wait + compute + oversleep
    checkpoints = np.array([[each.start_s, each.end_s, each.bytes] for each in run.transfers]).reshape(-1, 3)
    timelines = {"read_bytes": run.read_bytes}
    for name, spans, amounts in (
        ("checkpoint_bytes", checkpoints[:, :2], checkpoints[:, 2]),
        ("computing_s", np.stack([ready, done], 1), done - ready),
        ("waiting_s", np.stack([start, ready], 1), wait),
    ):
        timelines[name] = Timeline(run.origin)
        timelines[name].add(spans, amounts)
    return _with_one_interval(timelines)


def of_ranks(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over ranks of what ``of_rank`` returns."""
    total = {name: Timeline(0.0) for name in parts[0] if name != "interval_s"}
    for part in parts:
        for name, timeline in total.items():
            timeline.include(Timeline(0.0, part["interval_s"], np.array(part[name])))
    return _with_one_interval(total)


def _steps(epochs: Sequence[EpochTimes]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The steps of all epochs in the order of time, [steps, columns]."""
    steps = np.concatenate([np.empty((0, len(COLUMNS))), *(epoch.steps for epoch in epochs)])
    return steps[np.argsort(steps[:, 0], kind="stable")]


def _with_one_interval(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    longest = max(timeline.interval_s for timeline in timelines.values())
    for timeline in timelines.values():
        while timeline.interval_s < longest:
            timeline.lengthen()
    used = max(timeline.used for timeline in timelines.values())
    amounts = {name: timeline.amounts[:used].tolist() for name, timeline in timelines.items()}
    return {"interval_s": longest, **amounts}


def figures(timeline: Mapping[str, Any], ranks: int) -> list[Figure]:
    """Bandwidths of all ranks over time, and how many of ``ranks`` compute and wait."""
    rates = [
        _over_time(timeline, {name: kind}, "MB/s", 1e6, f"{bytes_text(sum(timeline[name]))} over time")
        for name, kind in _RATES.items()
        if any(timeline[name])
    ]
    return [*rates, _over_time(timeline, _RANKS, "ranks", 1.0, f"What {count(ranks, 'rank')} did")]


def _over_time(
    timeline: Mapping[str, Any],
    kinds: Mapping[str, tuple[str, str]],
    unit: str,
    of: float,
    what: str,
) -> Figure:
    interval = timeline["interval_s"]
    shown = {name: kind for name, kind in kinds.items() if any(timeline[name])}
    rows = [
        {"x": n * interval, "y": amount / interval / of, "kind": kind,
         "says": f"{kind}, {digits(n * interval)} s: {digits(amount / interval / of)} {unit}"}
        for name, (kind, _) in shown.items()
        for n, amount in enumerate(timeline[name])
    ]  # fmt: skip
    peaks = [
        f"{kind} at most {digits(max(timeline[name]) / interval / of)} {unit}"
        for name, (kind, _) in shown.items()
    ]
    by = alt.Scale(
        domain=[kind for kind, _ in shown.values()], range=[colour for _, colour in shown.values()]
    )
    end = len(timeline["read_bytes"]) * interval
    x = alt.X("x:Q", title="seconds", scale=alt.Scale(domain=[0, end], nice=False))
    drawn = chart_of(rows, x=x, y=alt.Y("y:Q", title=unit, stack="zero")).mark_area(interpolate="step-after")
    legend = alt.Legend(orient="top", symbolType="square", title=None)
    drawn = drawn.encode(color=alt.Color("kind:N", scale=by, legend=legend))
    return figure(alt.layer(drawn), f"{what}: {', '.join(peaks)}", height=110, static_width=820)
