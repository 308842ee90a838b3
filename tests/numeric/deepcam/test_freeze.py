"""Gradient skipping: frozen blocks do not change, the others are trained as before."""

import copy
import math

import pytest
import torch

from mlhpc.benchmarks.deepcam import Network
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.freeze import blocks, count_converged_blocks, freeze, frozen_blocks, weights_of
from mlhpc.deepcam.model import build_model


@pytest.fixture
def model():
    torch.manual_seed(3)
    return build_model(Network(width=0.1, middle_blocks=1), channels=16)


def gradients(model):
    torch.manual_seed(4)
    model(torch.randn(2, 16, 32, 32)).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def move(block, share):
    """Move every weight of a block by this share of itself, and so the norm of all."""
    with torch.no_grad():
        for parameter in block.parameters():
            parameter *= 1 + share


def test_converged_blocks_are_counted_up_to_the_first_that_moved(model):
    before = weights_of(model)
    for block, share in zip(blocks(model), [0.009, 0.002, 0.011, 0.001], strict=False):
        move(block, share)
    assert count_converged_blocks(model, before, 0.01, Solo()) == 2
    assert count_converged_blocks(model, before, 0.001, Solo()) == 0
    assert count_converged_blocks(model, before, math.inf, Solo()) == len(blocks(model))


def test_freezing_changes_no_gradients_of_the_other_blocks(model):
    """Batch norm of the frozen blocks is in evaluation mode: compare with a network in which it is too."""
    whole = copy.deepcopy(model)
    for block in blocks(whole)[:3]:
        block.eval()
    expected = gradients(whole)
    freeze(model, 3)
    model.train()  # as the training step does after an evaluation
    rest = gradients(model)
    cold = {id(p) for block in blocks(model)[:3] for p in block.parameters()}
    assert rest and len(rest) + len(cold) == len(expected) and frozen_blocks(model) == 3
    for name, parameter in model.named_parameters():
        assert (name in rest) == (id(parameter) not in cold)
        if name in rest:
            torch.testing.assert_close(rest[name], expected[name])


def test_frozen_weights_and_statistics_are_constant_and_aspp_and_decoder_never_freeze(model):
    freeze(model, len(blocks(model)))
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.train()
    trained = gradients(model)
    optimizer.step()
    assert {name.split(".")[0] for name in trained} == {"aspp", "decoder"}
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in changed} == {"aspp", "decoder"}
