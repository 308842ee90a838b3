"""What the first hour on a node with GPUs calls inside a process of its own, on a device that computes nothing: to
its end, or where it ends in a comparison of numbers, up to that."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda.library import devices, loader
from smoke.fake_cuda.conftest import run

SCRIPT = Path(__file__).parents[2] / "perf/first_hour_gpu.py"
# What fails here: numbers of a real device, and TensorFlow's build for CPUs, which does not see the device.
NUMBERS = {"driver": "TensorFlow sees 0 of 1 GPUs", "foreach": "assert all(torch.equal(a, b)"}
MODEL = {
    "events": {"kernel_us": 200},
    "energy": {"kernel_us": 50_000},
}  # long enough to time, and to sleep in


def test_every_check_inside_is_called():
    defined = set(re.findall(r"^def inside_(\w+)", SCRIPT.read_text(), re.MULTILINE))
    assert defined == {"driver", "events", "pinned", "foreach", "memory", "energy"}


@pytest.mark.parametrize("check", ["driver", "events", "pinned", "foreach", "memory", "energy"])
def test_runs_to_its_end_or_to_the_comparison_of_numbers(check):
    words, env = [SCRIPT, "--inside", check], devices(changes=MODEL.get(check))
    if check == "driver":  # imports TensorFlow too
        command = [sys.executable, *words]
        done = subprocess.run(
            command, env=os.environ | loader() | env, capture_output=True, text=True, timeout=300
        )
    else:
        done = run(words, env)
    if check in NUMBERS:
        assert NUMBERS[check] in done.stderr, done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr
