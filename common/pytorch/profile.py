"""Profiles a training step with PyTorch's profiler: the network's module for each operation, and the all-reduces
of DistributedDataParallel with their buckets and the part not hidden by computation."""

import math
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mlhpc.benchmarks.schema import DdpTraining
from mlhpc.common.kernels.operators import StandIn
from mlhpc.common.pytorch.devices import (
    RUNTIME_CALLS,
    activities,
    forget_peak,
    name_of,
    peak_memory,
    wait_for,
)
from mlhpc.common.pytorch.step import make_scaler, make_train_step, set_rate, wrap_ddp
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.profile import (
    Exchange,
    Feed,
    Launch,
    Part,
    Profile,
    Request,
    Work,
    by_size,
    covered,
    plain_seconds,
)

_MODULE = "module: "
_BACKWARD = "autograd::engine::evaluate_function"
_COMMUNICATION = ("nccl:", "xccl:", "gloo:", "c10d::", "ncclDevKernel")
_COPIES = ("aten::copy_", "aten::to", "aten::_to_copy")


def profile_training(
    training: DdpTraining,
    model: nn.Module,
    modules: Sequence[str],
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    feed: Feed,
    request: Request,
    world: World,
) -> Profile:
    """Profile ``request.steps`` training steps of ``model``, which is not compiled, on batches from ``feed``,
    after one warm-up step. ``modules``: the result of ``modules_in_order``. Called by all ranks. Batches have the
    shapes that ``loss_of`` expects: [batch, ...].

    A forward operation belongs to the innermost module whose call encloses it, a backward operation to the module
    of the forward operation with the same sequence number. On a GPU, an operation's time is that of its kernels.
    ``request.trace``: where to write the trace for chrome://tracing and Perfetto.
    """
    device = next(model.parameters()).device
    gpu, steps, trace = device.type != "cpu", request.steps, request.trace
    wrapped = wrap_ddp(model, world, training.bucket_cap_mib)
    scaler = (
        GradScaler(device.type, enabled=training.precision == "mixed_float16")
        if request.counted
        else make_scaler(training.precision, device)
    )
    step = make_train_step(
        wrapped,
        loss_of,
        optimizer,
        scaler,
        training.precision,
        layout=torch.channels_last if training.channels_last else torch.contiguous_format,
        accumulate=request.passes,
    )
    buckets = BucketTimes.watch(wrapped, on_host=not gpu)

    def update() -> None:
        for _ in range(request.passes):
            step(*feed.next())

    update()
    if request.counted:
        set_rate(optimizer, 0.0)
        with LaunchCounter() as counter:
            set_rate(optimizer, 0.0)
            update()
        return Profile("", request.batch, 1, 0.0, tuple(modules), (), launches=tuple(counter.launches))
    wait_for(device)
    forget_peak(device)
    plain = plain_seconds(update, lambda _: wait_for(device), steps)
    peak = peak_memory(device)
    if buckets:
        buckets.start()
    feed.start()
    with _named(model):
        profiler, wall = _profiled(update, device, steps)
    if trace:
        trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(trace))
    exchange = buckets.exchange(steps) if buckets else None
    return Profile(
        device=name_of(device),
        batch=request.batch,
        steps=steps,
        wall=wall,
        modules=tuple(modules),
        work=tuple(_exposed(_work(profiler.events() or (), steps, gpu), exchange)),
        exchange=exchange,
        reading=feed.reading(steps, request.passes),
        plain=plain,
        memory=peak,
        passes=request.passes,
        gpu=gpu,
    )


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Context manager inside which tensors have neither memory nor values, so that a step of any size can be
    counted on any machine."""
    with StandIn(allow_non_fake_inputs=True), LaunchCounter():
        yield


NO_KERNELS = ("detach", "empty", "lift", "new_empty", "device", "_record_function", "bernoulli_", "div_")
"""Prefixes of operations, besides views, that launch nothing on a GPU; the last two are a CPU's dropout."""
FOREACH_NORM = 3  # clear the result, sum parts, add these sums
CONCATENATED = {True: 128, False: 64}
"""Maximum number of tensors that one kernel concatenates, for contiguous and other tensors (PyTorch, Shape.cu)."""
NORMALISATIONS = {"native_batch_norm": 4, "native_batch_norm_backward": 3}
"""Number of kernels of PyTorch's own batch norm, used in bfloat16; in other precisions it is one call to cuDNN."""
FUSED = {"batch_norm": 2, "batch_norm_backward": 2, "pool_backward": 2, "_foreach_norm": FOREACH_NORM}


