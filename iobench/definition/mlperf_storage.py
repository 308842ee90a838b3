"""How large a data set must be for MLPerf Storage: so that no cache helps, and the run is long enough.

Rules of rounds v1.0 and v2.0 (mlcommons/storage, Submission guidelines, "Dataset size"): at least five times the
memory of all clients together, and at least 500 steps in each of five epochs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Workload

MEMORIES = 5
STEPS = 500
EPOCHS = 5
RUNS = 5


@dataclass(frozen=True)
class Size:
    """``bound``: ``memory`` or ``steps``, whichever asks for more files."""

    files: int
    samples: int
    bytes: int
    steps_per_epoch: int
    bound: str


def required(workload: Workload, memory_bytes: int, accelerators: int, clients: int = 1) -> Size:
    """The smallest data set of ``workload`` for ``clients`` nodes of ``memory_bytes`` each and this number of
    accelerators in all. Raises UserError for a workload without data, and numbers below 1."""
    dataset = workload.dataset
    if dataset is None:
        raise UserError(f"{workload.name} reads no data: there is nothing to size")
    for name, value in (("--memory", memory_bytes), ("--accelerators", accelerators), ("--clients", clients)):
        if value < 1:
            raise UserError(f"{name} {value}: give 1 or more")
    file_bytes = dataset.samples_per_file * dataset.sample_bytes
    batch = accelerators * workload.reader.batch_size
    for_memory = math.ceil(MEMORIES * memory_bytes * clients / file_bytes)
    for_steps = math.ceil(STEPS * batch / dataset.samples_per_file)
    files = max(for_memory, for_steps)
    samples = files * dataset.samples_per_file
    bound = "memory" if for_memory >= for_steps else "steps"
    return Size(files, samples, files * file_bytes, samples // batch, bound)


def findings(
    workload: Workload, memory_bytes: int, accelerators: int, clients: int, runs: Sequence[float | None] = ()
) -> list[str]:
    """What the rules have against a result of this workload, one sentence each; ``runs``: the utilisations, in per
    cent, of the runs that are to count, empty before the first."""
    found = []
    dataset = workload.dataset
    if dataset is None:
        return ["it reads no data"]
    needed = required(workload, memory_bytes, accelerators, clients)
    if dataset.bytes < MEMORIES * memory_bytes * clients:
        found.append(
            f"{dataset.files} files are {dataset.bytes / (memory_bytes * clients):.2g} times the clients' memory, "
            f"{MEMORIES} times are required: dataset.files={needed.files}"
        )
    steps = workload.steps_per_epoch(accelerators)
    if steps < STEPS:
        found.append(f"{steps} steps an epoch, {STEPS} are required: dataset.files={needed.files}")
    if workload.train.epochs != EPOCHS or workload.train.steps:
        found.append(f"{workload.train.epochs} epochs, {EPOCHS} whole ones are required")
    if (threshold := workload.metric.au_percent) is None:
        found.append("the workload states no utilisation to reach (metric.au_percent)")
    if runs and len(runs) < RUNS:
        found.append(f"{len(runs)} runs, {RUNS} are required")
    for number, utilisation in enumerate(runs, 1):
        if utilisation is None or (threshold is not None and utilisation < threshold):
            reached = "none" if utilisation is None else f"{utilisation:.1f}%"
            found.append(f"run {number}: utilisation {reached}, {threshold:g}% is required")
    return found
