"""A run directory read back: log, result, configuration and machine, as far as they are there."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mlhpc.benchmarks.load import loads
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.submission.logs.mllog import Log, parse

T = TypeVar("T")


class _Read(BaseModel):
    # Keys that a later version adds are kept, not refused: this side only reads.
    model_config = ConfigDict(frozen=True, extra="allow")


class Target(_Read):
    metric: str
    label: str
    value: float
    best: float | None = None
    reached: bool = False

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "eval_accuracy"

    def met_by(self, value: float) -> bool:
        """Whether ``value`` meets the target; accuracies have to reach it, errors to fall to it.

        An error of zero or less, or an accuracy above 1, is none (mlperf-logging, hpc_2.0.0/closed_*.yaml):
        some published logs hold the error twice, the second time with its sign turned.
        """
        return self.value <= value <= 1 if self.higher_is_better else 0 < value <= self.value


class Epoch(_Read):
    """Seconds, samples and bytes of one epoch; the quality stands under the metric's own name."""

    epoch: int
    train_s: float | None = None
    data_wait_s: float | None = None
    step_s: float | None = None
    eval_s: float | None = None
    samples: int | None = None
    samples_per_s: float | None = None
    bytes: int | None = None
    learning_rate: float | None = None
    train_loss: float | None = None

    def quality(self, metric: str) -> float | None:
        value = (self.model_extra or {}).get(metric)
        return float(value) if isinstance(value, int | float) else None


class Samples(_Read):
    train: int
    eval: int
    shape: tuple[int, ...]


class Staging(_Read):
    files: int
    bytes: int
    seconds: float
    slowest_rank: int | None = None
    mode: str | None = None
    target_filesystem: str | None = None
    target_is_ram: bool | None = None
    kept: int = 0
    shared: int = 0
    verified: bool | None = None
    packed: bool = False
    rank_seconds: tuple[float, ...] = ()


class Result(_Read):
    """result.json; docs/architecture.md has the format."""

    mlhpc: str | None = None
    benchmark: str
    preset: str
    division: str
    status: str
    resumed: bool
    seed: int | None = None
    target: Target
    time_to_train_s: float | None = None
    time_to_train_without_staging_s: float | None = None
    breakdown_s: dict[str, float | None] | None = None
    epochs: tuple[Epoch, ...] = ()
    samples: Samples
    global_batch_size: int | None = None
    ranks: int
    nodes: int | None = None
    launcher: str | None = None
    staging: Staging | None = None
    source_evicted: bool | None = None


@dataclass(frozen=True)
class RunDirectory:
    """What a run left. ``problems``: file name and what is wrong with it, for every piece not to be had."""

    path: Path
    log: Log | None
    result: Result | None
    config: Run | None
    env: dict[str, Any]
    problems: tuple[tuple[str, str], ...]

    # A killed run leaves no result.json; what was configured still says what it was.

    @property
    def benchmark(self) -> str:
        said = self.result or self.config
        return said.benchmark if said else str((self.log and self.log.value("submission_benchmark")) or "run")

    @property
    def preset(self) -> str | None:
        said = self.result or self.config
        return said.preset if said else None

    @property
    def target(self) -> Target | None:
        if self.result:
            return self.result.target
        if not self.config:
            return None
        return Target.model_validate(self.config.target.model_dump(include={"metric", "label", "value"}))


def read(path: Path) -> RunDirectory:
    """Reads the run directory ``path``, tolerating missing and damaged pieces.

    Raises:
        UserError: ``path`` is no directory, or holds neither a run.log nor a result.json.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such directory; give the --out directory of a run")
    if not ((path / "run.log").is_file() or (path / "result.json").is_file()):
        raise UserError(
            f"{path}: no run directory (neither run.log nor result.json); give the --out of a run"
        )
    problems: list[tuple[str, str]] = []

    def piece(name: str, reader: Callable[[Path], T]) -> T | None:
        try:
            return reader(path / name)
        except FileNotFoundError:
            problems.append((name, "is missing"))
        except ValidationError as error:
            problems.append((name, _first(error)))
        # JSON and TOML errors are ValueErrors; nested a thousand deep they are RecursionErrors.
        except (ValueError, TypeError, OSError, UserError, RecursionError) as error:
            problems.append((name, f"cannot be read: {error}"))
        return None

    log = piece("run.log", _log)
    result = piece("result.json", lambda p: Result.model_validate_json(p.read_bytes()))
    config = piece("config.toml", lambda p: loads(p.read_text("utf-8")))
    env = piece("env.json", _object)
    for rank in range(result.ranks if result else 1):
        if not (path / f"events.rank{rank}.jsonl").is_file():
            problems.append((f"events.rank{rank}.jsonl", "is missing"))
    return RunDirectory(path, log, result, config, env or {}, tuple(problems))


def _log(path: Path) -> Log:
    if not path.is_file():
        raise FileNotFoundError(path)
    return parse(path)


def _object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text("utf-8"))
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place + ': ' if place else ''}{problem['msg']}"
