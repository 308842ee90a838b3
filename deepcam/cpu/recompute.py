"""What a training step on a CPU need not keep for its backward pass."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from mlhpc.deepcam.layers.batchnorm import recompute_output


class RecomputeSequential(nn.Sequential):
    """Modules in sequence, none of which keeps the output of a batch norm that it gets as input: the batch norm,
    which keeps its own input anyway, recomputes it for the backward pass. The gradients are the same, bit for
    bit, and one tensor is kept instead of two."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[no-any-return]
        for module in self:
            with _forgetting(input):
                input = module(input)
        return input


def _forgetting(output: Tensor) -> AbstractContextManager[object]:
    """While it is open, autograd keeps the batch norm that made ``output``, if one of ours did, in its place."""
    node = output.grad_fn
    if not hasattr(node, "output"):
        return nullcontext()
    its = _identity(output)  # not the output itself: autograd keeps the two functions

    def keep(tensor: Tensor) -> object:
        return node if _identity(tensor) == its else tensor

    def bring(kept: object) -> Tensor:
        return kept if isinstance(kept, Tensor) else recompute_output(kept)

    return torch.autograd.graph.saved_tensors_hooks(keep, bring)


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """The same for what shows the same memory in the same way, unless it was written to in between."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version
