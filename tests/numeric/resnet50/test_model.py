"""ResNet-50's network, optimizers, schedule and steps, against timm, torchvision, Keras and slow loops."""

import math
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import torch
import torchvision
from timm.loss.cross_entropy import LabelSmoothingCrossEntropy
from timm.optim.lars import Lars as TimmLars

from mlhpc.benchmarks import load
from mlhpc.benchmarks.resnet50 import Network
from mlhpc.common.pytorch.devices import pick_device
from mlhpc.common.pytorch.state import preserve_state
from mlhpc.common.pytorch.step import make_eval_step, make_scaler, make_train_step, set_rate
from mlhpc.common.training.schedules import polynomial_learning_rate
from mlhpc.errors import UserError
from mlhpc.resnet50.metric import count_correct, cross_entropy
from mlhpc.resnet50.model import build_model
from mlhpc.resnet50.optim.lars import Lars
from mlhpc.resnet50.optim.optimizer import make_optimizer, rate_at

TINY = Network(classes=5, width=0.125, blocks=(1, 1, 1, 1))
CPU = torch.device("cpu")
NONE = make_scaler("float32", CPU)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def hyperparameters(*settings):
    return load.load("resnet50", "smoke", [f"hyperparameters.{s}" for s in settings]).hyperparameters


# The network.


@pytest.mark.parametrize(
    ("name", "count"), [("resnet50", 25_557_032), ("resnet101", 44_549_160), ("alexnet", 61_100_840)]
)
def test_networks_have_the_published_number_of_parameters(name, count):
    with torch.device("meta"):
        assert parameters(build_model(Network(name=name))) == count


def test_the_network_equals_torchvisions():
    """Version 1.5: the same weights give the same logits."""
    model, plain = build_model(Network()), torchvision.models.resnet50()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 64, 64)
    model.eval(), plain.eval()
    torch.testing.assert_close(model(x), plain(x))
    assert model.layer2[0].conv2.stride == (2, 2) and model.layer2[0].conv1.stride == (1, 1)


@pytest.mark.parametrize("name", ["lenet", "alexnet"])
def test_all_weights_of_the_other_networks_get_gradients(name):
    model = build_model(Network(name=name, classes=7))
    logits = model(torch.randn(2, 3, 96, 96))
    assert logits.shape == (2, 7)
    logits.square().mean().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().max() > 0 for p in model.parameters())


def test_initial_weights_have_keras_distribution():
    """The reference is Keras': he_normal and RandomNormal(0.01)."""
    torch.manual_seed(0)
    model = build_model(Network())
    drawn = np.sort(model.layer3[1].conv2.weight.detach().numpy().ravel())
    theirs = np.sort(np.asarray(keras.initializers.HeNormal(seed=1)((3, 3, 256, 256))).ravel())
    # Quantiles to three decimals of the deviation: an untruncated normal distribution differs in the tails.
    at = np.linspace(0, drawn.size - 1, 201).astype(int)
    np.testing.assert_allclose(drawn[at], theirs[at], atol=0.05 * theirs.std())
    assert model.fc.weight.std().item() == pytest.approx(0.01, rel=0.01) and not model.fc.bias.any()


# The optimizers and the schedule.


