"""Measures one combination of format and loader for ResNet-50 at 224 x 224 (``mlhpc data bench``)."""

from pathlib import Path

from mlhpc.common.data.loader_bench import Figures, Way, loader_of
from mlhpc.common.data.manifest import describe
from mlhpc.common.ranks.world import Solo
from mlhpc.resnet50.data.dataset import files_of as dataset_files
from mlhpc.resnet50.data.dataset import open_splits
from mlhpc.resnet50.data.formats import Files, Images

SIDE = 224


def files_of(data: Path, samples: int) -> list[Path]:
    """The files that contain the first ``samples`` training images. Raises UserError if the data set cannot be
    read."""
    return _chosen(data, samples)[1]


def epoch(way: Way, samples: int) -> Figures:
    """Measure reading the first ``samples`` training images. Raises UserError if the data set cannot be read with
    this loader."""
    from mlhpc.benchmarks.resnet50 import Loading
    from mlhpc.common.pytorch.bench import DEVICE, measure_batches
    from mlhpc.resnet50.data.source import ResNet50Source

    images, files = _chosen(way.data, samples)
    loading = Loading.model_validate({"loader": way.loader, "prefetch": 4} | way.loading())
    source = ResNet50Source(loading, SIDE, device=DEVICE)
    return measure_batches(loader_of(way, images, source, min(samples, len(images))), files)


def _chosen(data: Path, samples: int) -> tuple[Images, list[Path]]:
    """The first ``samples`` training images, which are the same in every format, and the files that contain
    them."""
    dataset = describe(data, Solo())
    images = open_splits(dataset, Solo())[0]["train"]
    if not isinstance(images, Files):
        return images, [data / name for name in dataset_files(dataset, "train")]
    paths = images.paths[:samples]
    return Files(paths, images.labels[:samples], images.classes), [Path(path) for path in paths]
