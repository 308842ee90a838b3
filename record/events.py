"""The events that a rank recorded while it ran (``common/timing/runlog.py``), one JSON object per line. The keys
are ``t`` (seconds on the rank's monotonic clock since the log was opened), ``event`` (the kind), ``name``, and
further keys that depend on the kind of event:

- ``begin`` and ``end`` of a span. ``end`` has ``seconds``, and ``error`` if an exception ended the span. Spans are
  nested: ``init``; ``run`` > ``staging``, ``exchange``, ``epoch`` > (``train``, ``eval``).
- ``timed``: ``name`` is ``data_wait`` or ``eval_data_wait``, with ``epoch``, ``count``, ``seconds``, ``p50``,
  ``p90``, ``p99``, ``max``. An epoch may have several such events, which add up.
- ``steps``: ``name`` is ``train`` or ``eval``, with the same keys. The time of a batch is measured on a CPU from
  receiving the batch to requesting the next one; on a GPU, between the ends of two steps in the queue, minus the
  data wait in between.
- ``metric``: ``value``, ``epoch``. ``mark``: a point in time, with the seconds ``waited`` until then by kind of
  loop.
- ``waited``, from rank 0 after the run: the data wait of all ranks in a loop of ``count`` intervals, and ``lost``,
  the seconds of it that each rank caused; with ``"after": "warm"``, only for the steps after that mark.
- ``slow``, from rank 0 after the run: a training batch that arrived late, with its ``rank``, ``epoch``, ``step``,
  ``seconds`` of waiting, and ``samples``.
- ``progress``: ``step``, of the epoch so far, from rank 0 about every five seconds.
- ``energy``, from the first rank of each node about every second: ``name`` is the kind of counter, with ``joules``
  since ``run_start`` and the run's number of ``nodes``; ``incomplete`` if a counter of that kind on the node is
  known to be missing. ``usage``, about every second: how the accelerators of a node are used, as means over the
  accelerators (``common/energy/counters.py``).
- ``note``: facts under a name. ``memory``, at the end: ``peak_bytes`` of the process and ``device_peak_bytes`` of
  its GPU since the end of the warm-up. ``lost``: a rank that was lost, and the reason.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlhpc.common.files.regular import open_regular
from mlhpc.common.files.untrusted import MOST_VALUES, count_values, parse_json
from mlhpc.record.fields import MOST_RANKS, Number

LONGEST_EVENT = 2**20
"""Maximum number of characters of an event."""


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of one rank, up to the first invalid line, since the last line of a killed rank may be truncated.
    At most ``MOST_VALUES`` values are read from the file. Raises OSError if ``path`` cannot be read, is a link or
    is not a regular file."""
    events = []
    left = MOST_VALUES
    with os.fdopen(open_regular(path, os.O_NOFOLLOW), encoding="utf-8", errors="replace") as file:
        while line := file.readline(LONGEST_EVENT):
            try:
                event = parse_json(line, left)
            except ValueError:
                break
            left -= count_values(line)
            if not is_event(event):
                break
            events.append(event)
    return events


def events_of_rank_0(run: Path) -> list[dict[str, Any]]:
    """The events of rank 0 of the run in the folder ``run``; empty if they cannot be read."""
    with suppress(OSError):
        return read_events(run / "events.rank0.jsonl")
    return []


class Event(BaseModel):
    """An event. The class declares only the keys whose types readers rely on."""

    model_config = ConfigDict(strict=True, extra="allow")
    event: str
    name: str
    t: Number = 0.0
    epoch: int | None = None
    seconds: Number = 0.0
    count: Number = 0
    step: int | None = None
    value: float | None = None
    joules: Annotated[float, Field(ge=0, le=1e18)] | None = None
    nodes: Annotated[int, Field(le=MOST_RANKS)] | None = None


def is_event(line: object) -> bool:
    """Return whether ``line``, a parsed line of an events file, is an event."""
    try:
        return bool(Event.model_validate(line))
    except ValidationError:
        return False
