"""Batch norm with a sum and a ReLU as Triton kernels: run by Triton's interpreter against float64 of PyTorch, and
compiled for six GPUs."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("batchnorm_program.py")


def test_the_interpreted_kernels_agree_with_pytorch_in_float64():
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, PROGRAM, "cpu"], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and done.stdout == "equal\n", done.stderr[-2000:]
