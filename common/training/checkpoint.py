"""A run's state after an epoch, as plain arrays that suffice to continue on the same trajectory."""

import json
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from mlhpc.common.files.regular import open_regular
from mlhpc.errors import UserError
from mlhpc.quantities import count

# The last record of a ZIP archive, and the number of members that it states if the real number is too large for
# its field (APPNOTE.TXT 6.3.10, 4.3.16 and 4.4.1.4).
_END, _MORE = struct.Struct("<4s4H2LH"), 0xFFFF

Arrays = Sequence[npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Checkpoint:
    """The arrays of a checkpoint. ``shared``: the arrays that are the same on all ranks (weights, optimizer);
    ``of_rank[r]``: the arrays of rank r (random state). ``config``: the resolved configuration (TOML text) of the
    run that wrote it."""

    epoch: int
    seed: int
    config: str
    shared: Arrays
    of_rank: Sequence[Arrays]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write ``checkpoint.npz`` in ``folder`` atomically, replacing an earlier one.

    Raises UserError if the disk is full; the earlier checkpoint is then kept.
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
    half = folder / "checkpoint.npz.part"
    try:
        # Not np.savez: if the disk is full, it keeps its archive open and fails much later.
        with zipfile.ZipFile(half, "w") as archive:
            for name, array in (facts | arrays).items():
                _write(archive, name, array)
            _write(archive, "contents", np.array(_contents(archive.infolist())))
        half.replace(folder / "checkpoint.npz")
    except OSError as error:
        half.unlink(missing_ok=True)
        raise UserError(f"cannot write a checkpoint in {folder}: {error.strerror}; free some space") from None


def load(folder: Path) -> Checkpoint:
    """The checkpoint in a run's folder. Raises UserError if it is missing, damaged or incomplete."""
    path = folder / "checkpoint.npz"
    with reading(path), os.fdopen(open_regular(path), "rb") as file, zipfile.ZipFile(file) as archive:
        _require_whole_directory(archive, file)
        arrays = _arrays(archive)
        epoch, seed, config, ranks = (arrays.pop(name) for name in ("epoch", "seed", "config", "ranks"))
        prefixes = ["shared", *(f"rank{rank}" for rank in range(int(ranks)))]
        # Checkpoints of version 0.1 do not record their number of arrays.
        counts = arrays.pop("arrays").tolist() if "arrays" in arrays else _counts(set(arrays), prefixes)
        expected = {f"{prefix}_{i}" for prefix, n in zip(prefixes, counts, strict=True) for i in range(n)}
        if arrays.keys() != expected:
            missing, unknown = expected - arrays.keys(), arrays.keys() - expected
            raise ValueError(f"{len(missing)} arrays are missing and {len(unknown)} unknown")
        shared, *of_rank = (
            [arrays[f"{prefix}_{i}"] for i in range(n)] for prefix, n in zip(prefixes, counts, strict=True)
        )
        return Checkpoint(int(epoch), int(seed), str(config), shared, of_rank)


def _write(archive: zipfile.ZipFile, name: str, array: npt.NDArray[np.generic]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)  # type: ignore[no-untyped-call]


def _require_whole_directory(archive: zipfile.ZipFile, file: BinaryIO) -> None:
    """Raise ValueError if the archive's directory has fewer entries than it states. zipfile does not count them,
    and a damaged entry can hide the entries after it."""
    file.seek(-_END.size, os.SEEK_END)
    signature, _, _, _, number, *_ = _END.unpack(file.read())
    if signature != b"PK\x05\x06" or number not in (len(archive.infolist()), _MORE):
        raise ValueError("its directory is incomplete")


def _arrays(archive: zipfile.ZipFile) -> dict[str, npt.NDArray[np.generic]]:
    """Every array by its name, as it was saved. The last member, ``contents``, is a copy of the archive's
    directory, because a damaged directory can mix up members. Checkpoints of version 0.1 do not have this copy, so
    only the checksum of each member is verified. Raises ValueError or zipfile's errors."""
    members = archive.infolist()
    arrays = {info.filename.removesuffix(".npy"): _read(archive, info) for info in members}
    contents = arrays.pop("contents", None)
    if contents is not None and str(contents) != _contents(members[:-1]):
        raise ValueError("its directory is not the one that was written")
    return arrays


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[np.generic]:
    """The array in a member, which is read to its end: zipfile verifies the checksum only when the last byte is
    read, but NumPy stops at the end of the array."""
    with archive.open(info) as member:
        array: npt.NDArray[np.generic] = np.lib.format.read_array(member, allow_pickle=False)  # type: ignore[no-untyped-call]
        if member.read(1):
            raise ValueError(f"{info.filename} is longer than its array")
    return array


def _contents(members: Sequence[zipfile.ZipInfo]) -> str:
    """Name, size and CRC-32 of the members of an archive, in order."""
    return json.dumps([[info.filename, info.file_size, info.CRC] for info in members])


def require_ranks(saved: Checkpoint, folder: Path, ranks: int) -> None:
    """Raise UserError unless ``saved``, the checkpoint in ``folder``, was written by ``ranks`` ranks."""
    if len(saved.of_rank) != ranks:
        raise UserError(f"{folder} must be resumed with {count(len(saved.of_rank), 'rank')}, not {ranks}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context manager that raises a one-line UserError for anything that goes wrong while reading the checkpoint
    ``path``, since libraries raise almost any exception for damaged bytes. A ModuleNotFoundError is passed on,
    since a missing library is not the file's fault."""
    try:
        yield
    except (UserError, ModuleNotFoundError):
        raise
    except FileNotFoundError:
        raise UserError(f"{path.parent} contains no {path.name}; see training.checkpoint_epochs") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"{path} is damaged, or belongs to a different network ({reason}); choose another checkpoint"
        ) from error


def _counts(names: set[str], prefixes: Sequence[str]) -> list[int]:
    return [sum(name.startswith(f"{prefix}_") for name in names) for prefix in prefixes]
