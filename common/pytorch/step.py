"""The training step and the evaluation step, on a CPU or a GPU, for one rank or many."""

import math
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from mlhpc.benchmarks.schema import DdpTraining, Run
from mlhpc.common.host.compiler import require_compiler
from mlhpc.common.pytorch.buffers import page_lock
from mlhpc.common.pytorch.devices import (
    StreamEvent,
    mover,
    name_of,
    oom_as_user_error,
)
from mlhpc.common.pytorch.foreach import on_cpu, with_weights_together
from mlhpc.common.pytorch.state import preserve_state
from mlhpc.common.ranks.world import World, mean
from mlhpc.common.timing.steps import MAX_IN_FLIGHT
from mlhpc.common.training.emulation import WaitingStep
from mlhpc.common.training.epoch import total
from mlhpc.errors import UserError, few, say_at_once
from mlhpc.quantities import count, seconds_text

Measured = TypeVar("Measured")
Step = Callable[[Tensor, Tensor], Measured]
"""A step on fields or images [b, channels, H, W] and their labels."""
State = tuple[nn.Module, torch.optim.Optimizer, GradScaler, World]


class Captured(Protocol):
    """Turns ``work`` on a batch into a function that replays it. The result of an ``evaluation`` is valid until
    the next replay; a batch smaller than the captured one is computed together with samples of earlier ones."""

    def __call__(self, work: Callable[..., Tensor], *, evaluation: bool = False) -> Callable[..., Tensor]: ...


class Steps(NamedTuple, Generic[Measured]):
    """One training step, ``(x, y) -> loss``, and one evaluation step, ``(x, y) -> measure(logits, y)``."""

    train: Step[Tensor]
    evaluate: Step[Measured]


class WarmUpSizes(NamedTuple):
    """Samples per training pass and per evaluation step, passes per step, number of batches read ahead in
    page-locked memory, and whether the ``x`` of these batches is decoded on the device."""

    train: int
    evaluation: int
    accumulate: int = 1
    prefetch: int = 0
    decoded: bool = False


SLOW = 5.0
"""An accelerator is reported if it takes more than this multiple of the median rank's time. Accelerators of one
model differ by up to 22%, with outliers of 1.5 times (Sinha et al. 2022, "Not All GPUs Are Created Equal")."""

TOGETHER = 25 * 2**20
"""With several ranks, bytes of weights whose gradients become ready together: DistributedDataParallel's bucket
size."""

