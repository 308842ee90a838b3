"""One training step and one evaluation step, on a CPU or a GPU, of one rank or many."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from mlhpc.common.errors import UserError
from mlhpc.common.ranks.world import World
from mlhpc.deepcam.metric import iou, weighted_cross_entropy

TrainStep = Callable[[Tensor, Tensor], Tensor]
EvalStep = Callable[[Tensor, Tensor], tuple[Tensor, int]]

DTYPES = {"float32": None, "mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}


def pick_device(choice: str, local_rank: int) -> torch.device:
    """``training.device``: "cpu", "cuda" (the rank's own GPU of its node), or "auto", the GPU where there is one.

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
    """The model with gradients averaged over ranks while they are computed, or itself for one rank.

    Wrap it anew after weights were frozen. Batch norm's statistics stay each rank's own.
    """
    if world.size == 1:
        return model
    return DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without what ``share`` put around it."""
    inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


def make_train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    precision: str = "float32",
    *,
    accumulate: int = 1,
    compiled: bool = False,
    cuda_graphs: bool = False,
) -> TrainStep:
    """``(x float32 [b, channels, H, W], y integer [b, H, W]) -> loss``, which updates the weights every
    ``accumulate`` calls with the mean gradient of these calls, and of the ranks when ``model`` is ``share``'s.

    The loss is this rank's, a float32 scalar left on the device: nothing waits for a GPU. ``first_not_finite``
    finds afterwards where losses went wrong. Matrix work is done in ``precision``; weights, batch norm's
    statistics, loss and optimizer stay float32. ``compiled`` compiles the network; ``cuda_graphs`` has what was
    compiled replayed as CUDA graphs, and does nothing on a CPU.
    """
    device = next(model.parameters()).device
    inner = unwrapped(model)  # its mode counts: a wrapper of the same model may have changed it
    forward = _compile(model, device, compiled, cuda_graphs)
    calls = 0

    def step(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        last = calls % accumulate == 0
        if not inner.training:
            inner.train()
        if cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        waits = isinstance(model, DistributedDataParallel) and not last
        with model.no_sync() if waits else nullcontext():  # type: ignore[operator]
            with _autocast(device, precision):
                logits = forward(x)
            loss = weighted_cross_entropy(logits, y)
            scaler.scale(loss / accumulate if accumulate > 1 else loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss.detach()

    return step


def make_eval_step(
    model: nn.Module, precision: str = "float32", *, compiled: bool = False, cuda_graphs: bool = False
) -> EvalStep:
    """``(x, y) -> (sum of the samples' IoU, how many)``, shapes as in ``make_train_step``.

    The sum is float64 and on the device. Ranks may call it as often as each has batches.
    """
    inner = unwrapped(model)
    device = next(model.parameters()).device
    forward = _compile(inner, device, compiled, cuda_graphs)

    @torch.no_grad()
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        if inner.training:
            inner.eval()
        if cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with _autocast(device, precision):
            logits = forward(x)
        return iou(logits, y, logits.shape[1]).sum(), len(y)

    return step


def first_not_finite(losses: list[Tensor]) -> int | None:
    """The index of the first loss that is NaN or infinite, if any. Waits for the device, once."""
    wrong = ~torch.isfinite(torch.stack(losses))
    return int(wrong.int().argmax()) if wrong.any() else None


def warm_up(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    train_step: TrainStep,
    eval_step: EvalStep,
    sample_shape: tuple[int, int, int],
    *,
    train_batch: int,
    eval_batch: int,
    accumulate: int = 1,
) -> None:
    """Run both steps on zeros, which compiles and captures what is to be, and put back all that it changed.

    Weights, batch norm's statistics, optimizer state, loss scale and random state are afterwards what they
    were, bit for bit. No data set is touched: this may be done before the clock starts (MLPerf HPC training
    rules, initialisation). With several ranks all must call it, for gradients are averaged.
    ``sample_shape`` is rows, columns, channels.
    """
    with kept(model, optimizer, scaler):
        device = next(model.parameters()).device
        rows, columns, _ = sample_shape
        for step, batch, times in ((train_step, train_batch, accumulate), (eval_step, eval_batch, 1)):
            x = torch.zeros((batch, *sample_shape), device=device).permute(0, 3, 1, 2)
            y = torch.zeros((batch, rows, columns), dtype=torch.uint8, device=device)
            for _ in range(times):
                step(x, y)


@contextmanager
def kept(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: GradScaler) -> Iterator[None]:
    """Put weights, buffers, optimizer, loss scale and random state back, in place, at the end.

    State that the optimizer has only made since is set to zero, which is where Adam's begins.
    """
    before = [(tensor, tensor.clone()) for tensor in (*_tensors(model), *optimizer_tensors(optimizer))]
    scale = scaler.state_dict()
    training = model.training
    gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        yield
    known = {id(tensor) for tensor, _ in before}
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value)
        for tensor in optimizer_tensors(optimizer):
            if id(tensor) not in known:
                tensor.zero_()
    scaler.load_state_dict(scale)
    model.train(training)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All tensors of the optimizer's state, in the order of its parameters; those of the groups after them."""
    of_parameters = [
        value
        for group in optimizer.param_groups
        for parameter in group["params"]
        for _, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, Tensor)
    ]
    of_groups = [
        value
        for group in optimizer.param_groups
        for _, value in sorted(group.items())
        if isinstance(value, Tensor)
    ]
    return of_parameters + of_groups


def _compile(
    model: nn.Module, device: torch.device, compiled: bool, cuda_graphs: bool
) -> Callable[[Tensor], Tensor]:
    """With graphs, torch.compile's own ("reduce-overhead"): it captures what can be, forward and backward, keeps
    the memory, and runs the rest as it is. A capture by hand of the whole step would have to take in the
    gradients' all-reduce and their accumulation, for the little that is launched outside these two."""
    graphs = cuda_graphs and device.type == "cuda"
    if not (compiled or graphs):
        return model
    return torch.compile(model, mode="reduce-overhead" if graphs else "default")


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    dtype = DTYPES[precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
