"""The samples that a rank reads in an epoch and their order, divided into pieces of work for its reader
threads."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset, Reader, Workload
from mlhpc.quantities import count

Numbers = npt.NDArray[np.int64]
_RANDOM = 1 << 32  # differs from the keys that determine the order


@dataclass(frozen=True)
class Piece:
    """A piece of work: the ``samples`` (numbers within the file) of file number ``file``, which are read
    sequentially."""

    file: int
    samples: Numbers


def require_enough(workload: Workload, ranks: int) -> None:
    """Raise UserError if the files or samples are too few for this number of ranks."""
    dataset, reader = workload.dataset, workload.reader
    if dataset is None:
        return
    if reader.partition and 1 < dataset.files < ranks:
        raise UserError(
            f"{dataset.files} files are too few for {count(ranks, 'rank')}, since each rank reads separate files "
            "unless all share one; use more files (--set dataset.files=...) or fewer ranks"
        )
    if workload.steps_per_epoch(ranks) < 1:
        raise UserError(
            f"{count(dataset.samples, 'sample')} cannot fill one step of {count(ranks, 'rank')} at "
            f"{count(reader.batch_size, 'sample')} each; use more files, a smaller batch or fewer ranks"
        )
    if dataset.eval_files and workload.evaluation.every_epochs:
        samples = dataset.eval_files * dataset.samples_per_file
        if samples < ranks * reader.eval_batch_size:
            raise UserError(
                f"{count(samples, 'evaluation sample')} cannot fill one step of {count(ranks, 'rank')} at "
                f"{reader.eval_batch_size} each; increase dataset.eval_files"
            )


def _part(samples: int, reader: Reader, rank: int, ranks: int) -> tuple[int, int]:
    """The first sample of a rank's part and the number of samples in it."""
    share = samples // (ranks if reader.partition else 1)
    return rank * share if reader.partition else 0, share


def files_of_rank(dataset: Dataset, files: int, reader: Reader, rank: int, ranks: int) -> range:
    """The files that contain a rank's samples, in sequential order."""
    first, share = _part(files * dataset.samples_per_file, reader, rank, ranks)
    return range(first // dataset.samples_per_file, -(-(first + share) // dataset.samples_per_file))


def pieces(
    dataset: Dataset, files: int, reader: Reader, rank: int, ranks: int, epoch: int, samples: int
) -> Iterator[Piece]:
    """The work of a rank in an epoch, ``samples`` samples in all.

    The order of files is the same on all ranks; each rank gets an equal contiguous part of all samples, or all of
    them. With ``sample_order`` "sequential", a piece contains the samples of one file in this part, or one sample
    if ``reopen`` is set; with "shuffled", the samples of the part are permuted, and a piece is one sample; with
    "random", samples are drawn with replacement. If ``samples`` exceeds the part, reading starts over.
    """
    per_file = dataset.samples_per_file
    order = np.arange(files)
    if reader.file_order != "sequential":
        order = np.random.default_rng([dataset.seed, epoch]).permutation(files)
    first, share = _part(files * per_file, reader, rank, ranks)
    if reader.sample_order == "sequential":
        at, end = first, first + samples
        while at < end:
            slot, start = divmod(first + (at - first) % share, per_file)
            stop = min(per_file, start + (1 if reader.reopen else end - at))
            yield Piece(int(order[slot]), np.arange(start, stop))
            at += stop - start
        return
    random = np.random.default_rng([dataset.seed, epoch, rank, _RANDOM])
    if reader.sample_order == "shuffled":
        chosen = random.permutation(share)[:samples]
    else:
        chosen = random.integers(0, share, samples)
    for position in chosen.tolist():
        slot, sample = divmod(first + position, per_file)
        yield Piece(int(order[slot]), np.array([sample]))
