"""Starts runs as separate processes for a campaign, a study or a search, locally or with srun, and locks their
folders."""

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mlhpc.common.files import locks
from mlhpc.common.ranks.environment import identify
from mlhpc.common.ranks.local import program
from mlhpc.errors import UserError

GRACE_S = 60.0
"""Seconds that runs have after SIGTERM to close their logs before they are killed."""
SRUN_WAIT_S = 120
"""Seconds after the exit of the first rank until srun kills the remaining ranks. This exceeds the 60 s limit of
the roll call, so that a missing rank has been reported by then."""


def in_slurm(env: Mapping[str, str]) -> bool:
    """Return whether this process runs in the batch shell of a Slurm job, from which srun starts the ranks."""
    return "SLURM_JOB_ID" in env and identify(env).launcher == "none" and shutil.which("srun") is not None


def allocated_tasks(env: Mapping[str, str], nodes: int) -> int:
    """The number of tasks of this Slurm job; one per node if the job was submitted without a number of tasks."""
    return int(env.get("SLURM_NTASKS") or nodes)


def require_one_process(command: str) -> None:
    """Raise UserError if a launcher started this command on several ranks."""
    rank_info = identify(os.environ)
    if rank_info.size > 1:
        raise UserError(
            f"{rank_info.launcher} started mlhpc {command} {rank_info.size} times; start it only once"
        )


def run_words(data: Path, out: Path, seed: int, stage: object) -> list[str]:
    """The arguments of ``mlhpc run`` that place one of several runs, which starts with dropped page caches.
    ``stage``: the staging folder, if any."""
    words = ["--data", str(data), "--out", str(out), "--seed", str(seed), "--evict"]
    return words + (["--stage", str(stage)] if stage else [])


def start_run(
    arguments: Sequence[str],
    *,
    ranks: int,
    srun_options: Sequence[str] = (),
    output: Path | None = None,
    env: Mapping[str, str] | None = None,
    cores: set[int] | None = None,
    lock_fds: Sequence[int] = (),
    module: str = "",
) -> subprocess.Popen[bytes]:
    """Start ``mlhpc run ARGUMENTS`` with ``ranks`` ranks (0: one rank; in a Slurm job, one per task of the
    allocation). With ``module``, start ``python -m MODULE ARGUMENTS`` on this machine instead, which starts its
    own ranks.

    The run is in a session of its own, so that Ctrl-C reaches only the caller, which stops the run cleanly.
    ``srun_options``: the run's nodes and tasks, inside a Slurm job. ``output``: the file for the run's output.
    ``env``: variables added to the environment. ``cores``: the only cores that the run may use. ``lock_fds``:
    locks that the run inherits; if the caller is killed, they prevent the run from being started again while it is
    still active.
    """
    with contextlib.ExitStack() as stack:
        stdout = stack.enter_context(output.open("ab")) if output else None
        return subprocess.Popen(
            program(arguments, module) if module else _command(arguments, ranks, srun_options),
            env={**os.environ, **(env or {})},
            stdout=stdout,
            stderr=subprocess.STDOUT if stdout else None,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=lock_fds,
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        )


def _command(arguments: Sequence[str], ranks: int, srun_options: Sequence[str]) -> list[str]:
    """The command line of a run. In a Slurm job, the words of LAUNCH_WRAP (docs/guide/sites.md) are inserted
    between srun and ``mlhpc``; ``mlhpc`` is then the one in the container, not the caller's."""
    if in_slurm(os.environ):
        wrap = _launch_wrap(os.environ)
        command = [*wrap, "mlhpc"] if wrap else program([])
        srun = ["srun", f"--wait={SRUN_WAIT_S}", "--kill-on-bad-exit=0", *srun_options]
        return [*srun, *command, "run", *arguments]
    return program(["run", *arguments, *(["--ranks", str(ranks)] if ranks > 1 else [])])


def _launch_wrap(env: Mapping[str, str]) -> list[str]:
    try:
        return shlex.split(env.get("LAUNCH_WRAP", ""))
    except ValueError as error:
        raise UserError(f"LAUNCH_WRAP={env['LAUNCH_WRAP']!r}: {error}; quote it as a shell would") from None


@contextlib.contextmanager
def locked(out: Path, name: str | None, command: str) -> Iterator[list[int]]:
    """Context manager that creates the folder ``out`` and locks all of it, or only the run ``name``, so that other
    tasks of a job array can perform other runs. Yields the file descriptors of the locks; the kernel releases a
    lock when the last process that holds it exits.

    Raises UserError if the same ``command`` is already running in the folder, or if the folder cannot be created.
    """
    files = [(out / ".lock", fcntl.LOCK_EX if name is None else fcntl.LOCK_SH)]
    files += [(_lock_path(out, name), fcntl.LOCK_EX)] if name else []
    fds: list[int] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, kind in files:
            fds.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            try:
                fcntl.flock(fds[-1], kind | fcntl.LOCK_NB)
            except BlockingIOError:
                which = f" on {name}" if name and kind == fcntl.LOCK_EX else ""
                raise UserError(
                    f"{out}: another {command} is running here{which}; choose another --out"
                ) from None
            except OSError:  # the file system has no locks
                pass
        yield fds
    except OSError as error:
        raise UserError(f"{error.filename or out}: {error.strerror}; choose another --out") from None
    finally:
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def report_lock(out: Path) -> Iterator[None]:
    """Context manager that holds the lock for writing a summary of all runs. Tasks of a job array write it one
    after the other, so the last summary includes all runs."""
    with (out / ".lock.report").open("w") as file:
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(out: Path, name: str) -> bool:
    """Return whether the run ``name`` in ``out`` is in progress: locked by a task of a job array or by a run that
    the task started. True also for a lock of this process; False if the file system has no locks."""
    return locks.is_locked(_lock_path(out, name), fcntl.LOCK_SH)


def _lock_path(out: Path, name: str) -> Path:
    return out / f".lock.{name}"
