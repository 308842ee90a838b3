"""Measures one combination of format and loader for DeepCAM (``mlhpc data bench``)."""

from pathlib import Path

from mlhpc.common.data.loader_bench import Figures, Way, loader_of
from mlhpc.common.formats import npy
from mlhpc.common.formats.archive import file_of
from mlhpc.deepcam.data import hdf5
from mlhpc.deepcam.data.sample import list_samples, sample_shape


def files_of(data: Path, samples: int) -> list[Path]:
    """The files of the first ``samples`` training samples. Raises UserError if there are none."""
    files = sorted({file_of(sample) for sample in list_samples(data / "train")[:samples]})
    return [path for file in files for path in (file, npy.label_path(file)) if path.exists()]


def epoch(way: Way, samples: int) -> Figures:
    """Measure reading the first ``samples`` training samples. Raises UserError if the data set cannot be read with
    this loader."""
    from mlhpc.benchmarks.deepcam import Loading
    from mlhpc.common.pytorch.bench import DEVICE, measure_batches
    from mlhpc.deepcam.data.source import DeepCamSource

    files = list_samples(way.data / "train")[:samples]
    shape = sample_shape(files[0])
    name, _, cached = way.loader.partition(", ")
    loading = Loading.model_validate({"loader": name, "cache": bool(cached), "prefetch": 2} | way.loading())
    statistics = hdf5.read_statistics(way.data, shape[2])
    source = DeepCamSource(loading, shape, statistics, way.facts().get("codec"), DEVICE)
    loader = loader_of(way, files, source)
    source.require_memory(loader.samples)
    return measure_batches(loader, files_of(way.data, samples))
