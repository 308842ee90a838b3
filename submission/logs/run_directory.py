"""Reads a run folder: log, result, configuration and environment, as far as they exist.

It may be untrusted: types and bounds of its values are checked once, here, so that readers need not expect a
time of ``inf``, 10¹² ranks or a preset with shell code in it. Links among its files are not followed.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from mlhpc.benchmarks.load import loads
from mlhpc.benchmarks.schema import Run, meets
from mlhpc.common.files.untrusted import printable, read_object, read_text
from mlhpc.errors import UserError
from mlhpc.quantities import count
from mlhpc.submission.logs.energy import Energies
from mlhpc.submission.logs.fields import Count, Fields, Measured, Name, Ranks, Seconds, Text
from mlhpc.submission.logs.mllog import Log, parse

T = TypeVar("T")


class Target(Fields):
    metric: Name
    label: Text
    value: Annotated[float, Field(allow_inf_nan=False)]
    best: Measured = None
    reached: bool = False

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "eval_accuracy"

    def met_by(self, value: float) -> bool:
        """Whether ``value`` meets the target, by the same rule that ends a run."""
        return meets(value, self.value, higher_is_better=self.higher_is_better)


class Epoch(Fields):
    """Seconds, samples and bytes of one epoch; the quality is stored under the metric's name."""

    epoch: Count
    train_s: Seconds | None = None
    data_wait_s: Seconds | None = None
    step_s: Seconds | None = None
    eval_s: Seconds | None = None
    eval_data_wait_s: Seconds | None = None
    samples: Count | None = None
    samples_per_s: Measured = None
    bytes: Count | None = None
    learning_rate: Measured = None
    train_loss: Measured = None
    halo_bytes: Count | None = None
    halo_seconds: Seconds | None = None
    slab_bytes: Count | None = None
    slab_seconds: Seconds | None = None
    trained_side: Count | None = None
    exchange_bytes: Count | None = None

    def quality(self, metric: str) -> float | None:
        value = (self.model_extra or {}).get(metric)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
            return None
        return float(value)


class Samples(Fields):
    train: Count
    eval: Count
    shape: tuple[Count, ...]


class Staging(Fields):
    files: Count
    bytes: Count
    seconds: Seconds
    slowest_rank: Count | None = None
    mode: Name | None = None
    target_filesystem: Text | None = None
    target_is_ram: bool | None = None
    kept: Count = 0
    shared: Count = 0
    verified: bool | None = None
    packed: bool = False
    source_bytes: Count | None = None
    read_once: bool = False
    shuffle_scope: Name | None = None
    overlapped: bool = False
    waited_s: Seconds = 0.0
    rank_seconds: tuple[Seconds, ...] = ()


class SlowRank(Fields):
    """Seconds of data wait in training and evaluation in which this rank was the one that the others waited for.
    ``epoch``: that with most of it."""

    rank: Count
    train_s: Seconds = 0.0
    eval_s: Seconds = 0.0
    epoch: Count | None = None


class DataWait(Fields):
    """Data wait of the run in seconds. ``of``: "all ranks", or "rank 0" if the run was aborted. ``ranks``: those
    that the others waited for, the slowest first."""

    of: Text
    train_s: Seconds = 0.0
    eval_s: Seconds = 0.0
    ranks: tuple[SlowRank, ...] = ()


class DataFormat(Fields):
    """How the data set was stored. ``codec`` None: as published. ``max_error``: the bound of a lossy codec, a
    share of the value or of the channel's range (``max_error_of``). ``decoder``: "compiled" or "numpy".
    ``samples_per_archive`` None: not packed. ``shuffle_scope``: "sample", "node" or "global"."""

    codec: Name | None = None
    lossy: bool = False
    max_error: float | None = None
    max_error_of: Name | None = None
    decoder: Name | None = None
    samples_per_archive: Count | None = None
    shuffle_scope: Name | None = None

    def __str__(self) -> str:
        packed = f", {self.samples_per_archive} samples to an archive" if self.samples_per_archive else ""
        if self.codec is None:
            return f"as published{packed}"
        if not self.lossy:
            return f"{self.codec}, lossless{packed}"
        bound = f", error at most {self.max_error:g} of the {self.max_error_of}" if self.max_error else ""
        return f"{self.codec}, lossy{bound}{packed}"


class Emulation(Fields):
    """Step times of an emulated run in seconds."""

    step_s: Seconds
    eval_step_s: Seconds = 0.0


