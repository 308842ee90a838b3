"""NVIDIA DALI, an optional dependency."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.utils.dlpack
from torch import Tensor

from mlhpc.errors import UserError, install


def load() -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules ``nvidia.dali``, ``.fn`` and ``.types``; the first call takes seconds. Raises UserError."""
    try:
        dali, fn, types = (import_module(f"nvidia.dali{part}") for part in ("", ".fn", ".types"))
    except ImportError as error:
        raise UserError(
            f"loading.loader=dali: NVIDIA DALI cannot be loaded ({error}); "
            f"{install('dali')}, or set loading.loader=threads"
        ) from error
    return dali, fn, types


def new_pipeline(dali: ModuleType, batch: int, workers: int, device: str) -> Any:
    """An empty pipeline for batches of up to ``batch`` samples, with ``workers`` threads, on this rank's GPU
    unless ``device`` is "cpu"."""
    return dali.Pipeline(
        batch_size=batch,
        num_threads=workers,
        device_id=None if device == "cpu" else torch.accelerator.current_device_index(),
        exec_dynamic=True,  # its outputs may be kept
    )


@contextmanager
def outputs_of(pipeline: Any, source: Generator[Any, None, None]) -> Iterator[Callable[[], Tensor]]:
    """A function that returns the next output of ``pipeline``; closes it and its ``source`` at the end."""
    outputs = Outputs()

    def next_output() -> Tensor:
        (output,) = pipeline.run()
        return outputs.tensor(output)

    try:
        yield next_output
    finally:
        outputs.close()
        pipeline._shutdown()  # buffers in use by DALI must not be freed
        source.close()


class Outputs:
    """A pipeline's outputs, as tensors that the caller may keep.

    On a GPU they are copies in PyTorch's memory: DALI reuses its own as soon as Python drops it, unaware that a
    PyTorch stream has yet to read it. The original is kept until the copy is done.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[torch.Event, Tensor]] = deque()

    def tensor(self, output: Any) -> Tensor:
        """``output``, a list of tensors of one shape, as one tensor."""
        view: Tensor = torch.utils.dlpack.from_dlpack(output.as_tensor())
        if view.device.type == "cpu":
            return view
        while self._held and self._held[0][0].query():
            self._held.popleft()
        copy, copied = view.clone(), torch.Event(view.device)
        copied.record(torch.accelerator.current_stream(view.device))
        self._held.append((copied, view))
        return copy

    def close(self) -> None:
        """Wait for the copies; call before the pipeline is shut down."""
        for copied, _ in self._held:
            copied.synchronize()
        self._held.clear()
