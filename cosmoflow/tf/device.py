"""TensorFlow's GPU: selection, memory, transfer of batches, and events for completed work."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

import tensorflow as tf

from mlhpc.common.host.accelerators import require_none
from mlhpc.errors import UserError

Tensor = Any  # tf.Tensor, which has no type annotations
Batch = tuple[Any, Any]


def seen_gpus() -> list[Any]:
    """The GPUs that TensorFlow sees. Raises UserError if it sees none on a machine that has some, unless they are
    hidden deliberately."""
    gpus: list[Any] = tf.config.list_physical_devices("GPU")
    if not gpus:
        require_none("TensorFlow")
    return gpus


def use_one_gpu(local_rank: int) -> str | None:
    """Make only this rank's own GPU visible, with memory growth; TensorFlow would otherwise take all memory of
    every visible GPU. Returns the name of the device; None without a GPU. Raises UserError as ``seen_gpus``."""
    gpus = seen_gpus()
    if not gpus:
        return None
    gpu = gpus[local_rank % len(gpus)]
    # Neither can be set after TensorFlow has started to compute, which it already has if there are several ranks.
    if tf.config.get_visible_devices("GPU") != [gpu]:
        tf.config.set_visible_devices([gpu], "GPU")
    if not tf.config.experimental.get_memory_growth(gpu):
        tf.config.experimental.set_memory_growth(gpu, True)
    return "GPU:0"


class NvtxRanges:
    """A substitute for ``torch.cuda.nvtx`` that uses NVIDIA's package nvtx instead of PyTorch."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def range_push(self, msg: str, /) -> object:
        """Open a range named ``msg``."""
        return self._nvtx.push_range(msg)

    def range_pop(self) -> object:
        """Close the range that was opened last."""
        return self._nvtx.pop_range()


def device_ranges(device: str | None) -> NvtxRanges | None:
    """Return the ranges that mark a run's spans for Nsight; None on a CPU, or without the package nvtx, which the
    extra ``nvidia`` installs."""
    if device is None or find_spec("nvtx") is None:
        return None
    return NvtxRanges(import_module("nvtx"))


def peak_memory(device: str | None) -> int | None:
    """Peak GPU memory used by tensors, in bytes; None for a CPU."""
    return None if device is None else int(tf.config.experimental.get_memory_info(device)["peak"])


@contextmanager
def oom_as_user_error() -> Iterator[None]:
    """Context manager or decorator that raises UserError if a GPU has too little memory."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        reason = " ".join(error.message.split())[:160]
        raise UserError(
            f"a GPU has too little memory for this run ({reason}); use training.precision=mixed_bfloat16, "
            "a smaller batch, or more GPUs"
        ) from error


def to_device(
    batches: Iterator[Any], device: str | None, convert: Callable[[Any], Batch] = lambda batch: batch
) -> Iterator[Batch]:
    """Yield ``batches``, each converted by ``convert``, as tensors on ``device``; the next batch is copied to
    ``device`` while a step computes. If ``device`` is None, batches are only converted."""
    if device is None:
        yield from map(convert, batches)
        return

    def copy_next() -> Batch | None:
        batch = next(batches, None)
        with tf.device(device):
            if batch is None:
                return None
            x, y = convert(batch)
            return tf.convert_to_tensor(x), tf.convert_to_tensor(y)

    with ThreadPoolExecutor(1, thread_name_prefix="copy") as thread:
        copying = thread.submit(copy_next)
        while batch := copying.result():
            copying = thread.submit(copy_next)
            yield batch
            del batch  # so that its device memory is freed after its step


class LaunchEvents:
    """Events in a GPU's queue (``DeviceEvent``), which TensorFlow does not have: a thread copies the result of
    every step to the host, and records the host's time when it arrives. The device reaches an event when it has
    completed the previous step.

    ``watch`` wraps the steps; calling this object records an event.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="events")
        self._last: Future[float] | None = None  # completion of the last launched step

    def watch(self, step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Wrap ``step`` so that its launches are recorded by this object."""

        def launch(x: Any, y: Any) -> Any:
            result = step(x, y)
            self._last = self._thread.submit(_time_done, result)
            return result

        return launch

    def __call__(self) -> "_HostEvent":
        return _HostEvent(time.perf_counter(), self._last)


class _HostEvent:
    def __init__(self, recorded: float, launched_before: Future[float] | None) -> None:
        self._recorded, self._launched_before = recorded, launched_before

    def wait(self) -> None:
        if self._launched_before is not None:
            self._launched_before.result()

    def seconds_since(self, earlier: Self) -> float:
        return self._passed() - earlier._passed()

    def _passed(self) -> float:
        before = self._launched_before
        return self._recorded if before is None else max(self._recorded, before.result())


def _time_done(result: Any) -> float:
    for tensor in tf.nest.flatten(result):
        tensor.numpy()  # waits for the device
    return time.perf_counter()
