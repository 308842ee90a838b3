"""The progress of a run, from the events of its ranks; an active run on other nodes is followed through a shared
file system.

The events of rank 0 contain phase, epoch and metric; the events of other ranks contain their data wait and the
energy of their node. In a large run, only the first ranks are followed. Each update reads only what was added to
their files and, for ranks other than 0, parses only relevant lines.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from mlhpc.benchmarks.load import loads
from mlhpc.benchmarks.schema import Run
from mlhpc.common.files.regular import open_regular
from mlhpc.common.files.untrusted import parse_json, printable, read_text
from mlhpc.common.timing.event_files import PER_FOLDER, rank_of
from mlhpc.errors import UserError
from mlhpc.record.energy import EnergySoFar, Readings, energy_so_far, take_reading
from mlhpc.record.events import is_event

Event = dict[str, Any]
_MOST_BYTES = 64 * 2**20
"""Maximum bytes read from a file per update; the next update continues from that position."""
_LEAST_BYTES = 64 * 2**10
HOLE_S = 30.0
"""Seconds after which zeros in a file count as lost bytes, and no longer as bytes not yet visible on this node."""
_RANK_0 = "events.rank0.jsonl"


@dataclass(frozen=True)
class Progress:
    """The state of a run; values that are not known (yet) are None.

    ``phase``: the innermost span of rank 0; ``phase_s``: seconds since it began. ``step`` of ``steps``: progress
    within the current epoch. ``best``: best value of the target's metric. ``samples_per_s`` and
    ``data_wait_share`` (of the rank that waited longest) refer to the last epoch whose training is complete.
    ``left_s``: estimated seconds until the end of the last possible epoch, if the target is not met earlier.
    ``quiet_s``: seconds since the last event of any rank. ``energy``: by kind of counter. ``status``: running
    until the run has recorded its end; whether its processes are alive is not checked.
    """

    status: str
    phase: str
    phase_s: float
    ranks: int | None
    epoch: int | None
    epochs: int | None
    step: int | None
    steps: int | None
    metric: str | None
    best: float | None
    target: float | None
    samples_per_s: float | None
    data_wait_share: float | None
    elapsed_s: float | None
    left_s: float | None
    quiet_s: float
    energy: Mapping[str, EnergySoFar] = field(default_factory=dict)


@dataclass
class _Tail:
    """Reads the complete lines that were added to a file since the last update."""

    path: str
    clock: Callable[[], float] = time.monotonic
    offset: int = 0
    hole: int | None = None  # start of the zeros at which the last update stopped
    since: float = 0.0  # when ``offset`` reached the line with the hole

    def was_cut(self, size: int) -> bool:
        """Return whether the file, which has at least ``size`` bytes, was truncated after it was last read. Raises
        OSError if it cannot be read."""
        if size >= self.offset:
            return False
        fd = open_regular(self.path)  # opening makes NFS query the size; a cached size may be too small
        try:
            return os.fstat(fd).st_size < self.offset
        finally:
            os.close(fd)

    def read(self, size: int) -> list[bytes]:
        """The new lines of the file, which has at least ``size`` bytes. Raises OSError if it cannot be read."""
        if size <= self.offset:
            return []
        fd = open_regular(self.path)
        try:
            stays = self.hole is not None and os.pread(fd, 1, self.hole) == b"\0"
            lost = stays and self.clock() - self.since >= HOLE_S
            if stays and not lost:
                return []  # without reading the rest, which may be long
            # Read more than the size, which may be cached and too small, but not always _MOST_BYTES: for a
            # thousand files, such buffers take time.
            data = os.pread(fd, min(max(size - self.offset, _LEAST_BYTES), _MOST_BYTES), self.offset)
        finally:
            os.close(fd)
        if len(data) == _MOST_BYTES and b"\n" not in data:  # longer than any event
            self.offset, self.hole = self.offset + len(data), None
            return []
        if lost:
            data = self._after_hole(data)
        # A shared file system may know the length of a file before its last bytes, and show zeros instead.
        written = data.split(b"\0", 1)[0]
        lines = written.split(b"\n")
        unfinished = lines.pop()  # left for the next update
        if self.hole is None or lines:
            self.since = self.clock()
        self.hole = self.offset + len(written) if len(written) < len(data) else None
        self.offset += len(written) - len(unfinished)
        return lines

    def _after_hole(self, data: bytes) -> bytes:
        """The part of ``data`` after the line that contains a hole (zero bytes); all of ``data`` if nothing
        follows that line."""
        self.since = self.clock()
        zero = data.find(b"\0")
        after = data.find(b"\n", zero) + 1
        if zero < 0 or not after:
            return data
        self.offset, self.hole = self.offset + after, None
        return data[after:]


def _parsed(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events in ``lines``; other lines are skipped."""
    for line in lines:
        with suppress(ValueError):
            event = parse_json(line.decode())
            if is_event(event):
                yield event


