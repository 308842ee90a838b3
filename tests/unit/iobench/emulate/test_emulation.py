"""Emulations that fail, and what they leave running; reading before the first step."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.waiting import clock
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.generate import generate
from mlhpc.iobench.dataset.layout import Layout
from mlhpc.iobench.definition.fields import Duration
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.emulate.checkpoints import Checkpoints
from mlhpc.iobench.emulate.counters import ProcessIo
from mlhpc.iobench.emulate.emulation import Settings, emulate
from mlhpc.iobench.emulate.pipeline import Pipeline
from mlhpc.iobench.emulate.steps import EpochTimes, run_steps

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


class _Pair:
    """The barrier of two ranks that are threads."""

    def __init__(self):
        self.barrier = threading.Barrier(2).wait


def test_no_rank_computes_while_another_writes_a_checkpoint():
    """Its wait would otherwise be one for storage, in the barrier of the next step."""
    world, written = _Pair(), []

    def rank(number: int) -> EpochTimes:
        def after_step(step: int) -> bool:
            if step == 1 and number == 0:
                time.sleep(0.2)
                written.append(clock())
            return step == 1

        computation, random = Duration(mean=0.0), np.random.default_rng(1)
        return run_steps(0, 4, None, computation, random, world, ProcessIo(), after_step)

    with ThreadPoolExecutor(2) as pool:
        writer, other = pool.map(rank, (0, 1))
    assert other.column("start_s")[2] >= written[0]
    assert other.checkpoint_at == writer.checkpoint_at == [1]
    for times in (writer, other):
        paused = times.checkpoint_step_s[0] + times.checkpoint_wait_s[0]
        assert times.checkpoint_s == pytest.approx(paused)
        assert paused <= times.column("start_s")[2] - times.column("start_s")[1]
    assert writer.checkpoint_step_s[0] >= 0.2
