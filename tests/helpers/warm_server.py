"""``python warm_server.py MODULE…``: imports each, or makes it impossible to import (``!MODULE``); then runs every
program that standard input names in a fork.

A request is a line of JSON with ``argv``, ``cwd``, ``env`` and ``folder``. The answer is a line with the process
id; ``folder`` gets the files stdout, stderr and, at the end, status. Frameworks start no threads while they are
imported, so forking afterwards is safe; the fork then runs and ends as a process of its own would, and so do the
Python processes that it starts: they are forked instead of executed.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn


class ForkedPopen(subprocess.Popen):
    """Popen that forks this process where it would execute this Python."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        if not isinstance(args, str | bytes | os.PathLike) and str(args[0]) == sys.executable:
            words = list(map(str, args[1:]))
            env, prepare = options.get("env"), options.get("preexec_fn")
            kept = options.get("pass_fds", ())
            # Called in the child, after its standard streams are in place; it never returns to execute anything.
            options["preexec_fn"] = lambda: become(words, env, kept, prepare)
        super().__init__(args, *more, **options)


def execute(program: str, argv: list[str], env: dict[str, str]) -> NoReturn:
    """os.execve that goes on in this process where it would execute this Python."""
    if program == sys.executable:
        become(argv[1:], env, (), None)
    _execve(program, argv, env)


_execve = os.execve


def become(
    argv: Sequence[str], env: dict[str, str] | None, kept: Sequence[int], prepare: Callable[[], None] | None
) -> NoReturn:
    """Run ``python ARGV`` in this process, from clean streams, signals and file descriptors, and end it."""
    status = 1
    try:
        gc.enable()  # off while Popen calls preexec_fn
        for fd in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, *kept}:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(fd)  # also of the pipe on which Popen waits for the execution
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        sys.stdin = open(0, closefd=False)
        sys.stdout = open(1, "w", closefd=False)
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        if prepare:
            prepare()
        status = run(argv)
    except SystemExit as error:
        status = exit_status(error)
    except BaseException:
        traceback.print_exc()
    finally:
        end(status)


def run(argv: Sequence[str]) -> int:
    """``python ARGV``: a module, code, or a file."""
    sys.orig_argv = [sys.executable, *argv]
    if argv[0] == "-P":  # about the path of imports, which is this process's
        argv = argv[1:]
    if argv[0] == "-m":
        sys.argv = list(argv[1:])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = list(argv)
        sys.path.insert(0, str(Path(argv[0]).parent))
        runpy.run_path(argv[0], run_name="__main__")
    return 0


def exit_status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def end(status: int) -> NoReturn:
    """As an interpreter ends: wait for threads, run what is registered, flush."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        with open(folder / "stdout", "w") as out, open(folder / "stderr", "w") as err:
            program = ForkedPopen(
                [sys.executable, *request["argv"]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=request["cwd"],
                env=request["env"],
            )
        os.write(1, f"{program.pid}\n".encode())
        status = program.wait()
        (folder / "status.part").write_text(str(status))
        (folder / "status.part").rename(folder / "status")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name.startswith("!"):
            sys.modules[name[1:]] = None  # type: ignore[assignment]  # importing it raises
        else:
            importlib.import_module(name)
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    os.execve = execute  # type: ignore[assignment]
    serve()
