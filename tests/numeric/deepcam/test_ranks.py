"""Ranks that share batch norm compute what one process computes from the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from mlhpc.common.pytorch.batchnorm import BatchNorm

PROGRAM = Path(__file__).parents[2] / "ranks" / "deepcam_step.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(2, [sys.executable, *sys.argv[1:]]))
"""


@pytest.mark.parametrize("how", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_gradients_and_statistics_of_two_ranks_equal_those_of_one(how):
    command = [sys.executable, "-c", LOCAL, PROGRAM, how]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_grouped_gradients_in_bfloat16_are_rounded_once(group_of_one, layout):
    """Against float64 from the same values. Far from zero, where the terms of the gradient cancel."""
    torch.manual_seed(3)
    x = (torch.randn(4, 8, 12, 16) + torch.linspace(-30, 30, 8).view(1, -1, 1, 1)).bfloat16()
    x = x.contiguous(memory_format=layout)
    gradient = (torch.randn(x.shape) * (1 + 0.1 * x.float())).bfloat16().contiguous(memory_format=layout)
    norm = BatchNorm(8)
    norm.group = group_of_one
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    x.requires_grad_()
    norm(x).backward(gradient)

    exact = x.detach().double().requires_grad_()
    weight = norm.weight.detach().double().requires_grad_()
    bias = norm.bias.detach().double().requires_grad_()
    F.batch_norm(exact, None, None, weight, bias, training=True, eps=norm.eps).backward(gradient.double())
    # Eight significant bits; float32 of sums of some tens leaves a few 1e-6.
    assert x.grad.dtype == torch.bfloat16 and x.grad.is_contiguous(memory_format=layout)
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2**-8, atol=2e-5)
    torch.testing.assert_close(norm.weight.grad.double(), weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(norm.bias.grad.double(), bias.grad, rtol=1e-4, atol=1e-3)
