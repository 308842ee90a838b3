"""A checkpoint is complete or still the previous one; a damaged one is reported in one line."""

import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mlhpc.common.training import checkpoint
from mlhpc.common.training.checkpoint import Checkpoint
from mlhpc.errors import UserError

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


def test_a_checkpoint_round_trips(tmp_path):
    shared = [np.arange(7, dtype=np.int16), np.array("text"), np.zeros((0, 3))]
    of_rank = [[np.float64(0.1)], [np.array([1, 2], np.uint8)]]
    checkpoint.save(tmp_path, Checkpoint(3, 11, "a = 1\n", shared, of_rank))
    loaded = checkpoint.load(tmp_path)
    assert (loaded.epoch, loaded.seed, loaded.config) == (3, 11, "a = 1\n")
    for ours, theirs in zip([shared, *of_rank], [loaded.shared, *loaded.of_rank], strict=True):
        assert [np.asarray(a).dtype for a in ours] == [b.dtype for b in theirs]
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_full_disk_is_a_one_line_error_and_keeps_the_previous_checkpoint(tmp_path):
    checkpoint.save(tmp_path, Checkpoint(1, 7, "", [np.ones(3)], [[]]))
    before = (tmp_path / "checkpoint.npz").read_bytes()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"cannot write a checkpoint in {tmp_path}: File too large; free some space")
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]
    assert (tmp_path / "checkpoint.npz").read_bytes() == before


def saved(folder):
    shared, of_rank = [np.arange(40.0), np.ones((3, 2), np.float32)], [[np.arange(5)], [np.arange(5, 9)]]
    checkpoint.save(folder, Checkpoint(3, 11, "a = 1\n", shared, of_rank))
    return folder / "checkpoint.npz"


def rewrite(path, keep, renamed=None):
    with zipfile.ZipFile(path) as archive:
        names = {name: (renamed or {}).get(name, name) for name in archive.namelist() if keep(name)}
        members = {new: archive.read(name) for name, new in names.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    "missing", ["shared_1.npy", "shared_0.npy", "rank1_0.npy", "ranks.npy", "config.npy", "arrays.npy"]
)
def test_a_checkpoint_with_a_missing_array_is_refused(tmp_path, missing):
    path = saved(tmp_path)
    rewrite(path, lambda name: name != missing)
    with pytest.raises(UserError, match="is damaged"):
        checkpoint.load(tmp_path)


def test_a_checkpoint_of_version_0_1_which_does_not_count_its_arrays_loads(tmp_path):
    path = saved(tmp_path)
    rewrite(path, lambda name: name not in ("arrays.npy", "contents.npy"))
    loaded = checkpoint.load(tmp_path)
    assert (len(loaded.shared), [len(own) for own in loaded.of_rank]) == (2, [1, 1])


@pytest.mark.parametrize("others", [("rank0_0.npy", "rank1_0.npy"), ("shared_0.npy", "shared_1.npy")])
def test_a_directory_that_exchanges_arrays_is_refused(tmp_path, others):
    """Each array still has its own checksum."""
    path = saved(tmp_path)
    one, other = others
    rewrite(path, lambda name: True, {one: other, other: one})
    with pytest.raises(UserError, match=r"is damaged.*directory"):
        checkpoint.load(tmp_path)


def test_an_entry_of_the_directory_that_swallows_the_others_is_refused(tmp_path):
    """Without its arrays and the number of them it would be a whole checkpoint of version 0.1 with no arrays."""
    path = saved(tmp_path)
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02", 0, data.rindex(b"ranks.npy"))
    rest = data.rindex(b"PK\x05\x06") - entry - 46 - len("ranks.npy")
    data[entry + 32 : entry + 34] = rest.to_bytes(2, "little")  # its comment's length: APPNOTE.TXT, 4.3.12
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="directory is incomplete"):
        checkpoint.load(tmp_path)


@pytest.mark.slow
def test_more_members_than_the_directory_can_count(tmp_path):
    arrays = [np.zeros(())] * 70_000
    checkpoint.save(tmp_path, Checkpoint(3, 11, "a = 1\n", arrays, [[]]))
    assert len(checkpoint.load(tmp_path).shared) == 70_000


def test_an_array_whose_length_is_damaged_too_has_its_checksum_compared(tmp_path):
    """zipfile compares the checksum at a member's end, which is behind the array's if the length is too large."""
    checkpoint.save(tmp_path, Checkpoint(3, 11, "a = 1\n", [np.arange(100_000.0)], [[]]))
    path = tmp_path / "checkpoint.npz"
    rewrite(path, lambda name: name != "contents.npy")
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("shared_0.npy")
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02", 0, data.rindex(b"shared_0.npy"))
    for field in (20, 24):  # compressed and uncompressed size: APPNOTE.TXT 6.3.10, 4.3.12
        data[entry + field : entry + field + 4] = (info.file_size + 1).to_bytes(4, "little")
    data[info.header_offset + 30 + len(info.filename) + info.file_size - 1] ^= 1  # the array's last byte
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="is damaged"):
        checkpoint.load(tmp_path)


def test_a_fifo_is_refused(tmp_path):
    os.mkfifo(tmp_path / "checkpoint.npz")
    with pytest.raises(UserError, match="not a regular file"):
        checkpoint.load(tmp_path)


def test_any_damage_is_a_one_line_error_or_harmless(tmp_path):
    """Bytes changed, truncated or repeated at random: a checkpoint that still loads equals the saved one."""
    path = saved(tmp_path)
    whole, expected = path.read_bytes(), checkpoint.load(tmp_path)
    rng, refused = random.Random(16), 0
    for _ in range(200):
        damaged = bytearray(whole)
        place = rng.randrange(len(whole))
        match rng.randrange(3):
            case 0:
                damaged[place] ^= rng.randrange(1, 256)
            case 1:
                del damaged[place : place + rng.randrange(1, 200)]
            case 2:
                damaged[place:place] = damaged[place : place + rng.randrange(1, 200)]
        path.write_bytes(bytes(damaged))
        try:
            loaded = checkpoint.load(tmp_path)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and str(path) in str(error)
        else:
            for ours, theirs in zip(
                [expected.shared, *expected.of_rank], [loaded.shared, *loaded.of_rank], strict=True
            ):
                assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert refused > 100


def test_a_library_that_is_not_installed_is_no_fault_of_the_file():
    """``mlhpc weights`` of a PyTorch checkpoint where only TensorFlow is."""
    with pytest.raises(ModuleNotFoundError), checkpoint.reading(Path("checkpoint.npz")):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
