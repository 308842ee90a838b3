"""Optimizers that take loss scale and verdict from a GradScaler, which then does not wait for the device."""

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from mlhpc.cosmoflow.pytorch.optimizer import KerasAdam, KerasSGD
from mlhpc.resnet50.optim.lars import Lars


def make(name, parameters):
    if name == "sgd":
        return KerasSGD(parameters, 0.5, momentum=0.9)
    if name == "adam":
        return KerasAdam(parameters, torch.tensor(0.1))
    matrix, vector = parameters
    rest = {"params": [vector], "adapt": False, "weight_decay": 0.0}
    return Lars([{"params": [matrix]}, rest], 0.5, weight_decay=1e-3)


@pytest.mark.parametrize("name", ["sgd", "adam", "lars"])
def test_scaled_steps_are_those_without_a_scale_and_infinite_gradients_change_nothing(name):
    torch.manual_seed(1)
    start = [torch.randn(4, 3), torch.randn(5)]
    inputs = [torch.randn(4, 3) for _ in range(4)]

    def train(scaler):
        weights = [torch.nn.Parameter(value.clone()) for value in start]
        optimizer = make(name, weights)
        for step, values in enumerate(inputs):
            loss = (weights[0] * values).square().sum() + weights[1].square().sum()
            scaler.scale(loss).backward()
            if step == 2 and scaler.is_enabled():  # one more step, which must count for nothing
                weights[1].grad[0] = float("inf")
                before = [value.detach().clone() for value in weights]
                scaler.step(optimizer)
                scaler.update()
                assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))
                optimizer.zero_grad()
                loss = (weights[0] * values).square().sum() + weights[1].square().sum()
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return weights

    plain, scaled = train(GradScaler("cpu", enabled=False)), train(GradScaler("cpu"))
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
