"""Fuzzed readers of images: their bytes, and the files of many images."""

import io
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import lmdb
import numpy as np
from fuzz.mutate import damaged_bytes
from PIL import Image

from mlhpc.common.formats import protobuf, tf_example, tfrecord
from mlhpc.errors import UserError
from mlhpc.resnet50.data import image
from mlhpc.resnet50.data.formats import ENCODED, INDEX, LABEL, LMDB, PIXELS, Images, Lmdb, Raw, Shards

_CLASSES = 5


@cache
def _images() -> tuple[bytes, ...]:
    """Small images of every kind that is read."""
    pixels = np.random.default_rng(1).integers(0, 256, (24, 33, 3), np.uint8)
    rgb, made = Image.fromarray(pixels), []
    for picture, kind, options in (
        (rgb, "jpeg", {}),
        (rgb, "jpeg", {"progressive": True, "subsampling": 0}),
        (rgb, "jpeg", {"restart_marker_blocks": 1, "optimize": True}),
        (rgb.convert("L"), "jpeg", {}),
        (rgb.convert("CMYK"), "jpeg", {}),
        *((rgb, kind, {}) for kind in ("png", "gif", "bmp", "webp")),
        (rgb.convert("P"), "png", {}),
    ):
        file = io.BytesIO()
        picture.save(file, kind, **options)
        made.append(file.getvalue())
    return tuple(made)


def image_bytes(rng: Random) -> bytes:
    good = rng.choice(_images())
    return damaged_bytes(rng, good) if rng.random() < 0.95 else good


def read_image(data: bytes, scratch: Path) -> None:
    """What is decoded has the size of its header, and no more pixels than the limit."""
    array = np.frombuffer(bytearray(data), np.uint8)
    pixels = image.decode(array)
    assert pixels.shape[0] == 3 and 0 < pixels.numel() <= 3 * image.MAX_PIXELS
    assert image.size_of(array) == tuple(pixels.shape[1:])


@cache
def _databases() -> tuple[bytes, ...]:
    """LMDB files of both versions: a single leaf, a tree with branches and deleted keys; values on pages of their
    own and within leaves."""
    made = []
    for version, keys, sizes in (
        (0, [b"%08d" % i for i in range(8)], (300, 5000)),
        (0, [b"n%04d" % (i * i) for i in range(100)], (20,)),
        (1, [b"%d" % i * 20 for i in range(100)], (20, 20, 20, 3000)),
    ):
        with TemporaryDirectory() as name:
            with lmdb.open(name, map_size=1 << 22, lib_version=version) as environment:
                with environment.begin(write=True) as transaction:
                    for i, key in enumerate(keys):
                        content = Random(i).randbytes(sizes[i % len(sizes)])
                        datum = protobuf.field(4, content) + protobuf.number_field(5, i % _CLASSES)
                        transaction.put(key, datum + protobuf.number_field(7, 1))
                with environment.begin(write=True) as transaction:
                    transaction.delete(keys[3])
            made.append((Path(name) / LMDB).read_bytes())
    return tuple(made)


def database_bytes(rng: Random) -> bytes:
    """Damage to any byte, or to headers of pages and the nodes at their ends, where LMDB's pointers are."""
    data = rng.choice(_databases())
    if rng.random() < 0.25:
        return damaged_bytes(rng, data)
    page = 4096 * rng.randrange(len(data) // 4096)
    start, size = rng.choice(((page, 16), (page, 160), (page + 16, 64), (page + 3840, 256)))
    damaged = damaged_bytes(rng, data[start : start + size]).ljust(size, b"\0")[:size]
    return data[:start] + damaged + data[start + size :]


def _read_all(images: Images) -> None:
    for index in range(min(len(images), 200)):
        data, label = images.read(index)
        assert data.dtype == np.uint8 and 0 <= label < _CLASSES
        images.name(index).encode()


def read_database(data: bytes, scratch: Path) -> None:
    (scratch / LMDB).write_bytes(data)
    _read_all(Lmdb(scratch, _CLASSES))


@cache
def _index() -> tuple[bytes, bytes]:
    """index.npy and pixels.raw of four images."""
    sizes = [(4, 5), (1, 1), (7, 3), (2, 9)]
    rows: list[Sequence[int]] = []
    for label, (height, width) in enumerate(sizes):
        rows.append((sum(3 * h * w for h, w in sizes[:label]), height, width, label))
    file = io.BytesIO()
    np.save(file, np.array(rows, np.int64))
    return file.getvalue(), bytes(sum(3 * h * w for h, w in sizes))


def index_bytes(rng: Random) -> bytes:
    return damaged_bytes(rng, _index()[0])


def read_index(data: bytes, scratch: Path) -> None:
    (scratch / INDEX).write_bytes(data)
    if not (scratch / PIXELS).exists():
        (scratch / PIXELS).write_bytes(_index()[1])
    _read_all(Raw(scratch, _CLASSES))


@cache
def _examples() -> list[bytes]:
    return [
        tf_example.encode_features({ENCODED: data, LABEL: [1 + i % _CLASSES]})
        for i, data in enumerate(_images()[:4])
    ]


def shard_bytes(rng: Random) -> bytes:
    """A shard with damage below the checksums, so that it reaches the messages, or above them."""
    records = [damaged_bytes(rng, data) if rng.random() < 0.5 else data for data in _examples()]
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        path = Path(name) / "shard"
        tfrecord.write_records(path, records, gzip=False)
        data = path.read_bytes()
    return damaged_bytes(rng, data) if rng.random() < 0.2 else data


def read_shard(data: bytes, scratch: Path) -> None:
    path = scratch / "train-00000-of-00001"
    path.write_bytes(data)
    _read_all(Shards({path: tfrecord.record_extents(path)}, _CLASSES))


READERS = (
    ("image", image_bytes, read_image, (UserError,)),
    ("lmdb", database_bytes, read_database, (UserError,)),
    ("raw_index", index_bytes, read_index, (UserError,)),
    ("shard", shard_bytes, read_shard, (UserError,)),
)
