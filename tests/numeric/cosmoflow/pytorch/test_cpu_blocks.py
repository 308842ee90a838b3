"""The blocks for processors compute PyTorch's own convolution and pooling, forward and backward."""

import pytest
import torch

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.cosmoflow.pytorch import cpu_blocks as blocks
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet

SHAPE = (16, 16, 16, 4)


def trained(kernels, dtype=torch.float32, **options):
    """Loss and gradients of a step, in ``dtype`` under autocast."""
    network = Network(conv_layers=3, conv_filters=8, dense_units=(16, 8), **options)
    counts = torch.randint(0, 50, (3, *SHAPE), generator=torch.Generator().manual_seed(1), dtype=torch.int16)
    torch.manual_seed(1)
    model = CosmoFlowNet(network, SHAPE, dropout=0.0).to(memory_format=torch.channels_last_3d)
    if kernels:
        blocks.use_cpu_kernels(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = model(counts).square().sum()
    loss.backward()
    return [loss.detach(), *(weight.grad for weight in model.parameters())]


@pytest.fixture
def every_block(monkeypatch):
    monkeypatch.setattr(blocks, "LARGE", 0)


def test_the_network_trains_as_without_the_kernels(every_block):
    for fast, plain in zip(trained(True), trained(False), strict=True):
        assert (fast - plain).norm() <= 1e-5 * plain.norm()


def test_kernels_of_even_size_are_padded_before(every_block):
    for fast, plain in zip(trained(True, conv_kernel=2), trained(False, conv_kernel=2), strict=True):
        assert (fast - plain).norm() <= 1e-5 * plain.norm()


def test_in_bfloat16_it_is_as_exact(every_block):
    """Against float32: at most a tenth further from it than PyTorch's own, whose rounding differs."""
    exact, plain, fast = trained(False), trained(False, torch.bfloat16), trained(True, torch.bfloat16)
    for true, own, ours in zip(exact, plain, fast, strict=True):
        assert (ours - true).norm() <= 1.1 * (own - true).norm() + 1e-3 * true.norm()


def test_of_equal_voxels_the_same_gets_the_gradient(every_block):
    """Counts of zero everywhere but in some voxels: most maxima are of equal voxels."""
    x = torch.zeros(2, 4, 6, 4, 8).to(memory_format=torch.channels_last_3d)
    x[0, 1, 2, 3, 4] = 1.0
    weight = torch.ones(8, 4, 3, 3, 3, requires_grad=True)
    plain = torch.nn.functional.max_pool3d(torch.nn.functional.conv3d(x, weight, padding=1), 2)
    factors = torch.linspace(-1, 1, plain.numel()).view(plain.shape)
    expected = torch.autograd.grad((plain * factors).sum(), weight)
    fast = blocks._Pooled.apply(x, weight, 1)
    assert torch.equal(fast, plain)
    torch.testing.assert_close(torch.autograd.grad((fast * factors).sum(), weight), expected)


def largest_kept():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.nbytes) or x, lambda x: x):
        trained(True, torch.bfloat16)
    return max(kept)


def test_what_is_kept_for_the_backward_pass_is_not_what_was_before_pooling(monkeypatch):
    sizes = []
    for large in (1 << 40, 0):
        monkeypatch.setattr(blocks, "LARGE", large)
        sizes.append(largest_kept())
    before_pooling = 3 * 16**3 * 8 * 2
    assert sizes[0] >= before_pooling > sizes[1] / 4  # places of maxima are of eight bytes
