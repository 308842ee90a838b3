"""Reads Horovod's timeline: the tensors fused into each all-reduce, and the all-reduce's duration (docs,
"Timeline"; horovod/common/timeline.cc, 0.28.1). Only rank 0 writes a timeline."""

import json
import os
import re
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}


class FusedMessage(NamedTuple):
    """One all-reduce by the library that Horovod uses: the bytes of its tensors, and its seconds on rank 0,
    without the time in which Horovod waits for ranks and fills the fusion buffer."""

    bytes: int
    seconds: float


def enable() -> None:
    """Make it possible to record a timeline later. Called by all ranks before Horovod starts."""
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"


def fused_messages(path: Path) -> list[FusedMessage]:
    """The all-reduces in the timeline ``path``, in order.

    Tensors are fused if their all-reduces begin one after another before any of them ends, since Horovod runs one
    at a time. Raises ValueError for a file that is not a timeline.
    """
    tensors: dict[int, int] = {}  # bytes by pid, which identifies a tensor in a timeline
    running: dict[int, str] = {}  # open activities
    open_: set[int] = set()
    fused: list[tuple[set[int], int, int]] = []
    begin = 0
    stack: dict[int, list[str]] = {}
    for event in _events(path):
        pid, phase = event.get("pid", 0), event.get("ph")
        if phase == "B":
            stack.setdefault(pid, []).append(str(event.get("name", "")))
            if _is_all_reduce(stack[pid][-1]):
                begin = begin if open_ else event["ts"]
                open_.add(pid)
                running[pid] = stack[pid][-1]
        elif phase == "E" and stack.get(pid):
            name = stack[pid].pop()
            if running.get(pid) == name and pid in open_:
                if not fused or fused[-1][0] != open_ or fused[-1][1] != begin:
                    fused.append((set(open_), begin, event["ts"]))
                del running[pid]
                if not running:
                    open_ = set()
            if size := _bytes(event.get("args", {})):
                tensors[pid] = size
    return [
        FusedMessage(sum(tensors.get(pid, 0) for pid in pids), (end - begin) / 1e6)
        for pids, begin, end in fused
    ]


def _is_all_reduce(activity: str) -> bool:
    """Return whether ``activity`` is NCCL_ALLREDUCE, GLOO_ALLREDUCE or MPI_ALLREDUCE, and not Horovod's own
    NEGOTIATE_ALLREDUCE or ALLREDUCE around it."""
    return activity.endswith("_ALLREDUCE") and not activity.startswith("NEGOTIATE")


def _events(path: Path) -> list[dict[str, Any]]:
    text = path.read_text().rstrip().rstrip(",")
    try:
        events: list[dict[str, Any]] = json.loads(text if text.endswith("]") else text + "]")
    except ValueError as error:
        raise ValueError(f"{path} is not a Horovod timeline: {error}") from None
    return events


def _bytes(args: dict[str, Any]) -> int:
    """Bytes of a tensor described as ``{"dtype": "float32", "shape": "[3, 3, 64]"}``."""
    sides = [int(side) for side in re.findall(r"\d+", args.get("shape", ""))]
    return prod(sides) * _BYTES.get(args.get("dtype", ""), 0)
