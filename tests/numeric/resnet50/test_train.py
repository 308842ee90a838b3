"""The data that a closed run of ResNet-50 may be trained on."""

import json

import pytest

from mlhpc.benchmarks import load
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.resnet50.data.source import open_data


def data_set(root, **facts):
    """A manifest as that of the official data set packed into shards, which are not opened here."""
    samples = {"train": 1281167, "validation": 50000}
    files = [[f"{split}/{split}-00000-of-00001", 1, None] for split in samples]
    facts = {"benchmark": "resnet50", "samples": samples} | facts
    (root / "manifest.json").write_text(json.dumps({"version": 1, "facts": facts, "files": files}))
    return root


def test_a_closed_run_needs_the_published_images(tmp_path):
    run = load.load("resnet50", "closed")
    assert open_data(run, data_set(tmp_path), Solo()).files
    with pytest.raises(UserError, match=r"not a closed run: manifest\.json"):
        open_data(run, data_set(tmp_path, simulation={"seed": 2021}), Solo())
    opened = open_data(load.load("resnet50", "closed", ["division=open"]), tmp_path, Solo())
    assert opened.facts["simulation"] == {"seed": 2021}
