"""The files of a data set and the sizes of their samples, without opening files."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mlhpc.iobench.dataset.objects import ObjectStore
from mlhpc.iobench.dataset.places import Folder
from mlhpc.iobench.definition.schema import Dataset, Storage
from mlhpc.iobench.formats.formats import find

Split = Literal["train", "validation"]
Sizes = npt.NDArray[np.int64]

Root = Path | ObjectStore
"""The location of a data set."""
SMALLEST = 100
"""No sample is smaller than the mean divided by this."""


def root_of(data: str, storage: Storage, rank: int) -> Root:
    """``data`` as a folder or the URL of an object store, which rank ``rank`` accesses as specified by
    ``storage``. Raises UserError for an incomplete URL."""
    if data.startswith("file://"):
        data = data.removeprefix("file://")
    if "://" not in data:
        return Path(data)
    endpoint = storage.endpoints[rank % len(storage.endpoints)] if storage.endpoints else ""
    return ObjectStore(data, endpoint, storage.region, storage.path_style, storage.attempts)


@dataclass(frozen=True)
class Layout:
    """The files of ``dataset`` under ``root``: ``train/00000.npz`` and so on, and ``validation`` if it has any."""

    root: Root
    dataset: Dataset

    @cached_property
    def place(self) -> Folder | ObjectStore:
        """Access to the files."""
        return Folder(self.root) if isinstance(self.root, Path) else self.root

    def files(self, split: Split) -> int:
        """Number of files of ``split``."""
        return self.dataset.files if split == "train" else self.dataset.eval_files

    @cached_property
    def digits(self) -> int:
        """Of the number of a file in its name."""
        return max(5, len(str(max(self.dataset.files, self.dataset.eval_files) - 1)))

    def name(self, split: Split, file: int) -> str:
        """Path of a file below the root."""
        return f"{split}/{file:0{self.digits}}.{find(self.dataset.format).suffix}"

    def path(self, split: Split, file: int) -> Path:
        """Of a data set in a folder."""
        assert isinstance(self.root, Path)
        return self.root / self.name(split, file)

    def number(self, split: Split, file: int) -> int:
        """Its number among the files of both splits, for its content."""
        return file if split == "train" else self.dataset.files + file

    def sizes(self, split: Split, file: int) -> Sizes:
        """Bytes of content of each sample of a file, ``[samples_per_file]``: normal around the mean, none
        smaller than a hundredth of it."""
        mean, stdev, count = (
            self.dataset.sample_bytes,
            self.dataset.sample_bytes_stdev,
            self.dataset.samples_per_file,
        )
        if not stdev:
            return np.full(count, mean, np.int64)
        # The key alone determines the stream: any file by itself.
        key = [self.dataset.seed, self.number(split, file)]
        drawn = np.random.Generator(np.random.Philox(key=np.array(key, np.uint64))).normal(mean, stdev, count)
        return np.maximum(np.rint(drawn), max(1, mean // SMALLEST)).astype(np.int64)

    def record(self) -> dict[str, Any]:
        """The identity of the data set: all parameters that determine its bytes."""
        return {"iobench": 1, **self.dataset.model_dump(mode="json", exclude={"total_bytes"})}
