"""Handles SIGTERM, SIGUSR1 and Ctrl-C during a run: the log is closed properly, and the exit status states the
signal."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlhpc.common.ranks.environment import identify
from mlhpc.common.ranks.local import TERMINATING, handling, interrupting
from mlhpc.common.ranks.world import World
from mlhpc.errors import Terminated, say_at_once


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """End the process immediately on a terminating signal as long as there is no log to close, because frameworks
    cannot handle an exception from a signal handler during import (PyTorch 2.13 aborts with a long stack trace).
    Only rank 0 reports the signal, since all ranks receive it at a job's time limit."""
    first = identify(os.environ).rank == 0

    def leave(number: int, frame: object) -> None:
        if first:
            say_at_once(reason(number))
        os._exit(128 + number)

    with handling(TERMINATING, leave):
        yield


@contextmanager
def closing_in_order(world: World, out: Path) -> Iterator[None]:
    """Handle SIGTERM, SIGUSR1 and Ctrl-C while the log of the run in ``out`` is open.

    Rank 0 raises :class:`Terminated` or KeyboardInterrupt, so that everything is closed properly; later signals
    are ignored, since a launcher may send several, and Ctrl-C also reaches the parent process of local ranks,
    which then terminates them. Ranks other than 0 have nothing to close: they report the signal, unless rank 0
    does, and exit from a thread, because the signal may have interrupted a message to rank 0.
    """
    received: list[int] = []

    def leave(number: int) -> None:
        world.fail(reason(number))
        if not world.reported_elsewhere():
            say_at_once(reason(number))
        os._exit(128 + number)

    def handle(number: int, frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            return  # not SIG_IGN: for a signal that arrived just before, Python would print a traceback
        if world.rank != 0:
            threading.Thread(target=leave, args=(number,), daemon=True).start()
        else:
            raise _exception(number, out)

    with handling(interrupting(), handle):
        try:
            yield
        except BaseException as error:
            if received:  # a framework may have converted the exception
                raise _exception(received[0], out) from error
            raise


def reason(number: int) -> str:
    """A message that names the signal ``number`` as the reason why a run ended."""
    if number == signal.SIGINT:
        return "interrupted"
    return f"terminated by {signal.Signals(number).name} (job time limit?)"


def _exception(number: int, out: Path) -> BaseException:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    saved = any(out.glob("checkpoint*"))
    remedy = f"continue from its checkpoint with --resume {out}" if saved else f"its record is in {out}"
    return Terminated(f"{reason(number)}; {remedy}", 128 + number)
