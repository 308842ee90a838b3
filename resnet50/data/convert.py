"""Packs a data set of many small files into few large ones: TFRecord shards, LMDB, or decoded pixels.

Image bytes are copied, not re-encoded, and images keep their order, so a run reads bit-identical batches from
every format.
"""

import errno
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from mlhpc.common.data import generate, manifest
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.verify import checksums, require_checksum, require_listed
from mlhpc.common.files import atomic
from mlhpc.common.formats.protobuf import field, number_field
from mlhpc.common.formats.tf_example import feature_pieces
from mlhpc.common.formats.tfrecord import write_record
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import count, digits, duration_text
from mlhpc.resnet50.data.dataset import SPLITS, Split, files_of, format_of, open_splits
from mlhpc.resnet50.data.formats import ENCODED, INDEX, LABEL, LMDB, PIXELS, Bytes, Files, Images
from mlhpc.resnet50.data.image import BrokenImage, decode, size_of

Target = Literal["tfrecord", "lmdb", "raw"]
T = TypeVar("T")

# Images per shard in ImageNet's 1024 and 128 shards (tensorflow/models, build_imagenet_data.py).
_IN_A_SHARD = {"train": 1252, "validation": 391}
_FEWEST_SHARDS = 16  # enough for dividing them among nodes and workers
_PAGE = 4096


def convert(source: Path, out: Path, codec: Target, world: World, workers: int) -> None:
    """Write the data set at ``source`` to ``out`` in the format ``codec``, with a manifest, and print the time
    taken. Called by all ranks.

    TFRecord shards are divided among the ranks, each of which uses ``workers`` threads; LMDB and pixel files are
    written by rank 0, whose threads read the images. Complete files are kept, so that an interrupted conversion
    can be resumed.

    Raises UserError, the same on all ranks, if the source is not a data set, lacks a file listed in its manifest
    or has only pixels, if the size of an image cannot be read (for "raw": if it cannot be decoded), or if ``out``
    cannot be written or contains other files.
    """
    started = time.perf_counter()
    generate.require_outside(source, out)
    dataset = manifest.describe(source, world)
    read = [files_of(dataset, split) for split in SPLITS]
    kinds = [format_of(dataset, names) for names in read]
    if codec != "raw" and "raw" in kinds:
        raise UserError(f"{source} contains decoded pixels; convert the encoded images instead")
    require_listed(source, world, workers, set(chain.from_iterable(read)).__contains__)
    splits, names = open_splits(dataset, world)
    sums = checksums(source, world)
    whole = (LMDB, PIXELS, INDEX)  # single files that contain no checksums
    for path in (source / name for name in chain.from_iterable(read) if PurePath(name).name in whole):
        on_rank0(world, partial(require_checksum, path, sums))
    splits = {split: _Verified(images, sums) for split, images in splits.items()}
    counts = {split: len(images) for split, images in splits.items()}
    settings: dict[str, object] = {
        "format": codec,
        "converted_from": source.resolve().name,
        "samples": counts,
    }
    on_rank0(world, lambda: generate.claim_folder(out, settings))

    total = sum(counts.values()) // (world.size if codec == "tfrecord" else 1)
    with progress(total, "convert", "images", show=world.rank == 0) as advance:
        for split, images in splits.items():
            on_rank0(world, partial(_make_folder, out / split))
            if codec == "tfrecord":
                one = partial(write_shard, images, names, out, advance)
                own_shards = shards_of(split, len(images))[world.rank :: world.size]
                generate.write_on_all_ranks(
                    world, out, partial(generate.in_threads, one, own_shards, workers)
                )
            else:
                write = _write_lmdb if codec == "lmdb" else _write_raw
                generate.write_on_rank0(world, out, partial(write, images, out / split, workers, advance))
    facts = dataset.facts | settings | {"benchmark": "resnet50", "codec": codec, "lossy": False}
    if names:
        facts["classes"] = names
    facts.pop("staged", None)
    packed = time.perf_counter() - started
    facts["packing_seconds"] = round(packed, 3)
    converted = manifest.index(out, facts, world, workers)
    _require_no_other_files(converted, codec)
    if world.rank == 0:
        images_made = sum(counts.values())
        print(
            f"{out}: {count(images_made, 'image')} in {count(len(converted.files), 'file')}, "
            f"packed in {duration_text(packed)} ({digits(images_made / packed)} images/s)"
        )


class _Verified:
    """Reads ``images``. Files that contain one image each are verified against the checksums ``sums`` before use;
    TFRecord files contain their own checksums."""

    def __init__(self, images: Images, sums: Mapping[Path, int]) -> None:
        self._images, self._sums, self.classes = images, sums, images.classes

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int) -> tuple[Bytes, int]:
        if isinstance(self._images, Files):
            require_checksum(Path(self._images.paths[index]), self._sums)
        return self._images.read(index)

    def name(self, index: int) -> str:
        return self._images.name(index)


def _make_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    atomic.sweep([folder])


class Shard(NamedTuple):
    """A TFRecord file: its name in the data set, and the indices, within the split, of the images in it."""

    name: str
    images: range


