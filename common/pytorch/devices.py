"""The training device of a rank: its selection, streams, events and memory. This is the only vendor-specific file
of the package; the others use ``torch.accelerator`` or these functions.

PyTorch calls NVIDIA's and AMD's devices "cuda" (HIP replaces CUDA in builds for ROCm), Intel's "xpu".
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity

from mlhpc.common.host.accelerators import require_none
from mlhpc.common.timing.runlog import Ranges
from mlhpc.common.timing.steps import RecordEvent
from mlhpc.errors import DeviceLost, UserError

GRAPHS = "training.cuda_graphs"
MIN_NCCL = (2, 9, 6)
ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
Work = Callable[..., Tensor]
Part = tuple[Work, tuple[Tensor, ...]]
Replay = Callable[[], Tensor]
Capture = Callable[[Sequence[Part], bool], list[Replay]]
"""Records the operations of each ``work(*inputs)`` without running them, and returns functions that run them on
the current content of ``inputs``. A result is in the same memory each time, which other replays may overwrite.
With the flag, a capture is tried with several sizes of the pool's memory, and the smallest is kept."""
Fill = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], None]
ARENAS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Sizes of one piece of memory for a capture that are tried, as shares of what it takes in pieces of any size."""
RUNTIME_CALLS = ("cuda", "hip", "ur", "ze")
"""Prefixes of runtime calls in a profile, which launch kernels but compute nothing."""


def accelerator() -> str | None:
    """The kind of accelerator that PyTorch finds, named as in ``training.device``: "cuda", "rocm", "xpu" or
    another of PyTorch's device types; None without an accelerator."""
    if not torch.accelerator.device_count():
        return None
    device = torch.accelerator.current_accelerator()
    assert device is not None
    return "rocm" if device.type == "cuda" and torch.version.hip else device.type


