"""A run's weights, optimizer and random state: saved, and brought back."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from mlhpc.common.ranks.world import World
from mlhpc.common.training import checkpoint
from mlhpc.errors import UserError, count


def save(
    directory: Path,
    config: str,
    seed: int,
    epoch: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    world: World,
    **numbers: int,
) -> None:
    """Write a checkpoint after ``epoch``, with the benchmark's own ``numbers``. ``config`` is the run's resolved
    configuration, as TOML text. Called by all ranks; rank 0 writes."""
    # Batch norm's running statistics and the random states are each rank's own.
    random = [state().numpy() for state, _ in _random_states(model)]
    of_rank = world.gather([*random, *(b.cpu().numpy() for b in model.buffers())])
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
        checkpoint.save(directory, checkpoint.Checkpoint(epoch, seed, config, shared, of_rank))
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
            f"{directory} was written by {count(len(saved.of_rank), 'rank')}; resume with as many, not "
            f"{world.size}"
        )
    (packed,) = saved.shared
    state = torch.load(io.BytesIO(packed.tobytes()), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    own = [torch.from_numpy(np.array(value)) for value in saved.of_rank[world.rank]]
    buffers = list(model.buffers())
    first = len(own) - len(buffers)
    # A GPU may be new since, or gone: then that state is left as it is.
    for (_, set_state), value in zip(_random_states(model), own[:first], strict=False):
        set_state(value)
    with torch.no_grad():
        for buffer, value in zip(buffers, own[first:], strict=True):
            buffer.copy_(value)
    return saved.epoch, state["numbers"]


def _random_states(model: torch.nn.Module) -> list[tuple[Callable[[], Tensor], Callable[[Tensor], object]]]:
    """How to get and how to set the random state of the processor, and of the GPU that the model is on."""
    states: list[tuple[Callable[[], Tensor], Callable[[Tensor], object]]] = [
        (torch.get_rng_state, torch.set_rng_state)
    ]
    gpu = next(model.parameters()).device
    if gpu.type == "cuda":  # dropout draws there
        states.append((partial(torch.cuda.get_rng_state, gpu), partial(torch.cuda.set_rng_state, device=gpu)))
    return states
