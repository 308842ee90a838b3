"""Reads a run folder: log, result, configuration and environment, if they exist. The folder may be untrusted:
types and bounds of values are checked once, in this module, so that readers need not expect a time of ``inf``,
10¹² ranks or a preset that contains shell code. Links in the folder are not followed.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from mlhpc.benchmarks.load import loads
from mlhpc.benchmarks.schema import Run
from mlhpc.common.files.locks import is_locked
from mlhpc.common.files.untrusted import printable, read_text
from mlhpc.common.timing.event_files import event_files, events_path
from mlhpc.errors import UserError
from mlhpc.quantities import count, duration_text
from mlhpc.record.environment import Environment
from mlhpc.record.fields import first_problem
from mlhpc.record.mllog import Log, parse
from mlhpc.record.result import Result, Target

T = TypeVar("T")
_RECENT_S = 600.0


@dataclass(frozen=True)
class RunDirectory:
    """The parsed files of a run. ``env``: the content of env.json; empty if the file is missing or invalid.
    ``problems``: name and problem of every file that is missing or damaged."""

    path: Path
    log: Log | None
    result: Result | None
    config: Run | None
    env: Environment
    problems: tuple[tuple[str, str], ...]

    # A killed run has no result.json, but its configuration has benchmark, preset and target.

    @property
    def benchmark(self) -> str:
        """The benchmark, from the result, the configuration or the log; ``run`` if none of these states the
        benchmark."""
        if source := self.result or self.config:
            return source.benchmark
        return str((self.log and self.log.value("submission_benchmark")) or "run")

    @property
    def preset(self) -> str | None:
        """The preset, from the result or the configuration; None if both are missing."""
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
        """The target, from the result or, without a result, from the configuration; None if both are missing."""
        if self.result:
            return self.result.target
        return Target.of(self.config) if self.config else None


def read(path: Path) -> RunDirectory:
    """Read the run folder ``path``, tolerating missing and damaged files.

    Raises:
        UserError: ``path`` is not a folder, or contains neither a run.log nor a result.json.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; pass the --out folder of a run")
    if not ((path / "run.log").is_file() or (path / "result.json").is_file()):
        raise UserError(f"{path}: neither run.log nor result.json; pass the --out folder of a run")
    problems: list[tuple[str, str]] = []

    def read_file(name: str, reader: Callable[[Path], T]) -> T | None:
        try:
            return reader(path / name)
        except FileNotFoundError:
            problems.append((name, "is missing"))
        except ValidationError as error:
            problems.append((name, first_problem(error)))
        # JSON and TOML errors are ValueErrors; with very deep nesting they are RecursionErrors.
        except (ValueError, TypeError, OSError, UserError, RecursionError) as error:
            problems.append((name, printable(f"cannot be read: {error}")))
        return None

    log = read_file("run.log", _log)
    result = read_file("result.json", Result.read)
    config = read_file("config.toml", lambda p: loads(read_text(p, flags=os.O_NOFOLLOW)))
    env = read_file("env.json", Environment.read)
    problems += _missing_events(path, result.ranks if result else 1)
    return RunDirectory(path, log, result, config, env or Environment(), tuple(problems))


def running(run: RunDirectory) -> str:
    """The reason why the run is considered active; empty if it has ended or its process no longer exists.

    A rank keeps a lock on its events until it exits (``RunLog``). A run on a different machine, whose locks may
    not be visible on this one, is considered active if it has events from the last ten minutes.
    """
    if run.result or (run.log and run.log.first("run_stop")):
        return ""
    first = (events_path(run.path, rank) for rank in range(16))  # listing those of 8192 ranks takes 0.1 s
    events = [path for path in first if path.is_file() and not path.is_symlink()]
    if not events:
        return ""
    age = max(0.0, time.time() - max(path.stat().st_mtime for path in events))
    ago = f"its last event was {duration_text(round(age))} ago"
    if any(map(is_locked, events)):
        return f"the run is still running; {ago}"
    if age < _RECENT_S and run.env.hostname not in (None, socket.gethostname(), os.uname().nodename):
        return f"the run may still be running on another machine; {ago}"
    return ""


def _log(path: Path) -> Log:
    if not path.is_file():
        raise FileNotFoundError(path)
    return parse(path, os.O_NOFOLLOW)


def _missing_events(path: Path, ranks: int) -> list[tuple[str, str]]:
    """The problem that events of some ranks are missing, with the name of the first missing file and the number of
    further missing files."""
    present = event_files(path)
    missing = ranks - sum(rank < ranks for rank in present)
    if not missing:
        return []
    first = next(rank for rank in range(ranks) if rank not in present)
    others = f", and {count(missing - 1, 'other')}" if missing > 1 else ""
    return [(str(events_path(Path(), first)), f"is missing{others}")]
