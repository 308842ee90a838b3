"""Many tensors, each multiplied by its own number: bit for bit the same on GPUs and CPUs."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from mlhpc.common.pytorch.foreach import multiply_each, spread, with_weights_together

PROGRAM = Path(__file__).parents[3] / "ranks" / "gradients_together.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(2, [sys.executable, sys.argv[1]]))
"""


def tensors():
    torch.manual_seed(1)
    shapes = [(3,), (4, 5), (2, 3, 3, 3), ()]
    made = [torch.randn(shape) for shape in shapes]
    made[2] = made[2].to(memory_format=torch.channels_last)
    return made


def test_each_tensor_is_multiplied_by_its_own_factor():
    ours, theirs, factors = tensors(), tensors(), torch.tensor([2.0, 0.1, -3.0, 0.0])
    multiply_each(ours, factors)
    for a, b, factor in zip(ours, theirs, factors, strict=True):
        assert torch.equal(a, b * factor)


def test_spread_factors_have_the_shapes_and_strides_that_the_fast_path_requires():
    parts = spread(tensors(), torch.tensor([2.0, 0.1, -3.0, 0.0]))
    for part, tensor, factor in zip(parts, tensors(), (2.0, 0.1, -3.0, 0.0), strict=True):
        assert part.shape == tensor.shape and part.stride() == tensor.stride()
        assert torch.equal(part, torch.full_like(tensor, factor))


def test_weights_cast_together_give_the_results_and_gradients_of_autocast_bit_for_bit():
    torch.manual_seed(3)
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ConvTranspose2d(16, 8, 3), nn.Conv2d(8, 4, 1)
    network, x = nn.Sequential(*layers), torch.randn(2, 3, 9, 9)
    layers[0].weight.requires_grad_(False)  # frozen
    found = []
    for forward in (network, with_weights_together(network, torch.bfloat16, 2000.0, in_place=False)):
        with torch.autocast("cpu", torch.bfloat16):
            y = forward(x)
        y.float().square().sum().backward()
        found.append([y, *(weight.grad for weight in network.parameters() if weight.requires_grad)])
        assert layers[0].weight.grad is None
        network.zero_grad()
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype


def test_two_ranks_whose_gradients_are_delivered_together_train_as_others_do():
    command = [sys.executable, "-c", LOCAL, PROGRAM]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
