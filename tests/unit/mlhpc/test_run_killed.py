"""A run killed by the kernel is reported. The ranks' work is a stand-in."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlhpc.benchmarks import load
from mlhpc.common.ranks.world import Solo
from mlhpc.doctor import memory
from mlhpc.run import _warn_of_memory

# The command line as a program, with another training: {work}.
PROGRAM = """
import os, signal, sys, time
from mlhpc import cli, run
from mlhpc.doctor import memory
memory.usable_bytes = lambda: 24 * 10**9
memory.found = lambda: []
def train(options):
    {work}
run.main = train
sys.exit(cli.main())
"""
KILL = "os.kill(os.getpid(), 9)"
WAIT = "print(os.getpid(), flush=True); time.sleep(60)"


def start(work: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(work=work), "run", "cosmoflow", *words]
    pipe = subprocess.PIPE
    # A group of its own, as a shell starts it.
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--preset", "closed"], "a training step of 64 samples needs about 42 GB, "),
        (
            ["--preset", "closed", "--set", "hyperparameters.global_batch_size=32"],
            "of 32 samples needs about 21",
        ),
    ],
)
def test_a_rank_that_is_killed_is_one_line_with_what_it_needs(words: Sequence[str], needed: str) -> None:
    run = start(KILL, *words, "--set", "submission.org=o")
    _, err = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGKILL
    assert err.count("\n") == 1 and "Traceback" not in err
    assert err.startswith("mlhpc: rank 0 was killed by signal 9 (SIGKILL), by the kernel's out-of-memory")
    assert needed in err and "this node has 24 GB; use more nodes" in err


def test_memory_is_not_blamed_for_a_rank_that_needs_little() -> None:
    run = start(KILL, "--preset", "smoke")
    _, err = run.communicate(timeout=60)
    assert err.endswith("by the kernel's out-of-memory killer (see dmesg) or by a user\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_the_rank_and_its_status_is_the_program_s(number: int) -> None:
    handle = f"signal.signal({int(number)}, lambda *_: os._exit(77)); {WAIT}"
    run = start(handle)
    assert run.stdout
    assert int(run.stdout.readline()) != run.pid
    run.send_signal(number)
    assert (run.communicate(timeout=60), run.returncode) == (("", ""), 77)


def test_a_crash_keeps_its_status_and_is_named() -> None:
    run = start("os.kill(os.getpid(), signal.SIGSEGV)")
    assert run.communicate(timeout=60) == ("", "mlhpc: rank 0 was terminated by SIGSEGV\n")
    assert run.returncode == 128 + signal.SIGSEGV


def test_a_rank_does_not_outlive_the_program() -> None:
    run = start(WAIT)
    assert run.stdout
    rank = int(run.stdout.readline())
    run.kill()
    run.communicate(timeout=30)  # until the pipes are closed
    deadline = time.monotonic() + 30
    while not has_ended(rank):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_ended(process: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    ("settings", "gpus", "warned"),
    [
        ([], [], True),
        (["hyperparameters.global_batch_size=16"], [], False),  # 10 GB
        ([], ["a GPU"], False),  # which does the computing
    ],
)
def test_a_run_warns_before_it_starts_that_memory_will_not_do(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    gpus: list[str],
    warned: bool,
) -> None:
    monkeypatch.setattr(memory, "usable_bytes", lambda: 24 * 10**9)
    monkeypatch.setattr(memory, "usable", lambda: gpus)
    run = load.load("cosmoflow", "closed", ["submission.org=o", *settings])
    _warn_of_memory(run, Solo())
    err = capsys.readouterr().err
    assert err.startswith("mlhpc: warning: memory: ") == warned and err.count("\n") == warned


def test_a_run_that_waits_instead_of_computing_needs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "usable", lambda: [])
    run = load.load("cosmoflow", "closed", ["division=open", "emulation.step_s=0.1"])
    assert memory.memory_need(run, 1, 1) is None