class Result(Fields):
    """result.json; docs/reference/architecture.md has the format."""

    mlhpc: Text | None = None
    benchmark: Name
    preset: Name
    division: Name
    framework: Name | None = None
    status: Name
    resumed: bool
    seed: int | None = None
    target: Target
    time_to_train_s: Seconds | None = None
    time_to_train_without_staging_s: Seconds | None = None
    breakdown_s: dict[Name, Seconds | None] | None = None
    epochs: tuple[Epoch, ...] = ()
    data_wait: DataWait | None = None
    samples: Samples
    global_batch_size: Count | None = None
    ranks: Ranks
    nodes: Ranks | None = None
    launcher: Text | None = None
    data: DataFormat | None = None
    energy: Energies | None = None
    staging: Staging | None = None
    emulation: Emulation | None = None
    source_evicted: bool | None = None


class Machine(Fields):
    """The part of env.json that every node has."""

    hostname: Text | None = None
    cpu: Text | None = None
    cores: Count | None = None
    memory_gib: Seconds | None = None
    accelerators: tuple[Text, ...] = ()
    os: Text | None = None


class Environment(Machine):
    """The keys of env.json that are validated here; others are kept."""

    commit: Text | None = None
    dirty: bool | None = None
    date: Text | None = None
    python: Text | None = None
    packages: dict[str, Text] = Field(default_factory=dict)
    nodes: tuple[Machine, ...] = ()
    command: Text | None = None
    data: Text | None = None


@dataclass(frozen=True)
class RunDirectory:
    """The files of a run. ``env``: env.json, empty if it cannot be used. ``problems``: file name and problem of
    every file that is missing or damaged."""

    path: Path
    log: Log | None
    result: Result | None
    config: Run | None
    env: dict[str, Any]
    problems: tuple[tuple[str, str], ...]

    # A killed run has no result.json, but its configuration still has benchmark, preset and target.

    @property
    def benchmark(self) -> str:
        source = self.result or self.config
        if source:
            return source.benchmark
        return str((self.log and self.log.value("submission_benchmark")) or "run")

    @property
    def preset(self) -> str | None:
        source = self.result or self.config
        return source.preset if source else None

    @property
    def framework(self) -> str | None:
        """``training.framework``; None for a run of an older version whose configuration is missing."""
        if self.result and self.result.framework:
            return self.result.framework
        return self.config.training.framework if self.config else None

    @property
    def target(self) -> Target | None:
        if self.result:
            return self.result.target
        if not self.config:
            return None
        return Target.model_validate(self.config.target.model_dump(include={"metric", "label", "value"}))


def read(path: Path) -> RunDirectory:
    """Reads the run folder ``path``, tolerating missing and damaged files.

    Raises:
        UserError: ``path`` is not a folder, or contains neither a run.log nor a result.json.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; pass the --out folder of a run")
    if not ((path / "run.log").is_file() or (path / "result.json").is_file()):
        raise UserError(
            f"{path}: not a run folder (neither run.log nor result.json); pass the --out folder of a run"
        )
    problems: list[tuple[str, str]] = []

    def read_file(name: str, reader: Callable[[Path], T]) -> T | None:
        try:
            return reader(path / name)
        except FileNotFoundError:
            problems.append((name, "is missing"))
        except ValidationError as error:
            problems.append((name, _first(error)))
        # JSON and TOML errors are ValueErrors; with very deep nesting they are RecursionErrors.
        except (ValueError, TypeError, OSError, UserError, RecursionError) as error:
            problems.append((name, printable(f"cannot be read: {error}")))
        return None

    log = read_file("run.log", _log)
    result = read_file("result.json", lambda p: Result.model_validate_json(read_text(p, flags=os.O_NOFOLLOW)))
    config = read_file("config.toml", lambda p: loads(read_text(p, flags=os.O_NOFOLLOW)))
    env = read_file("env.json", _environment)
    problems += _missing_events(path, result.ranks if result else 1)
    return RunDirectory(path, log, result, config, env or {}, tuple(problems))


def _log(path: Path) -> Log:
    if not path.is_file():
        raise FileNotFoundError(path)
    return parse(path, os.O_NOFOLLOW)


def _environment(path: Path) -> dict[str, Any]:
    values = read_object(path, os.O_NOFOLLOW)
    # Validates and converts the types that readers rely on: "12.0" is also a number of cores.
    checked = Environment.model_validate_json(json.dumps(values))
    return values | ({"cores": checked.cores} if "cores" in values else {})


def _missing_events(path: Path, ranks: int) -> list[tuple[str, str]]:
    """A problem for the first missing events file, with the number of the others."""
    matches = (
        re.fullmatch(r"events\.rank(0|[1-9]\d{0,8})\.jsonl", p.name)
        for p in path.iterdir()
        if p.is_file() and not p.is_symlink()
    )
    present = {int(match[1]) for match in matches if match}
    missing = ranks - sum(rank < ranks for rank in present)
    if not missing:
        return []
    first = next(rank for rank in range(ranks) if rank not in present)
    others = f", and {count(missing - 1, 'other')}" if missing > 1 else ""
    return [(f"events.rank{first}.jsonl", f"is missing{others}")]


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    return printable(f"{key + ': ' if key else ''}{problem['msg']}")
