"""Ranks that share batch norm compute what one process computes from the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "ranks" / "deepcam_step.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(2, [sys.executable, sys.argv[1]]))
"""


def test_gradients_and_statistics_of_two_ranks_are_those_of_one():
    command = [sys.executable, "-c", LOCAL, PROGRAM]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
