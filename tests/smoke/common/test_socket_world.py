"""The world without a framework, as real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "ranks" / "socket_collectives.py"
START = """\
import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local({ranks}, [sys.executable, {program!r}]))
"""


@pytest.mark.parametrize("ranks", [2, 6])
def test_collectives_agree(ranks):
    code = START.format(ranks=ranks, program=str(PROGRAM))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"[rank {ranks - 1}] all agree" in done.stderr
