"""Converts raw universes (HDF5) to prepared samples in the published CosmoFlow layout or another format.

A raw file contains one universe: ``full``, int16 counts [n, n, n, redshifts] (n = 512 and 4 redshifts as
published), and ``unitPar``, float32 [4], the parameters scaled to [-1, 1]. It is divided into (n / sample)³
sub-volumes, numbered in C order (first axis slowest) as in the public reference (mlcommons/hpc,
cosmoflow/prepare.py). Each becomes a file ``<folder>_<file>_<iii>.tfrecord`` (or with the format's suffix) in
``train/`` or ``validation/``. Samples that are already prepared are converted by ``recode``.
"""

import hashlib
import os
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import h5py
import numpy as np
import numpy.typing as npt

from mlhpc.common.data import generate, manifest
from mlhpc.common.data.codecs import frame
from mlhpc.common.data.verify import checksums, require_checksum, require_listed
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.common.formats.hdf5 import reading, require_own_values
from mlhpc.common.formats.tf_example import encode_example
from mlhpc.common.formats.tfrecord import GZIP_MAGIC, RECORD_OVERHEAD, Packer, packer_of
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_all_ranks, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.cosmoflow.data.recode import FOLDERS, recode
from mlhpc.cosmoflow.data.sample import TFRECORD, facts_of, suffix_of, write_sample
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text, count

_SUFFIXES = (".hdf5", ".h5")
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Universe:
    """A raw file, the prefix of the names of its samples, and the folder for these samples."""

    path: Path
    name: str
    folder: str


class Division(TypedDict, total=False):
    """The options for dividing raw universes. ``sample``: voxels along a side of a sample (default: 128).
    ``validation``: fraction of the universes held out for validation (default: 1/9)."""

    sample: int
    validation: float


