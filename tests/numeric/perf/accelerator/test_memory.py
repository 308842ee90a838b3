"""The memory of a step against PyTorch's MemTracker, which follows every tensor of real steps on fake memory."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.resnet50 import ResNet50
from mlhpc.benchmarks.schema import Run
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer as cosmoflow_optimizer
from mlhpc.deepcam import metric
from mlhpc.deepcam.model import build_model as build_deepcam
from mlhpc.deepcam.optim.optimizer import make_optimizer as deepcam_optimizer
from mlhpc.perf.accelerator.memory import STATES, memory_of, step_memory
from mlhpc.perf.networks.registry import network_of
from mlhpc.resnet50 import model as resnet50_model
from mlhpc.resnet50.metric import cross_entropy
from mlhpc.resnet50.optim.optimizer import make_optimizer as resnet50_optimizer

LARGER = {
    "deepcam": ("data.sample_shape=[192,288,16]", "network.width=0.5", "network.middle_blocks=8"),
    "resnet50": ("data.sample_shape=[112,112,3]", "network.width=1.0", "network.blocks=[2,2,2,2]"),
    "cosmoflow": ("data.sample_shape=[64,64,64,4]", "network.conv_filters=16", "network.conv_layers=5"),
}
"""Between smoke and closed, whatever the size of mini."""
CASES = [
    ("deepcam", 2, "smoke", "hyperparameters.opt_name=AdamW"),
    pytest.param(("deepcam", 2, "smoke", *LARGER["deepcam"]), marks=pytest.mark.slow),
    ("deepcam", 4, "smoke", "training.precision=mixed_bfloat16"),
    ("resnet50", 2, "smoke"),
    ("resnet50", 64, "smoke", "hyperparameters.opt_name=lars", *LARGER["resnet50"]),
    ("cosmoflow", 2, "smoke", "training.framework=pytorch"),
    ("cosmoflow", 4, "smoke", "training.framework=pytorch", *LARGER["cosmoflow"]),
    pytest.param(("cosmoflow", 2, "closed", "training.framework=pytorch"), marks=pytest.mark.slow),
    pytest.param(("resnet50", 16, "closed", "training.precision=mixed_bfloat16"), marks=pytest.mark.slow),
]


@pytest.fixture
def no_metric_cache():
    """Class weights made from fake memory must not outlive it."""
    metric._class_weights.cache_clear()
    yield
    metric._class_weights.cache_clear()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_peak_is_within_15_percent_of_pytorchs_tracker(case, monkeypatch, no_metric_cache):
    benchmark, batch, preset, *settings = case
    # The compiled kernels do not run on fake memory.
    plain = ["training.cpu_kernels=false"] if benchmark == "cosmoflow" else []
    run = load(benchmark, preset, [*settings, *plain])
    monkeypatch.setattr(resnet50_model, "initialise", lambda model: None)  # looks at values, which fakes lack
    with FakeTensorMode():
        tracked = peak_of_second_step(run, batch)
    assert memory_of(run, batch, gpu=False).peak == pytest.approx(tracked["Total"], rel=0.15)


def test_gradients_of_earlier_backward_passes_are_there_from_the_start(no_metric_cache):
    """A sixth of this peak."""
    run = load("deepcam", "smoke", ["hyperparameters.gradient_accumulation_frequency=2"])
    with FakeTensorMode():
        tracked = peak_of_second_step(run, 2)
    assert memory_of(run, 2, gpu=False).peak == pytest.approx(tracked["Total"], rel=0.02)


def test_parameters_and_optimizer_state_are_the_trackers(no_metric_cache):
    run = load("deepcam", "smoke")
    with FakeTensorMode():
        tracked = peak_of_second_step(run, 4)
    ours = memory_of(run, 4, gpu=False)
    assert ours.parameters == pytest.approx(tracked["PARAM"] + tracked["BUFFER"], rel=0.001)
    assert ours.optimizer == pytest.approx(tracked["OPT"], rel=0.001)


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_optimizers_of_resnet_keep_what_is_said_of_each_weight(name):
    run = load("resnet50", "smoke", [f"hyperparameters.opt_name={name}"])
    model = resnet50_model.build_model(run.network)
    optimizer = resnet50_optimizer(run.hyperparameters, model, run.training.sgd)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    state = sum(
        v.numel() for of in optimizer.state.values() for v in of.values() if isinstance(v, torch.Tensor)
    )
    assert state == STATES[name] * network_of(run).parameters


def peak_of_second_step(run: Run, batch: int) -> dict[str, int]:
    """Bytes by what they hold at the peak of a step as ``common/pytorch/step.py`` makes it: the logits live until
    its end. The first step has no optimizer state yet."""
    *_, rows, columns, channels = run.data.sample_shape
    model: nn.Module
    loss_of: Callable[..., torch.Tensor]
    if isinstance(run, CosmoFlow):
        model = net = CosmoFlowNet(run.network, run.data.sample_shape, dropout=run.hyperparameters.dropout)
        loss_of = partial(training_loss, model=net, weight_decay=run.hyperparameters.opt_weight_decay)
        optimizer = cosmoflow_optimizer(run.hyperparameters, model.parameters())
    elif isinstance(run, DeepCam):
        model, loss_of = build_deepcam(run.network, channels), metric.weighted_cross_entropy
        optimizer = deepcam_optimizer(run.hyperparameters, model.parameters())
    else:
        assert isinstance(run, ResNet50)
        model, loss_of = resnet50_model.build_model(run.network), cross_entropy
        optimizer = resnet50_optimizer(run.hyperparameters, model, run.training.sgd)
    mixed = run.training.precision != "float32"
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        for step in range(2 * run.backward_passes):
            x, y = torch.empty(batch, channels, rows, columns), torch.empty(batch, dtype=torch.int64)
            if run.benchmark == "deepcam":
                y = torch.empty(batch, rows, columns, dtype=torch.uint8)
            if isinstance(run, CosmoFlow):
                x = torch.empty(batch, *run.data.sample_shape, dtype=torch.int16)
                y = torch.empty(batch, run.network.targets)
            with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
                logits = model(x)
            loss = loss_of(logits, y)
            loss.backward()
            if (step + 1) % run.backward_passes == 0:
                optimizer.step()
                optimizer.zero_grad()
            tracker.reset_mod_stats()  # it follows one pass over the modules
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return {str(kind).rpartition(".")[2]: size for kind, size in peak.items()}


def test_saved_in_16_bits_is_what_autograd_saves(no_metric_cache):
    """Half of all activations, the logits' loss in float32, a copy of the input and of the weights."""
    run, batch = load("deepcam", "smoke"), 4
    rows, columns, channels = run.data.sample_shape
    tensors: dict[int, torch.Tensor] = {}
    with FakeTensorMode():
        model = build_deepcam(run.network, channels)
        x, y = (
            torch.empty(batch, channels, rows, columns),
            torch.empty(batch, rows, columns, dtype=torch.uint8),
        )
        own = {p.untyped_storage()._cdata for p in (*model.parameters(), *model.buffers(), x)}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            tensors.setdefault(tensor.untyped_storage()._cdata, tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(x)
            metric.weighted_cross_entropy(logits, y)
    saved = sum(t.untyped_storage().nbytes() for key, t in tensors.items() if key not in own)
    network = network_of(run)
    ours = step_memory(network, batch, "mixed_bfloat16", "lamb")
    kept = network.saved_bytes("mixed_bfloat16", batch)
    assert kept + ours.copies + 2 * batch * network.input_elements == pytest.approx(saved, rel=0.01)
