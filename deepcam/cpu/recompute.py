"""Recomputation of activations, so that a training step on a CPU keeps less for its backward pass."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from mlhpc.common.pytorch.batchnorm import recompute_output


class RecomputeSequential(nn.Sequential):
    """Modules in sequence. If their input is the output of a batch norm, they do not keep it: the batch norm,
    which keeps its own input anyway, recomputes its output for the backward pass. The gradients are the same bit
    for bit, and one tensor is kept instead of two."""

    def forward(self, input: Tensor) -> Tensor:
        """``input`` is [b, channels, h, w]."""
        if torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[no-any-return]
        for module in self:
            with _not_saving(input):
                input = module(input)
        return input


def _not_saving(output: Tensor) -> AbstractContextManager[object]:
    """Context manager in which autograd saves, in place of ``output``, a reference to the batch norm (of this
    suite) that computed it."""
    node = output.grad_fn
    if not hasattr(node, "output"):
        return nullcontext()
    its = _identity(output)  # not the output itself, since autograd keeps closures alive

    def keep(tensor: Tensor) -> object:
        return node if _identity(tensor) == its else tensor

    def restore(saved: object) -> Tensor:
        return saved if isinstance(saved, Tensor) else recompute_output(saved)

    return torch.autograd.graph.saved_tensors_hooks(keep, restore)


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """A value that is equal for two views of the same memory with the same layout, unless this memory was written
    to in between."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version
