"""``trace.json``: the steps and reads of all ranks in the Trace Event Format, for Perfetto and chrome://tracing.

A process is a rank; its thread 0 is the training loop, the others are its reader threads. Times are
microseconds since the ranks met before the first epoch.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlhpc.iobench.emulate.record import Run
from mlhpc.iobench.emulate.steps import EpochTimes


def write_part(run: Run, rank: int, out: Path) -> None:
    """Write this rank's events to ``trace.rankN.part``, one per line. Raises OSError."""
    with (out / f"trace.rank{rank}.part").open("w") as file:
        for event in _events(run, rank):
            file.write(json.dumps(event) + "\n")


def join_parts(ranks: int, out: Path, origin_us: int) -> None:
    """Join the parts of all ranks into ``trace.json``, and remove them. ``origin_us``: microseconds since 1970 at
    the trace's time 0, to align it with traces in such times, for example DFTracer's. Raises OSError."""
    with (out / "trace.json").open("w") as file:
        head = {"displayTimeUnit": "ms", "otherData": {"origin_us": origin_us}}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        between = ""
        for rank in range(ranks):
            part = out / f"trace.rank{rank}.part"
            with part.open() as lines:
                for line in lines:
                    file.write(between + line.rstrip("\n"))
                    between = ",\n"
            part.unlink()
        file.write("\n]}\n")


def _events(run: Run, rank: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "training loop"}}
    for epoch in run.epochs:
        yield from _steps(epoch, "train", run.origin, rank)
    for evaluation in run.evaluations:
        yield from _steps(evaluation, "validation", run.origin, rank)
    for each in run.transfers:
        start, end = each.start_s - run.origin, each.end_s - run.origin
        arguments = {"number": each.number + 1, "bytes": each.bytes, "seconds": each.seconds}
        yield _complete(f"checkpoint {each.kind}", start, end, rank, 0, arguments)
    for number in sorted({number for number, _ in run.events}):
        named = {"ph": "M", "name": "thread_name", "pid": rank, "tid": number + 1}
        yield {**named, "args": {"name": f"reader {number}"}}
    for number, reads in run.events:
        for read in reads:
            start, end = read.start - run.origin, read.start + read.seconds - run.origin
            yield _complete("read", start, end, rank, number + 1, {"offset": read.offset, "bytes": read.size})


def _steps(epoch: EpochTimes, split: str, origin: float, rank: int) -> Iterator[dict[str, Any]]:
    for step, row in enumerate(epoch.steps.tolist(), 1):
        start = row[0] - origin
        for name, seconds in zip(("wait", "compute", "oversleep", "barrier"), row[1:5], strict=True):
            end = start + max(0.0, seconds)
            if end > start:
                arguments = {"split": split, "epoch": epoch.epoch + 1, "step": step}
                yield _complete(name, start, end, rank, 0, arguments)
            start = end


def _complete(
    name: str, start_s: float, end_s: float, rank: int, thread: int, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    start, end = round(start_s * 1e9), round(end_s * 1e9)
    times = {"ts": _microseconds(start), "dur": _microseconds(end - start)}
    return {"ph": "X", "cat": "io", "name": name, "pid": rank, "tid": thread, **times, "args": arguments}


def _microseconds(nanoseconds: int) -> float:
    """Round microseconds for Perfetto, which multiplies by 1000, truncates, and drops events that then overlap by
    a nanosecond."""
    value = nanoseconds / 1000
    return value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf)
