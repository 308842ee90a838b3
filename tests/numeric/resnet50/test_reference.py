"""ResNet-50's schedule, optimizers, loss and network, against recorded results of the MLPerf reference."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlhpc.benchmarks import load
from mlhpc.benchmarks.resnet50 import Network
from mlhpc.common.pytorch.step import set_rate
from mlhpc.common.training.schedules import polynomial_learning_rate
from mlhpc.resnet50.metric import cross_entropy
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.optimizer import make_optimizer, rate_at

RECORDED = json.loads(
    (Path(__file__).parents[2] / "data" / "reference" / "resnet50_training.json").read_text()
)


@pytest.mark.parametrize("case", RECORDED["schedules"], ids=lambda case: str(case["settings"]))
def test_every_rate_equals_the_references(case):
    """It counts in float32."""
    ours = [polynomial_learning_rate(update, **case["settings"]) for update in case["updates"]]
    assert ours == pytest.approx(case["rates"], rel=1e-5, abs=1e-7)


class Few(nn.Module):
    """The tensors that the reference's optimizers were run on, as PyTorch lays them out."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, bias=False)
        self.zeros = nn.Linear(2, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(5, 3)

    def tensors(self):
        return [
            self.conv1.weight, self.zeros.weight, self.norm.weight, self.norm.bias, self.fc.weight, self.fc.bias
        ]  # fmt: skip


def shapes():
    return [(3, 3, 2, 4), (2, 3), (4,), (4,), (5, 3), (3,)]


def to_pytorch(array):
    """Keras' kernels have the filters last, PyTorch's first."""
    axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[np.ndim(array)]
    return torch.from_numpy(np.ascontiguousarray(np.transpose(array, axes)).astype(np.float32))


@pytest.mark.parametrize("name", ["lars", "sgd"])
@pytest.mark.parametrize("number", [0, 1])
def test_nine_updates_at_changing_rates_equal_the_references(name, number):
    """Of a convolution, of zeros, of batch norm, and of a dense layer with its bias; one gradient is zero."""
    case = RECORDED[name][number]
    warmup = "lars_opt_learning_rate_warmup_epochs" if name == "lars" else "opt_learning_rate_warmup_epochs"
    settings = {
        "opt_name": name,
        f"{name}_opt_base_learning_rate": case["base"],
        f"{name}_opt_weight_decay": case["weight_decay"],
        f"{name}_opt_learning_rate_decay_steps": case["decay_steps"],
        warmup: case["warmup_steps"],
    }
    chosen = load.load(
        "resnet50", "closed", ["division=open", *(f"hyperparameters.{k}={v}" for k, v in settings.items())]
    ).hyperparameters
    model = Few()
    drawn = np.random.RandomState(1)
    conv = drawn.standard_normal((3, 3, 2, 4))
    start = [conv, np.zeros((2, 3)), 1 + 0.1 * drawn.standard_normal(4), 0.1 * drawn.standard_normal(4)]
    start += [0.01 * drawn.standard_normal((5, 3)), 0.1 * drawn.standard_normal(3)]
    with torch.no_grad():
        for tensor, value in zip(model.tensors(), start, strict=True):
            tensor.copy_(to_pytorch(value))
    optimizer = make_optimizer(chosen, model, "mlperf")
    for update, state in enumerate(case["states"]):
        set_rate(optimizer, rate_at(chosen, update, 1))
        drawn = np.random.RandomState(50 + update)
        for which, (tensor, shape) in enumerate(zip(model.tensors(), shapes(), strict=True)):
            gradient = 0.1 * drawn.standard_normal(shape)
            tensor.grad = to_pytorch(0 * gradient if (update, which) == (4, 0) else gradient)
        optimizer.step()
        for which, (tensor, shape) in enumerate(zip(model.tensors(), shapes(), strict=True)):
            theirs = to_pytorch(np.reshape(state[which], shape))
            torch.testing.assert_close(tensor.detach(), theirs, rtol=1e-5, atol=1e-6, msg=f"{update} {which}")


@pytest.mark.parametrize("case", RECORDED["loss"], ids=lambda case: f"smoothing {case['smoothing']}")
def test_the_loss_equals_the_references(case):
    drawn = np.random.RandomState(case["seed"])
    logits = torch.from_numpy(drawn.standard_normal((6, 10)).astype(np.float32) * 3)
    y = torch.from_numpy(drawn.randint(0, 10, 6))
    assert cross_entropy(logits, y, case["smoothing"]).item() == pytest.approx(case["mean"], rel=1e-5)


def padded_at_the_end(model):
    """TensorFlow's "same" padding: if a stride of 2 needs an odd number of zeros, the last one comes after, not
    before and after as in torchvision. It is the one way in which the networks differ."""

    def after(module, x):
        (image,) = x
        pool = isinstance(module, nn.MaxPool2d)
        return F.pad(image, (0, 1, 0, 1), value=-torch.inf if pool else 0.0)

    for module in model.modules():
        if isinstance(module, nn.MaxPool2d) or (
            isinstance(module, nn.Conv2d) and module.stride == (2, 2) and module.kernel_size == (3, 3)
        ):
            module.padding = 0 if isinstance(module, nn.MaxPool2d) else (0, 0)
            module.register_forward_pre_hook(after)
    return model


def reference_name(name):
    """The reference's name of one of our tensors."""
    kind = name.rsplit(".", 1)[1]
    stem = name.rsplit(".", 1)[0]
    leaf = {
        "running_mean": "moving_mean",
        "running_var": "moving_variance",
        "bias": "bias",
        "weight": "kernel",
    }[kind]
    if stem == "fc":
        return f"fc1000/{leaf}"
    layer, block, part = "conv1", "", ""
    norm = "bn" in stem or stem.endswith("downsample.1")
    if stem.startswith("layer"):
        stage, number, *inside = stem.split(".")
        part = "1" if inside[0] == "downsample" else "2" + "abc"[int(inside[0][-1]) - 1]
        block = f"{int(stage[-1]) + 1}{'abcdef'[int(number)]}_branch{part}"
        layer = f"res{block}"
    if norm:
        leaf = {"weight": "gamma", "bias": "beta"}.get(kind, leaf)
        layer = f"bn{block}" if block else "bn_conv1"
    return f"{layer}/{leaf}"


@pytest.fixture(scope="module")
def model():
    """ResNet-50 of ten classes with the weights that the reference had."""
    shapes = {name.split(":")[0]: shape for name, shape in RECORDED["network"]["variables"]}
    model = build_model(Network(classes=10))
    for name, tensor in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        theirs = reference_name(name)
        shape = shapes.pop(theirs)
        drawn = np.random.RandomState(zlib.crc32(theirs.encode()) % 2**31).standard_normal(shape)
        kind = theirs.split("/")[1]
        if kind == "kernel":
            drawn *= np.sqrt(2 / np.prod(shape[:-1]))
        elif kind == "gamma":
            drawn = (0.3 if "branch2c" in theirs else 1) * (1 + 0.1 * drawn)
        elif kind == "moving_variance":
            drawn = 1 + 0.5 * np.abs(drawn)
        else:
            drawn *= 0.1
        tensor.copy_(to_pytorch(drawn))
    assert not shapes
    return padded_at_the_end(model)


def test_logits_loss_and_gradients_equal_the_references_except_for_the_side_of_padding(model):
    recorded = RECORDED["network"]
    x = np.random.RandomState(9).standard_normal((2, 224, 224, 3)) * 50
    x = torch.from_numpy(x.astype(np.float32)).permute(0, 3, 1, 2)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(
            F.log_softmax(model(x / 50), 1), torch.tensor(recorded["evaluation"]), rtol=1e-3, atol=1e-3
        )
    model.train()
    logits = model(x)
    torch.testing.assert_close(
        F.log_softmax(logits, 1), torch.tensor(recorded["training_log"]), rtol=1e-3, atol=1e-3
    )
    loss = cross_entropy(logits, torch.tensor([3, 7]))
    assert loss.item() == pytest.approx(recorded["loss"], rel=1e-4)
    loss.backward()
    theirs = {name.split(":")[0]: norm for name, norm in recorded["gradient_norms"].items()}
    ours = {reference_name(name): float(p.grad.norm()) for name, p in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    assert ours == pytest.approx(theirs, rel=1e-2)


def test_the_official_network_has_the_references_number_of_parameters():
    with torch.device("meta"):
        model = build_model(Network())
    assert sum(p.numel() for p in model.parameters()) == RECORDED["network"]["trainable_1000"] == 25_557_032
