"""Emulations that fail, and what they leave running; reading before the first step."""

import threading
import time

import pytest

from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.generate import generate
from mlhpc.iobench.dataset.layout import Layout
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.emulate.checkpoints import Checkpoints
from mlhpc.iobench.emulate.emulation import Settings, emulate
from mlhpc.iobench.emulate.pipeline import Pipeline

DATASET = {"format": "npy", "files": 8, "eval_files": 2, "sample_bytes": 3000}


@pytest.mark.parametrize("damaged", ["train/00003.npy", "validation/00001.npy"])
@pytest.mark.parametrize("load_all", [False, True])
def test_no_reader_goes_on_after_an_error(tmp_path, damaged, load_all):
    """HDF5 crashes if one is still in it when the interpreter ends."""
    reader = {"threads": 2, "load_all": load_all, "preprocess": 0.2, "preprocess_threads": 1}
    evaluation = {"every_epochs": 1}
    workload = Workload.model_validate(
        {"name": "w", "dataset": DATASET, "reader": reader, "evaluation": evaluation}
    )
    generate(workload.dataset, tmp_path, Solo(), 1)
    (tmp_path / damaged).write_bytes(b"damaged")
    layout = Layout(tmp_path, workload.dataset)
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    with pytest.raises(UserError, match="damaged"):
        emulate(workload, layout, Checkpoints(workload.checkpoint, tmp_path, Solo()), Solo(), Settings())
    assert set(threading.enumerate()) <= before


def test_nothing_hides_reading_that_precedes_all_steps(tmp_path, monkeypatch):
    """Also if the process gets no core between the start of its threads and its own waiting."""

    class Interrupted(Pipeline):
        def __init__(self, *words):
            super().__init__(*words)
            time.sleep(0.1)

    monkeypatch.setattr("mlhpc.iobench.emulate.emulation.Pipeline", Interrupted)
    reader = {"threads": 1, "load_all": True}
    workload = Workload.model_validate({"name": "w", "dataset": DATASET, "reader": reader})
    generate(workload.dataset, tmp_path, Solo(), 1)
    checkpoints = Checkpoints(workload.checkpoint, tmp_path, Solo())
    run = emulate(workload, Layout(tmp_path, workload.dataset), checkpoints, Solo(), Settings())
    assert run.reading.reading_s > 0
    assert run.reading.waited_s == pytest.approx(run.reading.reading_s)
