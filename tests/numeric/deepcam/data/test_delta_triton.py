"""The GPU decoder of the differential codec, run by Triton's interpreter, against the truth."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("delta_program.py")


@pytest.mark.parametrize("columns", [1, 17, 150])
def test_the_interpreted_kernel_gives_the_bits_of_the_truth(columns: int) -> None:
    """Every kind of line; pivots and units at the ends of their ranges; raw lines of any bits."""
    done = subprocess.run(
        [sys.executable, PROGRAM, "cpu", str(columns)],
        capture_output=True, text=True, env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "same bits\n", done.stderr[-2000:]
