"""MLPerf logging (MLLOG) lines, from any file, as typed records.

Logs of the field are quirky: foreign text between the lines, a last line that was cut, clocks of several
ranks in one file, stops of the wrong event type. Hence records are found by their key alone, nothing here
raises for what a line says, and what could not be read is kept as a ``Problem`` with its line number.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mlhpc.errors import UserError

TOKEN = ":::MLLOG "


@dataclass(frozen=True, slots=True)
class Record:
    """One MLLOG line. ``time_ms``: milliseconds since the epoch; ``line``: in the file, counted from 1."""

    time_ms: float
    event_type: str
    key: str
    value: Any
    metadata: Mapping[str, Any]
    line: int


@dataclass(frozen=True)
class Problem:
    """A line that carries the MLLOG token and is no record."""

    line: int
    what: str


@dataclass(frozen=True)
class Interval:
    """From a start record to a stop record, in milliseconds since the epoch."""

    start_ms: float
    stop_ms: float

    @property
    def seconds(self) -> float:
        return (self.stop_ms - self.start_ms) / 1e3


@dataclass(frozen=True)
class Evaluation:
    """A value of the quality metric. ``epoch`` is as logged: counted from 0 in some logs of round 0.7."""

    epoch: int | None
    value: float
    time_ms: float
    line: int


@dataclass(frozen=True)
class Log:
    """All that one file says.

    ``mllog_lines`` holds the line number of every line with the token, readable or not: the official
    checker counts lines in that list, not in the file. ``repeated``: lines of records that name a key twice,
    of which the last is taken; ``longest``: characters of the longest line with the token.
    """

    path: Path
    records: tuple[Record, ...]
    problems: tuple[Problem, ...]
    mllog_lines: tuple[int, ...]
    repeated: tuple[int, ...] = ()
    longest: int = 0

    def all(self, key: str) -> tuple[Record, ...]:
        return self._by_key.get(key, ())

    def first(self, key: str) -> Record | None:
        return next(iter(self.all(key)), None)

    def value(self, key: str) -> Any:
        """The value of the first record of ``key``; None where there is none."""
        record = self.first(key)
        return record.value if record else None

    @property
    def run(self) -> Interval | None:
        """From the first run_start to the first run_stop; None without both.

        Later records are left out on purpose: some published logs go on training after run_stop.
        """
        start, stop = self.first("run_start"), self.first("run_stop")
        return Interval(start.time_ms, stop.time_ms) if start and stop else None

    @property
    def time_to_train_s(self) -> float | None:
        """``run_stop − run_start`` in seconds (MLPerf HPC training rules); None without both.

        Says nothing about convergence: see ``evaluations``.
        """
        return self.run.seconds if self.run else None

    @property
    def staging(self) -> tuple[Interval, ...]:
        """The intervals in which something was staged, in the file's order. Every rank may log its own: what
        starts before the last has stopped is one interval with it."""
        return tuple(self._staging())

    @property
    def epochs(self) -> tuple[Interval, ...]:
        """The intervals between epoch_start and epoch_stop of the run, in the file's order."""
        return tuple(self._intervals("epoch_start", "epoch_stop"))

    @property
    def first_epoch(self) -> int:
        """The number of the first epoch: 0 in the TensorFlow reference's logs of round 0.7, 1 elsewhere."""
        keys = ("epoch_num", "first_epoch_num")
        numbers = (r.metadata[key] for r in self.records for key in keys if key in r.metadata)
        return 0 if next(numbers, 1) == 0 else 1

    def evaluations(self, metric: str) -> tuple[Evaluation, ...]:
        """The values of ``metric`` (``eval_error``, ``eval_accuracy``) between run_start and run_stop.

        Only these can meet the target. "Between" is by place in the file: clocks may go back.
        """
        start, stop = self.first("run_start"), self.first("run_stop")
        if not start:
            return ()
        last = stop.line if stop else self.records[-1].line
        return tuple(
            Evaluation(_integer(r.metadata.get("epoch_num")), float(r.value), r.time_ms, r.line)
            for r in self.all(metric)
            if start.line < r.line <= last and _is_number(r.value)
        )

    @cached_property
    def _by_key(self) -> dict[str, tuple[Record, ...]]:
        found: dict[str, list[Record]] = {}
        for record in self.records:
            found.setdefault(record.key, []).append(record)
        return {key: tuple(records) for key, records in found.items()}

    def _staging(self) -> Iterator[Interval]:
        starts: list[float] = []
        stops: list[float] = []
        for record in self.records:
            if record.key == "staging_start":
                starts.append(record.time_ms)
            elif record.key == "staging_stop" and starts:
                stops.append(record.time_ms)
                if len(stops) == len(starts):
                    yield Interval(min(starts), max(stops))
                    starts, stops = [], []
        if stops:  # one did not stop, or did not say so: as far as the others tell
            yield Interval(min(starts), max(stops))

    def _intervals(self, start_key: str, stop_key: str) -> Iterator[Interval]:
        start: Record | None = None
        for record in self.records:
            if record.key == start_key:
                start = record
            elif record.key == stop_key and start:
                yield Interval(start.time_ms, record.time_ms)
                start = None


def parse(path: Path) -> Log:
    """Reads the MLLOG lines of ``path``. A file without any gives a ``Log`` without records.

    Raises:
        UserError: the file cannot be opened.
    """
    records: list[Record] = []
    problems: list[Problem] = []
    mllog_lines: list[int] = []
    repeated: list[int] = []
    longest = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, 1):
                # The official parser takes what follows the last token on a line; so do we.
                _, token, payload = text.rpartition(TOKEN)
                if not token:
                    continue
                mllog_lines.append(number)
                longest = max(longest, len(text))
                read = _record(payload, number, repeated, cut=not text.endswith("\n"))
                if isinstance(read, Record):
                    records.append(read)
                else:
                    problems.append(read)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a log file or a run directory") from None
    return Log(path, tuple(records), tuple(problems), tuple(mllog_lines), tuple(repeated), longest)


def _record(payload: str, line: int, repeated: list[int], *, cut: bool) -> Record | Problem:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs) and line not in repeated[-1:]:
            repeated.append(line)
        return found

    try:
        fields = json.loads(payload.strip(), object_pairs_hook=once)
        return Record(
            time_ms=float(fields["time_ms"]),
            event_type=str(fields.get("event_type", "")),
            key=str(fields["key"]),
            value=fields["value"],
            metadata=fields["metadata"] if isinstance(fields["metadata"], dict) else {},
            line=line,
        )
    except (ValueError, OverflowError, RecursionError) as error:
        return Problem(line, "cut before its end" if cut else f"no JSON object: {error}")
    except KeyError as error:
        return Problem(line, f"has no {error.args[0]!r}")
    except (TypeError, AttributeError):
        return Problem(line, "is no JSON object with time_ms, key, value and metadata")


def _integer(value: Any) -> int | None:
    return int(value) if _is_number(value) and math.isfinite(value) else None


def _is_number(value: Any) -> bool:
    """JSON's true and false are no numbers, though Python counts with them; nor is what no float can hold."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)
