"""What a PyTorch model really does in a training pass, traced on the meta device: no memory, no arithmetic."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Trace:
    """``forward`` and ``backward``: FLOPs of each operation that the counter knows, in order. ``modules``: every
    module without children with the shapes of its input and output, in the order of their calls. ``saved``: bytes
    of each memory that the backward pass needs, weights and input aside."""

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    modules: list[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)


class _Flops(TorchDispatchMode):
    """PyTorch's own formulas (``torch.utils.flop_counter``), operation by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            counted = formula(*args, **kwargs, out_val=out)
            if func._overloadpacket is torch.ops.aten.convolution_backward and args[9] > 1:
                counted = self._grouped(formula, args, kwargs, out)
            self.counts.append(counted)
        return out

    @staticmethod
    def _grouped(formula: Any, args: Any, kwargs: Any, out: Any) -> int:
        """PyTorch 2.12's formula multiplies the weights' gradient of a grouped convolution by the groups: it
        counts all pairs of channels."""
        *others, (wants_input, _, wants_bias) = args
        of_input = formula(*others, (wants_input, False, wants_bias), **kwargs, out_val=out)
        of_both = formula(*args, **kwargs, out_val=out)
        return int(of_input + (of_both - of_input) // args[9])


def trace(model: nn.Module, x: Tensor, y: Tensor, loss_of: Loss) -> Trace:
    """One training pass of ``model`` over ``x``."""
    traced = Trace()
    own = {p.untyped_storage()._cdata for p in (*model.parameters(), *model.buffers(), x)}
    alive: list[Tensor] = []  # the memory of a tensor that is gone could be another's
    seen: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory._cdata not in own | seen:
            seen.add(memory._cdata)
            alive.append(tensor)
            traced.saved.append(memory.nbytes())
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), _calls(model, traced):
        with _Flops() as flops:
            loss = loss_of(model(x), y)
        traced.forward = flops.counts
    with _Flops() as flops:
        loss.backward()
    traced.backward = flops.counts
    return traced


@contextmanager
def _calls(model: nn.Module, traced: Trace) -> Iterator[None]:
    def record(module: nn.Module, args: Any, out: Any) -> None:
        traced.modules.append((module, tuple(args[0].shape), tuple(out.shape)))

    leaves = [m for m in model.modules() if not list(m.children())]
    handles = [m.register_forward_hook(record) for m in leaves]
    yield
    for handle in handles:
        handle.remove()
