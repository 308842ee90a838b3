"""Fuzzed readers of data sets, checkpoints and events: damaged files are refused, or read as what they were."""

import json
import os
import zlib
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import h5py
import numpy as np
from fuzz.mutate import damaged_bytes, damaged_value, write

from mlhpc.benchmarks import load
from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.data import manifest
from mlhpc.common.data.codecs import frame
from mlhpc.common.data.codecs.codec import Codec, find
from mlhpc.common.formats import archive, npy, tf_example, tfrecord
from mlhpc.common.training import checkpoint
from mlhpc.cosmoflow import weights
from mlhpc.cosmoflow.data import codec as cosmoflow
from mlhpc.deepcam.data import codec as deepcam
from mlhpc.deepcam.data import hdf5
from mlhpc.deepcam.data.sample import Reader
from mlhpc.errors import UserError
from mlhpc.record.breakdown import breakdown
from mlhpc.record.events import read_events
from mlhpc.weights import save

COUNTS = np.arange(4 * 4 * 4 * 4, dtype=np.int16).reshape(4, 4, 4, 4)
MASK = zlib.compress(bytes(8 * 12))
FIELDS = np.arange(8 * 12 * 2, dtype=np.float32).reshape(8, 12, 2)


@cache
def _files() -> dict[str, bytes]:
    """A good file of each kind."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        record = tf_example.encode_example(COUNTS, np.ones(4, np.float32))
        for gzip in (False, True):
            tfrecord.write_records(folder / f"gzip-{gzip}", [record], gzip)
        npy.write(folder / "npy", FIELDS)
        archive.write(folder / "archive.zip", ARCHIVED)
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
    columns = {"paths": ["train/a", "validation/b"], "sizes": [3, 5], "crc32": "00000001 --------"}
    rows = [["train/a", 3, "00000001"], ["validation/b", 5, None]]
    version = rng.choice((1, 2))
    good = {"version": version, "facts": facts, "files": rows if version == 1 else columns}
    text = json.dumps(damaged_value(rng, good)).encode("utf-8", "surrogatepass")
    return damaged_bytes(rng, text) if rng.random() < 0.3 else text


def read_manifest(data: bytes, scratch: Path) -> None:
    write(scratch / manifest.NAME, data)
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
    for x, y in tf_example.read_examples(path, max_bytes=1 << 20):
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
    """No array is missing or other than it was saved."""
    (scratch / "checkpoint.npz").write_bytes(data)
    read = checkpoint.load(scratch)
    assert (read.epoch, read.seed, read.config) == (1, 7, "preset = 'smoke'\n")
    loaded: list[np.ndarray] = [*read.shared, *read.of_rank[0]]
    saved: list[np.ndarray] = [FIELDS, COUNTS, COUNTS]
    assert [array.dtype for array in loaded] == [array.dtype for array in saved]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(saved, loaded, strict=True))


FACTS = {"benchmark": "cosmoflow", "layout": weights.LAYOUT}  # as mlhpc weights writes them
SMALL = load.load("cosmoflow", "smoke", ["network.conv_filters=1", "network.dense_units=[2]"])
NETWORK = CosmoFlow.model_validate(SMALL).network


@cache
def _weights() -> tuple[list[np.ndarray], bytes]:
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((2, 3)).astype(np.float32) for _ in weights.names(NETWORK)]
    with TemporaryDirectory() as name:
        save(Path(name, "w.safetensors"), dict(zip(weights.names(NETWORK), arrays, strict=True)), FACTS)
        return arrays, Path(name, "w.safetensors").read_bytes()


def weights_bytes(rng: Random) -> bytes:
    data = _weights()[1]
    return data if rng.random() < 0.05 else damaged_bytes(rng, data)


def read_weights(data: bytes, scratch: Path) -> None:
    """No weight is missing or other than it was exported."""
    (scratch / "w.safetensors").write_bytes(data)
    read = weights.load(scratch / "w.safetensors", NETWORK)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(_weights()[0], read, strict=True))


def hdf5_bytes(rng: Random) -> bytes:
    return _damaged("h5", rng)


def read_hdf5(data: bytes, scratch: Path) -> None:
    """What is read is finite, has the sample's shape, and is what the HDF5 library reads."""
    path = scratch / "a.h5"
    write(path, data)
    x, y = np.empty(FIELDS.shape, np.float32), np.empty(FIELDS.shape[:2], np.uint8)
    Reader(FIELDS.shape, None).read(path, x, y)
    fields, labels = hdf5.read(path)
    assert np.isfinite(x).all() and y.max() < 3
    assert np.array_equal(x, fields.astype(np.float32)) and np.array_equal(y, labels)


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
    write(path, data)
    breakdown(read_events(path))


