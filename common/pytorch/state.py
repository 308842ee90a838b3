"""A run's weights, optimizer and random state: saved, and brought back."""

import io
from pathlib import Path

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from mlhpc.benchmarks import load
from mlhpc.benchmarks.schema import Run
from mlhpc.common import checkpoint
from mlhpc.common.errors import UserError
from mlhpc.common.ranks.world import World


def save(
    directory: Path,
    run: Run,
    seed: int,
    epoch: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    world: World,
    **numbers: int,
) -> None:
    """Write a checkpoint after ``epoch``, with ``numbers`` of the benchmark's own. All ranks call it; rank 0
    writes."""
    # Batch norm's running statistics and the random state are each rank's own.
    of_rank = world.gather([torch.get_rng_state().numpy(), *(b.cpu().numpy() for b in model.buffers())])
    if world.rank == 0:
        buffer = io.BytesIO()
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "numbers": numbers,
            },
            buffer,
        )
        shared = [np.frombuffer(buffer.getbuffer(), np.uint8)]
        checkpoint.save(directory, checkpoint.Checkpoint(epoch, seed, load.dumps(run), shared, of_rank))
    world.barrier()


def restore(
    directory: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    world: World,
) -> tuple[int, dict[str, int]]:
    """Bring back the checkpoint in ``directory``; the epoch it was written after, and its ``numbers``.

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
    random, *running = saved.of_rank[world.rank]
    torch.set_rng_state(torch.from_numpy(np.array(random, dtype=np.uint8)))
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), running, strict=True):
            buffer.copy_(torch.from_numpy(np.array(value)))
    return saved.epoch, state["numbers"]
