"""Saves and restores a run's weights, optimizer and random state."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from mlhpc.common.pytorch.devices import kept_random_state, random_state
from mlhpc.common.ranks.world import World
from mlhpc.common.training import checkpoint


def save(
    folder: Path,
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
    # Batch norm's running statistics and the random states differ between ranks.
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
        checkpoint.save(folder, checkpoint.Checkpoint(epoch, seed, config, shared, of_rank))
    world.barrier()


def restore(
    folder: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    world: World,
    rename: Callable[[str], str] = lambda name: name,
) -> tuple[int, dict[str, int]]:
    """Restore the checkpoint in ``folder``; returns its epoch and ``numbers``.
    ``rename`` maps the name of a weight in older checkpoints to its current one.

    Raises UserError if the checkpoint is missing, damaged, from a different network, or written by a different
    number of ranks.
    """
    saved = checkpoint.load(folder)
    checkpoint.require_ranks(saved, folder, world.size)
    with checkpoint.reading(folder / "checkpoint.npz"):
        (packed,) = saved.shared
        state = torch.load(io.BytesIO(packed.tobytes()), map_location="cpu", weights_only=True)
        model.load_state_dict({rename(name): value for name, value in state["model"].items()})
        rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict(state["optimizer"])
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            _to_device(group, rate)
        scaler.load_state_dict(state["scaler"])
        _restore_own(model, [torch.from_numpy(np.array(value)) for value in saved.of_rank[world.rank]])
        return saved.epoch, dict(state["numbers"])


def _to_device(group: dict[str, Any], rate: object) -> None:
    """Move the state of an optimizer's ``group`` to the device of its weights; the group's learning rate becomes a
    tensor if ``rate`` is one."""
    device = group["params"][0].device
    if isinstance(rate, Tensor):  # a number in older checkpoints
        group["lr"] = torch.as_tensor(group["lr"], dtype=rate.dtype)
    group |= {name: value.to(device) for name, value in group.items() if isinstance(value, Tensor)}


def weights_of(saved: checkpoint.Checkpoint) -> dict[str, NDArray[Any]]:
    """The weights in a checkpoint, of any shape, keyed by their names in the model's ``state_dict()``. If several
    ranks wrote it, batch norm's running statistics are those of rank 0."""
    (packed,) = saved.shared
    state = torch.load(io.BytesIO(packed.tobytes()), map_location="cpu", weights_only=True)
    return {name: value.numpy() for name, value in state["model"].items()}


@contextmanager
def preserve_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: GradScaler
) -> Iterator[None]:
    """Context manager that, on exit, restores weights, buffers, optimizer, loss scale and random state in place.

    Optimizer state created inside the block is set to zero, the initial value of momentum and Adam's means.
    """
    tensors = (*model.parameters(), *model.buffers(), *tensors_of(optimizer))
    before = [(tensor, tensor.clone()) for tensor in tensors]
    scale, training = scaler.state_dict(), model.training
    with kept_random_state(tensors[0].device):
        yield
    existing = {id(tensor) for tensor in tensors}
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value)
        for tensor in tensors_of(optimizer):
            if id(tensor) not in existing:
                tensor.zero_()
    scaler.load_state_dict(scale)
    model.train(training)


def tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All tensors of the optimizer, of any shape: the state of each parameter, and settings of its groups, such as
    learning rates."""
    of_parameters = [value for state in optimizer.state.values() for value in state.values()]
    of_groups = [value for group in optimizer.param_groups for value in group.values()]
    return [value for value in of_parameters + of_groups if isinstance(value, Tensor)]


def _restore_own(model: torch.nn.Module, own: Sequence[Tensor]) -> None:
    """Restore this rank's random states and buffers. A GPU's random state is not restored if only one of the two
    runs has a GPU."""
    buffers = list(model.buffers())
    states = len(own) - len(buffers)
    if states not in (1, 2):
        raise ValueError(f"{len(own)} arrays of this rank, expected {len(buffers) + 1} or one more")
    for (_, set_state), value in zip(_random_states(model), own[:states], strict=False):
        set_state(value)
    with torch.no_grad():
        for buffer, value in zip(buffers, own[states:], strict=True):
            if buffer.shape != value.shape:
                raise ValueError(f"a buffer of shape {list(value.shape)}, expected {list(buffer.shape)}")
            buffer.copy_(value)


def _random_states(model: torch.nn.Module) -> list[tuple[Callable[[], Tensor], Callable[[Tensor], object]]]:
    """Getters and setters of the random states of the CPU and of the model's GPU."""
    states: list[tuple[Callable[[], Tensor], Callable[[Tensor], object]]] = [
        (torch.get_rng_state, torch.set_rng_state)
    ]
    device = next(model.parameters()).device
    if own := random_state(device):  # dropout draws from its generator
        states.append((partial(own.get_rng_state, device), partial(own.set_rng_state, device=device)))
    return states
