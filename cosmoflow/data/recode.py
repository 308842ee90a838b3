"""Samples of one format to another, without loss: TFRecord, plain or GZIP, or encoded by a codec."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mlhpc.common.data import generate, manifest
from mlhpc.common.formats.tfrecord import Packer
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.cosmoflow.data.sample import facts_of, read_counts, suffix_of, write_sample
from mlhpc.errors import UserError, count

FOLDERS = ("train", "validation")
SETTINGS = ".conversion.json"


def recode(source: Path, out: Path, world: World, workers: int, codec: str, packer: Packer = "zlib") -> None:
    """Write the samples of ``train/`` and ``validation/`` of ``source`` to ``out`` in the format ``codec``, with a
    manifest. ``packer`` compresses files of ``gzip``. The ranks share the files, ``workers`` threads in each; what
    is complete is kept.

    Called by all ranks. Raises UserError, the same on all ranks, when ``source`` is no data set, lacks what its
    manifest lists or has a damaged file, and when ``out`` cannot be written or holds something else.
    """
    if out.resolve() == source.resolve():
        raise UserError(f"{out}: is the data set to convert; give another folder to write to")
    dataset = manifest.describe(source, world, "cosmoflow")
    files = [file.path for folder in FOLDERS for file in dataset.folder(folder)]
    if not files:
        raise UserError(f"{source}: has no samples in {' or '.join(f'{name}/' for name in FOLDERS)}")
    manifest.require(source, world, workers, set(files).__contains__)
    made = {name: str(Path(name).with_suffix(suffix_of(codec))) for name in files}
    if len(set(made.values())) < len(made):
        raise UserError(f"{source}: two samples differ only in the suffix of their files; rename one of them")
    shape = dataset.facts.get("sample_shape") or on_rank0(world, lambda: _shape(source / files[0]))
    settings: dict[str, object] = {**facts_of(codec, packer), "converted_from": source.resolve().name}

    def prepare() -> set[str]:
        generate.claim_folder(out, settings, SETTINGS)
        return set(generate.missing(out, list(made.values())))

    missing = on_rank0(world, prepare)
    todo = [name for name in files if made[name] in missing][world.rank :: world.size]
    with progress(len(todo), "convert", "samples", show=world.rank == 0) as advance:
        one = partial(_recode_sample, source, out, made, shape, codec, packer, advance)
        generate.write_on_all_ranks(world, out, lambda: generate.in_threads(one, todo, workers))

    kept = {key: value for key, value in dataset.facts.items() if key not in ("gzip", "packer", "staged")}
    samples = {folder: len(dataset.folder(folder)) for folder in FOLDERS}
    facts = kept | {
        "benchmark": "cosmoflow",
        "samples": samples,
        "sample_shape": list(shape),
        "dtype": "int16",
    }
    result = generate.write_manifest_of_converted(out, facts | settings, len(files), world, workers)
    if world.rank == 0:
        before = sum(file.size for file in dataset.files if file.path in made)
        print(
            f"{out}: {count(len(files), 'sample')} by {codec}, {result.bytes / before:.2f} of {source}'s size"
        )


def _recode_sample(
    source: Path,
    out: Path,
    made: dict[str, str],
    shape: list[int],
    codec: str,
    packer: Packer,
    advance: Callable[[int], None],
    name: str,
) -> None:
    x, y = read_counts(source / name)
    if x.size != _size(shape):
        raise UserError(
            f"{source / name}: has {x.size} counts, a sample of shape {shape} has {_size(shape)}; "
            "the data set's samples are not of one shape"
        )
    write_sample(out / made[name], x.reshape(shape), y, codec, packer)
    advance(1)


def _size(shape: list[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def _shape(path: Path) -> list[int]:
    """That of a sample: a cube of voxels with four redshifts, where no manifest tells."""
    x, _ = read_counts(path)
    side = round((x.size / 4) ** (1 / 3))
    if x.ndim == 4:
        return list(x.shape)
    if 4 * side**3 != x.size:
        raise UserError(
            f"{path}: {x.size} counts are no cube of voxels at four redshifts; index the data set first"
        )
    return [side, side, side, 4]
