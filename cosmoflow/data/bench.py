"""Measures one combination of format and loader for CosmoFlow (``mlhpc data bench``)."""

from pathlib import Path

from mlhpc.benchmarks.cosmoflow import Loading
from mlhpc.common.data.loader_bench import Figures, Way, loader_of, measure
from mlhpc.common.formats.archive import file_of
from mlhpc.cosmoflow.data.sample import list_samples, read_counts
from mlhpc.cosmoflow.data.source import CosmoFlowSource

_REDSHIFTS = 4


def files_of(data: Path, samples: int) -> list[Path]:
    """The files of the first ``samples`` training samples. Raises UserError if there are none."""
    return sorted({file_of(sample) for sample in list_samples(data / "train")[:samples]})


def epoch(way: Way, samples: int) -> Figures:
    """Measure reading the first ``samples`` training samples. Raises UserError if the data set cannot be read with
    this loader."""
    files = list_samples(way.data / "train")[:samples]
    x, y = read_counts(files[0])
    side = round((x.size / _REDSHIFTS) ** (1 / 3))
    shape, loading = (side, side, side, _REDSHIFTS), Loading.model_validate(way.loading())
    source = CosmoFlowSource(loading, shape, y.size, codec=way.facts().get("codec"))
    return measure(loader_of(way, files, source), files_of(way.data, samples))
