"""Parameter servers over four ranks: the weights of one process, and exactly the bytes that ``perf`` predicts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.pytorch.parameter_servers import Roles, parts

PROGRAM = Path(__file__).parents[3] / "ranks" / "parameter_servers.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(4, [sys.executable, *sys.argv[1:]]))
"""


def test_weights_and_bytes_of_a_ring_and_of_one_to_three_servers():
    command = [sys.executable, "-c", LOCAL, str(PROGRAM)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@given(st.integers(0, 1000), st.integers(1, 9))
def test_parts_are_adjacent_and_differ_by_one_at_most(elements, number):
    found = parts(elements, number)
    assert [i for part in found for i in range(part.start, part.stop)] == list(range(elements))
    lengths = [part.stop - part.start for part in found]
    assert len(lengths) == number and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("rank, name", [(0, "worker 0"), (2, "worker 2"), (3, "parameter server 0")])
def test_ranks_have_names_by_their_roles(rank, name):
    assert Roles(workers=3, servers=2).place(rank) == name