def textbook_lars(weights, gradients, rates, momentum, decay, trust, adapt):
    """Algorithm 1 of You et al. 2017, in float64, a number at a time."""
    weights = [float(w) for w in weights]
    velocity = [0.0] * len(weights)
    for g, lr in zip(gradients, rates, strict=True):
        norm_w = math.sqrt(math.fsum(w * w for w in weights))
        norm_g = math.sqrt(math.fsum(x * x for x in g))
        ratio = trust * norm_w / (norm_g + decay * norm_w) if adapt and norm_w > 0 and norm_g > 0 else 1.0
        for i, w in enumerate(weights):
            velocity[i] = momentum * velocity[i] + lr * ratio * (g[i] + decay * w)
            weights[i] = w - velocity[i]
    return weights


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("special", ["", "zero weights", "zero gradients"])
def test_lars_equals_the_papers_algorithm_at_changing_rates(adapt, special):
    rng = np.random.default_rng(3)
    w, rates = rng.normal(size=20), [0.0, 3.0, 6.0, 2.0, 0.5]
    gradients = rng.normal(size=(5, 20)) * 0.1
    if special == "zero weights":
        w[:] = 0
    elif special:
        gradients[:] = 0
    facts = {"momentum": 0.9, "weight_decay": 1e-3 if adapt else 0.0}
    ours = torch.nn.Parameter(torch.tensor(w))
    optimizer = Lars([ours], 0.0, **facts, adapt=adapt)
    for done, rate in enumerate(rates, 1):
        set_rate(optimizer, rate)
        ours.grad = torch.tensor(gradients[done - 1])
        optimizer.step()
        theirs = textbook_lars(w, gradients[:done], rates[:done], 0.9, facts["weight_decay"], 0.001, adapt)
        np.testing.assert_allclose(ours.detach(), theirs, rtol=1e-12)


