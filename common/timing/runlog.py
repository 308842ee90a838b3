"""The events of a run and their times, the only source of all the suite's figures.

Time is read from one monotonic clock per rank (``time.perf_counter``). MLLOG records have milliseconds since 1970,
as the rules require: the wall-clock time at which the log was opened plus the monotonic time since then, so that a
correction of the system clock during a run cannot change a time to train.
"""

import fcntl
import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from heapq import nlargest
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from mlhpc.common.files.atomic import write_all
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.ranks.world import Loss, World
from mlhpc.common.timing import data_wait
from mlhpc.common.timing.event_files import events_path
from mlhpc.common.timing.heartbeat import Heartbeat
from mlhpc.common.timing.mllog_file import close_mllog, has_run_stop, metadata_of, open_mllog
from mlhpc.common.timing.steps import RecordEvent, StepTimer, percentiles
from mlhpc.errors import QUIET, UserError, reason_of
from mlhpc.quantities import duration_text

T = TypeVar("T")
Status = Literal["success", "failed", "aborted"]

# Spans that the MLPerf rules define by <name>_start and <name>_stop (mlperf-logging, hpc_*/common.yaml).
RULED_SPANS = frozenset({"init", "run", "staging", "epoch", "eval"})

RANK_0_MAY_STILL_WRITE_S = 3.0


class EnergyMeter(Protocol):
    """Measures the energy of a run on ``nodes`` machines (``common/energy/meter.py``)."""

    nodes: int

    def start(
        self,
        record: Callable[[str, float, bool], None],
        record_usage: Callable[[str, Mapping[str, float]], None],
    ) -> None:
        """Start measuring. ``record`` receives the readings of this rank's counters of each kind, and
        ``record_usage`` how their devices are used."""

    def halt(self) -> None:
        """Stop measuring without returning figures."""

    def stop(self) -> tuple[Mapping[Any, Any], Sequence[str]]:
        """Stop measuring, and return the figures and lines about what went wrong."""


class Ranges(Protocol):
    """Marks spans for the profiler of a device's vendor, as ``torch.cuda.nvtx`` does."""

    def range_push(self, msg: str, /) -> object:
        """Open a range named ``msg`` inside the open ranges."""

    def range_pop(self) -> object:
        """Close the range that was opened last."""


_NO_RANGE = nullcontext()


@contextmanager
def _in_range(ranges: Ranges, name: str) -> Iterator[None]:
    ranges.range_push(name)
    try:
        yield
    finally:
        ranges.range_pop()


