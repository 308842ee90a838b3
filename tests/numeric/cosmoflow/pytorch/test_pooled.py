"""Convolution and pooling with gradients that leave out zeros (``cosmoflow/cpu/pooled.py``), against PyTorch's."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from mlhpc.cosmoflow.cpu import pooled
from mlhpc.cosmoflow.pytorch.model import convolve_and_pool

KINDS = ["default", "avx2", "avx512"]  # each can run what those before it can
LAST = torch.channels_last_3d
fused = partial(pooled.convolve_and_pool, otherwise=convolve_and_pool)
# Channels and filters that do and do not fill vectors, sides that do and do not fill tiles, odd numbers of planes.
SHAPES = [
    ((2, 4, 12, 8, 20), 8),
    ((3, 5, 6, 10, 2), 19),
    ((1, 8, 6, 36, 4), 16),
    ((1, 11, 4, 4, 4), 3),
    ((2, 16, 6, 6, 6), 32),
    ((2, 48, 4, 14, 18), 20),
    ((3, 32, 2, 2, 2), 512),
    ((1, 8, 2, 2, 2), 16),
]


def case(shape, filters, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).contiguous(memory_format=LAST).requires_grad_()
    convolution = torch.nn.Conv3d(shape[1], filters, 3, padding=1, bias=False).to(memory_format=LAST)
    with torch.no_grad():  # their own random weights are not those of the seed
        convolution.weight.uniform_(-1, 1, generator=generator).div_(math.sqrt(27 * shape[1]))
    upstream = torch.randn(shape[0], filters, *(side // 2 for side in shape[2:]), generator=generator)
    return x, convolution, upstream


def results(function, x, convolution, upstream):
    output = function(x, convolution)
    return output, *torch.autograd.grad(output, (x, convolution.weight), upstream.to(output.dtype))


def test_the_library_was_compiled():
    """Where the tests run there is a compiler: the others would compare PyTorch with itself."""
    assert pooled.library() is not None


@pytest.fixture(params=KINDS[: KINDS.index(torch.backends.cpu.get_cpu_capability().lower()) + 1])
def library_of_a_processor(request, monkeypatch):
    """Each of those that this processor can run, in place of its own."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: request.param)
    chosen = pooled.library.__wrapped__()
    assert request.param in str(chosen) or request.param == "default"
    monkeypatch.setattr(pooled, "library", lambda: chosen)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape, filters", SHAPES, ids=str)
def test_output_and_gradients_are_those_in_float64(
    shape, filters, threads, monkeypatch, library_of_a_processor
):
    x, convolution, upstream = case(shape, filters)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    output, of_x, of_weight = results(fused, x, convolution, upstream)
    truth = results(convolve_and_pool, x.double(), convolution.double(), upstream)
    # Rounding of as many terms as a sum of the convolution has, each as if by chance.
    rounding = torch.finfo(torch.float32).eps * math.sqrt(27 * max(shape[1], filters))
    # Where two of eight sums are equal in float32, another voxel could be chosen: not with this seed.
    for ours, wanted in zip((output, of_x, of_weight), truth, strict=True):
        wanted = wanted.float()
        torch.testing.assert_close(ours, wanted, rtol=0, atol=rounding * float(wanted.abs().max()))
    assert of_weight.is_contiguous(memory_format=LAST)


def test_gradients_do_not_depend_on_which_thread_is_first(monkeypatch):
    """Two runs with the same seed are equal bit for bit."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    x, convolution, upstream = case((2, 16, 16, 8, 8), 32)
    _, _, of_weight = results(fused, x, convolution, upstream)
    for order in itertools.permutations(range(4)):

        class InThisOrder:
            def map(self, work, parts, order=order):
                return [work(list(parts)[i]) for i in order]

        monkeypatch.setattr(pooled, "_threads", lambda number: InThisOrder())
        assert torch.equal(results(fused, x, convolution, upstream)[2], of_weight)


def test_bfloat16_gradients_are_as_close_to_the_truth_as_pytorchs():
    """The truth: sums in float64 of the same rounded numbers, through the same largest voxels. PyTorch's own sums
    differ between processors, with and without instructions for bfloat16."""
    x, convolution, upstream = case((2, 16, 8, 8, 8), 32)
    with torch.autocast("cpu", torch.bfloat16):
        own = results(fused, x, convolution, upstream)
        plain = results(convolve_and_pool, x, convolution, upstream)
        chosen = F.max_pool3d(convolution(x).float(), 2, return_indices=True)[1]
    assert own[0].dtype == torch.bfloat16 and torch.equal(own[0], plain[0])
    assert own[1].dtype == own[2].dtype == torch.float32
    exact_x, exact_weight = (t.detach().bfloat16().double().requires_grad_() for t in (x, convolution.weight))
    largest = F.conv3d(exact_x, exact_weight, padding=1).flatten(2).gather(2, chosen.flatten(2))
    truth = torch.autograd.grad(largest, (exact_x, exact_weight), upstream.bfloat16().double().flatten(2))
    for ours, theirs, true in zip(own[1:], plain[1:], truth, strict=True):
        error, of_pytorch = (float((each - true).norm() / true.norm()) for each in (ours, theirs))
        assert error < 1.1 * of_pytorch < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("filters", [16, 19])
def test_the_first_of_equal_voxels_is_chosen_and_nan_is_not_lost(dtype, filters):
    """As PyTorch does. Outputs of a convolution of ones are equal within the volume."""
    x = torch.randint(0, 2, (1, 4, 8, 8, 8)).to(dtype).contiguous(memory_format=LAST)
    x[0, 1, 3, 4, 5] = torch.nan
    x.requires_grad_()
    convolution = torch.nn.Conv3d(4, filters, 3, padding=1, bias=False).to(dtype=dtype, memory_format=LAST)
    torch.nn.init.ones_(convolution.weight)
    upstream = torch.ones(1, filters, 4, 4, 4)
    output, of_x, _ = results(fused, x, convolution, upstream)
    wanted, wanted_of_x, _ = results(convolve_and_pool, x, convolution, upstream)
    assert output.isnan().any()
    assert torch.equal(output.nan_to_num(-1), wanted.nan_to_num(-1))
    torch.testing.assert_close(of_x, wanted_of_x)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda x, c: (x.detach().contiguous(), c), id="channels first"),
        pytest.param(lambda x, c: (x[:, :, :5], c), id="odd side"),
        pytest.param(lambda x, c: (x, torch.nn.Conv3d(16, 8, 2, bias=False)), id="kernel of 2"),
        pytest.param(lambda x, c: (x, torch.nn.Conv3d(16, 8, 3, bias=False)), id="no padding"),
        pytest.param(lambda x, c: (x, torch.nn.Conv3d(16, 513, 3, padding=1, bias=False)), id="many filters"),
    ],
)
def test_what_the_library_cannot_do_is_left_to_pytorch(changed):
    x, convolution, _ = case((1, 16, 6, 6, 6), 8)
    x, convolution = changed(x, convolution)
    expected = F.max_pool3d(convolution(x), 2)
    assert torch.equal(fused(x, convolution), expected)


def test_a_byte_per_pooled_voxel_is_kept_and_not_the_convolutions_output():
    x, convolution, _ = case((2, 16, 8, 8, 8), 32)
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fused(x, convolution)
    assert sorted(tensor.nbytes for tensor in kept) == sorted(
        [x.nbytes, convolution.weight.nbytes, 2 * 32 * 4**3]
    )
