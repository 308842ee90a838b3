"""How far a run is, from the events of its ranks: also while it runs, elsewhere, on a shared file system.

Rank 0's events give phase, epoch and metric. The other ranks' give their data wait. Files are read from where the
last look ended, so that following a thousand ranks costs one ``stat`` of each.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from mlhpc.benchmarks.load import loads
from mlhpc.benchmarks.schema import Run
from mlhpc.common.files.regular import open_regular
from mlhpc.common.files.untrusted import printable, read_text
from mlhpc.common.timing.breakdown import is_event
from mlhpc.errors import UserError

Event = dict[str, Any]
_MOST_BYTES = 64 * 2**20
"""At most this much of a file is read in one look; the next one goes on."""


@dataclass(frozen=True)
class Progress:
    """Where a run is. None: not known (yet).

    ``phase``: the innermost span of rank 0; ``phase_s``: seconds since it began. ``step`` of ``steps`` in the
    current epoch. ``best``: of the target's metric. ``samples_per_s`` and ``data_wait_share`` (mean over ranks)
    are of the last trained epoch. ``left_s``: seconds until the last epoch, if the target is not met before.
    ``quiet_s``: seconds since the last event of any rank. ``status``: running until the run says otherwise;
    whether its processes live is not known here.
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


@dataclass
class _Tail:
    """The complete lines of a file that have been added since the last look."""

    path: Path
    offset: int = 0

    def read(self, size: int) -> list[Event]:
        if size <= self.offset:
            return []
        with os.fdopen(open_regular(self.path), "rb") as file:
            file.seek(self.offset)
            data = file.read(_MOST_BYTES)
        if len(data) == _MOST_BYTES and b"\n" not in data:  # no event is that long
            self.offset += len(data)
            return []
        data = data[: data.rfind(b"\n") + 1]  # a line that is being written is left for the next look
        self.offset += len(data)
        events = []
        for line in data.splitlines():
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and is_event(event):
                    events.append(event)
        return events


@dataclass
class _Rank:
    tail: _Tail
    waits: dict[int, float] = field(default_factory=dict)
    trained: dict[int, float] = field(default_factory=dict)

    def take(self, events: list[Event]) -> None:
        for event in events:
            epoch = event.get("epoch")
            if not isinstance(epoch, int):
                continue
            if (event["event"], event["name"]) == ("timed", "data_wait"):
                self.waits[epoch] = self.waits.get(epoch, 0.0) + event.get("seconds", 0.0)
            elif (event["event"], event["name"]) == ("end", "train"):
                self.trained[epoch] = self.trained.get(epoch, 0.0) + event.get("seconds", 0.0)


