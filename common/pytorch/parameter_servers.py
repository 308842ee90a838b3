"""Parameter servers, and a ring all-reduce to compare them with, over torch.distributed's send and receive.

Only for studies (Han et al. 2019, Figs. 3, 8, 9; Li et al., OSDI 2014); no benchmark trains with them. All weights
form one float32 vector on the host; each server owns an equal part of this vector and the optimizer for that part.
A worker sends every server the matching part of its gradient, and receives that part of the weights. Both methods
use the same send and receive calls, so only their communication patterns differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Roles:
    """Roles of ranks: ranks 0 to ``workers - 1`` are workers, and the following ranks servers."""

    workers: int
    servers: int

    @property
    def size(self) -> int:
        """The number of workers and servers."""
        return self.workers + self.servers

    @property
    def server_ranks(self) -> range:
        """The ranks of the servers, which follow the workers."""
        return range(self.workers, self.size)

    def place(self, rank: int) -> str:
        """Description of ``rank``, such as "parameter server 1"; servers and workers are numbered from 0."""
        return f"worker {rank}" if rank < self.workers else f"parameter server {rank - self.workers}"


@dataclass
class Traffic:
    """Bytes of gradients and weights that this rank has sent and received."""

    sent: int = 0
    received: int = 0

    def exchange(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> None:
        """Exchange tensors of any shape with other ranks: send some and receive into others at the same time;
        returns when all transfers are complete."""
        works = [dist.irecv(tensor, rank) for rank, tensor in receives]
        works += [dist.isend(tensor, rank) for rank, tensor in sends]
        for work in works:
            if work is not None:
                work.wait()
        self.sent += sum(tensor.nbytes for _, tensor in sends)
        self.received += sum(tensor.nbytes for _, tensor in receives)


def parts(elements: int, number: int) -> list[slice]:
    """Slices that divide a vector of ``elements`` elements into ``number`` parts whose lengths differ by at most
    one."""
    ends = [elements * i // number for i in range(number + 1)]
    return [slice(first, last) for first, last in pairwise(ends)]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of any shape as one float32 vector [elements] on the host. Waits for the device."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).float().cpu()


@torch.no_grad()
def unflatten(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write ``vector``, [elements], into ``tensors``, of any shape."""
    for tensor, part in zip(tensors, vector.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def ring_all_reduce(vector: Tensor, rank: int, ranks: int, traffic: Traffic) -> None:
    """Replace ``vector``, [elements], by its mean over ``ranks`` ranks: reduce-scatter, then all-gather, around a
    ring (Thakur et al. 2005, section 4.3). Each rank sends 2·(ranks - 1) parts of 1 / ranks of the vector."""
    pieces = [vector[part] for part in parts(len(vector), ranks)]
    following, previous = (rank + 1) % ranks, (rank - 1) % ranks
    for turn in range(ranks - 1):
        arriving = pieces[(rank - turn - 1) % ranks]
        buffer = torch.empty_like(arriving)
        traffic.exchange([(following, pieces[(rank - turn) % ranks])], [(previous, buffer)])
        arriving += buffer
    for turn in range(ranks - 1):
        traffic.exchange(
            [(following, pieces[(rank - turn + 1) % ranks])], [(previous, pieces[(rank - turn) % ranks])]
        )
    vector /= ranks


def push_and_pull(gradient: Tensor, weights: Tensor, roles: Roles, traffic: Traffic) -> None:
    """Called by a worker: send ``gradient`` to the servers and receive the updated ``weights``, both
    [elements]."""
    slices = list(zip(roles.server_ranks, parts(len(weights), roles.servers), strict=True))
    traffic.exchange(
        [(server, gradient[part]) for server, part in slices],
        [(server, weights[part]) for server, part in slices],
    )


def pull(weights: Tensor, roles: Roles) -> None:
    """Called by a worker: receive ``weights``, [elements], after all updates; the servers send them at the end."""
    slices = zip(roles.server_ranks, parts(len(weights), roles.servers), strict=True)
    Traffic().exchange([], [(server, weights[part]) for server, part in slices])


@dataclass
class Server:
    """One server. It owns ``part`` of the weights of ``model`` and updates that part with ``optimizer``, which
    must update each weight independently of the others.

    ``staleness``: for every update, the number of other updates since the gradient's worker received its weights.
    """

    roles: Roles
    model: nn.Module
    optimizer: torch.optim.Optimizer
    part: slice
    traffic: Traffic = field(default_factory=Traffic)
    staleness: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._weights = flat(list(self.model.parameters()))[self.part].clone()
        self._gradient = torch.empty_like(self._weights)
        owned = self._own_pieces(list(self.model.parameters()))
        self.optimizer.state.clear()
        for group in self.optimizer.param_groups:
            group["params"] = [owned[id(weight)] for weight in group["params"] if id(weight) in owned]
            for piece in group["params"]:
                if "adapt" in group:  # Lars allocates its state when it is created
                    self.optimizer.state[piece]["velocity"] = torch.zeros_like(piece)

    def serve_synchronously(self, steps: int, rate_at: Callable[[int], float]) -> None:
        """Make ``steps`` updates, each with the mean of all workers' gradients, which are added in the order of
        their ranks."""
        workers = range(self.roles.workers)
        buffers = [torch.empty_like(self._weights) for _ in workers]
        for step in range(steps):
            self.traffic.exchange([], list(zip(workers, buffers, strict=True)))
            self._gradient.copy_(torch.stack(buffers).mean(0))
            self._update(rate_at(step))
            self.traffic.exchange([(worker, self._weights) for worker in workers], [])
            self.staleness.append(0)
        self._send_to_all()

    def serve_asynchronously(self, steps: int, rate_at: Callable[[int], float]) -> None:
        """Make an update with each gradient as soon as it arrives, ``steps`` updates per worker.

        The learning rate is divided by the number of workers, so one update per worker moves the weights as far as
        one update with the mean gradient, and a comparison shows only the effect of stale gradients.
        """
        workers = self.roles.workers
        given_at = [0] * workers
        for update in range(steps * workers):
            worker = dist.recv(self._gradient)  # from any worker
            self.traffic.received += self._gradient.nbytes
            self._update(rate_at(update // workers) / workers)
            self.traffic.exchange([(worker, self._weights)], [])
            self.staleness.append(update - given_at[worker])
            given_at[worker] = update + 1
        self._send_to_all()

    def _update(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def _send_to_all(self) -> None:
        Traffic().exchange([(worker, self._weights) for worker in range(self.roles.workers)], [])

    def _own_pieces(self, weights: Sequence[Tensor]) -> dict[int, nn.Parameter]:
        """The piece of each weight that lies in ``part``, keyed by the weight's ``id``: a view of this server's
        weights, with a view of its gradient vector as gradient."""
        pieces, first = {}, 0
        for weight in weights:
            here = slice(max(first, self.part.start), min(first + weight.numel(), self.part.stop))
            first += weight.numel()
            if here.start < here.stop:
                own = slice(here.start - self.part.start, here.stop - self.part.start)
                piece = nn.Parameter(self._weights[own])
                piece.grad = self._gradient[own]
                pieces[id(weight)] = piece
        return pieces