def _counts(line: bytes) -> bool:
    """Return whether ``_Rank.take`` may need the event in ``line``. This check takes a tenth of the time of
    parsing the line."""
    return (b'"seconds"' in line and (b'"data_wait"' in line or b'"train"' in line)) or b'"energy"' in line


@dataclass
class _Rank:
    tail: _Tail
    waits: dict[int, float] = field(default_factory=dict)
    trained: dict[int, float] = field(default_factory=dict)
    energy: dict[str, Readings] = field(default_factory=dict)

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            kind, epoch = (event["event"], event["name"]), event.get("epoch")
            if kind[0] == "energy":
                take_reading(event, self.energy)
            if epoch is None:
                continue
            if kind == ("timed", "data_wait"):
                self.waits[epoch] = self.waits.get(epoch, 0.0) + event.get("seconds", 0.0)
            elif kind == ("end", "train"):
                self.trained[epoch] = self.trained.get(epoch, 0.0) + event.get("seconds", 0.0)


class Follower:
    """Follows the run in ``folder``. Raises UserError if ``folder`` contains no run."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        if not (folder / "run.log").is_file():
            raise UserError(f"{folder}: not a run folder (no run.log); pass the --out folder of a run")
        self.folder, self._clock = folder, clock
        self._config = _config(folder / "config.toml")
        self._ranks: dict[str, _Rank] = {}  # the followed ranks, by the names of their files
        self._begin()

    def _begin(self) -> None:
        """Reset to the state before any events of rank 0 were read."""
        self._of_rank0: list[Event] = []  # without the frequent events that are only counted
        self._open: list[Event] = []
        self._reported: Event = {}
        self._energy: Event = {}  # rank 0's final note on the energy of all nodes
        self._status = "running"
        self._last_t = 0.0
        self._age = 0.0  # seconds since rank 0's last event

    def look(self) -> Progress:
        """Read new events, and return the state of the run."""
        newest = 0.0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                rank = self._ranks.get(entry.name) or self._new(entry.name)
                if rank is None:
                    continue
                with suppress(OSError):
                    if entry.name == _RANK_0:  # opening a file makes NFS query its current size
                        os.close(os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK))
                    status = entry.stat()
                    newest = max(newest, status.st_mtime)
                    if rank.tail.was_cut(status.st_size):  # the events read so far belong to a different run
                        rank = self._ranks[entry.name] = _Rank(_Tail(entry.path, self._clock))
                        if entry.name == _RANK_0:
                            self._begin()
                    lines = rank.tail.read(status.st_size)
                    if entry.name == _RANK_0:
                        events = list(_parsed(lines))
                        rank.take(events)
                        self._take(events)
                        self._age = max(0.0, time.time() - status.st_mtime)
                    elif lines:
                        rank.take(_parsed(filter(_counts, lines)))
        return self._progress(max(0.0, time.time() - newest) if newest else 0.0)

    def _new(self, name: str) -> _Rank | None:
        """The rank whose events are in the file ``name``; None for other files and for all but the first ranks,
        since every rank followed requires a file-system call in each ``look``."""
        rank = rank_of(name)
        if rank is None or rank >= PER_FOLDER:
            return None
        return self._ranks.setdefault(name, _Rank(_Tail(os.path.join(self.folder, name), self._clock)))

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self._last_t = max(self._last_t, event.get("t", 0.0))
            match event["event"], event["name"]:
                case "begin", _:
                    self._open.append(event)
                    self._reported = {}
                case "end", name:
                    while self._open and self._open.pop()["name"] != name:
                        pass
                    self._of_rank0.append(event)
                    if name == "run" and "error" in event:
                        self._status = "aborted"
                case "progress", _:
                    self._reported = event
                case ("metric", _) | ("note", "facts"):
                    self._of_rank0.append(event)
                case "note", "energy":
                    self._energy = event
                case "note", "finish" if self._status == "running":
                    status = printable(str(event.get("status")))
                    emulated = self._config is not None and self._config.emulation.enabled
                    self._status = "emulated" if emulated and status == "failed" else status
                case "lost", _:
                    self._status = "aborted"

    def _progress(self, quiet_s: float) -> Progress:
        run, own = self._config, self._of_rank0
        now = self._last_t + (self._age if self._status == "running" else 0.0)
        epochs = [e for e in own if (e["event"], e["name"]) == ("end", "epoch")]
        current = next((e["epoch"] for e in reversed(self._open) if e.get("epoch") is not None), None)
        trained = max((e["epoch"] for e in epochs if e.get("epoch") is not None), default=None)
        phase = self._open[-1] if self._open else None
        started = next((e for e in self._open if e["name"] == "run"), None)
        ended = next((e.get("seconds") for e in own if (e["event"], e["name"]) == ("end", "run")), None)
        metric = run.target.metric if run else None
        step = self._reported.get("step") if phase and phase["name"] == "train" else None
        updates = step // run.backward_passes if run and step is not None else step
        values = [e["value"] for e in own if e["event"] == "metric" and e["name"] == metric and _is_number(e)]
        facts = next((e for e in own if e["event"] == "note" and e["name"] == "facts"), {})
        elapsed = ended if ended is not None else now - started.get("t", now) if started else None
        left = None
        if run and trained is not None and self._status == "running":
            each = median(e.get("seconds", 0.0) for e in epochs)
            begun = next((e.get("t", now) for e in self._open if e["name"] == "epoch"), now)
            left = max(0.0, (run.training.max_epochs - trained) * each - (now - begun))
        return Progress(
            status=self._status,
            phase=_phase(phase) if phase else ("after the run" if ended is not None else "start"),
            phase_s=now - phase.get("t", now) if phase else 0.0,
            ranks=_whole(facts.get("ranks")),
            epoch=current if current is not None else trained,
            epochs=run.training.max_epochs if run else None,
            step=updates,
            steps=run.data.train_samples // run.hyperparameters.global_batch_size if run else None,
            metric=run.target.label if run else None,
            best=(max if run.target.higher_is_better else min)(values) if run and values else None,
            target=run.target.value if run else None,
            samples_per_s=self._rate(own),
            data_wait_share=self._wait_share(),
            elapsed_s=elapsed,
            left_s=left,
            quiet_s=quiet_s,
            energy=self._used(elapsed),
        )

    def _used(self, elapsed_s: float | None) -> dict[str, EnergySoFar]:
        nodes = [rank.energy for rank in self._ranks.values() if rank.energy]
        return energy_so_far(nodes, self._energy, elapsed_s, self._status == "running")

    def _rate(self, own: list[Event]) -> float | None:
        """Samples/s in the last epoch with a known number of samples; during the first epoch, samples so far over
        time so far."""
        seconds = self._ranks[_RANK_0].trained if _RANK_0 in self._ranks else {}
        for event in reversed(own):
            is_count = (event["event"], event["name"]) == ("metric", "samples") and _is_number(event)
            epoch = event.get("epoch")
            if is_count and isinstance(epoch, int) and seconds.get(epoch):
                return float(event["value"] / seconds[epoch])
        step, train = self._reported.get("step"), self._open[-1] if self._open else {}
        if not (self._config and isinstance(step, int) and train.get("name") == "train"):
            return None
        seconds = seconds.get(train.get("epoch", 0), 0.0) + self._reported.get("t", 0.0) - train.get("t", 0.0)
        samples = step * self._config.hyperparameters.global_batch_size / self._config.backward_passes
        return samples / seconds if seconds > 0 else None

    def _wait_share(self) -> float | None:
        """Data wait as a share of training, for the rank that waited longest, in the last epoch that rank 0 has
        trained. This is a lower bound of the run's data wait, which is known only at the end of the run
        (``common/timing/data_wait.py``)."""
        trained = self._ranks[_RANK_0].trained if _RANK_0 in self._ranks else {}
        if not trained:
            return None
        epoch = max(trained)
        shares = [
            r.waits.get(epoch, 0.0) / r.trained[epoch] for r in self._ranks.values() if r.trained.get(epoch)
        ]
        return max(shares, default=None)


def _config(path: Path) -> Run | None:
    try:
        return loads(read_text(path))
    except (OSError, ValueError, RecursionError, UserError):
        return None


def _phase(event: Event) -> str:
    name = {"run": "between epochs", "eval": "evaluation", "train": "training"}.get(
        event["name"], event["name"]
    )
    return printable(str(name))


def _is_number(event: Event) -> bool:
    value = event.get("value")
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
