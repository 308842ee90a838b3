"""Predictions over node counts and batch sizes: strong and weak scaling, and the best of all."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.perf.machines import Machine
from mlhpc.perf.prediction.model import Model, predict
from mlhpc.perf.prediction.result import Prediction
from mlhpc.quantities import count

MOST_NODES = 2**17
"""Where a machine file does not say how many there are."""


def over_nodes(
    machine: Machine, run: Run, *, most: int | None = None, staged: bool = True
) -> Iterator[Prediction]:
    """Predictions at 1, 2, 4, … nodes, up to the size of the machine, if the batch can be divided; impossible
    ones are omitted."""
    model = Model(machine, run, staged=staged)
    nodes, last = 1, most or machine.nodes or MOST_NODES
    while nodes <= last:
        with suppress(UserError):
            yield model.at(nodes)
        nodes *= 2


def limits(machine: Machine, run: Run, predictions: Sequence[Prediction]) -> list[str]:
    """Why :func:`over_nodes`, which returned ``predictions``, has none for half of its fewest nodes and for twice
    its most, in sentences. Says nothing where the machine has no more nodes."""
    reasons = []
    for nodes in (predictions[0].nodes // 2, predictions[-1].nodes * 2):
        if 1 <= nodes <= (machine.nodes or MOST_NODES):
            try:
                predict(machine, run, nodes)
            except UserError as error:
                reasons.append(f"not on {count(nodes, 'node')}: {error}")
    return reasons


def weak(machine: Machine, run: Run, local_batch_size: int, nodes: Iterable[int]) -> Iterator[Prediction]:
    """Weak scaling: the same local batch size on increasing numbers of nodes."""
    for each in nodes:
        with suppress(UserError):
            yield predict(machine, with_batch(run, local_batch_size * each * machine.per_node), each)


def with_batch(run: Run, batch: int) -> Run:
    """``run`` with another global batch size."""
    hyperparameters = run.hyperparameters.model_copy(update={"global_batch_size": batch})
    return run.model_copy(update={"hyperparameters": hyperparameters})


def best(machine: Machine, runs: Iterable[Run]) -> Prediction | None:
    """The shortest time to train over ``runs`` (batch sizes) and node counts in powers of two, one accelerator a
    sample at most. None if none of them can be."""
    predictions = (p for run in runs for p in over_nodes(machine, run) if p.total_s and p.parts == 1)
    return min(predictions, key=lambda p: p.total_s[0] if p.total_s else math.inf, default=None)