class LaunchCounter(TorchDispatchMode):
    """Counts what PyTorch would launch on a GPU for operations on fake CPU tensors. This needs neither a device
    nor any arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []
        self._last = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            # Fake tensors have no values. Answer that no weight drawn is an outlier and that all rates are valid.
            return 0 if self._last in ("any", "lt") else 1
        self._last = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        if self._last in ("convolution", "convolution_backward"):
            result = _laid_out(result, args[self._last == "convolution_backward"])
        launched = not (func.is_view or self._last.startswith(NO_KERNELS))
        if launched and any(isinstance(each, Tensor) for each in tree_leaves((args, result))):
            self.launches.append(_launch(func, args, kwargs or {}, result))
        return result


def _laid_out(result: Any, x: Tensor) -> Any:
    """The results of a convolution in the memory layout of ``x``. cuDNN always keeps that layout, a CPU only in
    some precisions."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()]
    if not x.is_contiguous(memory_format=last):
        return result
    if isinstance(result, Tensor):
        return result.contiguous(memory_format=last)
    return tuple(
        each.contiguous(memory_format=last) if each is not None and each.dim() == x.dim() else each
        for each in result
    )


def _launch(func: Any, args: Any, kwargs: Any, result: Any) -> Launch:
    name = func.overloadpacket.__name__
    given = _tensors((args, kwargs))
    # An operation in place may return nothing. A fused optimizer writes gradients only if it unscales them.
    unscales = kwargs.get("grad_scale") is not None
    written = [
        value
        for value, argument in zip(args, func._schema.arguments, strict=False)
        if argument.is_write and (unscales or argument.name != "grads")
    ]
    made = _tensors(result) or _tensors(written) or given[:1]
    read = {id(each): each for each in given}
    if name.startswith(("fill", "zero", "copy", "_foreach_copy")):  # the first tensor is only written
        for each in tree_leaves(args[0]):
            read.pop(id(each), None)
    return Launch(
        name,
        str(made[0].dtype).removeprefix("torch."),
        tuple(made[0].shape),
        _kernels(name, args, given),
        sum(map(_stored, (*read.values(), *made))),
        _products(name, args, made),
    )


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def _stored(tensor: Tensor) -> int:
    """Bytes in memory of a tensor of any shape; a broadcast tensor takes less memory than its number of elements
    suggests."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _kernels(name: str, args: Any, given: Sequence[Tensor]) -> int:
    if name == "convolution_backward":
        return int(sum(args[-1]))
    if name in NORMALISATIONS:
        return NORMALISATIONS[name] if given[0].dtype == torch.bfloat16 else 1
    if name in ("cat", "stack"):
        return math.ceil(len(given) / CONCATENATED[all(each.is_contiguous() for each in given)])
    return FUSED.get(name, 1)


def _products(name: str, args: Any, made: Sequence[Tensor]) -> int:
    """FLOPs of an operation, counting a multiplication and an addition as 2. Each gradient of a convolution takes
    as many FLOPs as the convolution itself."""
    if name in ("convolution", "convolution_backward"):
        backward = name != "convolution"
        x, weight, transposed = args[backward], args[backward + 1], args[6 + backward]
        across = x if transposed else (args[0] if backward else made[0])
        return int(2 * across.numel() * weight[0].numel() * (sum(args[-1][:2]) if backward else 1))
    if name in ("mm", "addmm"):
        inner = args[-1 if name == "mm" else -2].shape[0 if name == "mm" else 1]
        return 2 * made[0].numel() * int(inner)
    return 0


def _profiled(update: Callable[[], None], device: torch.device, steps: int) -> tuple[profile, float]:
    """The profiler after recording ``steps`` calls of ``update``, and the seconds per call."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler clears events.*")
        with profile(activities=activities(device)) as profiler:
            begin = time.perf_counter()
            for _ in range(steps):
                update()
            wait_for(device)
            return profiler, (time.perf_counter() - begin) / steps


def _exposed(work: Iterator[Work], exchange: Exchange | None) -> Iterator[Work]:
    """``work``, with its communication replaced by the part of the exchange that was measured as not hidden,
    because gloo's own ranges overlap with computation."""
    if exchange is None or exchange.exposed is None:
        yield from work
        return
    yield from (each for each in work if each.part != "communication")
    calls = sum(message.calls for message in exchange.messages)
    yield Work("communication", "", "all-reduce, not hidden", exchange.exposed, calls)


@dataclass
class _Bucket:
    bytes: int
    begin: float
    end: float = 0.0


