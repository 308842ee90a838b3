"""A checkpoint is there whole, or the one before it is."""

import subprocess
import sys

import numpy as np

from mlhpc.common.training import checkpoint
from mlhpc.common.training.checkpoint import Checkpoint

# Files may have 100 kB: a full disk as it meets a user without the rights to make one.
PROGRAM = """
import resource, sys
from pathlib import Path
import numpy as np
from mlhpc.common.training.checkpoint import Checkpoint, save
from mlhpc.errors import UserError

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save(Path(sys.argv[1]), Checkpoint(2, 7, "", [np.zeros(1_000_000)], [[]]))
except UserError as error:
    print(error)
"""


def test_what_is_saved_is_loaded(tmp_path):
    shared = [np.arange(7, dtype=np.int16), np.array("text"), np.zeros((0, 3))]
    of_rank = [[np.float64(0.1)], [np.array([1, 2], np.uint8)]]
    checkpoint.save(tmp_path, Checkpoint(3, 11, "a = 1\n", shared, of_rank))
    found = checkpoint.load(tmp_path)
    assert (found.epoch, found.seed, found.config) == (3, 11, "a = 1\n")
    for ours, theirs in zip([shared, *of_rank], [found.shared, *found.of_rank], strict=True):
        assert [np.asarray(a).dtype for a in ours] == [b.dtype for b in theirs]
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_no_room_is_one_line_and_the_checkpoint_before_is_still_there(tmp_path):
    checkpoint.save(tmp_path, Checkpoint(1, 7, "", [np.ones(3)], [[]]))
    before = (tmp_path / "checkpoint.npz").read_bytes()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"cannot write a checkpoint in {tmp_path}: File too large; free some space")
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]
    assert (tmp_path / "checkpoint.npz").read_bytes() == before
