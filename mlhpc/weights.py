"""``mlhpc weights``: the weights of a run's checkpoint as a safetensors file, the same for either framework."""

import argparse
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.training import checkpoint
from mlhpc.cosmoflow import weights
from mlhpc.errors import UserError, count
from mlhpc.run import saved_in


def main(options: argparse.Namespace) -> int:
    """Raises UserError for a run without a checkpoint, of another benchmark, and for a file that exists."""
    run, out = options.run, options.out
    if out.suffix != ".safetensors":
        raise UserError(f"--out {out}: the format is safetensors; give a name that ends in .safetensors")
    if out.exists():
        raise UserError(f"{out} already exists; choose another --out, or move it away")
    saved, settings = saved_in(run)
    if settings.benchmark != "cosmoflow":
        raise UserError(
            f"{run} is of {settings.benchmark}; only CosmoFlow has two frameworks to convert between"
        )
    settings = cast(CosmoFlow, settings)
    with checkpoint.reading(run / "checkpoint.npz"):
        arrays = _weights(saved, settings)
    try:
        weights.save(out, arrays, settings.network)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another --out") from None
    numbers = sum(array.size for array in arrays)
    framework = settings.training.framework
    print(
        f"{out}: {numbers} weights in {count(len(arrays), 'array')}, after epoch {saved.epoch} in {framework}"
    )
    return 0


def _weights(saved: checkpoint.Checkpoint, run: CosmoFlow) -> list[npt.NDArray[np.float32]]:
    """In the neutral form. A checkpoint of TensorFlow begins with them; PyTorch's needs PyTorch to be read."""
    if run.training.framework == "tensorflow":
        arrays: list[Any] = list(saved.shared)[: len(weights.names(run.network))]
        return arrays
    try:
        from mlhpc.common.pytorch.state import weights_of
    except ModuleNotFoundError as error:
        raise UserError(
            f"this checkpoint is PyTorch's, and {error.name} is not installed here; see docs/dependencies.md"
        ) from None
    return weights.from_pytorch(weights_of(saved), run.network)
