"""A run's weights, optimizer and random state: saved, and brought back."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.amp.grad_scaler import GradScaler

from mlhpc.benchmarks import load
from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.common import checkpoint
from mlhpc.common.errors import UserError
from mlhpc.common.ranks.world import World
from mlhpc.deepcam.freeze import freeze, frozen


def save(
    directory: Path,
    run: DeepCam,
    seed: int,
    epoch: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    world: World,
) -> None:
    """Write a checkpoint after ``epoch``. All ranks call it; rank 0 writes."""
    # Running statistics are the rank's own between evaluations; after one they are alike.
    of_rank = world.gather([torch.get_rng_state().numpy()])
    if world.rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        shared = [_packed({**state, "scaler": scaler.state_dict(), "frozen": frozen(model)})]
        checkpoint.save(directory, checkpoint.Checkpoint(epoch, seed, load.dumps(run), shared, of_rank))
    world.barrier()


def restore(
    directory: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    world: World,
) -> int:
    """Bring back the checkpoint in ``directory``; returns the epoch it was written after.

    Raises UserError when it is missing or damaged, or was written by another number of ranks.
    """
    saved = checkpoint.load(directory)
    if len(saved.of_rank) != world.size:
        raise UserError(
            f"{directory} was written by {len(saved.of_rank)} ranks; resume with as many, not {world.size}"
        )
    (packed,) = saved.shared
    state = torch.load(io.BytesIO(packed.tobytes()), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    freeze(model, state["frozen"])
    torch.set_rng_state(torch.from_numpy(np.array(saved.of_rank[world.rank][0], dtype=np.uint8)))
    return saved.epoch


def _packed(state: dict[str, Any]) -> npt.NDArray[np.uint8]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return np.frombuffer(buffer.getbuffer(), np.uint8)
