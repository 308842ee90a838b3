"""``trace.json``: the steps and reads of all ranks in the Trace Event Format, for Perfetto and chrome://tracing.

A process is a rank; its thread 0 is the training loop, the others are its reader threads. Times are
microseconds since the ranks met before the first epoch.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlhpc.iobench.emulate.record import Run
from mlhpc.iobench.emulate.steps import EpochTimes


def write_part(run: Run, rank: int, out: Path) -> None:
    """This rank's events, one a line, in ``trace.rankN.part``. Raises OSError."""
    with (out / f"trace.rank{rank}.part").open("w") as file:
        for event in _events(run, rank):
            file.write(json.dumps(event) + "\n")


def join_parts(ranks: int, out: Path) -> None:
    """``trace.json`` from the parts of all ranks, which are removed. Raises OSError."""
    with (out / "trace.json").open("w") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
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
        yield from _steps(epoch, run.origin, rank)
    for number in sorted({number for number, _ in run.events}):
        named = {"ph": "M", "name": "thread_name", "pid": rank, "tid": number + 1}
        yield {**named, "args": {"name": f"reader {number}"}}
    for number, reads in run.events:
        for read in reads:
            yield {
                **_complete("read", read.start - run.origin, read.seconds, rank, number + 1),
                "args": {"offset": read.offset, "bytes": read.size},
            }


def _steps(epoch: EpochTimes, origin: float, rank: int) -> Iterator[dict[str, Any]]:
    for step, row in enumerate(epoch.steps.tolist(), 1):
        at = row[0] - origin
        for name, seconds in zip(("wait", "compute", "oversleep", "barrier"), row[1:5], strict=True):
            if seconds > 0:
                event = _complete(name, at, seconds, rank, 0)
                yield {**event, "args": {"epoch": epoch.epoch + 1, "step": step}}
            at += seconds
    for step, seconds in zip(epoch.checkpoint_at, epoch.checkpoint_step_s, strict=True):
        row = epoch.steps[step].tolist()
        yield _complete("checkpoint", row[0] - origin + sum(row[1:5]), seconds, rank, 0)


def _complete(name: str, start_s: float, seconds: float, rank: int, thread: int) -> dict[str, Any]:
    times = {"ts": round(start_s * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "cat": "io", "name": name, "pid": rank, "tid": thread, **times}
