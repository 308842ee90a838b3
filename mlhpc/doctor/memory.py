"""Checks whether a run on CPUs fits into the memory of its nodes."""

from typing import NamedTuple

from mlhpc.benchmarks.schema import Run
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.host.accelerators import usable
from mlhpc.common.host.memory import usable_bytes
from mlhpc.perf.accelerator.memory import Memory, memory_of
from mlhpc.perf.networks.registry import KNOWN
from mlhpc.quantities import bytes_text, count

REMEDY = "use more nodes, a smaller hyperparameters.global_batch_size or another preset"


class MemoryNeed(NamedTuple):
    """The memory that a run needs and that a node has. ``step_bytes``: modelled peak memory of a training step of
    ``batch`` samples on one of a node's ``local_size`` ranks (perf/accelerator/memory.py), excluding framework and
    loader. ``node_bytes``: memory available to these ranks."""

    batch: int
    step_bytes: int
    local_size: int
    node_bytes: int

    @property
    def fits(self) -> bool:
        """Whether a step of all ranks on the node fits in its memory."""
        return self.step_bytes * self.local_size <= self.node_bytes

    @property
    def is_small(self) -> bool:
        """Whether a step of all ranks needs less than half of the node's memory."""
        return 2 * self.step_bytes * self.local_size < self.node_bytes

    def __str__(self) -> str:
        each = f" in each of {self.local_size} ranks" if self.local_size > 1 else ""
        return (
            f"a training step of {count(self.batch, 'sample')} needs about {bytes_text(self.step_bytes)}{each}, "
            f"excluding framework and loader, but this node has {bytes_text(self.node_bytes)}"
        )


def memory_need(run: Run, ranks: int, local_size: int) -> MemoryNeed | None:
    """The memory that ``run`` needs with ``ranks`` ranks, ``local_size`` of them on this node; None with
    accelerators or emulated steps, or if the memory need is unknown. Raises UserError if the batch cannot be
    divided among the ranks."""
    if run.emulation.enabled or (getattr(run.training, "device", "") != "cpu" and usable()):
        return None
    memory = rank_memory(run, ranks)
    return MemoryNeed(memory.batch, memory.peak, local_size, usable_bytes()) if memory else None


def rank_memory(run: Run, ranks: int) -> Memory | None:
    """The memory that a step of ``run`` needs on one of ``ranks`` ranks without accelerators; None for a network
    without a memory model, or if several ranks share a sample. Raises UserError if the batch cannot be divided
    among the ranks."""
    if run.benchmark not in KNOWN or run.training.spatial_size > 1:
        return None
    batch = divide_batch(run.hyperparameters.global_batch_size, ranks) // run.backward_passes
    return memory_of(run, batch, gpu=False)


def killed_hint(run: Run, ranks: int) -> str:
    """A hint to append to the message that one of ``ranks`` local ranks was killed; empty if a step needs less
    than half of the node's memory, since framework and loader would not fill the other half."""
    need = memory_need(run, ranks, ranks)
    return f": {need}; {REMEDY}" if need and not need.is_small else ""
