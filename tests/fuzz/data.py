"""Fuzzed readers of data sets, checkpoints and events: damaged files are refused, or read as what they were."""

import json
import os
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import h5py
import numpy as np
from fuzz.mutate import damaged_bytes, damaged_value

from mlhpc.common.data import manifest
from mlhpc.common.formats import npy, tfrecord
from mlhpc.common.timing.breakdown import breakdown, read_events
from mlhpc.common.training import checkpoint
from mlhpc.deepcam.data import hdf5
from mlhpc.errors import UserError

COUNTS = np.arange(4 * 4 * 4 * 4, dtype=np.int16).reshape(4, 4, 4, 4)
FIELDS = np.arange(8 * 12 * 2, dtype=np.float32).reshape(8, 12, 2)


@cache
def _files() -> dict[str, bytes]:
    """A good file of each kind."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        record = tfrecord.encode_example(COUNTS, np.ones(4, np.float32))
        for gzip in (False, True):
            tfrecord.write_records(folder / f"gzip-{gzip}", [record], gzip)
        npy.write(folder / "npy", FIELDS)
        saved = checkpoint.Checkpoint(1, 7, "preset = 'smoke'\n", [FIELDS, COUNTS], [[COUNTS]])
        checkpoint.save(folder, saved)
        with h5py.File(folder / "h5", "w") as file:
            file["climate/data"], file["climate/labels_0"] = FIELDS, np.zeros((8, 12), np.int64)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def _damaged(name: str, rng: Random) -> bytes:
    data = _files()[name]
    return data if rng.random() < 0.05 else damaged_bytes(rng, data)


def manifest_bytes(rng: Random) -> bytes:
    facts = {"benchmark": "cosmoflow", "samples": {"train": 2, "validation": 1}, "dtype": "int16"}
    good = {"version": 1, "facts": facts, "files": [["train/a", 3, "00000001"], ["validation/b", 5, None]]}
    text = json.dumps(damaged_value(rng, good)).encode("utf-8", "surrogatepass")
    return damaged_bytes(rng, text) if rng.random() < 0.3 else text


def read_manifest(data: bytes, scratch: Path) -> None:
    (scratch / manifest.NAME).write_bytes(data)
    read = manifest.load(scratch)
    for file in read.files:
        assert file.size >= 0 and not Path(file.path).is_absolute() and ".." not in Path(file.path).parts
    assert min(read.samples(folder) for folder in ("train", "validation")) >= 0


def tfrecord_bytes(rng: Random) -> bytes:
    return _damaged(rng.choice(("gzip-False", "gzip-True")), rng)


def read_tfrecord(data: bytes, scratch: Path) -> None:
    """Every record has a checksum: what is read is what was written."""
    path = scratch / "a.tfrecord"
    path.write_bytes(data)
    for x, y in tfrecord.read_examples(path, max_bytes=1 << 20):
        assert bytes(x) == COUNTS.tobytes() and (np.asarray(y) == 1).all()


def npy_bytes(rng: Random) -> bytes:
    return _damaged("npy", rng)


def read_npy(data: bytes, scratch: Path) -> None:
    path = scratch / "a.npy"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert npy.locate(fd, path).end <= len(data)
    finally:
        os.close(fd)


def checkpoint_bytes(rng: Random) -> bytes:
    return _damaged("checkpoint.npz", rng)


def read_checkpoint(data: bytes, scratch: Path) -> None:
    """Members of a ZIP archive have checksums: no array is missing or other than it was saved."""
    (scratch / "checkpoint.npz").write_bytes(data)
    read = checkpoint.load(scratch)
    assert [array.shape for array in read.shared] == [FIELDS.shape, COUNTS.shape]
    assert (read.shared[0] == FIELDS).all() and (read.of_rank[0][0] == COUNTS).all()


def hdf5_bytes(rng: Random) -> bytes:
    return _damaged("h5", rng)


def read_hdf5(data: bytes, scratch: Path) -> None:
    """Where the file says where its arrays lie, they are there whole."""
    path = scratch / "a.h5"
    path.write_bytes(data)
    layout = hdf5.locate(path)
    if layout is not None:
        fields, labels = hdf5.read(path)
        assert fields.ndim == 3 and labels.ndim == 2


def events_bytes(rng: Random) -> bytes:
    good = [
        {"t": 0.0, "event": "begin", "name": "run"},
        {"t": 0.1, "event": "begin", "name": "epoch", "epoch": 1},
        {"t": 0.9, "event": "timed", "name": "data_wait", "epoch": 1, "count": 2, "seconds": 0.1, "max": 0.1},
        {"t": 1.0, "event": "end", "name": "train", "epoch": 1, "seconds": 0.9},
        {"t": 1.1, "event": "end", "name": "epoch", "epoch": 1, "seconds": 1.0},
        {"t": 2.0, "event": "end", "name": "run", "seconds": 2.0},
    ]
    lines = [json.dumps(damaged_value(rng, event) if rng.random() < 0.2 else event) for event in good]
    text = "\n".join(lines).encode()
    return damaged_bytes(rng, text) if rng.random() < 0.7 else text


def read_event_file(data: bytes, scratch: Path) -> None:
    path = scratch / "events.rank0.jsonl"
    path.write_bytes(data)
    breakdown(read_events(path))


READERS = (
    ("manifest", manifest_bytes, read_manifest, (UserError,)),
    ("tfrecord", tfrecord_bytes, read_tfrecord, (UserError,)),
    ("npy", npy_bytes, read_npy, (UserError,)),
    ("checkpoint", checkpoint_bytes, read_checkpoint, (UserError,)),
    ("hdf5", hdf5_bytes, read_hdf5, (UserError,)),
    ("events", events_bytes, read_event_file, (ValueError,)),
)
