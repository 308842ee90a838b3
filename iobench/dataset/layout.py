"""The files of a data set and the sizes of their samples, without opening files.

In DLIO's layout (data_generator/data_generator.py of release 2.0.0) files are named ``train/img_0_of_8.npz`` and
so on, with evaluation files in ``valid``; no record describes the data set, which consists of whatever files
exist, in the order of their names.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mlhpc.iobench.dataset.objects import ObjectStore
from mlhpc.iobench.dataset.places import Folder
from mlhpc.iobench.definition.schema import Dataset, Storage
from mlhpc.iobench.formats.formats import FORMATS, rows_and_columns

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
Sizes = npt.NDArray[np.int64]

Root = Path | ObjectStore
"""Where a data set is: a folder or an object store."""
SMALLEST = 100
"""No sample is smaller than the mean divided by this."""


def root_of(data: str, storage: Storage, rank: int) -> Root:
    """The location named by ``data``: a folder, or the URL of an object store, which rank ``rank`` accesses as
    specified by ``storage``. Raises UserError for an incomplete URL."""
    if data.startswith("file://"):
        data = data.removeprefix("file://")
    if "://" not in data:
        return Path(data)
    endpoint = storage.endpoints[rank % len(storage.endpoints)] if storage.endpoints else ""
    return ObjectStore(data, endpoint, storage.region, storage.path_style, storage.attempts)


@dataclass(frozen=True)
class Layout:
    """The files of ``dataset`` under ``root``: ``train/00000.npz`` and so on, and evaluation files in
    ``validation``."""

    root: Root
    dataset: Dataset

    @cached_property
    def place(self) -> Folder | ObjectStore:
        """Access to the files."""
        return Folder(self.root) if isinstance(self.root, Path) else self.root

    def __reduce__(self) -> tuple[type["Layout"], tuple[Root, Dataset]]:
        return Layout, (self.root, self.dataset)  # excludes the names of all files

    @property
    def is_dlio(self) -> bool:
        """Return whether the files are laid out and named as by DLIO."""
        return self.dataset.layout == "dlio"

    def folder(self, split: Split) -> str:
        """The folder of a split, relative to the root."""
        return "valid" if self.is_dlio and split == "validation" else split

    def files(self, split: Split) -> int:
        """Number of files of ``split``."""
        return self.dataset.files if split == "train" else self.dataset.eval_files

    @cached_property
    def digits(self) -> int:
        """Number of digits of the file number in a name."""
        return max(5, len(str(max(self.dataset.files, self.dataset.eval_files) - 1)))

    def name(self, split: Split, file: int) -> str:
        """The path of a file, relative to the root."""
        if self.is_dlio:
            return self._dlio_names[split][file]
        return f"{split}/{file:0{self.digits}}.{FORMATS[self.dataset.format].suffix}"

    @property
    def suffix(self) -> str:
        """The suffix of DLIO's file names."""
        return FORMATS[self.dataset.format].dlio_suffix or self.dataset.format

    def dlio_files(self, split: Split) -> list[str]:
        """The existing files of a split in DLIO's layout, in DLIO's order: by name, regardless of the folder."""
        there = self.place.present(self.folder(split))
        return sorted((name for name in there if name.endswith(self.suffix)), key=os.path.basename)

    @cached_property
    def _dlio_names(self) -> Mapping[Split, list[str]]:
        """The names of each split's files: of the existing files if there are enough, otherwise those that DLIO
        would write."""
        names: dict[Split, list[str]] = {}
        for split in SPLITS:
            there = self.dlio_files(split) if self.files(split) else []
            enough = len(there) >= self.files(split)
            names[split] = there[: self.files(split)] if enough else self.new_dlio_names(split)
        return names

    def new_dlio_names(self, split: Split) -> list[str]:
        """The names that DLIO gives the files of a split."""
        dataset, files = self.dataset, self.files(split)
        folders = dataset.subfolders if split == "train" else dataset.eval_subfolders

        def below(file: int) -> str:
            return f"{file % folders:0{len(str(folders))}}/" if folders > 1 else ""

        return [
            f"{self.folder(split)}/{below(file)}{dataset.file_prefix}_{file:0{len(str(files))}}_of_{files}.{self.suffix}"
            for file in range(files)
        ]

    def path(self, split: Split, file: int) -> Path:
        """The path of a file; only for a data set in a folder, not in an object store."""
        assert isinstance(self.root, Path)
        return self.root / self.name(split, file)

    def number(self, split: Split, file: int) -> int:
        """The file's number among the files of both splits, which determines its content."""
        return file if split == "train" else self.dataset.files + file

    def sizes(self, split: Split, file: int) -> Sizes:
        """The content size in bytes of each sample of a file, ``[samples_per_file]``: normally distributed, at
        least a hundredth of the mean. In DLIO's layout all samples of a file are rectangles of one size with
        randomly drawn sides; files written by DLIO itself may have other sizes."""
        dataset, count = self.dataset, self.dataset.samples_per_file
        mean, stdev = dataset.sample_bytes, dataset.sample_bytes_stdev
        # The key alone determines the stream, so any file can be generated separately.
        key = np.array([dataset.seed, self.number(split, file)], np.uint64)
        random = np.random.Generator(np.random.Philox(key=key))
        if self.is_dlio:
            sides = random.normal(math.isqrt(mean), stdev / 2 / math.sqrt(mean), 2)
            size = math.prod(max(1, int(side)) for side in sides)
            return np.full(count, math.prod(rows_and_columns(size)), np.int64)
        if not stdev:
            return np.full(count, mean, np.int64)
        drawn = random.normal(mean, stdev, count)
        return np.maximum(np.rint(drawn), max(1, mean // SMALLEST)).astype(np.int64)

    def record(self) -> dict[str, Any]:
        """The identity of the data set: all parameters that determine its content."""
        without = {"total_bytes", "layout", "file_prefix", "subfolders", "eval_subfolders"}
        return {"iobench": 1, **self.dataset.model_dump(mode="json", exclude=without)}
