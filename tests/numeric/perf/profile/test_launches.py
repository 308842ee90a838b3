"""Launches counted without a device, against those that PyTorch's CUDA code made on one that computes nothing."""

import json

import pytest
import torch
from fake_cuda.budgets import RECORDED

from mlhpc.benchmarks.load import load
from mlhpc.cli import main
from mlhpc.common.pytorch.profile import LaunchCounter
from mlhpc.common.timing.profile import Launch, Profile
from mlhpc.deepcam import metric
from mlhpc.perf.machines import device_model
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.profile.launches import _floor, settings_of

CELLS = [
    ("cosmoflow", 4, "mixed_float16"),
    ("resnet50", 64, "mixed_bfloat16"),
    ("deepcam", 1, "mixed_bfloat16"),
]


@pytest.fixture(autouse=True)
def no_metric_cache():
    """Class weights without values must not outlive a test."""
    yield
    metric._class_weights.cache_clear()


def profiled(capsys, *words):
    assert main(["profile", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("benchmark", "batch", "precision"), CELLS, ids=" ".join(map(str, CELLS[0])).format)
def test_counts_are_those_of_the_device_that_computes_nothing(benchmark, batch, precision, capsys):
    recorded = json.loads(RECORDED.read_text())[f"{benchmark} {batch} {precision}"]["launches"]
    chosen = f"training.precision={precision}"
    words = (benchmark, "--device-model", "h100", "--batch", batch, "--set", chosen)
    (step,) = profiled(capsys, *words)["steps"]
    assert step["launches"] == pytest.approx(recorded, rel=0.01, abs=6)
    # Products have the FLOPs of the network as a list of layers, which other tests compare with PyTorch's counter.
    flops = sum(each["flops"] * each["calls"] for each in step["operations"])
    assert flops == pytest.approx(batch * network_of(load(benchmark, "closed")).training_flops, rel=0.01)


def test_the_floor_is_the_larger_of_host_and_device(capsys):
    words = ("resnet50", "--preset", "smoke", "--device-model", "h100", "--batches", "1,256")
    small, large = profiled(capsys, *words)["steps"]
    assert small["floor_s"] == small["host_s"] > small["device_s"]
    assert small["host_s"] == pytest.approx(small["launches"] * 4e-6 + 2 * 5e-6)
    assert large["graph_floor_s"] == large["device_s"] > large["graph_host_s"]
    memory = sum(each["bytes"] * each["calls"] for each in large["operations"]) / 3.35e12
    assert large["device_s"] >= memory * (1 - 1e-9)


def test_a_step_of_two_backward_passes_takes_twice_as_long_and_is_not_a_published_one():
    """Published sets of DeepCAM with 1 sample per GPU have a single pass. A launch takes 4 us, a copy 5 us."""

    def floor(passes):
        accumulated = f"hyperparameters.gradient_accumulation_frequency={passes}"
        run = load("deepcam", "closed", [*settings_of("deepcam"), accumulated])
        calls = (Launch("convolution", "float16", (1,), 1000, 8, 8),) * passes
        step = Profile("cpu", 1, 1, 0.0, (), (), launches=calls)
        return _floor(run, device_model("h100"), 1, lambda *_: step)

    once, twice = floor(1), floor(2)
    assert once.measured and not twice.measured
    assert twice.predicted == pytest.approx([2 * each for each in once.predicted])
    assert [each.host[0] for each in (once, twice)] == pytest.approx([4010e-6, 8020e-6])


def test_operations_on_lists_in_place_write_all_that_they_change():
    """By hand: float32 reads or writes 4 bytes a value, of lists of 8 x 3 values and of 5."""
    ones, halves = ([torch.ones(n, dtype=dtype) for n in (24, 5)] for dtype in (torch.float32, torch.float16))
    gradients, velocities = ([torch.ones(n) for n in (24, 5)] for _ in range(2))
    fixed = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False}
    with LaunchCounter() as counter:
        torch._foreach_mul_(ones, 2.0)  # read and written
        torch._foreach_add_(ones, gradients)
        torch._foreach_copy_(halves, ones)
        torch._fused_sgd_(ones, gradients, velocities, maximize=False, is_first_step=False, **fixed)
    assert [launch.bytes for launch in counter.launches] == [29 * each for each in (8, 12, 6, 20)]


@pytest.mark.parametrize("device", ["b200", "MI300X"])
def test_a_device_without_published_results_is_said_to_be_one(device, capsys, tmp_path):
    page = tmp_path / "page.html"
    words = ["profile", "cosmoflow", "--device-model", device, "--batch", "1", "--out", str(page)]
    assert main(words) == 0
    assert f"{device.upper()}: no published result" in capsys.readouterr().out
    assert "Minimum time of a step" in page.read_text() and "Roofline" in page.read_text()


def test_records_are_predicted_where_they_are_published(capsys):
    found = profiled(capsys, "cosmoflow", "--device-model", "h100")
    (step,) = found["steps"]
    assert step["batch"] == 1 and "seen" in found["evidence"]
    value, low, high = step["predicted_s"]
    assert low < min(*step["published_s"], value) and high / low <= 1.8
    assert max(*step["published_s"], value) < high
    assert step["floor_s"] < low
