"""Batches processed by NVIDIA DALI, an optional dependency: on its threads, or on the GPU if there is one.

Samples are read and checked by threads of this process, as for the feed "threads", and passed to DALI as an
external source, so that every format can be read and every error names its file.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.utils.dlpack
from torch import Tensor

from mlhpc.common.data.loader import Feed, Reader
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


class Pipeline(Reader, Protocol):
    """A reader whose batches, as returned by ``finish``, are the input of a DALI pipeline."""

    def inputs(self, batch: Any) -> Any:
        """The data of a batch, to pass to DALI's ``external_source``."""

    def outputs(self, fn: ModuleType, types: ModuleType, feed: Callable[[], Any], key: Any) -> Any:
        """The pipeline's output; called while the pipeline is being defined. ``feed``: the pipeline's external
        source; ``key``: the first sample's key."""

    def collect(self, x: Tensor, batch: Any) -> Any:
        """The finished batch, made from the pipeline's output ``x``, [batch, ...], for the input ``batch``."""

    def errors(self, in_use: Sequence[Any]) -> AbstractContextManager[None]:
        """Context manager that raises an error of the pipeline as UserError if a sample of the batches ``in_use``
        caused it."""


def batches(
    reader: Pipeline, keys: Iterable[Sequence[Any]], *, feed: Feed, workers: int, device: str
) -> Generator[Any, None, None]:
    """The batches with these ``keys``, in order, read by ``feed``. DALI processes them with ``workers`` threads,
    or, if ``device`` is not "cpu", on the GPU, and leaves the batches there. Raises UserError if DALI is not
    installed, or, naming the file, if a file cannot be read."""
    dali, fn, types = load()
    batches = list(keys)
    if not batches:
        return
    source = feed(reader, batches)
    in_use: deque[Any] = deque()  # batches kept until DALI, which reads them in place, is done

    def inputs() -> Iterator[Any]:
        for batch in source:
            in_use.append(batch)
            yield reader.inputs(batch)

    pipeline = dali.Pipeline(
        batch_size=max(map(len, batches)),
        num_threads=workers,
        device_id=None if device == "cpu" else torch.accelerator.current_device_index(),
        exec_dynamic=True,  # its outputs may be kept
    )
    with pipeline:
        pipeline.set_outputs(reader.outputs(fn, types, inputs, batches[0][0]))
    outputs = Outputs()
    try:
        for _ in batches:
            try:
                with reader.errors(in_use):
                    (output,) = pipeline.run()
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:300]
                raise UserError(f"loading.loader=dali: {reason}; set loading.loader=threads") from error
            x = outputs.tensor(output)  # complete, so its source is no longer needed
            yield reader.collect(x, in_use.popleft())
    finally:
        outputs.close()
        pipeline._shutdown()  # buffers in use by DALI must not be freed
        source.close()


class Outputs:
    """A pipeline's outputs, as tensors that the caller may keep.

    On a GPU, the tensors are copies in PyTorch's memory: DALI reuses its own memory as soon as Python drops a
    tensor, unaware that a PyTorch stream has yet to read it. The original is kept until the copy is done.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[torch.Event, Tensor]] = deque()

    def tensor(self, output: Any) -> Tensor:
        """``output``, a list of tensors of equal shape, as one tensor."""
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