class RunLog:
    """Writes ``run.log`` (MLLOG, rank 0) and ``events.rankN.jsonl`` (every rank) of one run.

    Times are recorded with spans: ``with log.span("epoch", epoch=3): …``. ``docs/reference/timing.md`` describes
    the spans and what is timed.
    """

    def __init__(self, out: Path, world: World, meter: EnergyMeter | None = None) -> None:
        """Open the files in the existing folder ``out``. Raises UserError if they cannot be written.

        ``meter``: measures the energy of the span ``run``, to be recorded in the note ``energy``. Either all ranks
        or none must pass a meter.
        """
        self.out = out
        self.ranges: Ranges | None = None
        """The ranges of the device that trains, set once it is known: spans are also marked there."""
        self.world = world
        self._meter = meter
        self._opened = time.perf_counter()
        self._opened_ms = time.time() * 1e3
        self._open_spans: list[str] = []
        self._span_s: dict[tuple[str, int], float] = {}
        self._timers: dict[str, StepTimer] = {}  # of running loops, by name
        self._waited: dict[str, float] = {}  # in finished loops
        self._batches_done = Counter[object]()  # in finished training loops, by epoch
        self._first_batch = 0  # of the current loop, counted from the start of its epoch
        self._waits: list[data_wait.Waits] = []  # of finished loops, in their order
        self._passes = 1  # batches per interval in training
        self._samples_of: Callable[[int, int], Iterable[object]] | None = None
        self._marks: dict[str, list[tuple[int, str]]] = {}  # in running loops: batches before it, name
        self._status: Status = "aborted"
        self._stopping = threading.Lock()
        self._stopped = False
        self._closing = threading.Lock()
        self._writing = threading.Lock()
        with as_user_error(out, "cannot be written", "choose another --out"):
            # Unbuffered: a record that could not be written must not be written again on close.
            path = events_path(out, world.rank)
            if path.parent != out:
                path.parent.mkdir(exist_ok=True)
            self._events = open(path, "ab", buffering=0)
            with suppress(OSError):  # readers use the lock to distinguish an active run from a dead one
                fcntl.flock(self._events, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._mllog = open_mllog(out / "run.log") if world.rank == 0 else None
        self._heartbeat = Heartbeat(self._report) if world.rank == 0 else None
        world.on_loss(self.lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._heartbeat:
            self._heartbeat.stop()
        if self._meter:  # even if the run ended before its clock started
            self._meter.halt()
        with self._closing:  # wait while another thread records the loss of a rank
            self._events.close()
        if self._mllog:
            close_mllog(self._mllog)

    def now(self) -> float:
        """Seconds since the log was opened, on this rank's monotonic clock."""
        return time.perf_counter() - self._opened

    @contextmanager
    def span(self, name: str, *, sync: bool = False, **tags: Any) -> Iterator[dict[str, Any]]:
        """Record an interval. With ``sync``, the interval starts when the last rank has reached it and ends when
        the slowest rank has finished; otherwise the interval is local to this rank, and nothing waits. If an
        exception passes through, the interval's end is recorded with that exception. Yields the interval's tags;
        tags that are changed in the block, such as ``step``, are recorded with their new values at the end."""
        phase = name
        if "epoch" in tags:
            phase = f"epoch {tags['epoch']}" if name == "epoch" else f"{name} of epoch {tags['epoch']}"
        self._open_spans.append(phase)
        if self._heartbeat:
            self._heartbeat.enter(phase)
        self.world.enter(phase)
        meter = self._meter if name == "run" else None
        with self._range(phase):
            if meter:
                meter.start(self._record_energy, self._record_usage)
            if sync:
                self.world.barrier()
            started = self._event("begin", name, **tags)
            self._ruled(name, "start", tags, started)
            error: str | None = None
            try:
                yield tags
                if sync:
                    self.world.barrier()
            except BaseException as raised:
                error = reason_of(raised)
                self.world.fail(error)  # here, while the failed phase is still open
                raise
            finally:
                self._end(name, tags, started, error)
                if meter and error:
                    meter.halt()
        if name == "run":
            self._reduce_waits()
        if meter:
            self._note_energy(meter)
        self.world.enter(self._phase)

    @property
    def _phase(self) -> str:
        return self._open_spans[-1] if self._open_spans else "after the run"

    def _end(self, name: str, tags: dict[str, Any], started: float, error: str | None) -> None:
        """Record the end of a span, with ``error`` if an exception ended it."""
        stopped = self.now()
        if "epoch" in tags:
            key = name, tags["epoch"]
            self._span_s[key] = self._span_s.get(key, 0.0) + stopped - started
        ending = {**tags, "seconds": stopped - started} | ({"error": error} if error else {})
        self._event("end", name, at=stopped, **ending)
        if name == "run" and error:
            self._status = "aborted"  # even if the target was met: not all ranks reached the end
        self._ruled(name, "stop", tags, stopped)
        self._open_spans.pop()
        if self._heartbeat:
            self._heartbeat.enter(self._phase)

    def _record_energy(self, measured: str, joules: float, whole: bool) -> None:
        """Record the energy that this rank's counters have counted since the start of the run, marked as
        incomplete unless ``whole``, and the number of machines of the run. Also called from the meter's thread."""
        more = {"nodes": self._meter.nodes} if self._meter else {}
        mark = {} if whole else {"incomplete": True}
        self._record_reading("energy", measured, joules=round(joules, 3), **more, **mark)

    def _record_usage(self, measured: str, usage: Mapping[str, float]) -> None:
        """Record how the devices of this rank's node are used. Called from the meter's thread."""
        self._record_reading("usage", measured, **{name: round(value, 4) for name, value in usage.items()})

    def _record_reading(self, event: str, name: str, **values: Any) -> None:
        with self._closing:
            if not self._events.closed:
                with suppress(UserError):  # training's next event raises it
                    self._event(event, name, **values)

    def _note_energy(self, meter: EnergyMeter) -> None:
        figures, warnings = meter.stop()
        if figures:
            self.note("energy", **figures)
        for line in warnings:
            self.say(line)

    def timed(
        self,
        batches: Iterable[T],
        name: str,
        record_event: RecordEvent | None = None,
        phase: str = "train",
        *,
        passes: int = 1,
        shared: Callable[[], float] | None = None,
        **tags: Any,
    ) -> Generator[T, None, None]:
        """Yield ``batches``, and record how long the loop waited for them (as ``name``) and how long its steps
        took (as ``phase``), even if the loop exits early and closes this generator. ``record_event``: records
        events in the queue of the device on which the steps run (None: on the host); see ``StepTimer``.

        All ranks wait for one another after every ``passes`` batches in training, but only after the loop in the
        phase "eval"; this determines the intervals of ``data_wait``. ``shared``: if ranks share samples, returns
        the seconds that this rank has so far waited for others to read theirs."""
        timer, epoch = StepTimer(record_event), None if phase == "eval" else tags.get("epoch")
        self._first_batch = self._batches_done[epoch]
        self._timers[name] = timer
        if phase != "eval":
            self._passes = passes
        others: list[float] = []
        iterator = iter(batches)
        try:
            while True:
                timer.ask()
                before = shared() if shared else 0.0
                try:
                    with self._range(name):
                        batch = next(iterator)
                except StopIteration:
                    timer.stop()
                    break
                timer.start()
                if shared:
                    others.append(shared() - before)
                with self._range(f"{phase} step"):
                    yield batch
                del batch  # so that the loader can reuse its memory
        finally:
            self._timers.pop(name, None)
            if epoch is not None:
                self._batches_done[epoch] += len(timer.waits)
            self._waited[name] = self._waited.get(name, 0.0) + timer.total_wait
            self._keep_waits(timer, others, name, None if phase == "eval" else passes, tags)
            if not self._events.closed:  # after an error an iterator may outlive the log
                self._record_times(timer, name, phase, tags)

    def _keep_waits(
        self, timer: StepTimer, others: list[float], name: str, passes: int | None, tags: dict[str, Any]
    ) -> None:
        """Keep the waits of a finished loop in memory, separately for the parts between its marks."""
        own = [max(0.0, wait - other) for wait, other in zip(timer.waits, others, strict=False)]
        begin, after = 0, dict[str, str]()
        for end, mark in [*self._marks.pop(name, []), (len(timer.waits), "")]:
            last = 0.0 if mark else timer.last_wait
            waits = data_wait.by_interval(timer.waits[begin:end], passes, last)
            alone = data_wait.by_interval(own[begin:end], passes, last) if others else waits
            self._waits.append(data_wait.Waits(name, {**tags, **after}, waits, alone))
            begin, after = end, {"after": mark}

    def _reduce_waits(self) -> None:
        """After the clock has stopped: record the data wait of all ranks as events of rank 0, one for each loop or
        part of a loop."""
        for loop in data_wait.reduce(self.world, self._waits) or ():
            if self.world.rank == 0:
                lost = [[rank, seconds] for rank, seconds in loop.lost.items()]
                tags: dict[str, Any] = {"count": loop.intervals, "seconds": loop.seconds, "lost": lost}
                self._event("waited", loop.name, **tags, **loop.tags)
        own = data_wait.slow_batches(self._waits, self.world.rank)
        if self._samples_of:
            own = [replace(each, samples=self._named(each)) for each in own]
        every = [each for rank in self.world.gather(own) for each in rank]
        if self.world.rank == 0:
            for each in nlargest(data_wait.NAMED, every, key=lambda batch: batch.seconds):
                self._event("slow", "data_wait", **asdict(each))

    def _named(self, batch: data_wait.SlowBatch) -> tuple[str, ...]:
        assert self._samples_of
        passes = range((batch.step - 1) * self._passes, batch.step * self._passes)
        names = chain.from_iterable(self._samples_of(batch.epoch - 1, each) for each in passes)
        return tuple(Path(str(name)).name for name in islice(names, data_wait.NAMED))

    def _range(self, name: str) -> AbstractContextManager[None]:
        """A range of the device's profiler; without a device, a context manager that does nothing."""
        return _NO_RANGE if self.ranges is None else _in_range(self.ranges, name)

    def _report(self, phase: str, seconds: float, printed: bool) -> None:
        """Report the progress of the current loop: as an event for ``mlhpc watch``, and as a line if ``printed``.
        Called from the heartbeat's thread."""
        timers = list(self._timers.values())
        steps = self._first_batch + len(timers[-1].waits) if timers else 0
        with self._closing:
            if self._events.closed:
                return
            if steps:
                with suppress(UserError):  # only in this thread: training's next event raises it
                    self._event("progress", phase, step=steps)
        # On a terminal, a bar already shows the progress of training.
        if printed and not ("data_wait" in self._timers and sys.stderr.isatty()):
            self.say(f"{phase}: {duration_text(round(seconds))}" + (f", step {steps}" if steps else ""))

    def _record_times(self, timer: StepTimer, name: str, phase: str, tags: dict[str, Any]) -> None:
        waits, steps = timer.waits, timer.steps
        waited = {"count": len(waits), "seconds": timer.total_wait, "max": 0.0}
        self._event("timed", name, **waited | percentiles(waits), **tags)
        if steps:
            self._event("steps", phase, count=len(steps), seconds=sum(steps), **percentiles(steps), **tags)

    def seconds_of(self, name: str, epoch: int) -> float:
        """Total seconds of this rank's spans ``name`` of ``epoch`` that have ended."""
        return self._span_s.get((name, epoch), 0.0)

    def mark(self, name: str, **tags: Any) -> None:
        """Record a point in time while the clock runs, with the seconds that each kind of loop has waited so
        far."""
        waited = dict(self._waited)
        for loop, timer in self._timers.items():
            waited[loop] = waited.get(loop, 0.0) + timer.waited()
            self._marks.setdefault(loop, []).append((timer.started, name))
        self._event("mark", name, waited=waited, **tags)

    def metric(self, name: str, value: float, **tags: Any) -> None:
        """Record a measured value, such as ``eval_error``; with ``epoch`` if the rules require ``epoch_num``."""
        at = self._event("metric", name, value=value, **tags)
        if name in ("eval_error", "eval_accuracy"):
            self._record("event", name, value, metadata_of(tags), at)

    def hyperparameters(self, values: dict[str, Any]) -> None:
        """Record facts of the run that the rules require, with one record per key."""
        at = self._event("facts", "hyperparameters", values=values)
        for key, value in values.items():
            self._record("event", key, value, {}, at)

    def note(self, name: str, **tags: Any) -> None:
        """Record an event that is neither an interval nor a metric."""
        self._event("note", name, **tags)

    def data_format(self, *, generator: int | None = None, **facts: Any) -> None:
        """Record how the data set is stored: its ``codec`` (None: as published), whether it is ``lossy``, and
        related facts in its manifest; its ``shuffle_scope``; ``samples_per_archive``, if samples were packed
        before the run; and the version of the ``generator`` that made it. In the log these become the records
        ``data_codec``, ``shuffle_scope``, ``samples_per_archive`` and ``data_version``."""
        at = self._event("note", "data", **facts)
        if generator is not None:
            self.note("generator", version=generator)
            self._record("event", "data_version", generator, {}, at)
        if facts.get("codec"):
            rest = ("codec", "shuffle_scope", "samples_per_archive")
            more = {key: value for key, value in facts.items() if key not in rest}
            self._record("event", "data_codec", facts["codec"], more, at)
        for key in ("shuffle_scope", "samples_per_archive"):
            if facts.get(key):
                self._record("event", key, facts[key], {}, at)

    def say(self, line: str) -> None:
        """Print a line for the user, from rank 0, unless ``mlhpc --quiet`` is set."""
        if self._heartbeat:
            self._heartbeat.said()
        if self.world.rank == 0 and not os.environ.get(QUIET):
            # A single write: print makes two, and lines of other ranks may interleave.
            sys.stderr.write(line + "\n")

    def finish(
        self,
        status: Status,
        device_peak_bytes: int | None = None,
        samples_of: Callable[[int, int], Iterable[object]] | None = None,
    ) -> None:
        """Set the status of ``run_stop``; a run without a status counts as aborted. Records the peak memory of the
        process, and of its device if ``device_peak_bytes`` is given. ``samples_of(epoch, batch)``, both counted
        from 0: returns the names of the samples in a training batch; the names for slow batches are recorded."""
        self._status, self._samples_of = status, samples_of
        # Linux reports KiB (getrusage(2)).
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.note("memory", peak_bytes=peak, device_peak_bytes=device_peak_bytes)
        self.note("finish", status=status)

    @property
    def status(self) -> Status:
        """The status of ``run_stop``, if known."""
        return self._status

    def _event(self, event: str, name: str, at: float | None = None, **tags: Any) -> float:
        t = self.now() if at is None else at
        line = json.dumps({"t": round(t, 6), "event": event, "name": name, **tags}) + "\n"
        with self._writing, self._fatal_if_unwritable(Path(self._events.name)):
            write_all(self._events.fileno(), memoryview(line.encode()))
        return t

    def _fatal_if_unwritable(self, path: Path) -> AbstractContextManager[None]:
        """End the run if a line cannot be written to ``path``, since a record with gaps would be wrong."""
        return as_user_error(path, "cannot be written", "free some space, or choose another --out")

    def _ruled(self, name: str, edge: Literal["start", "stop"], tags: dict[str, Any], at: float) -> None:
        if name == "run" and edge == "stop":
            self._run_stop(at)
        elif name in RULED_SPANS:
            self._record("start" if edge == "start" else "end", f"{name}_{edge}", None, metadata_of(tags), at)

    def _run_stop(self, at: float, **reason: str) -> None:
        """Record run_stop, but only once, since the end of the run and the loss of a rank may coincide."""
        with self._stopping:
            if not self._stopped:
                self._stopped = True
                self._record("end", "run_stop", None, {"status": self._status, **reason}, at)

    def _record(self, kind: str, key: str, value: Any, metadata: dict[str, Any], at: float) -> None:
        if self._mllog:
            write: Callable[..., None] = getattr(self._mllog, kind)
            with self._fatal_if_unwritable(self.out / "run.log"):
                write(
                    key, value, metadata=metadata, time_ms=round(self._opened_ms + at * 1e3), stack_offset=3
                )

    def lost(self, loss: Loss) -> None:
        """Close the record of a run that cannot continue. Called on the lowest surviving rank when another rank is
        lost."""
        with self._closing:
            if self._events.closed:  # the run had ended
                return
            self._status = "aborted"
            at = self._event("lost", "rank", **asdict(loss))
            if self._mllog is None:
                if has_run_stop(self.out / "run.log", RANK_0_MAY_STILL_WRITE_S):
                    return
                self._mllog = open_mllog(self.out / "run.log")
            if any(phase == "run" for phase in self._open_spans):
                self._run_stop(at, reason=str(loss))
