"""Converts samples losslessly between formats (TFRecord, plain or GZIP, and the codecs), or packs them into
archives."""

from collections.abc import Callable
from math import prod
from pathlib import Path

from mlhpc.common.data import archives, generate, manifest
from mlhpc.common.data.verify import checksums, require_checksum, require_listed
from mlhpc.common.files import atomic
from mlhpc.common.formats.archive import read as read_sample
from mlhpc.common.formats.tfrecord import Packer
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.cosmoflow.data.sample import facts_of, format_of, read_counts, sample_bytes, suffix_of
from mlhpc.errors import UserError
from mlhpc.quantities import count

FOLDERS = ("train", "validation")
SETTINGS = ".conversion.json"
_HOW = ("codec", "lossy", "gzip", "packer")  # a manifest's facts about how samples are stored


def recode(
    source: Path,
    out: Path,
    world: World,
    workers: int,
    codec: str | None,
    packer: Packer = "zlib",
    archive: int | None = None,
) -> None:
    """Write the samples in ``train/`` and ``validation/`` of ``source`` to ``out`` in the format ``codec`` (None:
    unchanged), with a manifest. ``archive``: the number of samples to pack into each file. ``packer``: compressor
    of files in the format ``gzip``. The ranks divide the files among them, and each uses ``workers`` threads;
    files in ``out`` that are already complete are kept.

    Called by all ranks. Raises UserError, the same on all ranks, if ``source`` is not a data set, lacks files
    listed in its manifest or has a damaged file, or if ``out`` cannot be written or contains other files.
    """
    dataset = manifest.describe(source, world, "cosmoflow")
    sums = checksums(source, world)
    archives.require_unpacked(dataset)
    files = [file.path for folder in FOLDERS for file in dataset.folder(folder)]
    if not files:
        raise UserError(f"{source} has no samples in {' or '.join(f'{name}/' for name in FOLDERS)}")
    require_listed(source, world, workers, set(files).__contains__)
    as_stored = codec is None
    codec = codec or on_rank0(world, lambda: format_of(source / files[0]))
    converted_names = {name: str(Path(name).with_suffix(suffix_of(codec))) for name in files}
    if len(set(converted_names.values())) < len(converted_names):
        raise UserError(
            f"{source}: two samples differ only in their file names' suffixes; rename one of them"
        )
    shape = dataset.facts.get("sample_shape") or on_rank0(world, lambda: _shape(source / files[0]))
    stored = {key: dataset.facts[key] for key in _HOW if key in dataset.facts}
    settings: dict[str, object] = {
        **(stored if as_stored else facts_of(codec, packer)),
        **({archives.FACT: archive} if archive else {}),
        "converted_from": source.resolve().name,
    }

    of = {new: name for name, new in converted_names.items()}

    def content(name: str) -> bytes | bytearray | memoryview:
        if as_stored:  # packed without decoding, so damaged samples would get valid checksums
            require_checksum(source / of[name], sums)
            return read_sample(source / of[name])
        return _recoded(source / of[name], shape, codec, packer)

    on_rank0(world, lambda: generate.claim_folder(out, settings, SETTINGS))
    expected = _write(out, list(of), content, world, workers, archive)

    kept = {key: value for key, value in dataset.facts.items() if key not in (*_HOW, "staged")}
    samples = {folder: len(dataset.folder(folder)) for folder in FOLDERS}
    facts = kept | {
        "benchmark": "cosmoflow",
        "samples": samples,
        "sample_shape": list(shape),
        "dtype": "int16",
    }
    result = generate.write_manifest_of_converted(out, facts | settings, expected, world, workers)
    if world.rank == 0:
        before = sum(file.size for file in dataset.files if file.path in converted_names)
        size = f"{result.bytes / before:.2f} times the size of {source}"
        print(f"{out}: {count(len(files), 'sample')} as {codec}{archives.described(archive)}, {size}")


def _write(
    out: Path,
    names: list[str],
    content: Callable[[str], bytes | bytearray | memoryview],
    world: World,
    workers: int,
    archive: int | None,
) -> int:
    """Write the samples of ``names`` that ``out`` lacks, as single files or archives. Returns the number of files
    in the complete data set."""
    if archive:
        packed = archives.grouped(names, archive)
        archives.write_missing(out, packed, content, world, workers)
        return len(packed)
    missing = set(on_rank0(world, lambda: generate.missing(out, names)))
    todo = [name for name in names if name in missing][world.rank :: world.size]
    with progress(len(todo), "convert", "samples", show=world.rank == 0) as advance:

        def write_one(name: str) -> None:
            with atomic.writing(out / name) as fd:
                atomic.write_all(fd, memoryview(content(name)))
            advance(1)

        generate.write_on_all_ranks(world, out, lambda: generate.in_threads(write_one, todo, workers))
    return len(names)


def _recoded(path: Path, shape: list[int], codec: str, packer: Packer) -> bytes | bytearray:
    x, y = read_counts(path)
    if x.size != prod(shape):
        raise UserError(
            f"{path} has {x.size} counts, expected {prod(shape)} for {shape}; all samples must have one shape"
        )
    return sample_bytes(x.reshape(shape), y, codec, packer)


def _shape(path: Path) -> list[int]:
    """The shape of the sample at ``path``, for a manifest that states none: a cube of voxels with four
    redshifts."""
    x, _ = read_counts(path)
    side = round((x.size / 4) ** (1 / 3))
    if x.ndim == 4:
        return list(x.shape)
    if 4 * side**3 != x.size:
        raise UserError(f"{path}: {x.size} counts are not n³ voxels at 4 redshifts; index the data set first")
    return [side, side, side, 4]
