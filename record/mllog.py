"""Reads the MLPerf logging (MLLOG) lines of any file as typed records.

Published logs are irregular: they may have other text between the lines, a truncated last line, the clocks of
several ranks in one file, or stops of the wrong event type. Therefore records are recognised only by their key, no
line raises an error, and unreadable lines are kept as ``Problem`` with their line number. Text is made printable
and numbers finite in this module, once for all readers.
"""

import hashlib
import math
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.common.files.untrusted import MOST_VALUES, clean, count_values, parse_json, printable
from mlhpc.quantities import binary_text, count

TOKEN = ":::MLLOG "
_OLDER = {":::MLL ": "0.6", ":::MLPv0.5.0 ": "0.5"}
"""Tokens of older formats, which this module does not read, and the rounds of MLPerf Training that used them."""
_LONGEST_READ = 2**20  # characters per line; published lines have up to a few thousand
YEARS_MS = (-62135596800000.0, 253402300799999.0)
"""Python's first and last date (years 1 and 9999), in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Record:
    """One MLLOG line. ``time_ms``: milliseconds since 1970; ``line``: line number in the file, counted from 1."""

    time_ms: float
    event_type: str
    key: str
    value: Any
    metadata: Mapping[str, Any]
    line: int


@dataclass(frozen=True)
class Problem:
    """A line with the MLLOG token that is not a record. ``official``: whether the official parser also rejects
    it."""

    line: int
    what: str
    official: bool = True


@dataclass(frozen=True)
class Interval:
    """The times of a start record and its stop record, in milliseconds since 1970."""

    start_ms: float
    stop_ms: float

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return (self.stop_ms - self.start_ms) / 1e3


@dataclass(frozen=True)
class Evaluation:
    """A value of the quality metric. ``epoch``: the number in the log; some logs of round 0.7 count from 0."""

    epoch: int | None
    value: float
    time_ms: float
    line: int


@dataclass(frozen=True)
class Log:
    """The records of one file.

    ``mllog_lines``: the line number of every line with the token, readable or not, because the official checker
    counts lines in that list, not in the file. ``repeated``: lines of records in which a key is repeated; the last
    value is used. ``longest``: length in bytes of the longest line with the token, even if it is not read
    completely. ``parsing_cost``: the sum of the squares of the lengths of these lines in bytes, to which the run
    time of the official parser is proportional. ``first_epoch``: the number of the first epoch, which is 0 in the
    TensorFlow reference's logs of round 0.7 and 1 elsewhere. ``fingerprint``: a digest of the times of all
    records, which is the same for copies of a run's log. ``unreadable``: the reason if there are no records;
    otherwise "".
    """

    path: Path
    records: tuple[Record, ...]
    problems: tuple[Problem, ...]
    mllog_lines: tuple[int, ...]
    repeated: tuple[int, ...] = ()
    longest: int = 0
    parsing_cost: int = 0
    first_epoch: int = 1
    fingerprint: str = ""
    unreadable: str = ""

    def all(self, key: str) -> tuple[Record, ...]:
        """The records with the key ``key``, in the order of the file."""
        return self._by_key.get(key, ())

    def first(self, key: str) -> Record | None:
        """The first record with the key ``key``; None if there is none."""
        return next(iter(self.all(key)), None)

    def value(self, key: str) -> Any:
        """The value of the first record with the key ``key``; None if there is none."""
        record = self.first(key)
        return record.value if record else None

    @property
    def run(self) -> Interval | None:
        """The interval from the first run_start to the first run_stop; None unless both exist.

        Later records are deliberately ignored: some published logs continue training after run_stop.
        """
        start, stop = self.first("run_start"), self.first("run_stop")
        return Interval(start.time_ms, stop.time_ms) if start and stop else None

    @property
    def time_to_train_s(self) -> float | None:
        """``run_stop − run_start`` in seconds (MLPerf HPC training rules); None unless both exist.

        The run need not have converged: see ``evaluations``.
        """
        return self.run.seconds if self.run else None

    @property
    def staging(self) -> tuple[Interval, ...]:
        """The intervals of staging, in the order of the file. Each rank may log an interval, so overlapping
        intervals are merged."""
        return tuple(self._staging())

    @property
    def epochs(self) -> tuple[Interval, ...]:
        """The run's intervals from epoch_start to epoch_stop, in the order of the file."""
        found, start = [], None
        for record in self.records:
            if record.key == "epoch_start":
                start = record
            elif record.key == "epoch_stop" and start:
                found.append(Interval(start.time_ms, record.time_ms))
                start = None
        return tuple(found)

    def evaluations(self, metric: str) -> tuple[Evaluation, ...]:
        """The values of ``metric`` (``eval_error``, ``eval_accuracy``) between run_start and run_stop.

        Only values between these records can meet the target. "Between" refers to the order of records in the
        file, since clocks may go backwards.
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

    def condensed(self, keep: Callable[[str], bool]) -> "Log":
        """A copy of the log with only the records whose key ``keep`` accepts, and without problems and line
        numbers."""
        return replace(
            self, records=tuple(r for r in self.records if keep(r.key)), problems=(), mllog_lines=()
        )

    @cached_property
    def _by_key(self) -> dict[str, tuple[Record, ...]]:
        by_key: dict[str, list[Record]] = {}
        for record in self.records:
            by_key.setdefault(record.key, []).append(record)
        return {key: tuple(records) for key, records in by_key.items()}

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
        if stops:  # a start without a stop: the interval ends at the last stop
            yield Interval(min(starts), max(stops))


LARGEST = 256 * 2**20
"""Maximum number of characters read from a log; published HPC logs have fewer than five million."""


def parse(path: Path, flags: int = 0) -> Log:
    """Read the MLLOG lines of ``path``; ``flags`` as for ``open_regular``. For a file without such lines, returns
    a ``Log`` without records.

    Raises:
        UserError: the file cannot be opened.
    """
    records: list[Record] = []
    problems: list[Problem] = []
    mllog_lines: list[int] = []
    repeated: list[int] = []
    older = ""
    longest = parsing_cost = 0
    left_values = MOST_VALUES
    with (
        as_user_error(path, "cannot be read", "pass a log file or a run folder"),
        os.fdopen(open_regular(path, flags), encoding="utf-8", errors="replace") as file,
    ):
        for number, text in enumerate(_lines(file), 1):
            if not text:
                problems.append(Problem(number, f"not read from here: beyond {binary_text(LARGEST)}"))
                break
            if len(text) == _LONGEST_READ:
                longest = max(longest, _LONGEST_READ)
            # Like the official parser, use the text after the last token in a line.
            _, token, payload = text.rpartition(TOKEN)
            if token or ":::ML" in text:  # the official parser also reads one of the older formats
                length = len(text.encode("utf-8", "replace"))
                longest, parsing_cost = max(longest, length), parsing_cost + length**2
            if not token:
                older = older or next((each for each in _OLDER if each in text), "")
                continue
            mllog_lines.append(number)
            left_values -= count_values(payload)
            if left_values < 0:
                problems.append(Problem(number, f"not read from here: more than {MOST_VALUES} values"))
                break
            record = _record(payload, number, repeated, cut=not text.endswith("\n"))
            if isinstance(record, Record):
                records.append(record)
            else:
                problems.append(record)
    return Log(
        path,
        tuple(records),
        tuple(problems),
        tuple(mllog_lines),
        tuple(repeated),
        longest,
        parsing_cost,
        _first_epoch(records),
        _fingerprint(records),
        "" if records else _unreadable(len(mllog_lines), older),
    )


def _unreadable(mllog_lines: int, older: str) -> str:
    if mllog_lines:
        return f"none of {count(mllog_lines, 'MLLOG line')} can be read"
    if older:
        return f"no MLLOG lines, but those of the format {older.strip()} of round {_OLDER[older]}"
    return "no MLLOG lines"


def _lines(file: TextIO) -> Iterator[str]:
    """The lines of a file, each truncated to _LONGEST_READ characters to limit memory use. An empty last line
    means that only the first LARGEST characters of the file were read."""
    left = LARGEST
    while line := file.readline(_LONGEST_READ):
        yield line
        left -= len(line)
        while left >= 0 and len(line) == _LONGEST_READ and not line.endswith("\n"):
            line = file.readline(_LONGEST_READ)
            left -= len(line)
        if left < 0:
            yield ""
            return


def _first_epoch(records: Sequence[Record]) -> int:
    keys = ("epoch_num", "first_epoch_num")
    numbers = (r.metadata[key] for r in records for key in keys if key in r.metadata)
    return 0 if next(numbers, 1) == 0 else 1


def _fingerprint(records: Sequence[Record]) -> str:
    if not records:
        return ""
    return hashlib.sha256(array("d", [r.time_ms for r in records]).tobytes()).hexdigest()


def _record(payload: str, line: int, repeated: list[int], *, cut: bool) -> Record | Problem:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs) and line not in repeated[-1:]:
            repeated.append(line)
        return fields

    try:
        fields = parse_json(payload.strip(), object_pairs_hook=unique)
        time_ms = float(fields["time_ms"])
        metadata = fields["metadata"]
        record = Record(
            time_ms=time_ms,
            event_type=printable(str(fields.get("event_type", ""))),
            key=printable(str(fields["key"])),
            value=clean(fields["value"]),
            metadata=clean(metadata) if isinstance(metadata, dict) else {},
            line=line,
        )
    except (ValueError, OverflowError, RecursionError) as error:
        return Problem(line, "truncated" if cut else f"not a JSON object: {printable(str(error))}")
    except KeyError as error:
        return Problem(line, f"has no {error.args[0]!r}")
    except (TypeError, AttributeError):
        return Problem(line, "not a JSON object with time_ms, key, value and metadata")
    if not YEARS_MS[0] <= time_ms <= YEARS_MS[1]:
        return Problem(line, f"time_ms {time_ms:g} is not a time", official=False)
    return record


def _integer(value: Any) -> int | None:
    return int(value) if _is_number(value) and math.isfinite(value) else None


def _is_number(value: Any) -> bool:
    """Return whether ``value`` is a number. JSON's true and false do not count as numbers, although they do in
    Python, nor do integers beyond the range of a float."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)
