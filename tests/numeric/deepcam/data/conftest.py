"""Fixtures shared by the tests of this folder."""

import pytest
from helpers.deepcam_files import make_data_set


@pytest.fixture(scope="module")
def data_set(tmp_path_factory):
    return make_data_set(tmp_path_factory.mktemp("deepcam") / "h5")


@pytest.fixture
def own(tmp_path):
    """A data set to spoil."""
    return make_data_set(tmp_path / "own")