DTYPES = {"float32": None, "mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}


def make_scaler(precision: str, device: torch.device) -> GradScaler:
    """Dynamic loss scaling for float16; a no-op scaler for the other precisions.

    Raises ``UserError`` for float16 without a GPU; a CPU can use bfloat16.
    """
    if precision == "mixed_float16" and device.type == "cpu":
        raise UserError("training.precision=mixed_float16 needs a GPU; on a CPU use mixed_bfloat16")
    return GradScaler(device.type, enabled=precision == "mixed_float16")


def wrap_ddp(model: nn.Module, world: World, bucket_cap_mib: float | None = None) -> nn.Module:
    """The model, wrapped so that gradients are averaged over ranks while they are computed; with a single rank,
    the model itself.

    ``bucket_cap_mib``: maximum size of one all-reduce in MiB (None: PyTorch's default). Wrap the model again after
    freezing weights. Batch norm's statistics are not averaged.
    """
    if world.size == 1:
        return model
    # PyTorch's "mb" are MiB. None differs from 25: the first bucket is then 1 MiB, so that sending starts early.
    return DistributedDataParallel(
        model, broadcast_buffers=False, gradient_as_bucket_view=True, bucket_cap_mb=bucket_cap_mib
    )


def averages_buckets(model: nn.Module) -> bool:
    """Make ``model``, from ``wrap_ddp``, average whole buckets of gradients; DistributedDataParallel would scale
    each gradient separately. Returns whether the model now averages buckets; it does not with a single rank, nor
    on CPUs."""
    if not isinstance(model, DistributedDataParallel) or on_cpu(next(model.parameters())):
        return False
    model.register_comm_hook(None, lambda _, bucket: _average(bucket.buffer()))
    return True


def _average(gradients: Tensor) -> torch.futures.Future[Tensor]:
    if gradients.device.type == "cpu":
        work: Any = dist.all_reduce(gradients.div_(dist.get_world_size()), async_op=True)
    else:  # NCCL scales while it adds
        work = dist.all_reduce(gradients, dist.ReduceOp.AVG, async_op=True)
    averaged: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return averaged


def make_steps(
    state: State,
    training: DdpTraining,
    *,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    measure: Callable[[Tensor, Tensor], Measured],
    accumulate: int = 1,
    captured: Captured | None = None,
) -> Steps[Measured]:
    """The steps of the model with the run's settings and with gradients averaged over ranks. Call it again after
    freezing weights. ``captured`` is applied to the training step and to the network in evaluation."""
    model, optimizer, scaler, world = state
    layout = torch.channels_last if training.channels_last else torch.contiguous_format
    wrapped = wrap_ddp(model, world, training.bucket_cap_mib)
    train = make_train_step(
        wrapped,
        loss_of,
        optimizer,
        scaler,
        training.precision,
        layout=layout,
        accumulate=accumulate,
        compiled=training.compile,
        in_place=accumulate == 1 and not training.compile and averages_buckets(wrapped),
    )
    if captured:
        train = captured(train)
    evaluate = make_eval_step(
        model,
        measure,
        training.precision,
        batch=training.eval_batch_size,
        layout=layout,
        compiled=training.compile,
        captured=captured,
    )
    return Steps(train, evaluate)


def waiting_steps(run: Run, world: World, measure: Callable[[int], Any]) -> Steps[Any]:
    """Steps that only wait, for as long as ``run.emulation`` says. The loss is 0, and an evaluation returns
    ``measure(samples)``. Ranks synchronise once per training step, after ``run.backward_passes`` calls."""
    return Steps(*WaitingStep.pair(run, world, torch.zeros(()), measure))


def make_train_step(
    model: nn.Module,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    precision: str = "float32",
    *,
    layout: torch.memory_format = torch.preserve_format,
    accumulate: int = 1,
    compiled: bool = False,
    in_place: bool = False,
) -> Step[Tensor]:
    """A step ``(x, y) -> loss`` that updates the weights every ``accumulate`` calls with the mean gradient of
    these calls, and of all ranks if ``model`` comes from ``wrap_ddp``.

    The loss, ``loss_of(logits, y)``, is this rank's, a scalar that remains on the device, so that nothing waits
    for a GPU. Matrix products use ``precision``; weights, batch norm's statistics, loss and optimizer stay in
    float32. ``x`` may be delivered in float16 or bfloat16: it is converted to float32 on the device, and
    ``precision`` governs all later operations. ``layout``: memory layout of ``x`` on the device. ``compiled``:
    compile the network. ``in_place``: keep the gradients of the previous step and overwrite them, in the buckets
    of a model from ``wrap_ddp`` for which ``averages_buckets`` is true. The step raises UserError if a GPU has too
    little memory.
    """
    device = next(model.parameters()).device
    inner = _unwrapped(model)  # its mode matters, which another wrapper of the same model may have changed
    forward, move = _compile(model, device, compiled), mover(device)
    plain = compiled or on_cpu(next(model.parameters()))
    if not plain and (DTYPES[precision] or in_place):
        together = math.inf if inner is model else TOGETHER
        forward = with_weights_together(model, DTYPES[precision], together, in_place)
    calls = 0

    def step(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        last = calls % accumulate == 0
        if not inner.training:
            inner.train()
        with _enough_memory(len(x), "a smaller batch per pass"):
            x, y = _ready(move(x), layout), move(y)
            with _unshared(model, not last):
                with _autocast(device, precision):
                    logits = forward(x)
                loss = loss_of(logits, y)
                scaler.scale(loss / accumulate if accumulate > 1 else loss).backward()
            if last:
                scaler.step(optimizer)
                scaler.update()
                if not in_place:
                    optimizer.zero_grad()
        return loss.detach()

    return step


def make_eval_step(
    model: nn.Module,
    measure: Callable[[Tensor, Tensor], Measured],
    precision: str = "float32",
    *,
    batch: int = 1,
    layout: torch.memory_format = torch.preserve_format,
    compiled: bool = False,
    captured: Captured | None = None,
) -> Step[Measured]:
    """A step ``(x, y) -> measure(logits, y)``, computed on the device; shapes as in ``make_train_step``. Ranks may
    have different numbers of batches.

    Code is compiled, and a GPU's fastest convolutions are selected, for ``batch`` samples; smaller batches are
    padded with zeros, which are not measured. Otherwise a rank's last batch would trigger another compilation
    while the clock is running.
    """
    inner = _unwrapped(model)
    device = next(model.parameters()).device
    compute, move = _compile(inner, device, compiled), mover(device)
    filled = batch if compiled or device.type != "cpu" else 1

    @torch.no_grad()
    def forward(x: Tensor) -> Tensor:
        if inner.training:
            inner.eval()
        x = move(x)
        if len(x) < filled:
            x = F.pad(x, (*(0, 0) * (x.dim() - 1), 0, filled - len(x)))
        with _autocast(device, precision):
            return compute(_ready(x, layout))

    if captured:
        forward = captured(forward, evaluation=True)

    @torch.no_grad()
    def step(x: Tensor, y: Tensor) -> Measured:
        with _enough_memory(max(len(x), filled), "a smaller training.eval_batch_size"):
            logits, y = forward(x), move(y)
            with _autocast(device, precision):
                return measure(logits[: len(y)], y)

    return step


def warm_up(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    world: World,
    steps: Steps[Measured],
    zeros: Callable[[int], tuple[Tensor, Tensor]],
    sizes: WarmUpSizes,
) -> None:
    """Run both steps on ``zeros(samples)``, which compiles the steps, and restore everything that they change.
    With an accelerator, also run the other operations of an epoch, whose code is loaded on first use, and
    page-lock the memory of the batches. Prints which ranks have a slow accelerator.

    Weights, batch norm's statistics, optimizer state, loss scale and random state are restored bit for bit.
    No data set is accessed, so this is allowed before the clock starts (MLPerf HPC training rules, initialisation;
    MLPerf training rules, "Run Results"). Called by all ranks, because gradients are averaged.
    """
    device = next(model.parameters()).device
    with preserve_state(model, optimizer, scaler):
        losses = [steps.train(*zeros(sizes.train)) for _ in range(sizes.accumulate)]
        results: list[Any] = [steps.evaluate(*zeros(sizes.evaluation))]
        if device.type != "cpu":
            results.append(steps.evaluate(*zeros(1)))  # runs other kernels than several samples do
            total([result[0] if isinstance(result, tuple) else result for result in results])
            gather_losses(2 * losses, world)
            average_statistics(model, world)
    if device.type != "cpu":
        _page_lock(zeros, sizes)
        report_slow_devices(lambda: steps.evaluate(*zeros(sizes.evaluation)), device, world)


def _page_lock(zeros: Callable[[int], tuple[Tensor, Tensor]], sizes: WarmUpSizes) -> None:
    """Page-lock the memory of an epoch's batches; the last batch of an evaluation may be smaller than the
    others."""
    # Besides the batches read ahead: one being read, one in the loop, and those whose steps are in flight.
    many = sizes.prefetch + 2 + MAX_IN_FLIGHT
    both = (sizes.train, sizes.evaluation)
    parts = {size: [part.nbytes for part in zeros(size)[sizes.decoded :]] for size in both}
    page_lock(max(parts[sizes.evaluation]), 1, [nbytes for each in parts.values() for nbytes in each * many])


def report_slow_devices(work: Callable[[], object], device: torch.device, world: World) -> None:
    """Name the ranks whose accelerator takes more than ``SLOW`` times as long for ``work`` as that of the median
    rank. In a training step all ranks take as long as the slowest, so ``work`` must not contain collectives.
    Called by all ranks."""
    if world.size == 1:
        return
    seconds = []
    for _ in range(3):
        begin = StreamEvent(device)
        work()
        seconds.append(StreamEvent(device).seconds_since(begin))
    each = world.gather((min(seconds), f"{socket.gethostname()}, {name_of(device)} ({device})"))
    usual = sorted(each)[(world.size - 1) // 2][0]
    slow = [
        f"rank {rank} on {where} is slow in phase 'init': an evaluation step takes {own / usual:.0f} times the "
        f"{seconds_text(usual)} of the median rank; look at its clocks (nvidia-smi -q -d PERFORMANCE)"
        for rank, (own, where) in enumerate(each)
        if own > SLOW * usual
    ]
    if slow and world.rank == 0:
        say_at_once(few(slow, 8, "; "))


def gather_losses(losses: Sequence[Tensor], world: World) -> tuple[npt.NDArray[np.float64], float]:
    """This rank's ``losses`` of an epoch, [steps], on the host, and the mean over all ranks, which have equal
    numbers of losses. Waits for the device. Called by all ranks."""
    own = torch.stack(list(losses)).double().cpu().numpy()
    (average,) = mean(world, own.mean(), weight=1)
    return own, float(average)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate. A rate that is a tensor is changed in place, so that a captured graph uses the new
    value, without waiting for the device."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@torch.no_grad()
def average_statistics(model: nn.Module, world: World) -> None:
    """Set batch norm's running means and variances to their mean over ranks, in one all-reduce, so that all ranks
    evaluate the same model. Called by all ranks before an evaluation (as in the MLPerf HPC reference,
    utils/bnstats.py)."""
    running = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if world.size == 1 or not running:
        return
    own = torch.cat([buffer.flatten() for buffer in running]).double()
    shared = torch.from_numpy(mean(world, own.cpu().numpy(), weight=1)).to(own.device)
    for buffer, part in zip(running, shared.split([buffer.numel() for buffer in running]), strict=True):
        buffer.copy_(part.view_as(buffer))


def _unshared(model: nn.Module, waits: bool) -> AbstractContextManager[None]:
    """Context manager in which, if ``waits``, gradients are accumulated without averaging them over ranks."""
    return model.no_sync() if waits and isinstance(model, DistributedDataParallel) else nullcontext()


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model without the wrapper of ``wrap_ddp``."""
    inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


def _compile(model: nn.Module, device: torch.device, compiled: bool) -> Callable[[Tensor], Tensor]:
    if not compiled:
        return model
    require_compiler(gpu=device.type != "cpu")
    # Compiled for the actual sizes, since code for dynamic shapes is slower.
    return torch.compile(model, dynamic=False)


def _enough_memory(samples: int, smaller: str) -> AbstractContextManager[None]:
    """Context manager that raises UserError if there is too little memory; its advice is ``smaller`` if there are
    several samples."""
    what = f"{count(samples, 'sample')} at once"
    return oom_as_user_error(what, smaller if samples > 1 else "")


def _ready(x: Tensor, layout: torch.memory_format) -> Tensor:
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return x.to(memory_format=layout) if x.dim() == 4 else x


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    dtype = DTYPES[precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
