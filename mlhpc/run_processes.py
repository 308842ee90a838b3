"""Runs as processes of their own: started by a campaign or a study, here or by srun, and ended in good order."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mlhpc.common.ranks.environment import identify
from mlhpc.errors import UserError

GRACE_S = 60.0
"""How long runs may take to end in good order when they are ended."""


def in_slurm(env: Mapping[str, str]) -> bool:
    """Whether this is the shell of a Slurm job, from which srun starts the ranks."""
    return "SLURM_JOB_ID" in env and identify(env).launcher == "none" and shutil.which("srun") is not None


def check_alone(what: str) -> None:
    """Raises UserError where a launcher started this command on several ranks."""
    around = identify(os.environ)
    if around.size > 1:
        raise UserError(f"{around.launcher} started {around.size} {what}: start one, it starts the ranks")


def start(
    words: Sequence[str],
    *,
    ranks: int,
    step: Sequence[str] = (),
    output: Path | None = None,
    env: Mapping[str, str] | None = None,
    cores: set[int] | None = None,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start ``mlhpc run`` with ``words`` and so many ranks (0: one, or as many as the allocation has).

    It gets a session of its own: Ctrl-C is for who started it, and ends it in good order. ``step``: what
    tells srun where, inside a Slurm job. ``output``: a file for what it prints. ``env`` is added to the
    environment; ``cores``: it may run on these alone. ``keep``: open locks that it holds too, so that nobody
    starts it a second time while an orphan of it goes on.
    """
    command = [sys.executable, "-m", "mlhpc", "run", *words]
    if in_slurm(os.environ):
        command = ["srun", "--wait=60", "--kill-on-bad-exit=0", *step, *command]
    elif ranks > 1:
        command += ["--ranks", str(ranks)]
    with contextlib.ExitStack() as stack:
        printed = stack.enter_context(output.open("ab")) if output else None
        return subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdout=printed,
            stderr=subprocess.STDOUT if printed else None,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=keep,
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        )


@contextlib.contextmanager
def locked(out: Path, name: str | None, what: str) -> Iterator[list[int]]:
    """The folder, made and locked: for this process alone, or for one run of it (``name``) while tasks of the
    same job array make the others. The kernel drops the locks with the last process that has them.

    Raises UserError when another ``what`` is at work there, or the folder cannot be made.
    """
    files = [(out / ".lock", fcntl.LOCK_EX if name is None else fcntl.LOCK_SH)]
    files += [(_lock_of(out, name), fcntl.LOCK_EX)] if name else []
    fds: list[int] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, kind in files:
            fds.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            try:
                fcntl.flock(fds[-1], kind | fcntl.LOCK_NB)
            except BlockingIOError:
                on = f" on {name}" if name and kind == fcntl.LOCK_EX else ""
                raise UserError(
                    f"{out}: another {what} is at work there{on}; wait for it, or choose another --out"
                ) from None
            except OSError:  # a file system without locks: nobody can be told apart
                pass
        yield fds
    except OSError as error:
        raise UserError(f"{error.filename or out}: {error.strerror}; choose another --out") from None
    finally:
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def one_at_a_time(out: Path) -> Iterator[None]:
    """What the tasks of a job array do one after the other, so that the last of them writes what all came to."""
    with (out / ".lock.report").open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(out: Path, name: str) -> bool:
    """Whether a task of a job array, or what it started, is at work on this run in ``out``. Also True for the
    lock of one's own; False where the file system has no locks."""
    try:
        fd = os.open(_lock_of(out, name), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(fd)
    return False


def _lock_of(out: Path, name: str) -> Path:
    return out / f".lock.{name}"