class Follower:
    """Follows the run in ``folder``. Raises UserError where there is no run."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "run.log").is_file():
            raise UserError(f"{folder}: not a run directory (no run.log); give the --out folder of a run")
        self.folder = folder
        self._config = _config(folder / "config.toml")
        self._ranks: dict[int, _Rank] = {}
        self._of_rank0: list[Event] = []  # without the many that only count
        self._open: list[Event] = []
        self._reported: Event = {}
        self._status = "running"
        self._last_t = 0.0
        self._age = 0.0  # seconds since rank 0's last event

    def look(self) -> Progress:
        """Read what is new, and say where the run is."""
        newest = 0.0
        for number, size, changed in self._files():
            rank = self._ranks.setdefault(number, _Rank(_Tail(self.folder / f"events.rank{number}.jsonl")))
            newest = max(newest, changed)
            with suppress(OSError):
                events = rank.tail.read(size)
                rank.take(events)
                if number == 0:
                    self._take(events)
                    self._age = max(0.0, time.time() - changed)
        return self._progress(max(0.0, time.time() - newest) if newest else 0.0)

    def _files(self) -> list[tuple[int, int, float]]:
        """Number, size and time of change of each rank's events."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                number = entry.name.removeprefix("events.rank").removesuffix(".jsonl")
                if not (entry.name == f"events.rank{number}.jsonl" and number.isdecimal()):
                    continue
                with suppress(OSError):
                    if number == "0":  # opening a file makes NFS ask its server how long it is now
                        os.close(os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK))
                    status = entry.stat()
                    found.append((int(number), status.st_size, status.st_mtime))
        return found

    def _take(self, events: list[Event]) -> None:
        for event in events:
            kind = event["event"]
            self._last_t = max(self._last_t, event.get("t", 0.0))
            if kind == "begin":
                self._open.append(event)
                self._reported = {}
            elif kind == "end":
                while self._open and self._open.pop()["name"] != event["name"]:
                    pass
                self._of_rank0.append(event)
                if event["name"] == "run" and "error" in event:
                    self._status = "aborted"
            elif kind == "progress":
                self._reported = event
            elif kind == "metric" or (kind == "note" and event["name"] in ("facts", "finish")):
                self._of_rank0.append(event)
            elif kind == "lost":
                self._status = "aborted"
        for event in events:
            if event["event"] == "note" and event["name"] == "finish" and self._status == "running":
                status = printable(str(event.get("status")))
                emulated = self._config is not None and self._config.emulation.enabled
                self._status = "emulated" if emulated and status == "failed" else status

    def _progress(self, quiet_s: float) -> Progress:
        run, own = self._config, self._of_rank0
        now = self._last_t + (self._age if self._status == "running" else 0.0)
        epochs = [e for e in own if (e["event"], e["name"]) == ("end", "epoch")]
        current = next((e["epoch"] for e in reversed(self._open) if isinstance(e.get("epoch"), int)), None)
        done = max((e["epoch"] for e in epochs if isinstance(e.get("epoch"), int)), default=None)
        phase = self._open[-1] if self._open else None
        started = next((e for e in self._open if e["name"] == "run"), None)
        ended = next((e.get("seconds") for e in own if (e["event"], e["name"]) == ("end", "run")), None)
        metric = run.target.metric if run else None
        step = _whole(self._reported.get("step")) if phase and phase["name"] == "train" else None
        updates = step // run.backward_passes if run and step is not None else step
        values = [e["value"] for e in own if e["event"] == "metric" and e["name"] == metric and _is_number(e)]
        facts = next((e for e in own if e["event"] == "note" and e["name"] == "facts"), {})
        left = None
        if run and done is not None and self._status == "running":
            each = median(e.get("seconds", 0.0) for e in epochs)
            begun = next((e.get("t", now) for e in self._open if e["name"] == "epoch"), now)
            left = max(0.0, (run.training.max_epochs - done) * each - (now - begun))
        return Progress(
            status=self._status,
            phase=_phase(phase) if phase else ("after the run" if ended is not None else "start"),
            phase_s=now - phase.get("t", now) if phase else 0.0,
            ranks=_whole(facts.get("ranks")),
            epoch=current if current is not None else done,
            epochs=run.training.max_epochs if run else None,
            step=updates,
            steps=run.data.train_samples // run.hyperparameters.global_batch_size if run else None,
            metric=run.target.label if run else None,
            best=(max if run.target.higher_is_better else min)(values) if run and values else None,
            target=run.target.value if run else None,
            samples_per_s=self._rate(own),
            data_wait_share=self._wait_share(),
            elapsed_s=ended if ended is not None else now - started.get("t", now) if started else None,
            left_s=left,
            quiet_s=quiet_s,
        )

    def _rate(self, own: list[Event]) -> float | None:
        """Of the last epoch whose samples are known; while the first one runs, of what it has trained so far."""
        seconds = self._ranks[0].trained if 0 in self._ranks else {}
        for event in reversed(own):
            is_count = (event["event"], event["name"]) == ("metric", "samples") and _is_number(event)
            epoch = event.get("epoch")
            if is_count and isinstance(epoch, int) and seconds.get(epoch):
                return float(event["value"] / seconds[epoch])
        step, train = self._reported.get("step"), self._open[-1] if self._open else {}
        if not (self._config and isinstance(step, int) and train.get("name") == "train"):
            return None
        seconds = self._reported.get("t", 0.0) - train.get("t", 0.0)
        samples = step * self._config.hyperparameters.global_batch_size / self._config.backward_passes
        return samples / seconds if seconds > 0 else None

    def _wait_share(self) -> float | None:
        """Data wait over training, mean of the ranks, in the last epoch that rank 0 has trained."""
        trained = self._ranks[0].trained if 0 in self._ranks else {}
        if not trained:
            return None
        epoch = max(trained)
        shares = [
            r.waits.get(epoch, 0.0) / r.trained[epoch] for r in self._ranks.values() if r.trained.get(epoch)
        ]
        return fmean(shares) if shares else None


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
