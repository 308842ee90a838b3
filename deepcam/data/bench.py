"""One way to read a DeepCAM data set, measured (``mlhpc data bench``)."""

from pathlib import Path

from mlhpc.common.data import manifest
from mlhpc.common.data.loader_bench import Figures, Way
from mlhpc.common.formats import npy
from mlhpc.common.formats.archive import file_of
from mlhpc.deepcam.data import hdf5
from mlhpc.deepcam.data.sample import list_samples, sample_shape
from mlhpc.errors import UserError


def files_of(data: Path, samples: int) -> list[Path]:
    """The files of the first ``samples`` training samples. Raises UserError."""
    files = sorted({file_of(sample) for sample in list_samples(data / "train")[:samples]})
    return [path for file in files for path in (file, npy.label_path(file)) if path.exists()]


def epoch(way: Way, samples: int) -> Figures:
    """Read the first ``samples`` training samples. Raises UserError if the data set cannot be read, or not in
    this way."""
    from mlhpc.benchmarks.deepcam import Loading
    from mlhpc.common.data.assign import RankSamples
    from mlhpc.common.data.sharding import Pool
    from mlhpc.common.pytorch.bench import DEVICE, measure_batches
    from mlhpc.deepcam.data.loader import Loader

    files = list_samples(way.data / "train")[:samples]
    shape = sample_shape(files[0])
    if way.local_batch_size > len(files):
        raise UserError(
            f"--batch {way.local_batch_size}: give 1 to {len(files)}, the number of samples to read"
        )
    facts = manifest.load(way.data).facts if (way.data / manifest.NAME).exists() else {}
    name, _, cached = way.loader.partition(", ")
    chosen = {"loader": name, "cache": bool(cached), "prefetch": 2} | way.loading()
    loader = Loader(
        RankSamples(
            files, files[: way.local_batch_size], Pool(len(files), 1), Pool(way.local_batch_size, 1), 0
        ),
        Loading.model_validate(chosen),
        sample_shape=shape,
        statistics=hdf5.read_statistics(way.data, shape[2]),
        local_batch_size=way.local_batch_size,
        eval_batch_size=way.local_batch_size,
        steps=len(files) // way.local_batch_size,
        seed=1,
        device=DEVICE,
        codec=facts.get("codec"),
    )
    return measure_batches(loader, files_of(way.data, samples))
