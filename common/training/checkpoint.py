"""A run's state after an epoch, as plain arrays: enough to continue on the same trajectory."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlhpc.errors import UserError, count

Arrays = Sequence[npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Checkpoint:
    """``shared`` is the same on all ranks (weights, optimizer); ``of_rank[r]`` belongs to rank r (random
    state). ``config`` is the resolved configuration (TOML text) of the run that wrote it."""

    epoch: int
    seed: int
    config: str
    shared: Arrays
    of_rank: Sequence[Arrays]


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Write ``checkpoint.npz`` in ``directory`` atomically, replacing an earlier one.

    Raises UserError when the disk is full; the earlier checkpoint is then kept.
    """
    arrays = {f"shared_{i}": array for i, array in enumerate(checkpoint.shared)}
    for rank, own in enumerate(checkpoint.of_rank):
        arrays |= {f"rank{rank}_{i}": array for i, array in enumerate(own)}
    facts = {
        "epoch": np.array(checkpoint.epoch),
        "seed": np.array(checkpoint.seed),
        "config": np.array(checkpoint.config),
        "ranks": np.array(len(checkpoint.of_rank)),
        "arrays": np.array([len(checkpoint.shared), *map(len, checkpoint.of_rank)]),
    }
    half = directory / "checkpoint.npz.part"
    try:
        # Not np.savez, which leaves its archive open when the disk is full, and fails much later.
        with zipfile.ZipFile(half, "w") as archive:
            for name, array in (facts | arrays).items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)  # type: ignore[no-untyped-call]
        half.replace(directory / "checkpoint.npz")
    except OSError as error:
        half.unlink(missing_ok=True)
        raise UserError(
            f"cannot write a checkpoint in {directory}: {error.strerror}; free some space, or choose another --out"
        ) from None


def load(directory: Path) -> Checkpoint:
    """The checkpoint in a run's directory. Raises UserError when it is missing, damaged or incomplete."""
    path = directory / "checkpoint.npz"
    with reading(path), np.load(path, allow_pickle=False) as file:
        ranks = int(file["ranks"])
        prefixes = ["shared", *(f"rank{rank}" for rank in range(ranks))]
        names = set(file.files) - {"epoch", "seed", "config", "ranks", "arrays"}
        # Checkpoints of version 0.1 do not record their number of arrays.
        counts = file["arrays"].tolist() if "arrays" in file.files else _counts(names, prefixes)
        expected = {f"{prefix}_{i}" for prefix, n in zip(prefixes, counts, strict=True) for i in range(n)}
        if names != expected:
            raise ValueError(
                f"{len(expected - names)} arrays are missing, {len(names - expected)} are unknown"
            )
        shared, *of_rank = (
            [file[f"{prefix}_{i}"] for i in range(n)] for prefix, n in zip(prefixes, counts, strict=True)
        )
        return Checkpoint(int(file["epoch"]), int(file["seed"]), str(file["config"]), shared, of_rank)


def require_ranks(saved: Checkpoint, directory: Path, ranks: int) -> None:
    """Raises UserError unless ``saved``, the checkpoint in ``directory``, was written by ``ranks`` ranks."""
    if len(saved.of_rank) != ranks:
        raise UserError(
            f"{directory} was written by {count(len(saved.of_rank), 'rank')}; resume with the same number, not "
            f"{ranks}"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise a one-line UserError for anything that goes wrong while reading the checkpoint ``path``: damaged bytes
    make the libraries that parse them raise nearly anything."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(
            f"{path.parent} holds no {path.name}; runs write one with --set training.checkpoint_epochs=1"
        ) from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"{path} is damaged or of another network ({reason}); resume from another run, or start again"
        ) from error


def _counts(names: set[str], prefixes: Sequence[str]) -> list[int]:
    return [sum(name.startswith(f"{prefix}_") for name in names) for prefix in prefixes]
