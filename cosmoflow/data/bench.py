"""Measures one combination of format and loader for CosmoFlow (``mlhpc data bench``)."""

from pathlib import Path

from mlhpc.benchmarks.cosmoflow import Loading
from mlhpc.common.data import manifest
from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader_bench import Figures, Way, measure
from mlhpc.common.data.sharding import Pool
from mlhpc.common.formats.archive import file_of
from mlhpc.cosmoflow.data.loader import Loader
from mlhpc.cosmoflow.data.sample import list_samples, read_counts
from mlhpc.errors import UserError

_REDSHIFTS = 4


def files_of(data: Path, samples: int) -> list[Path]:
    """The files of the first ``samples`` training samples. Raises UserError."""
    return sorted({file_of(sample) for sample in list_samples(data / "train")[:samples]})


def epoch(way: Way, samples: int) -> Figures:
    """Read the first ``samples`` training samples. Raises UserError if the data set cannot be read, or not
    with this loader."""
    files = list_samples(way.data / "train")[:samples]
    if way.local_batch_size > len(files):
        raise UserError(
            f"--batch {way.local_batch_size}: give 1 to {len(files)}, the number of samples to read"
        )
    facts = manifest.load(way.data).facts if (way.data / manifest.NAME).exists() else {}
    x, y = read_counts(files[0])
    side = round((x.size / _REDSHIFTS) ** (1 / 3))
    loader = Loader(
        RankSamples(
            files, files[: way.local_batch_size], Pool(len(files), 1), Pool(way.local_batch_size, 1), 0
        ),
        Loading.model_validate(way.loading()),
        sample_shape=(side, side, side, _REDSHIFTS),
        targets=y.size,
        local_batch_size=way.local_batch_size,
        eval_batch_size=way.local_batch_size,
        steps=len(files) // way.local_batch_size,
        seed=1,
        codec=facts.get("codec"),
    )
    return measure(loader, files_of(way.data, samples))