def convert(
    source: Path,
    out: Path,
    world: World,
    workers: int,
    *,
    codec: str | None = None,
    packer: Packer | None = None,
    archive: int | None = None,
    **division: Unpack[Division],
) -> None:
    """Divide the universes under ``source`` according to ``division``, and write the samples, in the format
    ``codec`` (one of ``sample.NAMES``; None: gzip), and a manifest to ``out``. If ``source`` contains samples,
    they are converted (``recode``). ``archive``: the number of samples to pack into each file; without ``codec``
    they are packed unchanged.

    Files in the format ``gzip`` are compressed by ``packer`` (``tfrecord.compress``; None: zlib).

    The ranks divide the slabs of ``sample`` planes among them; in each rank, ``workers`` threads compress and
    write. The files do not depend on the number of ranks and workers. Complete files are kept, so that an
    interrupted conversion can be resumed. A rank keeps two slabs in memory, 0.5 GiB at the published sizes.

    Called by all ranks. Raises UserError, the same on all ranks, if there is no universe, if one is invalid,
    cannot be divided into samples or is listed in the manifest of ``source`` but missing, if ``out`` cannot be
    written or contains other samples, if ``packer`` is set for a format other than gzip, or if ``division`` is
    given for samples.
    """
    if packer and (codec or (None if archive else "gzip")) != "gzip":
        raise UserError("--packer requires --codec gzip; add it, or omit --packer")
    packer = packer or "zlib"
    generate.require_outside(source, out)
    if on_rank0(world, lambda: _holds_samples(source)):
        if division:
            raise UserError(
                f"--{min(division)} divides universes, but {source} contains samples, which are already divided; "
                "omit it"
            )
        recode(source, out, world, workers, codec if codec or archive else "gzip", packer, archive)
        return
    if archive:
        on_rank0(world, lambda: manifest.require_folder(source))
        raise UserError(
            f"--archive packs samples, but {source} contains universes; "
            "convert the universes without --archive first"
        )
    codec = codec or "gzip"
    sample, validation = division.get("sample", 128), division.get("validation", 1 / 9)
    require_listed(source, world, workers, lambda name: name.endswith(_SUFFIXES))
    universes = on_rank0(world, lambda: find_universes(source, validation))
    sums = checksums(source, world)

    def shape(universe: Universe) -> tuple[int, ...]:
        require_checksum(universe.path, sums)
        return _shape(universe, sample)

    shapes = on_all_ranks(world, lambda: [shape(u) for u in universes[world.rank :: world.size]])
    shape_of = [shapes[i % world.size][i // world.size] for i in range(len(universes))]
    _require_one_kind(universes, shape_of)
    size, _, _, redshifts, parameters = shape_of[0]
    cuts = size // sample
    slabs = [(universe, k) for universe in universes for k in range(cuts)]
    own_slabs = slabs[world.rank :: world.size]

    alike = _Alike(codec, packer, (sample, sample, sample, redshifts), parameters)
    with progress(len(own_slabs) * cuts**2, "convert", "samples", show=world.rank == 0) as advance:
        generate.write_on_all_ranks(
            world, out, lambda: _convert_slabs(own_slabs, out, sample, cuts, alike, workers, advance)
        )

    samples = {f: cuts**3 * sum(u.folder == f for u in universes) for f in ("train", "validation")}
    facts = {
        "benchmark": "cosmoflow",
        "samples": samples,
        "sample_shape": [sample, sample, sample, redshifts],
        "dtype": "int16",
        **facts_of(codec, packer),
        "made": f"converted from {count(len(universes), 'universe')} of {size}³ voxels in {source.name}",
    }
    expected = len(slabs) * cuts**2
    converted = generate.write_manifest_of_converted(out, facts, expected, world, workers)
    if world.rank == 0:
        print(f"{out}: {count(expected, 'sample')} as {codec}, {bytes_text(converted.bytes)}")


def find_universes(source: Path, validation_fraction: float) -> list[Universe]:
    """The HDF5 files under ``source``, sorted by path, divided into training and validation.

    The universes whose names have the lowest SHA-256 are used for validation, a fixed choice that needs no seed
    and does not depend on the order of the files. Their number is the fraction, rounded, but at least one if the
    fraction is not 0 and there are two or more universes.

    Raises UserError if there is none, or the fraction is not in [0, 1).
    """
    if not 0 <= validation_fraction < 1:
        raise UserError(f"--validation {validation_fraction} must be at least 0 and less than 1")
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; pass the folder of the raw universes")
    paths = sorted(path for path in source.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    if not paths:
        raise UserError(f"{source} contains no raw universes (*.hdf5); pass the folder that does")
    # <folder>_<file>, where <folder> is the whole path below the source, absent for files in the source itself.
    names = ["_".join(path.relative_to(source).with_suffix("").parts) for path in paths]
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    if twice:
        raise UserError(f"{source}: two universes are named {min(twice)}; rename one of them")
    held_out = round(validation_fraction * len(paths))
    if validation_fraction and len(paths) > 1:
        held_out = max(1, min(held_out, len(paths) - 1))
    by_hash = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    validation = set(by_hash[:held_out])
    return [
        Universe(path, name, "validation" if name in validation else "train")
        for path, name in zip(paths, names, strict=True)
    ]


def _shape(universe: Universe, sample: int) -> tuple[int, ...]:
    """The shape of ``full``, followed by the length of ``unitPar``. Raises UserError if the file cannot be cut
    into samples."""
    with reading(universe.path) as file:
        for name, kind, axes in (("full", np.int16, 4), ("unitPar", np.float32, 1)):
            data = file.get(name)
            if not isinstance(data, h5py.Dataset) or data.dtype != kind or data.ndim != axes:
                raise UserError(
                    f"{universe.path} has no {axes}-dimensional {np.dtype(kind)} dataset {name!r}; "
                    "pass raw universes"
                )
            require_own_values(data, universe.path)
        shape: tuple[int, ...] = file["full"].shape + file["unitPar"].shape
    if len(set(shape[:3])) > 1 or sample < 1 or shape[0] == 0 or shape[0] % sample:
        raise UserError(f"{universe.path}: --sample {sample} must divide the shape, {list(shape[:3])} voxels")
    return shape


def _require_one_kind(universes: list[Universe], shapes: list[tuple[int, ...]]) -> None:
    for universe, shape in zip(universes, shapes, strict=True):
        if shape != shapes[0]:
            raise UserError(
                f"{universe.path} has shape {shape}, but other universes {shapes[0]}; convert one shape at a time"
            )


def _convert_slabs(
    slabs: list[tuple[Universe, int]],
    out: Path,
    sample: int,
    cuts: int,
    alike: "_Alike",
    workers: int,
    advance: Callable[[int], None],
) -> None:
    """Convert slab by slab; while one slab is read, the threads write the samples of the previous one."""
    for folder in {universe.folder for universe, _ in slabs}:
        (out / folder).mkdir(parents=True, exist_ok=True)
    writing: list[Future[None]] = []
    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            for universe, k in slabs:
                first_number = k * cuts**2
                missing = []
                for i in range(cuts**2):
                    name = f"{universe.name}_{first_number + i:03d}{suffix_of(alike.codec)}"
                    path = out / universe.folder / name
                    if path.exists() and generate.is_whole(path):
                        alike.require(path)
                        advance(1)
                    else:
                        missing.append((i, path))
                slab = _read_slab(universe.path, k * sample, sample) if missing else None
                for future in writing:
                    future.result()
                writing = []
                for i, path in missing:
                    assert slab is not None
                    y, z = divmod(i, cuts)
                    cube = slab[0][:, y * sample : (y + 1) * sample, z * sample : (z + 1) * sample]
                    writing.append(pool.submit(_write, path, cube, slab[1], alike, advance))
            for future in writing:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _read_slab(path: Path, start: int, planes: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]:
    with reading(path) as file:
        return file["full"][start : start + planes], file["unitPar"][:]


def _write(
    path: Path,
    x: npt.NDArray[np.int16],
    y: npt.NDArray[np.float32],
    alike: "_Alike",
    advance: Callable[[int], None],
) -> None:
    write_sample(path, x, y, alike.codec, alike.packer)
    advance(1)


class _Alike:
    """Checks that existing files have the same format, packer and shape. Only their beginning and end are read."""

    def __init__(self, codec: str, packer: Packer, shape: tuple[int, ...], parameters: int) -> None:
        self.codec, self.packer, self._shape = codec, packer, shape
        # The size of a TFRecord file before compression.
        blank = encode_example(np.zeros(shape, np.int16), np.zeros(parameters, np.float32))
        self._content = RECORD_OVERHEAD + len(blank)

    def require(self, path: Path) -> None:
        """Raise UserError if ``path`` has a different format, packer or shape."""
        with path.open("rb") as file:
            head = file.read(frame.HEAD_BYTES)
            if self.codec in TFRECORD:
                zipped = head[:2] == GZIP_MAGIC
                # A gzip file ends with the length of its content (RFC 1952).
                size = path.stat().st_size
                if zipped and size >= 18:
                    file.seek(-4, os.SEEK_END)
                    (size,) = struct.unpack("<I", file.read(4))
                same = (zipped, size) == (TFRECORD[self.codec], self._content)
                same = same and (not zipped or packer_of(head) == self.packer)
            else:
                same = frame.peek(head) == (self.codec, self._shape)
        if not same:
            raise UserError(
                f"{path}: truncated, or made with a different --sample, --codec or --packer; remove it"
            )


def _holds_samples(source: Path) -> bool:
    """Return whether the first file of ``source``, sorted by path, is a sample, judging by its first bytes."""
    for folder in FOLDERS:
        files = sorted(path for path in (source / folder).glob("*") if not path.name.startswith("."))
        if files:
            with (
                as_user_error(files[0], "cannot be read", "pass the folder of a CosmoFlow data set"),
                open(open_regular(files[0]), "rb") as file,
            ):
                return file.read(8) != _HDF5_MAGIC
    return False
