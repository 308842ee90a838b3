"""A data set of files of awkward sizes, and a folder to stage it to."""

from pathlib import Path

import numpy as np
import pytest

from mlhpc.common.data.manifest import Manifest, index
from mlhpc.common.ranks.world import Solo

SIZES = [3_000_000, 0, 1, 2_097_152, 2_097_153, 70_000, 70_000, 5]


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    """Sixteen files of awkward sizes in two folders, one file outside, and a manifest."""
    root = tmp_path / "source"
    rng = np.random.default_rng(3)
    for folder in ("train", "validation"):
        (root / folder).mkdir(parents=True)
        for i, size in enumerate(SIZES):
            (root / folder / f"{i}.tfrecord").write_bytes(rng.bytes(size))
    (root / "stats.h5").write_bytes(b"statistics")
    return index(root, {"benchmark": "b", "samples": {"train": 8, "validation": 8}}, Solo(), workers=2)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"
