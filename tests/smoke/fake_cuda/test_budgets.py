"""What a step of the closed presets asks of a device stays within what is recorded in fake_cuda/budgets.json."""

import json

import pytest
from fake_cuda.budgets import RECORDED, name_of, of_step

CELLS = [
    ("cosmoflow", 1, "mixed_float16"),
    ("cosmoflow", 4, "float32"),
    ("deepcam", 1, "mixed_bfloat16"),
    ("deepcam", 2, "mixed_float16"),
    ("resnet50", 64, "mixed_float16"),
    ("resnet50", 64, "float32"),
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: name_of(*cell))
def test_a_step_launches_no_more_waits_for_nothing_and_takes_the_memory_that_is_predicted(cell):
    recorded, now = json.loads(RECORDED.read_text())[name_of(*cell)], of_step(*cell)
    assert now["launches"] <= recorded["launches"]
    assert (now["waits"], now["pageable"]) == (0, 0)
    assert now["predicted_bytes"] == pytest.approx(now["allocated_bytes"], rel=0.05)
    needed = max(now["allocated_bytes"], now["evaluation_bytes"])
    assert max(now["predicted_bytes"], now["predicted_evaluation_bytes"]) == pytest.approx(needed, rel=0.05)


SMALL = ("data.sample_shape=[32,48,16]", "network.width=0.1", "network.middle_blocks=1")
OPTIMIZERS = {
    "adam": ("cosmoflow", ()),
    "sgd": ("resnet50", ()),
    "Adam": ("deepcam", SMALL),
    "AdamW": ("deepcam", SMALL),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_other_optimizer_waits_for_the_loss_scale(name):
    benchmark, network = OPTIMIZERS[name]
    chosen = ("division=open", f"hyperparameters.opt_name={name}", *network)
    now = of_step(benchmark, 1, "mixed_float16", *chosen)
    assert (now["waits"], now["pageable"]) == (0, 0)


def test_two_ranks_launch_hardly_more_than_one():
    """Nothing for each weight: neither copies into buckets nor casts."""
    recorded = json.loads(RECORDED.read_text())[name_of("deepcam", 1, "mixed_bfloat16")]
    now = of_step("deepcam", 1, "mixed_bfloat16", ranks=2)
    assert now["launches"] <= recorded["launches"] + 24 <= 910
    assert (now["waits"], now["pageable"]) == (0, 0)
