"""Many tensors, each multiplied by its own number: bit for bit the same on GPUs and CPUs."""

import torch

from mlhpc.common.pytorch.foreach import multiply_each, spread


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
