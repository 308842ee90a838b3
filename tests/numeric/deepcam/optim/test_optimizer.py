"""LAMB step by step against a float64 loop and timm's Lamb; Adam and AdamW as the rules name them."""

import copy
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from timm.optim.lamb import Lamb as TimmLamb

from mlhpc.benchmarks.deepcam import Hyperparameters
from mlhpc.common.pytorch.step import set_rate
from mlhpc.deepcam.optim import lamb
from mlhpc.deepcam.optim.lamb import Lamb, Moments
from mlhpc.deepcam.optim.optimizer import make_optimizer

SHAPES = [(8, 4, 3, 3), (16,), (3,), (40, 30), (5,)]
STEPS = 12
CASES = [
    {},
    {"weight_decay": 0.0},
    {"bias_correction": False},
    {"grad_averaging": False},
    {"max_grad_norm": 1e3},
    {"betas": (0.8, 0.95), "eps": 1e-3},
]


def weights_and_gradients(seed=0):
    """Weights, one tensor of them zero, and gradients with norms above and below 1."""
    torch.manual_seed(seed)
    weights = [torch.randn(shape) for shape in SHAPES[:-1]] + [torch.zeros(SHAPES[-1])]
    gradients = [[torch.randn(shape) * 10.0 ** (step % 4 - 3) for shape in SHAPES] for step in range(STEPS)]
    return weights, gradients


def made(parameters, **options):
    """Our LAMB with timm's ``options``."""
    names = [field.name for field in fields(Moments) if field.name in options]
    moments = Moments(**{name: options.pop(name) for name in names})
    return Lamb(parameters, 0.01, moments=moments, **options)


def run(optimizer_of, weights, gradients):
    """The weights after every step."""
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer, history = optimizer_of(parameters), []
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        history.append([parameter.detach().clone() for parameter in parameters])
    return history


def textbook(
    weights,
    gradients,
    lr=0.01,
    betas=(0.9, 0.999),
    eps=1e-6,
    weight_decay=0.01,
    bias_correction=True,
    grad_averaging=True,
    max_grad_norm=1.0,
):
    """LAMB number by number in float64: You et al. 2020, algorithm 2, with Apex's clipping and averaging."""
    w = [weight.double().flatten().tolist() for weight in weights]
    m = [[0.0] * len(tensor) for tensor in w]
    v = [[0.0] * len(tensor) for tensor in w]
    history = []
    for t, of_tensors in enumerate(gradients, 1):
        g = [gradient.double().flatten().tolist() for gradient in of_tensors]
        norm = math.sqrt(sum(x * x for tensor in g for x in tensor))
        clip = max(1.0, norm / max_grad_norm)
        for i, tensor in enumerate(w):
            update = []
            for j, weight in enumerate(tensor):
                x = g[i][j] / clip
                m[i][j] = betas[0] * m[i][j] + ((1 - betas[0]) if grad_averaging else 1) * x
                v[i][j] = betas[1] * v[i][j] + (1 - betas[1]) * x * x
                mean, square = m[i][j], v[i][j]
                if bias_correction:
                    mean, square = mean / (1 - betas[0] ** t), square / (1 - betas[1] ** t)
                update.append(mean / (math.sqrt(square) + eps) + weight_decay * weight)
            of_weight, of_update = (math.sqrt(sum(x * x for x in values)) for values in (tensor, update))
            trust = of_weight / of_update if weight_decay and of_weight and of_update else 1.0
            w[i] = [weight - lr * trust * x for weight, x in zip(tensor, update, strict=True)]
        history.append([np.array(tensor) for tensor in w])
    return history


@pytest.mark.parametrize("cache", [2**20, 100], ids=["one part", "many parts"])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_lamb_equals_a_textbook_implementation_step_by_step(options, cache, monkeypatch):
    monkeypatch.setattr(lamb, "CACHE", cache)
    weights, gradients = weights_and_gradients()
    ours = run(lambda parameters: made(parameters, **options), weights, gradients)
    for step, (after, expected) in enumerate(zip(ours, textbook(weights, gradients, **options), strict=True)):
        for tensor, numbers in zip(after, expected, strict=True):
            np.testing.assert_allclose(
                tensor.flatten().numpy(), numbers, rtol=2e-5, atol=1e-6, err_msg=f"step {step}"
            )


