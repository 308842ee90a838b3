"""Python programs in forks of a process that has loaded their framework, which takes longer than a tiny run."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


class WarmPython:
    """A program that runs in a fork; used like subprocess.Popen with ``text=True``.

    ``argv`` is what would follow ``python`` on a command line: ``-m mlhpc …``, ``-c CODE …`` or ``FILE …``. Python
    processes that it starts are forks too. Only /proc/PID/environ and /proc/PID/cmdline tell them from others.
    """

    def __init__(
        self,
        modules: Sequence[str],
        argv: Sequence[object],
        env: Mapping[str, str] | None = None,
        loader: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``argv`` where ``modules`` have been imported. A server serves one program at a time. ``loader``:
        variables that the dynamic loader must see before, such as LD_PRELOAD."""
        self._server = _server(tuple(modules), tuple((loader or {}).items()))
        self._folder = tempfile.TemporaryDirectory()
        self.args = [sys.executable, *map(str, argv)]
        self.returncode: int | None = None
        for name in ("stdout", "stderr"):
            Path(self._folder.name, name).touch()
        request = {
            "argv": self.args[1:],
            "cwd": os.getcwd(),
            "env": dict(os.environ if env is None else env),
            "folder": self._folder.name,
        }
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        self.pid = int(self._server.stdout.readline())

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit status, negative after a signal; None while it runs."""
        status = Path(self._folder.name, "status")
        if self.returncode is None and status.exists():
            self.returncode = int(status.read_text())
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end: standard output and error. Raises TimeoutExpired after killing the program."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        out, err = (Path(self._folder.name, name).read_text() for name in ("stdout", "stderr"))
        self._folder.cleanup()
        return out, err


def run_warm(
    modules: Sequence[str],
    argv: Sequence[object],
    timeout: float,
    env: Mapping[str, str] | None = None,
    loader: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` to its end where ``modules`` have been imported. Raises TimeoutExpired."""
    program = WarmPython(modules, argv, env, loader)
    out, err = program.communicate(timeout)
    assert program.returncode is not None
    return subprocess.CompletedProcess(program.args, program.returncode, out, err)


@cache
def _server(modules: tuple[str, ...], loader: tuple[tuple[str, str], ...]) -> subprocess.Popen[bytes]:
    """Ends when this process does, and with it the pipe that it reads from."""
    # mlhpc sets this for itself, but here TensorFlow is loaded before.
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | dict(loader)
    command = [sys.executable, str(Path(__file__).with_name("warm_server.py")), *modules]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
