"""The end of a run: ``result.json``, which is derived from the events of rank 0, and the last line that is
printed."""

import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import starmap
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import mlhpc
from mlhpc.benchmarks.schema import Run
from mlhpc.common.ranks.world import Loss, World
from mlhpc.common.timing.data_wait import NAMED
from mlhpc.common.timing.event_files import events_path
from mlhpc.errors import UserError, say_at_once
from mlhpc.quantities import duration_text, seconds_text
from mlhpc.record.breakdown import EpochTimes, breakdown, epoch_times, waits_are_of_all_ranks
from mlhpc.record.events import read_events
from mlhpc.record.result import DataWait, Emulation, Epoch, Result, Samples, SlowBatch, SlowRank, Target

Event = dict[str, Any]


class Conclusion:
    """Writes ``result.json`` once, at the end of training or when a rank is lost. ``close_log``: the function that
    closes the log when a rank is lost. The constructor raises UserError if the result file cannot represent the
    run's settings (possible with benchmarks of other packages): after training, the result would be lost."""

    def __init__(self, run: Run, out: Path, world: World, close_log: Callable[[Loss], None]) -> None:
        self._run, self._out, self._world, self._close_log = run, out, world, close_log
        self._turn = threading.Lock()
        try:
            summarize(run, self._events())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UserError(f"result.json cannot store {where}={first['input']!r}: {first['msg']}") from None
        world.on_loss(self._lost)

    def write(self) -> tuple[list[Event], Result]:
        """Return the events of this rank and the result. Rank 0 also writes the result to the run's folder."""
        with self._turn:
            return self._write()

    def _lost(self, loss: Loss) -> None:
        with suppress(UserError):  # if the disk is too full for the log, so it is for the result
            self._close_log(loss)
        self._turn.acquire()  # never released: the process ends now, and no other thread may write
        try:
            self._write()
        except UserError as error:
            say_at_once(str(error))

    def _write(self) -> tuple[list[Event], Result]:
        events = self._events()
        result = summarize(self._run, events)
        if self._world.rank == 0:
            result.write(self._out / "result.json")
        return events, result

    def _events(self) -> list[Event]:
        return read_events(events_path(self._out, self._world.rank))


def summarize(run: Run, events: list[Event]) -> Result:
    """The result of ``run``, derived from the events of rank 0."""
    notes: dict[str, Any] = {e["name"]: _tags(e) for e in events if e["event"] == "note"}
    measured = [e for e in events if e["event"] == "metric" and e["value"] == e["value"]]  # not NaN
    metrics: dict[int, dict[str, Any]] = {}
    for event in measured:
        if "epoch" in event:
            metrics.setdefault(event["epoch"], {})[event["name"]] = event["value"]
    values = [event["value"] for event in measured if event["name"] == run.target.metric]
    best = (max if run.target.higher_is_better else min)(values) if values else None
    finished = any(e["event"] == "end" and e["name"] == "run" and "error" not in e for e in events)
    status = notes["finish"]["status"] if "finish" in notes and finished else "aborted"
    if run.emulation.enabled and status == "failed":
        status = "emulated"  # an emulated run has no target to miss
    try:
        times = breakdown(events)
    except ValueError:
        times = None
    whole, epochs = times if status != "aborted" else None, epoch_times(events)
    # There is no time to train: the clock of a resumed run does not include its first part, an emulated run does
    # not train, and a run of a study ends after some steps.
    timed = None if notes["facts"]["resumed"] or status == "emulated" or run.study.steps else whole
    facts = dict(notes["facts"])
    if "generator" in notes:
        facts["versions"] = {**facts.get("versions", {}), "data": notes["generator"]["version"]}
    nothing_staged: dict[str, float | None] = {} if "staging" in notes else {"staging": None}
    return Result(
        mlhpc=mlhpc.__version__,
        benchmark=run.benchmark,
        preset=run.preset,
        division=run.division,
        framework=run.training.framework,
        status=status,
        **facts,
        target=Target.of(run).model_copy(update={"best": best, "reached": status == "success"}),
        time_to_train_s=timed.total if timed else None,
        time_to_train_without_staging_s=timed.without_staging if timed else None,
        breakdown_s=whole.parts() | nothing_staged if whole else None,
        epochs=tuple(_epoch(e, metrics[e.epoch]) for e in epochs if "samples" in metrics.get(e.epoch, {})),
        data_wait=_data_wait(events, epochs),
        samples=Samples(
            train=run.data.train_samples, eval=run.data.eval_samples, shape=tuple(run.data.sample_shape)
        ),
        global_batch_size=run.hyperparameters.global_batch_size,
        data=notes.get("data"),
        energy=notes.get("energy"),
        staging=notes.get("staging"),
        emulation=Emulation(**run.emulation.model_dump()) if run.emulation.enabled else None,
    )


