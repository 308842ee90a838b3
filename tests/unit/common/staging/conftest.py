"""A data set of files of awkward sizes, and a folder to stage it to."""

from pathlib import Path

import pytest
from helpers.staging_files import data_set

from mlhpc.common.data.manifest import Manifest

SIZES = [3_000_000, 0, 1, 2_097_152, 2_097_153, 70_000, 70_000, 5]


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    """Sixteen files of awkward sizes in two folders, one file outside, and a manifest."""
    folders = ("train", "validation")
    sizes = {f"{folder}/{i}.tfrecord": size for folder in folders for i, size in enumerate(SIZES)}
    return data_set(tmp_path / "source", sizes, samples={"train": 8, "validation": 8})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"