@pytest.mark.slow
def test_compiled_lamb_equals_a_textbook_implementation():
    weights, gradients = weights_and_gradients(2)
    rate = torch.tensor(0.01)
    ours = run(lambda parameters: Lamb(parameters, rate, compiled=True), weights, gradients)
    for after, expected in zip(ours, textbook(weights, gradients), strict=True):
        for tensor, numbers in zip(after, expected, strict=True):
            np.testing.assert_allclose(tensor.flatten().numpy(), numbers, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_lamb_equals_timms_step_by_step(options):
    weights, gradients = weights_and_gradients(1)
    ours = run(lambda parameters: made(parameters, **options), weights, gradients)
    timms = run(lambda parameters: TimmLamb(parameters, 0.01, **options), weights, gradients)
    for after, expected in zip(ours, timms, strict=True):
        torch.testing.assert_close(after, expected, rtol=2e-5, atol=1e-6)


def test_restored_optimizer_state_continues_the_same_trajectory():
    weights, gradients = weights_and_gradients()
    whole = run(lambda parameters: Lamb(parameters, 0.01), weights, gradients)[-1]
    kept = []

    def first_half(parameters):
        kept.append(Lamb(parameters, 0.01))
        return kept[-1]

    halfway = run(first_half, weights, gradients[:6])[-1]
    state = copy.deepcopy(kept[0].state_dict())

    def second_half(parameters):
        optimizer = Lamb(parameters, 0.5)
        optimizer.load_state_dict(state)
        return optimizer

    torch.testing.assert_close(run(second_half, halfway, gradients[6:])[-1], whole, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_scaled_gradients_give_the_same_step_and_infinite_ones_skip_it(scale):
    weights, gradients = weights_and_gradients()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = Lamb(parameters, 0.01)

    def step(of_tensors):
        factor = scaler.scale(torch.ones(()))
        for parameter, gradient in zip(parameters, of_tensors, strict=True):
            parameter.grad = gradient * factor
        scaler.step(optimizer)
        scaler.update()

    step(gradients[0])
    before = copy.deepcopy((parameters, optimizer.state_dict()))
    broken = [gradient.clone() for gradient in gradients[1]]
    broken[0][0, 0, 0, 0], broken[3][2, 2] = torch.inf, torch.nan
    step(broken)
    torch.testing.assert_close((parameters, optimizer.state_dict()), before, rtol=0, atol=0)
    assert scaler.get_scale() == scale / 2
    step(gradients[2])
    expected = run(lambda p: Lamb(p, 0.01), weights, [gradients[0], gradients[2]])[-1]
    torch.testing.assert_close([p.detach() for p in parameters], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam_and_adamw_follow_their_papers_at_changing_rates(name):
    """Kingma and Ba 2015, algorithm 1, with L2; Loshchilov and Hutter 2019, algorithm 2."""
    facts = Hyperparameters(
        global_batch_size=1, opt_name=name, opt_lr=0.1, opt_weight_decay=0.3, opt_eps=1e-3
    )
    weight, gradients = torch.tensor([0.5, -2.0, 3.0]), torch.tensor([[0.1, -0.2, 0.3], [0.4, 0.0, -0.1]])
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = make_optimizer(facts, [parameter])
    w, m, v = weight.double().numpy().copy(), np.zeros(3), np.zeros(3)
    for t, (rate, gradient) in enumerate(zip((0.1, 0.01), gradients, strict=True), 1):
        set_rate(optimizer, rate)
        parameter.grad = gradient.clone()
        optimizer.step()
        g = gradient.double().numpy() + (0.3 * w if name == "Adam" else 0)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        decay = rate * 0.3 * w if name == "AdamW" else 0
        w = w - decay - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-3)
    np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-5)


def test_lamb_follows_its_settings_and_changing_rates():
    settings = {"weight_decay": 0.2, "eps": 1e-4, "betas": (0.7, 0.9), "grad_averaging": False}
    named = {f"opt_{key}": value for key, value in settings.items()}
    facts = Hyperparameters(
        global_batch_size=1,
        opt_name="LAMB",
        opt_lr=1.0,
        opt_max_grad_norm=3.0,
        **named,
        opt_bias_correction=False,
    )
    weights, gradients = weights_and_gradients()

    def made(parameters):
        optimizer = make_optimizer(facts, parameters)
        set_rate(optimizer, 0.02)
        return optimizer

    settings |= {"max_grad_norm": 3.0, "bias_correction": False}
    expected = run(lambda parameters: TimmLamb(parameters, 0.02, **settings), weights, gradients)
    torch.testing.assert_close(run(made, weights, gradients), expected, rtol=2e-5, atol=1e-6)
