"""How long emulated steps take (``mlhpc run --compute``)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.make_run import make_run

from mlhpc.benchmarks import load
from mlhpc.benchmarks.schema import Emulation
from mlhpc.common.ranks.world import Solo
from mlhpc.common.training import emulation
from mlhpc.emulated_step import emulated
from mlhpc.errors import UserError


def measured(out: Path, *settings: str, **seconds: float) -> Path:
    """A run in ``out`` of 16 samples per step whose steps took ``seconds``, by their name. The epoch was
    interrupted before its last step."""
    make_run(out, settings=["hyperparameters.global_batch_size=16", *settings])
    events = [
        {"t": 1.0, "event": "steps", "name": name, "epoch": 1, "p50": factor * p50, "count": steps}
        for name, p50 in seconds.items()
        for steps, factor in ((7, 1.0), (1, 0.1))
    ]
    (out / "events.rank0.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return out


def of(compute: object, *settings: str, benchmark: str = "cosmoflow") -> tuple[float | None, float]:
    run = load.load(benchmark, "smoke", ["hyperparameters.global_batch_size=16", *settings])
    times = emulated(run, str(compute), 1).emulation
    return times.step_s, times.eval_step_s


def test_a_measured_evaluation_is_scaled_to_the_batch_of_the_run(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", "training.eval_batch_size=64", train=0.5, eval=0.8)
    assert of(run, "training.eval_batch_size=64") == (0.5, 0.8)
    assert of(run, "training.eval_batch_size=16") == pytest.approx((0.5, 0.2))


def test_the_batches_of_a_measured_evaluation_are_not_larger_than_the_data(tmp_path: Path) -> None:
    size = "data.eval_samples=32"
    run = measured(tmp_path / "run", "training.eval_batch_size=64", size, train=0.5, eval=0.8)
    assert of(run, "training.eval_batch_size=16", size)[1] == pytest.approx(0.8 * 16 / 32)


def test_without_a_measured_evaluation_it_takes_a_third_of_the_training_per_sample(tmp_path: Path) -> None:
    """As with a number of seconds: a study's runs end before the evaluation."""
    run = measured(tmp_path / "run", train=0.6)
    assert of(run, "training.eval_batch_size=64") == pytest.approx((0.6, 0.6 / 3 * 64 / 16))
    assert of(0.6, "training.eval_batch_size=64") == of(run, "training.eval_batch_size=64")


@pytest.mark.parametrize("setting", ["network.conv_filters=2", "training.precision=mixed_bfloat16"])
def test_a_run_that_computed_something_else_is_refused(tmp_path: Path, setting: str) -> None:
    run = measured(tmp_path / "run", train=0.5, eval=0.8)
    key, _, value = setting.partition("=")
    with pytest.raises(UserError, match=rf"measured {key}=\S+, but this run has {value};"):
        of(run, setting)


def test_a_step_is_one_of_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of its backward passes."""
    passes, waits = 4, list[float]()
    setting = f"hyperparameters.gradient_accumulation_frequency={passes}"
    monkeypatch.setattr(emulation, "occupy", waits.append)
    step_s, eval_step_s = of(0.2, setting, "training.eval_batch_size=8", benchmark="deepcam")
    run = load.load("deepcam", "smoke", [setting, "training.eval_batch_size=8"])
    run = run.model_copy(update={"emulation": Emulation(step_s=step_s, eval_step_s=eval_step_s)})
    train, evaluate = emulation.WaitingStep[Any].pair(run, Solo(), 0.0, lambda samples: samples)
    for _ in range(passes):
        train(np.zeros(4), None)
    assert sum(waits) == pytest.approx(0.2)
    per_sample = 0.2 / 3 / 16
    waits.clear()
    assert evaluate(np.zeros(8), None) == 8 and evaluate(np.zeros(3), None) == 3
    assert waits == pytest.approx([8 * per_sample, 3 * per_sample]), "the last batch is smaller"
