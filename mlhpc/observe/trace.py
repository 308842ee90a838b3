"""``mlhpc trace``: writes a run's spans as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is the Trace Event Format of Chromium ("Trace Event Format", docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): complete events (``ph: X``), counters (``C``) and metadata (``M``),
with microseconds.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlhpc.common.files.atomic import write_bytes
from mlhpc.common.files.filesystem import require_new
from mlhpc.common.files.untrusted import finite
from mlhpc.common.timing.event_files import event_files
from mlhpc.errors import UserError
from mlhpc.record.events import events_of_rank_0, read_events
from mlhpc.record.run_directory import RunDirectory, read

Event = dict[str, Any]
_KINDS = {"timed", "steps"}
_STEPS, _WAITS = 1, 2
"""Thread numbers of a rank's steps and data waits in the trace; the rank's spans have number 0."""


def write_trace(folder: Path, out: Path) -> Path:
    """Write the spans of every rank of the run in ``folder`` to the new file ``out``, and return its path.

    Raises UserError if the run has no events, or if ``out`` exists or cannot be written.
    """
    run = read(folder)
    files = event_files(folder)
    if not files:
        raise UserError(f"{folder}: no events.rankN.jsonl to make a trace from; pass the folder of a run")
    require_new(out)
    try:
        events = [event for rank, path in files.items() for event in trace_of_rank(rank, read_events(path))]
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be read ({error.strerror})") from None
    facts = {"benchmark": run.benchmark, "preset": run.preset or "", "folder": str(folder)}
    trace = {"traceEvents": [*events, *_counters(run)], "displayTimeUnit": "ms", "otherData": facts}
    try:
        write_bytes(out, json.dumps(finite(trace), allow_nan=False).encode())
    except RecursionError:
        raise UserError(f"{folder}: its events are nested too deeply; no trace was written") from None
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}); choose another --out") from None
    return out


def trace_of_rank(rank: int, events: list[Event]) -> Iterator[Event]:
    """The spans of one rank as trace events: phases on one track; each epoch's total data wait and steps on
    separate tracks, since waits are recorded as sums (docs/reference/timing.md); the energy of the rank's node as
    counters. Spans without an end, which occur in a run that was killed or is still active, end with the last
    event."""
    yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
    for thread, name in ((0, "phases"), (_STEPS, "steps"), (_WAITS, "data wait (sum per epoch)")):
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": name}}
    open_spans: list[Event] = []
    counted: dict[str, tuple[float, float]] = {}
    last = max((event.get("t", 0.0) for event in events), default=0.0)
    for event in events:
        kind, t = event["event"], event.get("t", 0.0)
        if kind == "begin":
            open_spans.append(event)
        elif kind == "end":
            started = _started(open_spans, event)
            yield _complete(rank, 0, event, started, t, {})
        elif kind == "energy":
            yield from _energy(rank, event, counted)
        elif kind == "usage":
            usage = {key: value for key, value in event.items() if key != "t" and isinstance(value, float)}
            yield from (_counter(rank, f"{event['name']}: {key}", t, value) for key, value in usage.items())
        elif kind in _KINDS:
            thread = _STEPS if kind == "steps" else _WAITS
            yield _complete(rank, thread, event, t - event.get("seconds", 0.0), t, {"of": "the whole epoch"})
    for event in open_spans:
        yield _complete(rank, 0, event, event.get("t", 0.0), last, {"unfinished": True})


def _energy(rank: int, event: Event, counted: dict[str, tuple[float, float]]) -> Iterator[Event]:
    """Counter events for the energy that the rank's node has used in the run so far, and for its mean power since
    the previous reading. ``counted``: time and joules of the previous reading, by counter."""
    measured, joules, t = str(event["name"]), event.get("joules"), event.get("t", 0.0)
    if joules is None:
        return
    start, before = counted.get(measured, (t, joules))
    if t > start:
        yield _counter(rank, f"power of {measured}, W", start, (joules - before) / (t - start))
    yield _counter(rank, f"energy of {measured}, J", t, joules)
    counted[measured] = t, joules


def _counter(rank: int, name: str, t: float, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": rank, "ts": round(t * 1e6, 3), "args": {name: value}}


def _started(open_spans: list[Event], event: Event) -> float:
    for i in reversed(range(len(open_spans))):
        if open_spans[i]["name"] == event["name"]:
            return float(open_spans.pop(i).get("t", 0.0))
    return float(event.get("t", 0.0) - event.get("seconds", 0.0))


def _complete(rank: int, thread: int, event: Event, start: float, stop: float, more: Event) -> Event:
    tags = {k: v for k, v in event.items() if k not in ("t", "event", "name")}
    return {
        "ph": "X",
        "name": str(event["name"]),
        "cat": str(event["event"]),
        "pid": rank,
        "tid": thread,
        "ts": round(max(0.0, start) * 1e6, 3),
        "dur": round(max(0.0, stop - start) * 1e6, 3),
        "args": {**tags, **more},
    }


def _counters(run: RunDirectory) -> Iterator[Event]:
    """Counter events of rank 0 for the metric of the target and the throughput after each epoch."""
    ends = {
        e.get("epoch"): e.get("t", 0.0)
        for e in events_of_rank_0(run.path)
        if (e["event"], e["name"]) == ("end", "epoch")
    }
    for epoch in run.result.epochs if run.result else ():
        if (t := ends.get(epoch.epoch)) is None or run.target is None:
            continue
        values = {"samples/s": epoch.samples_per_s, run.target.metric: epoch.quality(run.target.metric)}
        for name, value in values.items():
            if value is not None:
                yield _counter(0, name, t, value)
