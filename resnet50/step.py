"""One training step and one evaluation step, on a CPU or a GPU, of one rank or many."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from mlhpc.common.errors import UserError
from mlhpc.common.ranks.world import World, mean

TrainStep = Callable[[Tensor, Tensor], Tensor]
EvalStep = Callable[[Tensor, Tensor], Tensor]

DTYPES = {"float32": None, "mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}


def pick_device(choice: str, local_rank: int) -> torch.device:
    """``training.device``: "cpu", "cuda" (the rank's own GPU of its node), or "auto": a GPU if there is one.

    Raises ``UserError`` when "cuda" is asked for and PyTorch sees no GPU.
    """
    gpus = torch.cuda.device_count()
    if choice == "cpu" or (choice == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise UserError("training.device cuda needs a GPU, and PyTorch sees none; take cpu or auto")
    return torch.device("cuda", local_rank % gpus)


def make_scaler(precision: str, device: torch.device) -> GradScaler:
    """Dynamic loss scaling for float16, and one that does nothing for the other precisions.

    Raises ``UserError`` for float16 without a GPU: CPUs have bfloat16.
    """
    if precision == "mixed_float16" and device.type == "cpu":
        raise UserError("training.precision mixed_float16 needs a GPU; on a CPU take mixed_bfloat16")
    return GradScaler(device.type, enabled=precision == "mixed_float16")


def share(model: nn.Module, world: World) -> nn.Module:
    """The model with gradients averaged over ranks while they are computed, or itself for one rank. Batch
    norm's statistics stay each rank's own."""
    if world.size == 1:
        return model
    return DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)


def make_train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    precision: str = "float32",
    *,
    label_smoothing: float = 0.1,
    accumulate: int = 1,
    compiled: bool = False,
) -> TrainStep:
    """``(x float32 [b, 3, H, W], y int64 [b]) -> loss``, which updates the weights every ``accumulate`` calls
    with the mean gradient of these calls, and of the ranks when ``model`` is ``share``'s.

    The loss is cross entropy with ``label_smoothing`` spread over all classes (Szegedy et al. 2016, section
    7; 0.1 in the MLPerf reference). It is this rank's, a float32 scalar left on the device: nothing waits for
    a GPU. Matrix work is done in ``precision``; weights, batch norm's statistics, loss and optimizer stay
    float32.
    """
    forward = torch.compile(model) if compiled else model
    device = next(model.parameters()).device
    calls = 0

    def step(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        last = calls % accumulate == 0
        if not model.training:
            model.train()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        alone = None if last else model
        with alone.no_sync() if isinstance(alone, DistributedDataParallel) else nullcontext():
            with _autocast(device, precision):
                logits = forward(x)
            loss = F.cross_entropy(_precise(logits), y, label_smoothing=label_smoothing)
            torch.autograd.backward(scaler.scale(loss / accumulate if accumulate > 1 else loss))
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss.detach()

    return step


def make_eval_step(model: nn.Module, precision: str = "float32", *, compiled: bool = False) -> EvalStep:
    """``(x, y) -> images whose class has the largest logit``, shapes as in ``make_train_step``.

    The number is an integer on the device. Ranks may call it as often as each has batches.
    """
    forward = torch.compile(model) if compiled else model
    device = next(model.parameters()).device

    @torch.no_grad()
    def step(x: Tensor, y: Tensor) -> Tensor:
        if model.training:
            model.eval()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with _autocast(device, precision):
            logits = forward(x)
        return torch.eq(logits.argmax(1), y).sum()

    return step


@torch.no_grad()
def average_statistics(model: nn.Module, world: World) -> None:
    """Give every rank the mean over ranks of batch norm's running means and variances, so that all evaluate
    one model. Called by all ranks."""
    running = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if world.size == 1 or not running:
        return
    shared = mean(world, torch.cat([buffer.flatten() for buffer in running]).double().cpu().numpy(), weight=1)
    parts = torch.split(torch.from_numpy(shared), [buffer.numel() for buffer in running])
    for buffer, part in zip(running, parts, strict=True):
        buffer.copy_(part.view_as(buffer))


def warm_up(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    train_step: TrainStep,
    eval_step: EvalStep,
    sample_shape: tuple[int, ...],
    *,
    train_batch: int,
    eval_batch: int,
    accumulate: int = 1,
) -> None:
    """Run both steps on zeros, which compiles what is to be, and put back all that it changed.

    Weights, batch norm's statistics, optimizer state, loss scale and random state are afterwards what they
    were, bit for bit. No data set is touched: this may be done before the clock starts (MLPerf training
    rules, "Run Results"). With several ranks all must call it, for gradients are averaged.
    ``sample_shape`` is rows, columns, channels.
    """
    with kept(model, optimizer, scaler):
        for step, batch, times in ((train_step, train_batch, accumulate), (eval_step, eval_batch, 1)):
            x = torch.zeros((batch, *sample_shape)).permute(0, 3, 1, 2)
            y = torch.zeros(batch, dtype=torch.int64)
            for _ in range(times):
                step(x, y)


@contextmanager
def kept(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: GradScaler) -> Iterator[None]:
    """Put weights, buffers, optimizer, loss scale and random state back, in place, at the end.

    State that the optimizer has only made since is set to zero, which is where a momentum begins.
    """
    before = [(tensor, tensor.clone()) for tensor in (*model.parameters(), *model.buffers())]
    state = {id(tensor): tensor.clone() for tensor in _state(optimizer)}
    scale, training = scaler.state_dict(), model.training
    gpus = sorted({tensor.device.index for tensor, _ in before if tensor.device.type == "cuda"})
    with torch.random.fork_rng(devices=gpus):
        yield
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value)
        for tensor in _state(optimizer):
            if id(tensor) in state:
                tensor.copy_(state[id(tensor)])
            else:
                tensor.zero_()
    scaler.load_state_dict(scale)
    model.train(training)


def _state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in values if isinstance(value, Tensor)]


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    dtype = DTYPES[precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
