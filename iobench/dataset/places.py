"""The location of a data set: a folder, or a prefix in an object store, which has the same methods (``objects``).

File names are ``train/00000.npz`` and so on. All methods raise UserError; a folder's ``write``, ``size`` and
``read`` also raise OSError.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlhpc.common.data.generate import claim_folder, missing
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.files.untrusted import read_object
from mlhpc.errors import UserError
from mlhpc.iobench.formats.access import Bytes, CountedFile
from mlhpc.iobench.formats.counting import ReadStatistics
from mlhpc.quantities import bytes_text

RECORD = ".iobench.json"
"""The file in a data set's folder that describes it, so that a run can refuse the data of another workload."""


@dataclass(frozen=True)
class Folder:
    """A folder of a file system. Unlike object stores, folders have a page cache, and maybe a device, on this
    machine."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def folder(self) -> Path | None:
        """The folder's path."""
        return self.root

    def facts(self) -> dict[str, Any]:
        """The description of the folder for a result."""
        filesystem = filesystem_of(self.root)
        return {
            "data": str(self.root.absolute()),
            "filesystem": filesystem.type,
            "data_in_ram": filesystem.is_ram,
        }

    def record(self) -> dict[str, Any] | None:
        """The record of the data set; None if there is none. Raises UserError if it cannot be read."""
        path = self.root / RECORD
        try:
            return read_object(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{path} cannot be read: {reason}; choose another --data") from None

    def claim(self, record: Mapping[str, Any]) -> None:
        """Write the record of a data set. Raises UserError if the folder has other files."""
        claim_folder(self.root, dict(record), RECORD)

    def missing(self, names: Sequence[str], is_whole: Callable[[Path, str], bool]) -> list[str]:
        """The files among ``names`` that do not exist or for which ``is_whole`` returns False. Creates their
        folders."""
        return missing(self.root, names, lambda name: is_whole(self.root / name, name))

    def present(self, split: str) -> set[str]:
        """The names of the files of a split."""
        walked = os.walk(self.root / split)
        return {
            f"{os.path.relpath(folder, self.root)}/{file}" for folder, _, files in walked for file in files
        }

    def require_space(self, needed: int) -> None:
        """Raise UserError if the file system has fewer than ``needed`` free bytes."""
        filesystem = filesystem_of(self.root)
        if needed > filesystem.free_bytes:
            raise UserError(
                f"{self.root}: {bytes_text(needed)} needed, but only {bytes_text(filesystem.free_bytes)} "
                f"free in {filesystem.mount_point}; free some space, or lower dataset.files"
            )

    def write(self, name: str, fill: Callable[[int], None]) -> int:
        """Write a file by calling ``fill`` with a descriptor, and return its number of bytes. The file gets its
        name once it is complete."""
        with atomic.writing(self.root / name) as fd:
            fill(fd)
            return os.fstat(fd).st_size

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return (self.root / name).stat().st_size

    def read(self, name: str) -> Bytes:
        """The content of a file, uint8 [bytes]."""
        return np.fromfile(self.root / name, np.uint8)

    def open(
        self,
        name: str,
        statistics: ReadStatistics,
        transfer: int = 0,
        direct: bool = False,
        streaming: bool = False,
    ) -> CountedFile:
        """Open a file whose reads are counted."""
        return CountedFile(self.root / name, statistics, transfer, direct, streaming)