@dataclass
class BucketTimes:
    """Times the all-reduce of each bucket on the host. With a GPU the host cannot see the end of an all-reduce, so
    only sizes are measured."""

    world_size: int
    on_host: bool
    buckets: list[_Bucket] = field(default_factory=list)

    @classmethod
    def watch(cls, model: nn.Module, on_host: bool) -> "BucketTimes | None":
        """Timers for the buckets of ``model``, which comes from ``wrap_ddp``; None if the model exchanges
        nothing."""
        if not isinstance(model, DistributedDataParallel):
            return None
        times = cls(dist.get_world_size(), on_host)
        model.register_comm_hook(None, times._all_reduce)
        return times

    def start(self) -> None:
        """Discard the times recorded so far."""
        self.buckets.clear()

    def exchange(self, steps: int) -> Exchange:
        """Mean values of the exchange per step, over the ``steps`` steps since ``start``."""
        per_step = len(self.buckets) // steps
        rounds = [self.buckets[n * per_step : (n + 1) * per_step] for n in range(steps)] if per_step else []
        messages = by_size(
            ((b.bytes, b.end - b.begin if self.on_host else None) for b in self.buckets), steps
        )
        if not self.on_host:
            return Exchange(messages, None, None)
        # The last bucket is sent when the last gradient is complete; nothing hides the transfers after that.
        exposed = sum(max(b.end for b in each) - each[-1].begin for each in rounds) / steps
        under_way = covered((b.begin, b.end) for b in self.buckets) / steps
        return Exchange(messages, exposed, under_way)

    def _all_reduce(
        self,
        _: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> Future[Tensor]:
        buffer = bucket.buffer()
        times = _Bucket(buffer.nbytes, time.perf_counter())
        self.buckets.append(times)
        work: Any = dist.all_reduce(buffer.div_(self.world_size), async_op=True)

        def done(future: Future[list[Tensor]]) -> Tensor:
            times.end = time.perf_counter()
            return future.value()[0]

        shared: torch.futures.Future[Tensor] = work.get_future().then(done)
        return shared


def modules_in_order(model: nn.Module, x: torch.Tensor) -> list[str]:
    """Names of the modules that have weights of their own, in the order in which ``model`` calls them for the
    batch ``x`` [batch, ...]."""
    names: list[str] = []
    handles = []
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            handles.append(module.register_forward_hook(lambda *_, name=name: names.append(name)))
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return names


@contextmanager
def _named(model: nn.Module) -> Iterator[None]:
    """Context manager in which every call of a module of ``model`` becomes a range in the trace."""
    ranges: list[Any] = []

    def enter(name: str) -> None:
        ranges.append(record_function(_MODULE + name))
        ranges[-1].__enter__()

    handles = []
    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: enter(name)))
            handles.append(module.register_forward_hook(lambda *_: ranges.pop().__exit__(None, None, None)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _work(events: Sequence[Any], steps: int, gpu: bool) -> Iterator[Work]:
    seconds: defaultdict[tuple[Part, str, str], float] = defaultdict(float)
    calls: Counter[tuple[Part, str, str]] = Counter()
    on_host = [event for event in events if event.device_type.name == "CPU"]
    modules = {e.sequence_nr: _module(e) for e in on_host if e.sequence_nr >= 0 and not _root(e, _BACKWARD)}
    for event in on_host:
        own = event.self_device_time_total if gpu else event.self_cpu_time_total
        if own <= 0 or (gpu and event.name.startswith(RUNTIME_CALLS)):
            continue
        backward = _outermost(event, _BACKWARD)
        part, module = _place(event, backward, modules)
        key = part, module, _operation(event)
        seconds[key] += own / 1e6
        calls[key] += 1
    for key, total in seconds.items():
        yield Work(*key, total / steps, calls[key] / steps)


def _place(event: Any, backward: Any, modules: dict[int, str]) -> tuple[Part, str]:
    if any(event.name.startswith(prefix) for prefix in _COMMUNICATION):
        return "communication", ""
    if _root(event, "Optimizer."):
        return "optimizer", ""
    if backward:
        return "backward", modules.get(backward.sequence_nr, "")
    if module := _module(event):
        return "forward", module
    return ("input", "") if event.name in _COPIES else ("other", "")


def _module(event: Any) -> str:
    range_ = _root(event, _MODULE)
    return str(range_.name.removeprefix(_MODULE)) if range_ else ""


def _root(event: Any, prefix: str) -> Any:
    """The innermost event, of ``event`` itself and those that enclose it, whose name begins with ``prefix``; None
    if there is none."""
    while event is not None and not event.name.startswith(prefix):
        event = event.cpu_parent
    return event


def _outermost(event: Any, prefix: str) -> Any:
    """Like ``_root``, but the outermost such event: a backward pass that recomputes activations has nested
    nodes."""
    outermost = None
    while event := _root(event, prefix):
        outermost, event = event, event.cpu_parent
    return outermost


def _operation(event: Any) -> str:
    """The operation's name. Ranges and autograd nodes count only their self time, between the operations that they
    call."""
    if event.name.startswith((_MODULE, _BACKWARD, "Optimizer.")):
        return "between operations"
    return str(event.name)
