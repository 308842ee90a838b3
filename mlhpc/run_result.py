"""``result.json``: the outcome of a run, from its events."""

import json
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlhpc
from mlhpc.benchmarks.schema import Run
from mlhpc.common.files import atomic
from mlhpc.common.ranks.world import Loss, World
from mlhpc.common.timing.breakdown import (
    EpochTimes,
    breakdown,
    epoch_times,
    read_events,
    waits_are_of_all_ranks,
)
from mlhpc.common.timing.data_wait import NAMED
from mlhpc.common.timing.runlog import RunLog
from mlhpc.errors import UserError
from mlhpc.quantities import count, duration_text, seconds_text

Event = dict[str, Any]


class Conclusion:
    """Writes ``result.json`` once: at the end of training, or when another rank is lost."""

    def __init__(self, run: Run, out: Path, world: World, log: RunLog) -> None:
        self._run, self._out, self._world, self._log = run, out, world, log
        self._turn = threading.Lock()
        world.on_loss(self._lost)

    def write(self) -> tuple[list[Event], dict[str, Any]]:
        """The events of this rank and the result; rank 0 writes it to the run's folder."""
        with self._turn:
            return self._write()

    def _lost(self, loss: Loss) -> None:
        self._log.lost(loss)
        self._turn.acquire()  # never released: the process ends after this, and no other thread may write
        self._write()

    def _write(self) -> tuple[list[Event], dict[str, Any]]:
        events = read_events(self._out / f"events.rank{self._world.rank}.jsonl")
        result = summarize(self._run, events)
        if self._world.rank == 0:
            write_text(self._out / "result.json", json.dumps(result, indent=1) + "\n")
        return events, result


def summarize(run: Run, events: list[Event]) -> dict[str, Any]:
    """``result.json`` (docs/reference/architecture.md) from the events of rank 0."""
    notes = {e["name"]: _tags(e) for e in events if e["event"] == "note"}
    staging = notes.get("staging")
    metrics: dict[int, dict[str, float]] = {}
    for event in events:
        if event["event"] == "metric" and "epoch" in event and event["value"] == event["value"]:  # not NaN
            metrics.setdefault(event["epoch"], {})[event["name"]] = event["value"]
    finished = any(e["event"] == "end" and e["name"] == "run" and "error" not in e for e in events)
    status = notes["finish"]["status"] if "finish" in notes and finished else "aborted"
    if run.emulation.enabled and status == "failed":
        status = "emulated"  # it had no target to miss
    values = [
        e["value"]
        for e in events
        if e["event"] == "metric" and e["name"] == run.target.metric and e["value"] == e["value"]
    ]
    best = (max if run.target.higher_is_better else min)(values) if values else None
    try:
        times = breakdown(events)
    except ValueError:
        times = None
    whole, epochs = times if status != "aborted" else None, epoch_times(events)
    # The clock of a resumed run does not include its first part, and an emulated run does not train: no time
    # to train.
    timed = None if notes["facts"]["resumed"] or status == "emulated" else whole
    return {
        "mlhpc": mlhpc.__version__,
        "benchmark": run.benchmark,
        "preset": run.preset,
        "division": run.division,
        "framework": run.training.framework,
        "status": status,
        **notes["facts"],
        "target": {
            "metric": run.target.metric,
            "label": run.target.label,
            "value": run.target.value,
            "best": best,
            "reached": status == "success",
        },
        "time_to_train_s": timed.total if timed else None,
        "time_to_train_without_staging_s": timed.without_staging if timed else None,
        "breakdown_s": {**whole.parts(), "staging": whole.staging if staging else None} if whole else None,
        "epochs": [
            {
                "epoch": epoch.epoch,
                "train_s": epoch.train_s,
                "data_wait_s": epoch.data_wait_s,
                "step_s": epoch.step_s,
                "eval_s": epoch.eval_s,
                "eval_data_wait_s": epoch.eval_data_wait_s,
                "samples_per_s": metrics[epoch.epoch]["samples"] / epoch.train_s,
                **metrics[epoch.epoch],
            }
            for epoch in epochs
            if "samples" in metrics.get(epoch.epoch, {})
        ],
        "data_wait": _data_wait(events, epochs),
        "samples": {
            "train": run.data.train_samples,
            "eval": run.data.eval_samples,
            "shape": list(run.data.sample_shape),
        },
        "global_batch_size": run.hyperparameters.global_batch_size,
        "data": notes.get("data"),
        "energy": notes.get("energy"),
        "staging": staging,
        "emulation": run.emulation.model_dump() if run.emulation.enabled else None,
    }


def first_line(run: Run, out: Path, world: World) -> str:
    """The first line that a run prints: libraries are imported, the network is compiled next."""
    return (
        f"{run.benchmark} {run.preset}: {count(run.data.train_samples, 'training sample')}, "
        f"{run.hyperparameters.global_batch_size} per step, on {count(world.size, 'rank')}, "
        f"up to {count(run.training.max_epochs, 'epoch')}; results in {out}"
    )


def _data_wait(events: list[Event], epochs: Sequence[EpochTimes]) -> dict[str, Any]:
    """Whose data wait it is, its sums, and the ranks that others waited for: what each cost them, and its worst
    epoch."""
    ranks: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "waited":
            key = "eval_s" if event["name"] == "eval_data_wait" else "train_s"
            for rank, seconds in event["lost"]:
                lost = ranks.setdefault(rank, {"rank": rank, "train_s": 0.0, "eval_s": 0.0, "by_epoch": {}})
                lost[key] += seconds
                epoch = event.get("epoch")
                lost["by_epoch"][epoch] = lost["by_epoch"].get(epoch, 0.0) + seconds
    slowest = sorted(ranks.values(), key=lambda lost: -lost["train_s"] - lost["eval_s"])[:NAMED]
    for lost in slowest:
        worst = lost.pop("by_epoch")
        lost["epoch"] = max(worst, key=worst.__getitem__)
    return {
        "of": "all ranks" if waits_are_of_all_ranks(events) else "rank 0",
        "train_s": sum(epoch.data_wait_s for epoch in epochs),
        "eval_s": sum(epoch.eval_data_wait_s for epoch in epochs),
        "ranks": slowest,
    }


def last_line(result: dict[str, Any], out: Path) -> str:
    """The last line that a run prints."""
    where = f"see: mlhpc report {shlex.quote(str(out))}"
    if result["status"] == "emulated":
        steps, waited = (sum(epoch[key] for epoch in result["epochs"]) for key in ("step_s", "data_wait_s"))
        return (
            f"{result['benchmark']} {result['preset']}: emulated, steps of "
            f"{seconds_text(result['emulation']['step_s'])}: "
            f"{duration_text(steps)} of steps, {duration_text(waited)} of data wait; not a training run; {where}"
        )
    target = result["target"]
    outcome = ("reached" if target["reached"] else "missed") + (", resumed" if result["resumed"] else "")
    staging = "including staging" if result["staging"] else "nothing was staged"
    best = "nothing evaluated" if target["best"] is None else f"best {target['best']:.4f}"
    seconds = result["time_to_train_s"]
    time = f" in {duration_text(seconds)}, {staging}" if seconds is not None else ", no time to train"
    return (
        f"{result['benchmark']} {result['preset']}: target {target['label']} {target['value']} {outcome} "
        f"({best}){time}; "
        f"{where}"
    )


def write_text(path: Path, text: str) -> None:
    """Write the file atomically. Raises UserError."""
    try:
        atomic.write_bytes(path, text.encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; free some space") from None


def _tags(event: Event) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("t", "event", "name")}
