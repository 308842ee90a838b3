"""A run's state after an epoch, as plain arrays: enough to go on along the same trajectory."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlhpc.errors import UserError

Arrays = Sequence[npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Checkpoint:
    """``shared`` is what all ranks have alike (weights, optimizer); ``of_rank[r]`` is rank r's own (random
    state). ``config`` is the resolved configuration (TOML text) of the run that wrote it."""

    epoch: int
    seed: int
    config: str
    shared: Arrays
    of_rank: Sequence[Arrays]


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Write ``checkpoint.npz`` in ``directory``, whole or not at all, in place of an earlier one.

    Raises UserError when there is no room; the earlier checkpoint is then still there.
    """
    arrays = {f"shared_{i}": array for i, array in enumerate(checkpoint.shared)}
    for rank, own in enumerate(checkpoint.of_rank):
        arrays |= {f"rank{rank}_{i}": array for i, array in enumerate(own)}
    facts = {
        "epoch": np.array(checkpoint.epoch),
        "seed": np.array(checkpoint.seed),
        "config": np.array(checkpoint.config),
        "ranks": np.array(len(checkpoint.of_rank)),
    }
    half = directory / "checkpoint.npz.part"
    try:
        # As np.savez does, which leaves its archive open where the disk is full, to complain much later.
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
    """The checkpoint in a run's directory. Raises UserError when there is none, or it is damaged."""
    path = directory / "checkpoint.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            ranks = int(file["ranks"])

            def numbered(prefix: str) -> list[npt.NDArray[np.generic]]:
                count = sum(name.startswith(f"{prefix}_") for name in file.files)
                return [file[f"{prefix}_{i}"] for i in range(count)]

            return Checkpoint(
                epoch=int(file["epoch"]),
                seed=int(file["seed"]),
                config=str(file["config"]),
                shared=numbered("shared"),
                of_rank=[numbered(f"rank{rank}") for rank in range(ranks)],
            )
    except FileNotFoundError:
        raise UserError(
            f"{directory} holds no checkpoint.npz; runs write one with --set training.checkpoint_epochs=1"
        ) from None
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged ({error}); it cannot be resumed from") from None