def test_lars_equals_timms_step_by_step_at_a_constant_rate():
    """Timm multiplies with the rate after the momentum, which is equal as long as the rate is constant."""
    torch.manual_seed(1)
    model, theirs = build_model(TINY), build_model(TINY)
    theirs.load_state_dict(model.state_dict())
    ours = make_optimizer(hyperparameters("opt_name=lars", "lars_opt_base_learning_rate=4.0"), model)
    decayed, others = ([p for p in theirs.parameters() if (p.ndim > 1) == many] for many in (True, False))
    groups = [{"params": decayed, "weight_decay": 2e-4}, {"params": others, "weight_decay": 0.0}]
    timms = TimmLars(groups, 4.0, momentum=0.9, trust_coeff=0.001, eps=0.0)
    for _ in range(5):
        for a, b in zip(model.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        ours.step(), timms.step()
        for a, b in zip(model.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_weight_decay_applies_only_to_weight_matrices(name):
    model = build_model(TINY)
    before = {key: value.clone() for key, value in model.named_parameters()}
    optimizer = make_optimizer(hyperparameters(f"opt_name={name}", f"{name}_opt_weight_decay=0.1"), model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    shrunk = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert shrunk == {key for key in before if "conv" in key or key == "fc.weight" or "downsample.0" in key}


def test_the_schedule_is_keras_polynomial_after_a_linear_warm_up():
    decay = keras.optimizers.schedules.PolynomialDecay(10.0, 40, end_learning_rate=0.001, power=2.0)
    for step in range(70):
        ours = polynomial_learning_rate(step, base=10.0, end=0.001, warmup_steps=16, decay_steps=40)
        assert ours == pytest.approx(10.0 * step / 16 if step < 16 else float(decay(step - 16)), rel=1e-5)
    with pytest.raises(ValueError, match="from 0"):
        polynomial_learning_rate(-1, base=1.0, end=0.0, decay_steps=5)


def test_the_schedule_counts_warm_up_in_epochs_of_the_run():
    facts = hyperparameters("opt_name=lars", "lars_opt_learning_rate_warmup_epochs=2")
    base = facts.lars_opt_base_learning_rate
    assert rate_at(facts, 0, 7) == 0 and rate_at(facts, 7, 7) == base / 2 and rate_at(facts, 14, 7) == base
    sgd = hyperparameters("opt_learning_rate_warmup_epochs=2", "lars_opt_learning_rate_warmup_epochs=9")
    assert rate_at(sgd, 14, 7) == sgd.sgd_opt_base_learning_rate


# The steps.


def batch(count=6, side=32, classes=5, dtype=torch.float32):
    x = torch.randn(count, side, side, 3, dtype=dtype).permute(0, 3, 1, 2)
    return x, torch.randint(classes, (count,))


def test_the_loss_is_cross_entropy_with_smoothed_labels():
    model = build_model(TINY)
    x, y = batch()
    expected = LabelSmoothingCrossEntropy(0.1)(model.train()(x), y).detach()
    step = make_train_step(model, cross_entropy, torch.optim.SGD(model.parameters(), 0.0), NONE)
    assert float(step(x, y)) == pytest.approx(float(expected), rel=1e-5)


def test_accumulated_gradients_are_those_of_the_whole_batch():
    """Without batch norm, whose statistics are of part of the batch only."""
    torch.manual_seed(2)
    model = build_model(Network(name="lenet", classes=5)).double()
    x, y = batch(8, dtype=torch.float64)
    whole = torch.nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    gradients = torch.autograd.grad(whole, list(model.parameters()))
    step = make_train_step(model, cross_entropy, torch.optim.SGD(model.parameters(), 1.0), NONE, accumulate=4)
    for part in range(4):
        step(x[2 * part : 2 * part + 2], y[2 * part : 2 * part + 2])
    for after, start, gradient in zip(model.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(start - after, gradient, rtol=1e-9, atol=1e-12)


def test_evaluation_counts_correct_predictions_for_any_batch_size():
    torch.manual_seed(6)
    model = build_model(TINY)
    x, y = batch(23)
    step = make_eval_step(model, count_correct)
    right = int((model.eval()(x).argmax(1) == y).sum())
    for size in (1, 5, 23):
        assert sum(int(step(a, b)) for a, b in zip(x.split(size), y.split(size), strict=True)) == right


def test_bfloat16_trains_nearly_like_float32():
    torch.manual_seed(4)
    x, y = batch(16)
    losses = {}
    for precision in ("float32", "mixed_bfloat16"):
        torch.manual_seed(4)
        model = build_model(TINY).to(memory_format=torch.channels_last)
        step = make_train_step(
            model, cross_entropy, torch.optim.SGD(model.parameters(), 0.02), NONE, precision
        )
        losses[precision] = [float(step(x, y)) for _ in range(8)]
        assert all(p.dtype == torch.float32 for p in model.parameters())
    assert losses["mixed_bfloat16"] == pytest.approx(losses["float32"], rel=0.1)
    assert losses["mixed_bfloat16"][-1] < 0.8 * losses["mixed_bfloat16"][0]


def test_nothing_in_a_step_waits_for_the_device():
    """On PyTorch's meta device, where tensors have no values: reading one, which would wait for a GPU, is an
    error."""
    with torch.device("meta"):
        model = build_model(TINY)
    optimizer = make_optimizer(hyperparameters("opt_name=lars"), model)
    step = make_train_step(model, cross_entropy, optimizer, NONE, accumulate=2)
    x, y = batch()
    for _ in range(4):
        set_rate(optimizer, 0.1)
        loss = step(x, y)
    for result in (loss, make_eval_step(model, count_correct)(x, y)):
        with pytest.raises(RuntimeError, match="meta"):
            float(result)


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_warm_up_restores_the_state_bit_for_bit(name):
    """Training after warm-up equals training without it, bit for bit."""
    x, y = batch()

    def trained(warm):
        torch.manual_seed(5)
        model = build_model(TINY)
        optimizer = make_optimizer(hyperparameters(f"opt_name={name}"), model)
        step = make_train_step(model, cross_entropy, optimizer, NONE)
        evaluate = make_eval_step(model, count_correct)
        if warm:
            with preserve_state(model, optimizer, NONE):
                step(x, y), evaluate(x, y), torch.randn(3)
        for _ in range(3):
            step(x, y)
        return [*model.state_dict().values(), torch.randn(3)]

    for a, b in zip(trained(True), trained(False), strict=True):
        assert torch.equal(a, b)


def test_missing_hardware_is_reported():
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="sees no accelerator"):
            pick_device("cuda", 0)
    with pytest.raises(UserError, match="needs a GPU"):
        make_scaler("mixed_float16", CPU)


# Ranks.

PROGRAM = Path(__file__).parents[2] / "ranks" / "resnet50_step.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(2, [sys.executable, sys.argv[1]]))
"""


def test_gradients_of_two_ranks_equal_those_of_one_with_both_batches():
    command = [sys.executable, "-c", LOCAL, PROGRAM]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
