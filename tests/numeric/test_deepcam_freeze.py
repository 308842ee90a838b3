"""Gradient skipping: what is frozen stays, what is not is trained as before."""

import copy
import math

import pytest
import torch

from mlhpc.benchmarks.deepcam import Network
from mlhpc.common.ranks.world import Solo
from mlhpc.deepcam.freeze import Freezer
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
    """Move every weight of a block by this share of itself: the norm of the change is that share of theirs."""
    with torch.no_grad():
        for parameter in block.parameters():
            parameter *= 1 + share


def test_blocks_that_hardly_moved_are_frozen_up_to_the_first_that_did(model):
    blocks = model.blocks()
    freezer = Freezer(blocks, 0.01, Solo())
    freezer.begin_epoch()
    for block, share in zip(blocks, [0.009, 0.002, 0.011, 0.0, *[0.0] * len(blocks)], strict=False):
        move(block, share)
    assert freezer.end_epoch() and freezer.frozen == 2
    freezer.begin_epoch()
    move(blocks[2], 0.02)
    assert not freezer.end_epoch() and freezer.frozen == 2


def test_the_rest_has_the_gradients_it_would_have_had_and_the_frozen_none(model):
    whole = gradients(copy.deepcopy(model))
    freezer = Freezer(model.blocks(), 0.01, Solo())
    freezer.freeze(3)
    rest = gradients(model)
    frozen = {id(p) for block in model.blocks()[:3] for p in block.parameters()}
    assert rest and len(rest) + len(frozen) == len(whole)
    for name, parameter in model.named_parameters():
        assert (name in rest) == (id(parameter) not in frozen)
        if name in rest:
            torch.testing.assert_close(rest[name], whole[name])


def test_the_decoder_is_always_trained(model):
    freezer = Freezer(model.blocks(), math.inf, Solo())
    freezer.begin_epoch()
    assert freezer.end_epoch() and freezer.frozen == len(model.blocks())
    assert gradients(model).keys() == {n for n, _ in model.named_parameters() if n.startswith("decoder.")}


def test_at_zero_nothing_is_frozen(model):
    freezer = Freezer(model.blocks(), 0.0, Solo())
    freezer.begin_epoch()
    assert not freezer.end_epoch() and freezer.frozen == 0
