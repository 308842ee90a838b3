"""``mlhpc`` in forks of a process that has loaded its framework: loading it takes longer than a tiny run."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

# Frameworks start no threads while they are imported, so forking afterwards is safe; the child then runs and ends
# as a separate process would.
SERVER = """
import importlib, json, os, sys

importlib.import_module(sys.argv[1])
from mlhpc.cli import main


def serve():
    for line in sys.stdin:
        request = json.loads(line)
        if pid := os.fork():
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(1, f"{status}\\n".encode())
        else:
            return request


if request := serve():
    os.chdir(request["cwd"])
    for name, fd, flags in (("/dev/null", 0, os.O_RDONLY), ("stdout", 1, os.O_WRONLY), ("stderr", 2, os.O_WRONLY)):
        os.dup2(os.open(os.path.join(request["folder"], name), flags), fd)
    sys.argv = ["mlhpc", *request["words"]]
    sys.exit(main(request["words"]))
"""


@cache
def _server(module: str) -> subprocess.Popen[bytes]:
    """Ends when this process does, and with it the pipe that it reads from."""
    # mlhpc sets this for itself, but here TensorFlow is loaded before.
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", SERVER, module]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)


def run_warm(module: str, words: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """``mlhpc`` with ``words``, in a process that has imported ``module``. The environment is the caller's at its
    first call for this module. Raises TimeoutExpired."""
    server = _server(module)
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        for path in outputs:
            path.touch()
        request = {"words": list(words), "cwd": os.getcwd(), "folder": folder}
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout_s)[0]:
            server.kill()
            _server.cache_clear()
            raise subprocess.TimeoutExpired(["mlhpc", *words], timeout_s)
        status = int(server.stdout.readline())
        out, err = (path.read_text() for path in outputs)
    return subprocess.CompletedProcess(["mlhpc", *words], status, out, err)