def _epoch(times: EpochTimes, metrics: dict[str, Any]) -> Epoch:
    rate = metrics["samples"] / times.train_s
    return Epoch(**asdict(times), step_s=times.step_s, samples_per_s=rate, **metrics)


def _data_wait(events: list[Event], epochs: Sequence[EpochTimes]) -> DataWait:
    """The sums of the data wait over all ranks or of rank 0, the ranks for which other ranks waited (with the
    seconds lost and the epoch in which most time was lost), and the slow batches."""
    lost: dict[int, list[tuple[str, Any, float]]] = {}
    for event in events:
        if event["event"] == "waited":
            for rank, seconds in event["lost"]:
                lost.setdefault(rank, []).append((event["name"], event.get("epoch"), seconds))
    slowest = sorted(starmap(_slow_rank, lost.items()), key=lambda slow: -slow.train_s - slow.eval_s)
    return DataWait(
        of="all ranks" if waits_are_of_all_ranks(events) else "rank 0",
        train_s=sum(epoch.data_wait_s for epoch in epochs),
        eval_s=sum(epoch.eval_data_wait_s for epoch in epochs),
        ranks=tuple(slowest[:NAMED]),
        batches=tuple(SlowBatch(**_tags(event)) for event in events if event["event"] == "slow"),
    )


def _slow_rank(rank: int, lost: list[tuple[str, Any, float]]) -> SlowRank:
    by_epoch: dict[Any, float] = {}
    for _, epoch, seconds in lost:
        by_epoch[epoch] = by_epoch.get(epoch, 0.0) + seconds
    return SlowRank(
        rank=rank,
        train_s=sum(seconds for name, _, seconds in lost if name == "data_wait"),
        eval_s=sum(seconds for name, _, seconds in lost if name == "eval_data_wait"),
        epoch=max(by_epoch, key=by_epoch.__getitem__),
    )


def last_line(result: Result, out: Path) -> str:
    """The last line that a run prints."""
    name, where = f"{result.benchmark} {result.preset}", f"see: mlhpc report {shlex.quote(str(out))}"
    if result.emulation and result.status == "emulated":
        steps, waited = (sum(getattr(e, key) for e in result.epochs) for key in ("step_s", "data_wait_s"))
        return (
            f"{name}: emulated, steps of {seconds_text(result.emulation.step_s)}: "
            f"{duration_text(steps)} of steps, {duration_text(waited)} of data wait; not a training run; {where}"
        )
    target, seconds = result.target, result.time_to_train_s
    outcome = ("reached" if target.reached else "missed") + (", resumed" if result.resumed else "")
    staging = "including staging" if result.staging else "nothing was staged"
    best = "nothing evaluated" if target.best is None else f"best {target.best:.4f}"
    time = f" in {duration_text(seconds)}, {staging}" if seconds is not None else ", no time to train"
    return f"{name}: target {target.label} {target.value} {outcome} ({best}){time}; {where}"


def _tags(event: Event) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("t", "event", "name")}
