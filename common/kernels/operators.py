"""PyTorch operators whose kernels are written in Triton. Triton is imported when an operator is first called on
real tensors; fake tensors (``common/pytorch/profile.py``) need only the shapes."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode

from mlhpc.common.host.compiler import require_compiler
from mlhpc.errors import UserError


class StandIn(FakeTensorMode):
    """Fake CPU tensors that are treated as GPU tensors; they have shapes, but neither memory nor values."""


def stands_in(x: Tensor) -> bool:
    """Return whether ``x``, of any shape, is such a fake tensor (``StandIn``)."""
    return isinstance(x, FakeTensor) and isinstance(x.fake_mode, StandIn)


def define(name: str, schema: str, function: str, shapes: Callable[..., Any]) -> Callable[..., Any]:
    """Define ``torch.ops.mlhpc.NAME``, computed by ``function`` (MODULE:NAME). ``shapes`` returns uninitialised
    results for fake tensors. Returns a function that calls the operator for fake tensors, and otherwise
    ``function`` itself, which takes less time on the host."""
    module, _, attribute = function.partition(":")

    @cache
    def compute() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(module), attribute)
        return found

    def call(x: Tensor, *rest: Any) -> Any:
        return operator(x, *rest) if stands_in(x) else compute()(x, *rest)

    torch.library.define(f"mlhpc::{name}", schema)
    torch.library.impl(f"mlhpc::{name}", "default", lambda *args: compute()(*args))
    torch.library.register_fake(f"mlhpc::{name}", shapes)
    operator = getattr(torch.ops.mlhpc, name)
    return call


def run_on(x: Tensor) -> bool:
    """Return whether the operators defined here can run on ``x``, of any shape: ``x`` must be on a GPU, the
    network must not be compiled, and Triton must be installed and able to compile kernels."""
    if torch.compiler.is_compiling():
        return False
    return stands_in(x) or (x.is_cuda and _has_triton())


@cache
def _has_triton() -> bool:
    try:
        require_compiler(gpu=True)
    except UserError:
        return False
    return find_spec("triton") is not None
