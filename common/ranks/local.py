"""Several ranks on this machine without a launcher: ``mlhpc run … --ranks N``."""

import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, AnyStr

from mlhpc.common.ranks.environment import identify
from mlhpc.errors import UserError

GRACE_S = 10.0
"""How long ranks may continue after one of them died. The roll call ends them sooner, and reports why."""


def run_local(ranks: int, argv: Sequence[str]) -> int:
    """Run ``argv`` as ``ranks`` processes that find each other, and return their exit status.

    Rank 0 has this process's standard streams. The output of the others goes to standard error, each
    line prefixed with ``[rank 1]``. When one ends with an error the rest are terminated; its status is returned,
    128 plus the signal if a signal ended it (as in a shell), 130 after Ctrl-C, 143 after SIGTERM. Raises
    ``UserError`` inside another launcher, whose ranks would each start all of them.
    """
    outer = identify(os.environ)
    if outer.launcher != "none" and outer.size > 1:
        raise UserError(f"--ranks {ranks} inside {outer.launcher}, which started {outer.size}: omit --ranks")
    token = secrets.token_hex(8)
    ended: queue.Queue[int] = queue.Queue()  # ranks, in the order in which they ended
    processes: list[subprocess.Popen[str]] = []
    forwarders: list[threading.Thread] = []
    try:
        with sigterm_as_ctrl_c():
            for rank in range(ranks):
                env = os.environ | {"MLHPC_RANK": str(rank), "MLHPC_SIZE": str(ranks), "MLHPC_TOKEN": token}
                processes.append(_start(rank, argv, env))
                forwarders += _watch(rank, processes[rank], ended)
            return _wait(processes, ended)
    except KeyboardInterrupt as interrupt:
        return 128 + (signal.SIGTERM if isinstance(interrupt, SigtermInterrupt) else signal.SIGINT)
    finally:
        end(processes, GRACE_S / 2)
        for thread in forwarders:
            thread.join(timeout=GRACE_S)  # a grandchild may hold a pipe open


def _start(rank: int, argv: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
    if rank == 0:
        return subprocess.Popen(argv, env=env, text=True)
    return subprocess.Popen(
        argv,
        env=env,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _watch(rank: int, process: subprocess.Popen[str], ended: queue.Queue[int]) -> Iterator[threading.Thread]:
    def report() -> None:
        process.wait()
        ended.put(rank)

    def forward(output: IO[str]) -> None:
        for line in output:
            sys.stderr.write(f"[rank {rank}] {line}")  # one call per line, so that lines stay whole

    threading.Thread(target=report, daemon=True).start()
    if process.stdout:
        thread = threading.Thread(target=forward, args=(process.stdout,), daemon=True)
        thread.start()
        yield thread


def _wait(processes: Sequence[subprocess.Popen[str]], ended: queue.Queue[int]) -> int:
    """The first non-zero exit status, once all processes have ended or used up their grace time; 0 if all
    succeeded."""
    status = 0
    deadline = None
    for _ in processes:
        try:
            rank = ended.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        code = processes[rank].returncode
        if code and not status:
            status = 128 - code if code < 0 else code
            deadline = time.monotonic() + GRACE_S
            if code < 0:
                sys.stderr.write(f"mlhpc: rank {rank} was terminated by {signal.Signals(-code).name}\n")
            # Status 1 comes with a traceback or the roll call's message, 2 and 128 plus a signal with their own
            # message.
            elif 2 < code < 128:
                sys.stderr.write(f"mlhpc: rank {rank} exited with status {code}\n")
    return status


def end(processes: Sequence[subprocess.Popen[AnyStr]], grace_s: float) -> None:
    """Terminate processes, and kill those that have not ended after ``grace_s`` seconds."""
    for send, wait_s in ((subprocess.Popen.terminate, grace_s), (subprocess.Popen.kill, GRACE_S / 2)):
        deadline = time.monotonic() + wait_s
        for process in processes:
            send(process)
        for process in processes:
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


class SigtermInterrupt(KeyboardInterrupt):
    """SIGTERM, raised as Ctrl-C would be."""


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does: a batch system or ``timeout`` sends it, and the processes
    started here must not outlive this one."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise SigtermInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