def pick_device(choice: str, local_rank: int) -> torch.device:
    """The device for a ``choice`` of ``training.device``: "cpu", a kind of accelerator (which selects this rank's
    own device on its node), or "auto", the accelerator if there is one.

    "cuda" also means AMD's GPUs, as everywhere in PyTorch. Raises ``UserError`` if PyTorch does not see the chosen
    device, and, for "auto", if the machine has an accelerator that PyTorch does not see.
    """
    seen = accelerator()
    if choice == "auto" and seen is None:
        require_none("PyTorch")
    if choice == "cpu" or (choice == "auto" and seen is None):
        return torch.device("cpu")
    if seen is None or choice not in ("auto", seen, "cuda" if seen == "rocm" else seen):
        sees, instead = (f"only {seen} devices", f"{seen}, ") if seen else ("no accelerator", "")
        raise UserError(f"training.device={choice}: PyTorch sees {sees} here; use {instead}cpu or auto")
    torch.backends.cudnn.benchmark = True  # shapes are constant: ``warm_up`` selects the fastest convolutions
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    # If the launcher makes only one device visible to each rank, that device has number 0.
    device = torch.device(kind.type, local_rank % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    if missing := without_code(device):
        raise UserError(missing)
    return device


def without_code(device: torch.device) -> str:
    """Why kernels of the installed PyTorch cannot run on ``device``, in one line; empty if they can. Machine code
    runs on the architecture that it was compiled for and on later ones of the same generation, PTX ("compute_") on
    all later ones."""
    if device.type != "cuda":
        return ""
    facts, built = torch.cuda.get_device_properties(device), torch.cuda.get_arch_list()
    if torch.version.hip:
        here, remedy = facts.gcnArchName.partition(":")[0], "a build from AMD's repository (repo.radeon.com)"
        runs = here in built
    else:
        capability = facts.major * 10 + facts.minor
        here, remedy = f"sm_{capability}", "its build for CUDA 12.6, whose code is for sm_50 to sm_90"
        codes = [
            (kind, int(number.rstrip("af"))) for kind, _, number in (arch.partition("_") for arch in built)
        ]
        runs = any(n <= capability and (k == "compute" or n // 10 == facts.major) for k, n in codes)
    has = f"PyTorch {torch.__version__} has code for {', '.join(built)}"
    return "" if runs else f"{has}, and none for {facts.name} ({here}): install {remedy}"


def first_device() -> torch.device:
    """The first accelerator, or the CPU if PyTorch finds none."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if device is None else torch.device(device.type, 0)


def place(model: nn.Module, device: torch.device, *, channels_last: bool, dimensions: int = 2) -> None:
    """Move ``model``, whose convolutions have 2 or 3 ``dimensions``, to ``device``, in place, and to the memory
    layout channels-last if ``channels_last``."""
    last = torch.channels_last if dimensions == 2 else torch.channels_last_3d
    for tensor in (*model.parameters(), *model.buffers()):
        layout = last if channels_last and tensor.dim() == dimensions + 2 else torch.preserve_format
        tensor.data = tensor.data.to(device, memory_format=layout)


def name_of(device: torch.device) -> str:
    """The model of ``device``, such as "NVIDIA A100-SXM4-40GB"; for a CPU, its number of threads."""
    if device.type == "cpu":
        return f"CPU, {torch.get_num_threads()} threads"
    return str(torch.get_device_module(device).get_device_name(device))


class StreamEvent:
    """A ``DeviceEvent``: a point in the queue of the current stream of ``device``."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.Event(device, enable_timing=True)
        self._event.record(torch.accelerator.current_stream(device))

    def wait(self) -> None:
        """Wait until the device has reached the event."""
        self._event.synchronize()

    def seconds_since(self, earlier: Self) -> float:
        """Seconds from ``earlier`` to this event on the device; waits for this event."""
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3  # milliseconds


def device_events(device: torch.device) -> RecordEvent | None:
    """A function that records events on ``device``; None for a CPU, whose steps are complete when they return."""
    return None if device.type == "cpu" else lambda: StreamEvent(device)


def device_ranges(device: torch.device) -> Ranges | None:
    """The module that marks the spans of a run for the vendor's profiler: NVTX for Nsight and, in builds for ROCm,
    which map NVTX calls to ROCTX, for rocprof; ITT for VTune. None for a CPU."""
    ranges: dict[str, Ranges] = {"cuda": torch.cuda.nvtx, "xpu": torch.profiler.itt}
    return ranges.get(device.type)


def wait_for(device: torch.device) -> None:
    """Wait until ``device`` has completed its queue."""
    if _is_accelerator(device):
        torch.accelerator.synchronize(device)


def mover(device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function that moves batches, tensors of any shape, to ``device``; for an accelerator, on a separate
    stream, during the previous step. A batch that is already on the device is returned unchanged."""
    if not _is_accelerator(device):
        return lambda batch: batch.to(device)
    copies = torch.Stream(device)

    def move(batch: Tensor) -> Tensor:
        if batch.device == device:
            return batch
        with copies:
            moved = batch.to(device, non_blocking=True)
        computing = torch.accelerator.current_stream(device)
        computing.wait_stream(copies)
        moved.record_stream(computing)  # the other stream owns its memory and must not reuse it yet
        return moved

    return move


def filler(device: torch.device) -> Fill:
    """A function ``fill(held, passed, batch)`` that copies a batch, tensors of any shape, into the first samples
    of ``held`` on ``device``; for an accelerator, through ``passed``, tensors of the same shapes, on a separate
    stream, during the previous step."""
    if not _is_accelerator(device):
        return lambda held, passed, batch: _copy(held, batch)
    copies = torch.Stream(device)

    def fill(held: Sequence[Tensor], passed: Sequence[Tensor], batch: Sequence[Tensor]) -> None:
        with copies:
            _copy(passed, batch)
        computing = torch.accelerator.current_stream(device)
        computing.wait_stream(copies)
        _copy(held, passed)
        copies.wait_stream(computing)  # the next batch passes through the same memory

    return fill


def _copy(held: Sequence[Tensor], batch: Sequence[Tensor]) -> None:
    for memory, part in zip(held, batch, strict=True):
        memory[: len(part)].copy_(part, non_blocking=True)


def peak_memory(device: torch.device) -> int | None:
    """Peak device memory, in bytes, of PyTorch's tensors; None for a CPU."""
    return None if device.type == "cpu" else torch.accelerator.max_memory_allocated(device)


def forget_peak(device: torch.device) -> None:
    """Restart the measurement of ``peak_memory``."""
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)


def random_state(device: torch.device) -> Any:
    """The module with ``get_rng_state`` and ``set_rng_state`` for an accelerator; None for a CPU."""
    return torch.get_device_module(device) if _is_accelerator(device) else None


def kept_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Context manager that, on exit, restores the random states of the host and of ``device``."""
    if not _is_accelerator(device):
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device.index], device_type=device.type)


def without_graphs(device: torch.device, ranks: int) -> str:
    """Why the steps of ``ranks`` ranks on ``device`` cannot be captured; empty if they can. The requirements on
    NCCL are from PyTorch's documentation ("CUDA semantics", "Usage with DistributedDataParallel")."""
    if device.type != "cuda" or torch.version.hip:
        return "it needs an NVIDIA GPU"
    if ranks > 1 and (version := torch.cuda.nccl.version()) < MIN_NCCL:
        return "it needs NCCL {}.{}.{}, not {}.{}.{}".format(*MIN_NCCL, *version)
    handled = ranks > 1 and os.environ.get(ASYNC_ERRORS) != "0"
    return f"it needs {ASYNC_ERRORS}=0 before ranks connect" if handled else ""


def release_memory(device: torch.device) -> None:
    """Give back the memory of an NVIDIA GPU that PyTorch keeps for later tensors, and cuBLAS's workspaces."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def capture_on(device: torch.device) -> Capture:
    """A function that captures work on ``device``, always into the same memory pool. From now on the calling
    thread uses a separate stream, since the default stream cannot be captured; DistributedDataParallel must be
    built and warmed up on that stream."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    torch.cuda.set_stream(stream)
    return _Pool(device)


class _Pool:
    """The memory pool of the graphs on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        self._alive = WeakSet[torch.cuda.CUDAGraph]()

    def __call__(self, parts: Sequence[Part], compact: bool) -> list[Replay]:
        """As ``Capture``."""
        size = self._smallest(parts) if compact else 0
        return self._all_recorded(parts, size)[0]

    def _smallest(self, parts: Sequence[Part]) -> int:
        """The size of the first piece of memory with which the pool becomes smallest; 0: none."""
        release_memory(self._device)
        others = torch.cuda.memory_reserved(self._device)
        most = self._all_recorded(parts, 0)[1]
        tried = (int(share * (most - others)) for share in ARENAS)
        smallest = min([(most, 0), *((self._all_recorded(parts, size)[1], size) for size in tried)])[1]
        torch.cuda.reset_peak_memory_stats(self._device)
        return smallest

    def _all_recorded(self, parts: Sequence[Part], first_piece: int) -> tuple[list[Replay], int]:
        """The replays of ``parts``, and the memory reserved afterwards."""
        release_memory(self._device)  # torch.cuda.graph would give back page-locked batches too
        made = [self._recorded(*part, 0 if n else first_piece) for n, part in enumerate(parts)]
        return made, torch.cuda.memory_reserved(self._device)

    def _recorded(self, work: Work, inputs: tuple[Tensor, ...], first_piece: int) -> Replay:
        if not self._alive:  # once no graph uses a pool, nothing can be captured into it
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self._alive.add(graph)
        # Other threads, such as NCCL's, may still make the calls that this one may not.
        graph.capture_begin(self._pool, capture_error_mode="thread_local")
        try:
            # Freed at once, and divided among what follows.
            torch.empty(first_piece, dtype=torch.uint8, device=self._device)
            result = work(*inputs)
        finally:
            graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()  # those in the pool

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def activities(device: torch.device) -> list[ProfilerActivity]:
    """The activities that a profiler must record for ``device``."""
    recorded = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
    kind = recorded.get(device.type)
    return [ProfilerActivity.CPU] if kind is None else [ProfilerActivity.CPU, kind]


class Precisions(NamedTuple):
    """Which precisions, besides float32 and float16, an accelerator's matrix units support."""

    tf32: bool
    bfloat16: bool


def precisions(device: torch.device) -> Precisions:
    """The ``Precisions`` of ``device``. NVIDIA's GPUs support bfloat16 and TF32 from compute capability 8.0 on."""
    if accelerator() == "cuda":
        ampere = torch.cuda.get_device_capability(device)[0] >= 8
        return Precisions(ampere, ampere)
    return Precisions(False, True)


LOST = (
    "ecc error",
    "hardware",
    "nvlink",
    "unspecified launch failure",
    "unknown error",
    "unavailable",
    "is lost",
)
"""Parts of a driver's messages that mean that a device has failed (CUDA runtime API reference, cudaError)."""


@contextmanager
def oom_as_user_error(what: str = "this run", advice: str = "a smaller batch") -> Iterator[None]:
    """Context manager that raises UserError if a GPU (or the host, for a CPU) has too little memory for ``what``,
    or if a GPU has failed. ``advice``: what to change to need less memory; empty if nothing helps. Can also be
    used as a decorator."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # torch.OutOfMemoryError, and exceptions of the vendors' libraries.
        message = str(error)
        on_host = isinstance(error, MemoryError) or "DefaultCPUAllocator" in message
        out_of_memory = isinstance(error, torch.OutOfMemoryError) or any(
            words in message.lower()
            for words in ("out of memory", "out_of_device_memory", "out_of_host_memory")
        )
        if not (on_host or out_of_memory):
            if said := _failure(error):
                raise DeviceLost(
                    f"the GPU of this process has failed ({said}): look for its Xid in dmesg, and start again "
                    "without it, with --resume if there is a checkpoint"
                ) from error
            raise
        smaller = f"{advice}, " if advice else ""
        if on_host:
            reason = message.partition("DefaultCPUAllocator: ")[2] or message or "an allocation failed"
            raise UserError(
                f"too little host memory for {what} ({reason}); use {smaller}more nodes, or training.spatial"
            ) from error
        reason = " ".join(" ".join(message.split()).split(". ")[:2])
        raise UserError(
            f"a GPU has too little memory for {what} ({reason}); use training.precision=mixed_bfloat16, "
            f"{smaller}or more GPUs"
        ) from error


def _failure(error: BaseException) -> str:
    """The driver's message if this process's device has failed; otherwise empty. The first ``error`` may come from
    any library. Does not wait for the device."""
    try:
        if torch.accelerator.is_available():
            torch.accelerator.current_stream().query()
    except RuntimeError as found:
        error = found
    said = str(error).partition("\n")[0]
    failed = isinstance(error, torch.AcceleratorError) and any(words in said.lower() for words in LOST)
    return said if failed else ""


def _is_accelerator(device: torch.device) -> bool:
    return device.type not in ("cpu", "meta")