@cache
def _encoded() -> dict[str, tuple[str, tuple[int, ...], dict[str, bytes | memoryview]]]:
    """Type, shape and sections of a sample by each codec."""
    counts = COUNTS.copy()
    counts[2:] %= 5
    ranges = np.ptp(FIELDS, axis=(0, 1)).astype(np.float64)
    bound = deepcam.Bound(1e-3, "range", ranges)
    lossy = (deepcam.Delta("delta", bound), deepcam.Delta("delta-paper"), deepcam.SZ3(bound=bound))
    made: dict[str, tuple[str, np.ndarray, Codec]] = {
        f"c/{name}": ("<i2", counts, codec) for name, codec in cosmoflow.CODECS.items()
    }
    made |= {
        f"d/{c.name}": ("<f4", FIELDS, c) for c in (*lossy, deepcam.CODECS["pco"], deepcam.CODECS["zstd"])
    }
    return {
        name: (dtype, array.shape, {**codec.encode(array), "mask": MASK, "label": bytes(16)})
        for name, (dtype, array, codec) in made.items()
    }


def codec_bytes(rng: Random) -> bytes:
    """Half are damaged files, which the checksums find; half are sealed again after damage, as a hostile writer
    would."""
    name = rng.choice(sorted(_encoded()))
    dtype, shape, sections = _encoded()[name]
    if rng.random() < 0.5:
        return damaged_bytes(rng, frame.pack(name[2:], dtype, shape, sections))
    changed = dict(sections)
    for section in rng.sample(sorted(sections), rng.choice((1, 1, 2))):
        if name.endswith("blosc2") and section == "data":
            continue  # the library itself may read beyond such a stream: docs/evidence/security.md
        content = bytes(changed[section])
        changed[section] = (
            rng.randbytes(rng.randrange(64)) if rng.random() < 0.2 else damaged_bytes(rng, content)
        )
    if rng.random() < 0.3:
        shape = tuple(rng.choice((0, 1, side, side + 1, 2**16)) for side in shape)
    return frame.pack(name[2:], dtype, shape, changed)


def read_codec(data: bytes, scratch: Path) -> None:
    """Whatever is decoded has the shape of the frame; nothing large is allocated on its word."""
    read = frame.unpack(data, scratch / "a.mlc")
    if np.prod([float(side) for side in read.shape]) > 1 << 20:
        return  # readers compare the shape with the preset's before they allocate
    codecs = cosmoflow.CODECS if read.dtype == np.int16 else deepcam.CODECS
    find(read.codec, codecs, "a.mlc").decode(read, np.empty(read.shape, read.dtype))
    deepcam.decode_mask(read, np.empty((8, 12), np.uint8))


ARCHIVED = [("a.mlc", b"first" * 40), ("b.mlc", b""), ("c.mlc", bytes(range(256)))]


def archive_bytes(rng: Random) -> bytes:
    return _damaged("archive.zip", rng)


def read_archive(data: bytes, scratch: Path) -> None:
    """Every member has a checksum: what is read is what was written, though maybe as another member."""
    path = scratch / "archive.zip"
    path.write_bytes(data)
    for member in archive.members(path):
        assert bytes(archive.read(member)) in {content for _, content in ARCHIVED}


READERS = (
    ("sample_archive", archive_bytes, read_archive, (UserError,)),
    ("codec", codec_bytes, read_codec, (UserError,)),
    ("manifest", manifest_bytes, read_manifest, (UserError,)),
    ("tfrecord", tfrecord_bytes, read_tfrecord, (UserError,)),
    ("npy", npy_bytes, read_npy, (UserError,)),
    ("checkpoint", checkpoint_bytes, read_checkpoint, (UserError,)),
    ("weights", weights_bytes, read_weights, (UserError,)),
    ("hdf5", hdf5_bytes, read_hdf5, (UserError,)),
    ("events", events_bytes, read_event_file, (ValueError,)),
)
