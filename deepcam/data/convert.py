"""Converts samples to another format: .npy pairs (``data-*.npy`` with the field, ``label-*.npy`` with the mask),
or ``data-*.mlc``, encoded by a codec.

A .npy file can be read without a library, and its mask has one byte per pixel, whereas published masks have eight.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.data import archives, generate, manifest
from mlhpc.common.data.codecs import frame
from mlhpc.common.data.codecs.codec import Codec, facts
from mlhpc.common.data.verify import checksums, require_checksum, require_listed
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.formats import npy
from mlhpc.common.formats.archive import read as read_sample
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_all_ranks, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.deepcam.data import hdf5
from mlhpc.deepcam.data.codec import CODECS, Of, encode_sample, encoder
from mlhpc.deepcam.data.sample import Reader, list_samples, sample_shape
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text, count

FOLDERS = ("train", "validation", "test")
_REMEDY = "free some space or choose another folder"
SETTINGS = ".conversion.json"
"""The file that records how the files in its folder were converted, so that a restart never mixes formats. Being
hidden, it is not staged."""


def convert(
    source: Path,
    out: Path,
    world: World,
    workers: int,
    codec: str | None = None,
    max_error: float | None = None,
    error_of: Of | None = None,
    archive: int | None = None,
) -> None:
    """Write the data set at ``source`` to ``out`` in the format ``codec``, with its statistics and a manifest.
    ``archive``: the number of samples to pack into each file; without ``codec`` they are packed unchanged.

    "npy" (the default): fields keep their float32 values, masks become uint8. "npy-float16": fields are normalised
    and rounded to float16 (physical values do not fit: pressure in Pa exceeds float16's largest value, 65504), the
    statistics become 0 and 1, and the manifest says so. This preprocessing differs from the reference's, so it is
    for the open division only. Otherwise ``codec`` is one of ``codec.CODECS``, with ``max_error`` and ``error_of``
    if it is lossy.

    The samples are divided among the ranks, each of which uses ``workers`` threads; the resulting files do not
    depend on the numbers of ranks and threads. Complete files are kept, so that an interrupted conversion can be
    resumed; source files with a newer modification time are converted again. Each thread holds one sample in
    memory, 54 MiB at the published size.

    Called by all ranks. Raises UserError, the same on all ranks, if a sample or the statistics are invalid, or
    missing although the manifest of ``source`` lists them, or if ``out`` cannot be written or contains files in a
    different format or normalised with different statistics.
    """
    on_rank0(world, lambda: _require_folders(source, out))
    require_listed(source, world, workers, _is_read)
    sums = checksums(source, world)
    before = on_rank0(world, lambda: manifest.facts_of(source))
    as_stored = archive is not None and codec is None
    codec = str(before.get("codec", "hdf5")) if as_stored else codec or "npy"
    if archive and codec not in CODECS:
        raise UserError(f"--archive does not support {codec}; use another codec, or --codec plain")
    samples = on_rank0(world, lambda: _samples(source, before, as_stored))
    on_rank0(world, lambda: require_checksum(hdf5.find_statistics(source), sums))
    shape, statistics = on_rank0(world, lambda: _kind(source, samples[0][1]))
    float16 = codec == "npy-float16"
    dtype = np.dtype(np.float16 if float16 else np.float32)
    encoded = codec in CODECS
    if not encoded and (max_error is not None or error_of is not None):
        raise UserError(f"--max-error does not apply to {codec}; omit it")
    using = encoder(codec, max_error, error_of, *statistics) if encoded and not as_stored else None
    reader = Reader(shape, statistics if float16 else None, before.get("codec"))
    own_samples = samples[world.rank :: world.size]
    normalised_by = (
        {name: values.tolist() for name, values in statistics._asdict().items()} if float16 else None
    )
    how: dict[str, object] = facts(using) if using else {"codec": codec, "lossy": float16}
    if as_stored:
        how = {
            name: before[name] for name in ("codec", "lossy", "max_error", "max_error_of") if name in before
        }
    how |= {archives.FACT: archive} if archive else {}
    settings: dict[str, object] = {
        "sample_shape": shape, "dtype": dtype.name, "statistics": normalised_by, **how
    }  # fmt: skip
    on_rank0(world, lambda: generate.claim_folder(out, settings, SETTINGS))
    for folder in {folder for folder, _ in samples}:
        on_all_ranks(world, partial(_make_folder, out / folder))

    if archive:
        of = {f"{folder}/{path.with_suffix('.mlc').name}": path for folder, path in samples}

        def content(name: str) -> bytes | memoryview:
            if using:
                return _encoded(of[name], reader, sums, using)
            require_checksum(of[name], sums)
            return read_sample(of[name])

        packed = archives.grouped(list(of), archive)
        archives.write_missing(out, packed, content, world, workers)
    else:
        with progress(len(own_samples), "convert", "samples", show=world.rank == 0) as advance:
            one = (
                partial(_encode_sample, out, reader, sums, using, advance)
                if using
                else partial(_convert_sample, out, reader, sums, dtype, advance)
            )
            on_all_ranks(world, lambda: generate.in_threads(one, own_samples, workers))

    def write_statistics() -> None:
        if float16:
            zeros, ones = np.zeros(shape[2], np.float32), np.ones(shape[2], np.float32)
            hdf5.write_statistics(out / "stats.h5", hdf5.Statistics(zeros, ones))
        else:
            _copy(hdf5.find_statistics(source), out / "stats.h5")

    generate.write_on_rank0(world, out, write_statistics)
    known: dict[str, Any] = before | {
        "benchmark": "deepcam",
        "samples": dict(Counter(folder for folder, _ in samples)),
        "sample_shape": list(shape),
        "format": "encoded" if encoded else "npy",
        "dtype": dtype.name,
        "converted_from": source.resolve().name,
        **how,
    }
    known.pop("staged", None)
    if normalised_by:
        known["normalised_by"] = normalised_by
    expected = (len(packed) if archive else (1 if encoded else 2) * len(samples)) + 1
    written = generate.write_manifest_of_converted(out, known, expected, world, workers)
    if world.rank == 0:
        how_packed = archives.described(archive)
        print(f"{out}: {count(len(samples), 'sample')} as {codec}{how_packed}, {bytes_text(written.bytes)}")


def _require_folders(source: Path, out: Path) -> None:
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; pass the folder with train/ and validation/ in it")
    generate.require_outside(source, out)


def _is_read(name: str) -> bool:
    """Return whether a file of the source is a sample or the statistics, judging by its relative path."""
    return name == "stats.h5" or name.startswith(tuple(f"{folder}/" for folder in FOLDERS))


def _samples(source: Path, known: dict[str, Any], as_stored: bool) -> list[tuple[str, Path]]:
    """The folder and path of every sample to convert. Raises UserError for lossy samples unless ``as_stored``."""
    archives.require_unpacked(manifest.Manifest(source, manifest.Files.of(()), known))
    folders = [folder for folder in FOLDERS if (source / folder).is_dir()]
    if not folders:
        raise UserError(f"{source} has none of {', '.join(FOLDERS)}; pass the folder of a DeepCAM data set")
    samples = [
        (folder, sample)
        for folder in folders
        for sample in list_samples(source / folder)
        if isinstance(sample, Path)
    ]
    if not as_stored and (known.get("lossy", False) or known.get("dtype", "float32") != "float32"):
        raise UserError(
            f"{source} is already lossy ({known.get('codec', known.get('dtype'))}); pass the HDF5 samples"
        )
    return samples


def _kind(source: Path, sample: Path) -> tuple[tuple[int, int, int], hdf5.Statistics]:
    shape = sample_shape(sample)
    return shape, hdf5.read_statistics(source, shape[2])


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    atomic.sweep([folder])


def _convert_sample(
    out: Path,
    reader: Reader,
    sums: Mapping[Path, int],
    dtype: np.dtype[Any],
    advance: Callable[[int], None],
    sample: tuple[str, Path],
) -> None:
    folder, path = sample
    data = out / folder / path.with_suffix(".npy").name
    mask = npy.label_path(data)
    modified_ns = path.stat().st_mtime_ns  # before reading, so that a later change is detected
    files = (data, npy.size(dtype, reader.shape)), (mask, npy.size(np.uint8, reader.shape[:2]))
    if not all(_is_kept(file, size, modified_ns) for file, size in files):
        x, y = _read(path, reader, sums)
        with as_user_error(data, "cannot be written", _REMEDY):
            npy.write(data, x.astype(dtype, copy=False), modified_ns)
            npy.write(mask, y, modified_ns)
    advance(1)


def _encode_sample(
    out: Path,
    reader: Reader,
    sums: Mapping[Path, int],
    codec: Codec,
    advance: Callable[[int], None],
    sample: tuple[str, Path],
) -> None:
    folder, path = sample
    written = out / folder / path.with_suffix(".mlc").name
    modified_ns = path.stat().st_mtime_ns  # read before the file, so that a change in between is detected
    if not _is_kept(written, None, modified_ns):
        content = _encoded(path, reader, sums, codec)
        with as_user_error(written, "cannot be written", _REMEDY), atomic.writing(written) as fd:
            atomic.write_all(fd, memoryview(content))
            os.utime(fd, ns=(modified_ns, modified_ns))
    advance(1)


def _encoded(path: Path, reader: Reader, sums: Mapping[Path, int], codec: Codec) -> bytes:
    return encode_sample(codec, *_read(path, reader, sums))


def _read(
    path: Path, reader: Reader, sums: Mapping[Path, int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    for file in (path, npy.label_path(path)) if path.suffix == ".npy" else (path,):
        require_checksum(file, sums)
    x, y = np.empty(reader.shape, np.float32), np.empty(reader.shape[:2], np.uint8)
    reader.read(path, x, y)
    return x, y


def _is_kept(written: Path, size: int | None, modified_ns: int) -> bool:
    """Return whether a file exists, is complete (judging by ``size``, or by the file's header if ``size`` is
    None), and has its source's modification time."""
    try:
        status = written.stat()
        if size is None and not frame.is_whole(written):
            return False
    except FileNotFoundError:
        return False
    # Some file systems store only whole seconds.
    second = modified_ns - modified_ns % 10**9
    return size in (None, status.st_size) and status.st_mtime_ns in (modified_ns, second)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as file, atomic.writing(target) as fd, open(fd, "wb", closefd=False) as copy:
        shutil.copyfileobj(file, copy)