def shards_of(split: Split, images: int) -> list[Shard]:
    """The shards for a split with this number of images. Image n is record n // shards of shard n % shards, so
    that each shard contains images of every class."""
    shards = max(-(-images // _IN_A_SHARD[split]), min(_FEWEST_SHARDS, images))
    return [
        Shard(f"{split}/{split}-{n:05d}-of-{shards:05d}", range(n, images, shards)) for n in range(shards)
    ]


def write_shard(
    images: Images, names: Sequence[str] | None, root: Path, advance: Callable[[int], None], shard: Shard
) -> None:
    """Write a shard of ``images`` under ``root``, unless it exists. ``names``: the names of the classes.

    Raises UserError if an image or its size cannot be read, and OSError.
    """
    path = root / shard.name
    if not path.exists():
        with atomic.writing(path) as fd:
            for index in shard.images:
                write_record(fd, _example(images, names, index))
    advance(len(shard.images))


def _example(images: Images, names: Sequence[str] | None, index: int) -> Sequence[bytes | memoryview]:
    data, label = images.read(index)
    height, width = _naming_image(images, index, lambda: size_of(data))
    features: dict[str, bytes | memoryview | Sequence[int]] = {
        ENCODED: data.data,
        LABEL: [label + 1],
        "image/height": [height],
        "image/width": [width],
        "image/channels": [3],
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
        "image/filename": PurePath(images.name(index)).name.encode(),
    }
    if names:
        features["image/class/synset"] = names[label].encode()
    return feature_pieces(features)


def _write_lmdb(images: Images, folder: Path, workers: int, advance: Callable[[int], None]) -> None:
    import lmdb

    path = folder / LMDB
    if path.exists():
        advance(len(images))
        return
    part = folder / f".{LMDB}{atomic.SUFFIX}"
    part.unlink(missing_ok=True)

    def datum(index: int) -> bytes:
        data, label = images.read(index)
        height, width = _naming_image(images, index, lambda: size_of(data))
        shape = b"".join(number_field(n, value) for n, value in ((1, 3), (2, height), (3, width)))
        return shape + field(4, data.tobytes()) + number_field(5, label) + number_field(7, 1)

    # The map size is the maximum size of the file; it takes no space until it is used.
    size, room = 64 << 20, 0
    try:
        with lmdb.open(os.fspath(part), map_size=size, subdir=False, lock=False, sync=False) as environment:
            transaction = environment.begin(write=True)
            for index, value in enumerate(_ahead(datum, len(images), workers)):
                # A value has pages of its own, and its key is in a different page.
                room += len(value) + 3 * _PAGE
                if room > size // 2:
                    transaction.commit()
                    size *= 2
                    environment.set_mapsize(size)
                    transaction = environment.begin(write=True)
                transaction.put(b"%08d" % index, value, append=True)
                advance(1)
            transaction.commit()
            environment.sync(True)
        part.replace(path)
    except lmdb.Error as error:
        # LMDB reports a short write, as on a full disk, as an I/O error (mdb.c, mdb_page_flush).
        short = str(error).endswith(os.strerror(errno.EIO))
        also = f", which may be: {os.strerror(errno.ENOSPC)}" if short else ""
        raise UserError(
            f"{path} cannot be written ({error}{also}); check free space and permissions"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _write_raw(images: Images, folder: Path, workers: int, advance: Callable[[int], None]) -> None:
    if (folder / PIXELS).exists() and (folder / INDEX).exists():
        advance(len(images))
        return

    def pixels(index: int) -> tuple[Bytes, int]:
        data, label = images.read(index)
        decoded = _naming_image(images, index, lambda: decode(data))
        return np.ascontiguousarray(decoded.permute(1, 2, 0).numpy()), label

    rows, offset = [], 0
    with atomic.writing(folder / PIXELS) as fd:
        for array, label in _ahead(pixels, len(images), workers):
            atomic.write_all(fd, array.data.cast("B"))
            rows.append((offset, *array.shape[:2], label))
            offset += array.nbytes
            advance(1)
    index = io.BytesIO()
    np.save(index, np.array(rows, np.int64))
    atomic.write_bytes(folder / INDEX, index.getvalue())


def _naming_image(images: Images, index: int, work: Callable[[], T]) -> T:
    try:
        return work()
    except BrokenImage as error:
        raise UserError(f"{images.name(index)}: {error}; fix or remove it") from error


def _ahead(work: Callable[[int], T], count: int, workers: int) -> Iterator[T]:
    """The results of ``work`` for 0 to ``count - 1``, in order, computed by ``workers`` threads a few items ahead
    of the consumer."""
    window = 4 * max(1, workers)
    waiting: list[Future[T]] = []
    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            for index in range(count):
                waiting.append(pool.submit(work, index))
                if len(waiting) == window:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            pool.shutdown(cancel_futures=True)


def _require_no_other_files(converted: Manifest, to: Target) -> None:
    for split in SPLITS:
        if format_of(converted, files_of(converted, split)) != to:
            raise UserError(f"{converted.root} also has files in a different format; choose an empty folder")
