"""Shards exchanged between epochs by real processes: two nodes of one rank each, on this machine."""

from pathlib import Path

import numpy as np
import pytest
from helpers.two_nodes import as_torchrun

from mlhpc.common.data.manifest import index, load
from mlhpc.common.data.partition import Shards, balance
from mlhpc.common.data.verify import verify
from mlhpc.common.ranks.world import Solo

PROGRAM = Path(__file__).resolve().parents[2] / "ranks" / "exchange_shards.py"
FILES, SIZE = 20, 600_000


@pytest.fixture
def source(tmp_path):
    root, rng = tmp_path / "source", np.random.default_rng(2)
    (root / "train").mkdir(parents=True)
    for i in range(FILES):
        (root / "train" / f"{i:02d}.tfrecord").write_bytes(rng.bytes(SIZE + 1000 * i))
    return index(root, {"benchmark": "b"}, Solo(), workers=1)


def contents(root):
    return {path.name: path.read_bytes() for path in (root / "train").iterdir() if path.suffix == ".tfrecord"}


def test_each_node_gets_a_share_of_the_other_and_none_is_lost(source, tmp_path):
    whole = contents(source.root)
    ended = as_torchrun(PROGRAM, source.root, tmp_path, 4)
    assert [done.returncode for done in ended] == [0, 0], ended
    held = [contents(tmp_path / f"node{node}") for node in range(2)]
    assert held[0] | held[1] == whole and not held[0].keys() & held[1].keys()
    assert [len(files) for files in held] == [FILES // 2, FILES // 2]
    for node in range(2):
        assert verify(tmp_path / f"node{node}", workers=1) == []
        assert len(load(tmp_path / f"node{node}").files) == FILES // 2
    sizes = np.array([file.size for file in source.files])
    shards = Shards(balance(sizes, 2), seed=1)  # as the program's
    assert int(ended[0].stdout) == sizes[shards.nodes(2) != shards.nodes(3)].sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_lost_in_an_exchange_is_one_line_and_every_file_is_still_on_a_node(source, tmp_path, victim):
    whole = contents(source.root)
    ended = as_torchrun(PROGRAM, source.root, tmp_path, 2, victim)
    errors = ended[1 - victim].stderr
    assert ended[1 - victim].returncode == 1
    lines = [line for line in errors.splitlines() if "mlhpc: " in line]
    assert len(lines) == 1 and "Traceback" not in errors, errors
    assert f"rank {victim} on " in lines[0] and "was lost in phase 'exchange of epoch 2'" in lines[0]
    held = [contents(tmp_path / f"node{node}") for node in range(2)]
    assert held[0] | held[1] == whole
    again = as_torchrun(PROGRAM, source.root, tmp_path, 2)
    assert [done.returncode for done in again] == [0, 0], again
    assert not list(tmp_path.rglob("*.part"))
    held = [contents(tmp_path / f"node{node}") for node in range(2)]
    assert held[0] | held[1] == whole and not held[0].keys() & held[1].keys()
