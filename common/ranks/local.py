"""Runs several ranks on this machine without a launcher: ``mlhpc run … --ranks N``."""

import ctypes
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, AnyStr

from mlhpc.common.ranks.environment import BOUND, identify
from mlhpc.errors import MISSED, UserError

TERMINATING = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that batch systems send at the time limit: SIGTERM, or SIGUSR1 with ``--signal=USR1@30``."""
GRACE_S = 10.0
"""Seconds that ranks may continue after one of them has died. The roll call usually ends them sooner, with the
reason."""


_CHILD_OF = "MLHPC_CHILD_OF"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
SI_KERNEL = 0x80  # asm-generic/siginfo.h: sent by the kernel, such as Ctrl-C on a terminal


def program(words: Sequence[str], module: str = "mlhpc") -> list[str]:
    """The command line that runs this suite with the arguments ``words`` in another process on this machine. The
    current folder is kept off Python's module path (``-P``), since a clone named ``mlhpc`` in that folder would be
    imported instead of the package."""
    return [sys.executable, "-P", "-m", module, *words]


def set_words(settings: Iterable[str]) -> list[str]:
    """The words of a command line that change these ``settings`` (KEY=VALUE)."""
    return [word for setting in settings for word in ("--set", setting)]


def output_of(
    words: Sequence[str], name: str, accepted: Sequence[int] = (0,), folder: Path | None = None
) -> str:
    """What a command of the suite prints on standard output. It runs in a separate process (in ``folder``, if
    given), which ends, together with its ranks, when the current process ends. Raises UserError with ``name`` and
    the command's last line if its exit status is not ``accepted``."""
    process = subprocess.Popen(
        program(words), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate()
    finally:
        end([process], GRACE_S)
    if process.returncode not in accepted:
        lines = errors.strip().splitlines() or [f"status {process.returncode}"]
        raise UserError(f"{name}: {lines[-1].removeprefix('mlhpc: ')}")
    return output


def run_local(
    ranks: int,
    argv: Sequence[str],
    memory: Callable[[], str] = lambda: "",
    cores: Sequence[AbstractSet[int]] = (),
) -> int:
    """Run ``argv`` as ``ranks`` processes that find each other, and return their exit status.

    Rank 0 has this process's standard streams. The output of the other ranks goes to standard error, with each
    line prefixed by the rank, such as ``[rank 1]``. When a rank ends with an error, the other ranks are
    terminated, and the failed rank's status is returned: 128 plus the signal if a signal ended it (as in a shell),
    130 after Ctrl-C, 143 after SIGTERM. ``memory``: as for ``ended_by``. ``cores``: the cores of each rank; empty:
    all ranks may use all cores. Raises ``UserError`` under another launcher, because each of that launcher's ranks
    would start ``ranks`` processes.
    """
    outer = identify(os.environ)
    if outer.launcher != "none" and outer.size > 1:
        raise UserError(
            f"--ranks {ranks} cannot be used under {outer.launcher}, which already started {outer.size}; omit it"
        )
    token = secrets.token_hex(16)
    ended: queue.Queue[int] = queue.Queue()  # ranks, in the order in which they ended
    processes: list[subprocess.Popen[str]] = []
    forwarders: list[threading.Thread] = []
    try:
        with signals_as_ctrl_c():
            for rank in range(ranks):
                env = os.environ | {"MLHPC_RANK": str(rank), "MLHPC_SIZE": str(ranks), "MLHPC_TOKEN": token}
                with _bound(cores[rank] if cores else None):
                    processes.append(_start(rank, argv, env | ({BOUND: "1"} if cores else {})))
                forwarders += _watch(rank, processes[rank], ended)
            return _wait(processes, ended, memory)
    except KeyboardInterrupt as interrupt:
        return status_of(interrupt)
    finally:
        end(processes, GRACE_S / 2)
        for thread in forwarders:
            thread.join(timeout=GRACE_S)  # not longer: a grandchild may keep a pipe open


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


@contextmanager
def _bound(cores: AbstractSet[int] | None) -> Iterator[None]:
    """Context manager: processes that this thread starts in the block may run only on ``cores`` (None: on all
    cores of this process)."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _watch(rank: int, process: subprocess.Popen[str], ended: queue.Queue[int]) -> Iterator[threading.Thread]:
    def report() -> None:
        process.wait()
        ended.put(rank)

    def forward(output: IO[str]) -> None:
        for line in output:
            sys.stderr.write(f"[rank {rank}] {line}")  # one call per line, so that lines are not interleaved

    threading.Thread(target=report, daemon=True).start()
    if process.stdout:
        thread = threading.Thread(target=forward, args=(process.stdout,), daemon=True)
        thread.start()
        yield thread


def _wait(
    processes: Sequence[subprocess.Popen[str]], ended: queue.Queue[int], memory: Callable[[], str]
) -> int:
    """The first non-zero exit status, or 0 if all succeeded, once all processes have ended or their grace time has
    expired."""
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
                sys.stderr.write(ended_by(rank, -code, memory))
            # Status 1 comes with a traceback or the roll call's message; 2, MISSED and 128 plus a signal come
            # with messages of their own.
            elif MISSED < code < 128:
                sys.stderr.write(f"mlhpc: rank {rank} exited with status {code}\n")
    return status


def ended_by(rank: int, number: int, memory: Callable[[], str]) -> str:
    """The message about a rank terminated by the signal ``number``. If memory runs out, the kernel sends SIGKILL,
    which the process itself cannot report. ``memory``: a function that returns the rank's memory need and the
    node's memory if they may be the reason."""
    if number != signal.SIGKILL:
        return f"mlhpc: rank {rank} was terminated by {signal.Signals(number).name}\n"
    killer = "by the kernel's out-of-memory killer (see dmesg) or by a user"
    return f"mlhpc: rank {rank} was killed by signal 9 (SIGKILL), {killer}{memory()}\n"


def outlive(memory: Callable[[], str]) -> None:
    """Start this program again as a child, the only rank of a run, and wait for it. This process, which needs
    hardly any memory, forwards signals, reports if a signal terminated the child (``ended_by``), and exits with
    the child's status, which is 128 plus the signal, as in a shell. In the child, this function returns
    immediately.

    The child is killed if its parent ends. It is started with exec, not just forked, so that profilers follow it
    (Nsight Systems does not trace a fork that never calls exec).
    """
    if os.environ.pop(_CHILD_OF, "") == str(os.getppid()):
        return
    numbers = {*TERMINATING, signal.SIGINT, signal.SIGHUP}
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, the status would be lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.execve(sys.executable, sys.orig_argv, os.environ | {_CHILD_OF: str(parent)})
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        received = signal.sigwaitinfo({*numbers, signal.SIGCHLD})
        # Ctrl-C reaches the whole process group by itself.
        if received.si_signo != signal.SIGCHLD and received.si_code != SI_KERNEL:
            os.kill(child, received.si_signo)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        sys.stderr.write(ended_by(0, -status, memory))
        status = 128 - status
    raise SystemExit(status)


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


class SignalInterrupt(KeyboardInterrupt):
    """A terminating signal, raised like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def interrupting() -> tuple[signal.Signals, ...]:
    """The signals on which a program ends cleanly: ``TERMINATING``, and SIGINT unless the process was started
    with SIGINT ignored, as in the background of a script."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return TERMINATING if ignored else (*TERMINATING, signal.SIGINT)


@contextmanager
def handling(numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Context manager: ``handler`` handles the signals ``numbers`` in the block."""
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, earlier in zip(numbers, before, strict=True):
            signal.signal(number, earlier)


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Make terminating signals, which a batch system or ``timeout`` sends, raise KeyboardInterrupt as Ctrl-C does,
    since the processes started here must not outlive this one. Only the first signal has an effect, so that
    clean-up can finish: a launcher may send several signals, and terminates its ranks after Ctrl-C, which they
    also receive."""
    numbers = interrupting()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, lambda *_: None)
        raise SignalInterrupt(signum)

    with handling(numbers, interrupt):
        yield


def status_of(interrupt: KeyboardInterrupt) -> int:
    """The exit status after ``interrupt``: 128 plus the signal's number."""
    return 128 + (interrupt.number if isinstance(interrupt, SignalInterrupt) else signal.SIGINT)
