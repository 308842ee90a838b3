"""A closed set, and the package made of it."""

import json

import pytest
from helpers.packing import SYSTEM, golden

from mlhpc.submission.pack.package import pack


@pytest.fixture
def system_file(tmp_path):
    def write(**changes):
        path = tmp_path / "my system.json"
        path.write_text(json.dumps(SYSTEM | changes))
        return path

    return write


@pytest.fixture(scope="module")
def closed_set(tmp_path_factory):
    """Ten runs, as a campaign leaves them. Tests only read it."""
    out = tmp_path_factory.mktemp("campaign")
    for number in range(10):
        golden(out, number)
    return out


@pytest.fixture(scope="module")
def packed(closed_set, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    (folder / "system.json").write_text(json.dumps(SYSTEM))
    made = pack([closed_set], org="Lab", system_file=folder / "system.json", out=folder / "out")
    assert made.tree, made.findings
    return made
