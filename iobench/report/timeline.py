"""An emulation over time, as in figures 1 to 8 of the paper "DLIO": bytes moved, and what the ranks are doing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.iobench.emulate.record import Run
from mlhpc.iobench.emulate.steps import COLUMNS, EpochTimes
from mlhpc.iobench.formats.counting import Timeline


def of_rank(run: Run) -> dict[str, Any]:
    """Return what a rank did in equal intervals of ``interval_s`` seconds since the ranks met: lists of bytes
    read, bytes of checkpoints, seconds of computing and seconds of waiting for data."""
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


def _steps(epochs: Sequence[EpochTimes]) -> npt.NDArray[np.float64]:
    """The steps of all epochs in the order of time, [steps, columns]."""
    steps: npt.NDArray[np.float64] = np.concatenate([np.empty((0, len(COLUMNS))), *(e.steps for e in epochs)])
    in_order: npt.NDArray[np.float64] = steps[np.argsort(steps[:, 0], kind="stable")]
    return in_order


def _with_one_interval(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    longest = max(timeline.interval_s for timeline in timelines.values())
    for timeline in timelines.values():
        while timeline.interval_s < longest:
            timeline.lengthen()
    used = max(timeline.used for timeline in timelines.values())
    amounts = {name: timeline.amounts[:used].tolist() for name, timeline in timelines.items()}
    return {"interval_s": longest, **amounts}
