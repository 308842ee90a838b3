"""Ctrl-C reaches every process of a terminal's group, at any moment."""

import os
import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize("seconds", [0.8, 1.2, 1.6, 2.0, 2.5])
def test_making_data_ends_in_one_line_when_interrupted(tmp_path, seconds):
    command = [sys.executable, "-P", "-m", "mlhpc", "data", "make", "cosmoflow", "--preset", "demo"]
    process = subprocess.Popen(
        [*command, "--workers", "2", "--out", str(tmp_path / "data")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in printed, printed
    assert printed.splitlines()[-1] == "mlhpc: interrupted"
    assert not list(tmp_path.rglob("*.part"))
