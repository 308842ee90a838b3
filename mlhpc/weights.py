"""``mlhpc weights``: writes the weights in a run's checkpoint to a safetensors file."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.benchmarks.schema import Run
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error, require_new
from mlhpc.common.training import checkpoint
from mlhpc.cosmoflow import weights
from mlhpc.errors import UserError, missing_package
from mlhpc.quantities import count
from mlhpc.run import saved_in

Tensors = Mapping[str, npt.NDArray[Any]]
STATE_DICT = "state_dict() of the PyTorch model"


def main(options: argparse.Namespace) -> int:
    """Write the weights in a run's checkpoint to a safetensors file. Raises UserError if the run has no
    checkpoint, if only the package of its benchmark can read the checkpoint, or if the file exists."""
    run, out = options.run, options.out
    require_new(out)
    saved, settings = saved_in(run)
    try:
        with checkpoint.reading(run / "checkpoint.npz"):
            tensors, layout = _tensors(saved, settings)
        save(out, tensors, {"benchmark": settings.benchmark, "layout": layout})
    except ModuleNotFoundError as error:
        extra = registry.find(settings.benchmark).frameworks[settings.training.framework].extra
        raise UserError(missing_package(error, "weights", extra)) from None
    numbers = sum(array.size for array in tensors.values())
    print(f"{out}: {numbers} weights in {count(len(tensors), 'array')}, as of epoch {saved.epoch}")
    return 0


def _tensors(saved: checkpoint.Checkpoint, run: Run) -> tuple[Tensors, str]:
    """The weights by name, and their layout. CosmoFlow's weights are the same in TensorFlow and PyTorch."""
    if run.benchmark == "cosmoflow":
        cosmoflow = cast(CosmoFlow, run)
        names = weights.names(cosmoflow.network)
        arrays: list[Any] = list(saved.shared)[: len(names)]  # TensorFlow checkpoints begin with the weights
        if cosmoflow.training.framework == "pytorch":
            arrays = weights.from_pytorch(_state_dict(saved), cosmoflow.network)
        return dict(zip(names, arrays, strict=True)), weights.LAYOUT
    if run.benchmark == "deepcam":
        from mlhpc.deepcam.model import current_name

        return {current_name(name): array for name, array in _state_dict(saved).items()}, STATE_DICT
    if registry.find(run.benchmark).frameworks[run.training.framework].packages[0] == "torch":
        return _state_dict(saved), STATE_DICT  # as written by ``common.pytorch.state``
    raise UserError(f"checkpoints of {run.benchmark} can be read only by that benchmark's package")


def _state_dict(saved: checkpoint.Checkpoint) -> Tensors:
    from mlhpc.common.pytorch.state import weights_of

    return weights_of(saved)


def save(path: Path, tensors: Tensors, facts: Mapping[str, str]) -> None:
    """Write a safetensors file with ``facts`` and a checksum in its metadata. Raises UserError if the file cannot
    be written."""
    from safetensors.numpy import save as encode

    # Not ascontiguousarray, which converts batch norm's scalar counters to vectors.
    tensors = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    encoded = encode(tensors, metadata={**facts, "crc32": weights.checksum(tensors)})
    with as_user_error(path, "cannot be written", "choose another --out"):
        atomic.write_bytes(path, encoded)
