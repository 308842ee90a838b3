"""The runs of a search: calls of ``mlhpc run``, which are stopped when they can no longer win."""

import math
import os
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mlhpc.benchmarks import load
from mlhpc.benchmarks.schema import Run
from mlhpc.common.ranks.local import end, set_words
from mlhpc.common.staging.stage import remove
from mlhpc.record.events import events_of_rank_0
from mlhpc.record.result import Result
from mlhpc.run_processes import GRACE_S, in_slurm, run_words, start_run
from mlhpc.study_plan import srun_options
from mlhpc.submission.report.study import last_words
from mlhpc.tune.model import Outcome
from mlhpc.tune.space import Config, Space

POLL_S = 0.1


@dataclass(frozen=True)
class Runs:
    """Performs the runs of a search in ``out``, on the data set ``data``, staged to ``stage``. ``lock_fds``: the
    locks from ``locked``."""

    space: Space
    data: Path
    stage: Path | None
    out: Path
    lock_fds: list[int]

    def run(self, config: Config, name: str, seed: int, limit: float) -> Outcome:
        """Train ``config`` in the folder ``name``, for at most ``limit`` seconds on the run's clock. A finished
        run with the same settings in that folder is read instead of repeated."""
        folder, run = self.out / name, self.space.run_of(config)
        result = Result.read_or_none(folder / "result.json")
        if result is None or not _is_of(folder, result, run, max(1, config.ranks), seed):
            shutil.rmtree(folder, ignore_errors=True)
            started = time.monotonic()
            stopped = self._train(config, folder, seed, limit)
            elapsed, result = time.monotonic() - started, Result.read_or_none(folder / "result.json")
            if self.stage and self.stage.exists():
                remove(self.stage)  # data staged by a stopped run must not shorten the next run
            if not stopped and (result is None or result.status == "aborted"):
                return Outcome(
                    config, "aborted", elapsed, why=last_words(folder) or "killed, or out of memory?"
                )
        trained = [(each.train_s or 0.0) + (each.eval_s or 0.0) for each in result.epochs] if result else []
        epoch_s = fmean(trained) if trained else limit
        seconds = result.time_to_train_s if result else None
        if result is None or seconds is None:
            return Outcome(config, "stopped", limit, len(trained) + 1, epoch_s)
        if result.status == "success":
            return Outcome(config, "converged", seconds, len(trained), epoch_s)
        return Outcome(config, "missed", seconds, run.training.max_epochs, epoch_s)

    def _train(self, config: Config, folder: Path, seed: int, limit: float) -> bool:
        """Train ``config``, and return whether the run was stopped at its limit."""
        words = [self.space.benchmark, "--preset", self.space.preset]
        words += set_words([*self.space.settings, *self.space.settings_of(config)])
        words += run_words(self.data, folder, seed, self.stage)
        output = folder.with_suffix(".out")
        output.unlink(missing_ok=True)
        options = srun_options(config.ranks, os.environ) if in_slurm(os.environ) else []
        process = start_run(
            words, ranks=config.ranks, srun_options=options, output=output, lock_fds=self.lock_fds
        )
        try:
            return _outlasts(process, folder, limit)
        finally:
            end([process], GRACE_S)


def _outlasts(process: subprocess.Popen[bytes], folder: Path, limit: float) -> bool:
    """Wait until the run ends or its clock reaches ``limit`` seconds. Returns True if the limit was reached
    first."""
    began = math.inf
    while process.poll() is None:
        time.sleep(POLL_S)
        if math.isinf(began) and math.isfinite(limit) and _has_begun(folder):
            began = time.monotonic()
        if time.monotonic() - began > limit:
            return True
    return False


def _has_begun(folder: Path) -> bool:
    return any((e["event"], e["name"]) == ("begin", "run") for e in events_of_rank_0(folder))


def _is_of(folder: Path, result: Result, run: Run, ranks: int, seed: int) -> bool:
    """Return whether the run in ``folder`` finished without being stopped, and has the settings of ``run``, the
    number of ``ranks`` and the ``seed``."""
    with suppress(OSError):
        same = (folder / "config.toml").read_text("utf-8") == load.dumps(run)
        return (
            same and (result.ranks, result.seed) == (ranks, seed) and result.status in ("success", "failed")
        )
    return False
