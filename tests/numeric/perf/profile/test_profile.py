"""``mlhpc profile`` with the frameworks' own profilers, on the smallest presets."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mlhpc.benchmarks.load import load
from mlhpc.perf.networks.registry import network_of

SMALL = {
    "cosmoflow": ["--set", "data.sample_shape=[16,16,16,4]", "--set", "training.cpu_kernels=false"],
    "deepcam": ["--set", "data.sample_shape=[32,32,16]"],
    "resnet50": [],
}
PROCESSOR = """title = "a processor of 60 GFLOP/s"
[accelerator]
model = "X"
family = "X"
per_node = 1
is_cpu = true
float32 = { value = "60 GFLOP/s", source = "x" }
memory = { value = "64 GB", source = "x" }
bandwidth = { value = "12 GB/s", source = "x" }
"""
PYTORCH = ["--set", "training.framework=pytorch"]


def profile(
    benchmark: str, *options: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_profile(benchmark, *SMALL[benchmark], *options, env=env)


def run_profile(
    benchmark: str, *options: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlhpc", "profile", benchmark, "--batch", "2", "--steps", "2"]
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | dict(env or {})
    return subprocess.run([*command, *options], capture_output=True, text=True, check=True, env=env)


def test_one_rank_of_tensorflow_needs_no_horovod(tmp_path):
    """Which Python 3.13 does not have."""
    (tmp_path / "horovod.py").write_text("raise ModuleNotFoundError('absent', name='horovod')")
    done = profile("cosmoflow", env={"PYTHONPATH": str(tmp_path)})
    assert "CosmoFlow, a training step by layer" in done.stdout


@pytest.fixture(
    scope="module", params=["cosmoflow", "deepcam", pytest.param("resnet50", marks=pytest.mark.slow)]
)
def measured(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    done = profile(
        request.param,
        "--json",
        "--machine",
        "cori-gpu",
        "--out",
        str(folder / "p.html"),
        "--trace",
        str(folder / "t"),
    )
    assert done.stderr.count("mlhpc: warning: --machine cori-gpu: this is another machine (") == 1
    run = load(request.param, "smoke", SMALL[request.param][1::2])
    return run, json.loads(done.stdout), folder


def test_every_layers_flops_are_measured_once(measured):
    """Each forward and backward product of the batch belongs to one measured layer: none is lost, none counts
    twice, whichever modules the kernels of this machine call."""
    run, content, _ = measured
    network = network_of(run)
    by_direction = {"forward": 0, "backward": 0}
    for layer in content["layers"]:
        by_direction[layer["direction"]] += layer["product_flops"]
    forward = 2 * network.forward_flops
    assert by_direction == {"forward": forward, "backward": 2 * network.training_flops - forward}


def test_parts_add_up_to_the_steps_time(measured):
    _, content, _ = measured
    parts = content["parts_s"]
    assert {"forward", "backward", "optimizer", "wait"} <= parts.keys()
    assert sum(parts.values()) == pytest.approx(content["step_s"])
    # Operations of several threads may overlap: the layers are part of all threads' sums, not of the step's.
    threads = content["parts_of_all_threads_s"]
    inside = sum(layer["seconds"] for layer in content["layers"])
    assert inside <= (threads["forward"] + threads["backward"]) * 1.001


def test_histogram_holds_the_layers_time(measured):
    _, content, _ = measured
    bins = content["efficiency_histogram"]
    assert len(bins) == 10
    assert sum(b["seconds"] for b in bins) == pytest.approx(
        sum(layer["seconds"] for layer in content["layers"])
    )
    assert all(b["potential"] <= b["seconds"] for b in bins)


def test_page_and_trace_are_written(measured):
    """The page says that these are not the GPUs of Cori."""
    _, content, folder = measured
    page = (folder / "p.html").read_text()
    assert "Hardware efficiency" in page and "this is another machine" in page
    assert content["measured_elsewhere"].startswith("--machine cori-gpu: this is another machine (")
    trace = folder / "t"
    assert trace.is_file() or any(Path(trace).rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("benchmark", "framework", "setting"),
    [
        ("cosmoflow", ["--set", "training.cpu_kernels=false"], "training.fusion_threshold_mib=0.02"),
        ("cosmoflow", PYTORCH, "training.bucket_cap_mib=0.02"),
    ],
)
def test_two_ranks_exchange_every_gradient_in_messages_of_the_size_set(
    benchmark, framework, setting, tmp_path
):
    """Each rank gives every weight's gradient, 4 bytes, once a step; a message is at most as large as the setting,
    or is one tensor, which neither library cuts."""
    small = ["--set", "data.sample_shape=[16,16,16,4]", *framework]
    run = load(benchmark, "smoke", small[1::2])
    own = network_of(run).parameters
    contents = {}
    machine = ["--machine", str(tmp_path / "machine.toml")]
    (tmp_path / "machine.toml").write_text(PROCESSOR)
    for name, options in {"default": machine, "small": ["--set", setting]}.items():
        done = run_profile(benchmark, *small, *options, "--ranks", "2", "--json")
        contents[name] = json.loads(done.stdout)
        for rank in contents[name]["ranks"]:
            assert rank["bytes_exchanged"] == 4 * own
            assert 0 < rank["communication_s"] < rank["step_s"]
        communication = contents[name]["ranks"][0]["communication_s"]
        assert contents[name]["parts_s"]["communication"] == pytest.approx(communication)
    whole, cut = (contents[name]["ranks"][0]["messages"] for name in ("default", "small"))
    assert sum(message["calls"] for message in whole) == 1  # less than any library's default
    assert sum(message["calls"] for message in cut) > 1
    assert all(message["seconds"] is not None for message in whole + cut)  # rank 0 times its messages
    assert contents["small"]["exchange"]
    half = {"name": "0.5 X per rank", "tensor": 30e9, "float32": 30e9, "bandwidth": 6e9}
    assert contents["default"]["ceilings"] == half, "both ranks share the processor"


def test_a_step_is_an_update_with_all_its_backward_passes():
    """The products of four passes are in it, and one update."""
    passes = "hyperparameters.gradient_accumulation_frequency=4"
    once, four = (
        json.loads(profile("deepcam", "--json", *options).stdout) for options in ([], ["--set", passes])
    )
    assert (once["backward_passes"], four["backward_passes"]) == (1, 4)
    network = network_of(load("deepcam", "smoke", SMALL["deepcam"][1::2]))
    assert sum(layer["product_flops"] for layer in four["layers"]) == 4 * 2 * network.training_flops

    def calls(record, name):
        return sum(each["calls"] for each in record["operations"] if each["name"] == name)

    assert calls(four, "aten::convolution_backward") == 4 * calls(once, "aten::convolution_backward") > 0
    assert "4 backward passes per step" in profile("deepcam", "--set", passes).stdout


def test_ranks_exchange_the_gradients_of_several_passes_once():
    small = [*SMALL["deepcam"], "--set", "hyperparameters.gradient_accumulation_frequency=2"]
    content = json.loads(run_profile("deepcam", *small, "--ranks", "2", "--json").stdout)
    own = network_of(load("deepcam", "smoke", small[1::2])).parameters
    assert [rank["bytes_exchanged"] for rank in content["ranks"]] == [4 * own, 4 * own]


def test_cosmoflow_in_pytorch_is_profiled_by_the_same_layers():
    options = ["--set", "data.sample_shape=[16,16,16,4]", *PYTORCH]
    content = json.loads(run_profile("cosmoflow", *options, "--json").stdout)
    network = network_of(load("cosmoflow", "smoke", options[1::2]))
    forward = 2 * network.forward_flops
    measured = [
        sum(layer["product_flops"] for layer in content["layers"] if layer["direction"] == direction)
        for direction in ("forward", "backward")
    ]
    assert measured == [forward, 2 * network.training_flops - forward]
