"""Which batches of a run fit the memory of a machine's accelerators."""

from functools import cache

from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.memory import RESERVED, largest_batch, memory_of
from mlhpc.perf.machines import Machine
from mlhpc.perf.units import binary


class Fits:
    """Of one run on one machine. ``local``: samples of a backward pass; ``together``: accelerators that share a
    sample."""

    def __init__(self, machine: Machine, run: Run) -> None:
        self.machine, self.run = machine, run
        self.capacity = machine.figures["accelerator.memory"]
        self._memory = cache(lambda local: memory_of(run, local, gpu=not machine.is_cpu))
        self.largest = cache(self._largest)

    def needed(self, local: int, together: int) -> float:
        """Peak bytes of a step. Accelerators that share a sample divide everything except weights and
        optimizer state."""
        memory = self._memory(local)
        weights = memory.parameters + memory.copies + memory.optimizer
        return weights + (memory.peak - weights) / together

    def _largest(self, together: int) -> int:
        """Samples of the largest backward pass that fits, 0 if none does."""
        if self.needed(1, together) > self.capacity - RESERVED:
            return 0
        return largest_batch(lambda samples: self.needed(samples, together), self.capacity - RESERVED)

    def require(self, local: int, together: int) -> None:
        """Raises UserError if a backward pass of ``local`` samples needs more than the accelerator's memory
        without what libraries take."""
        if self.needed(local, together) <= self.capacity - RESERVED:
            return
        fits = self.largest(together)
        largest = f"the largest that fits is {fits}" if fits else "not even one sample fits"
        passes = self.run.backward_passes
        each = (
            f"each of {passes} backward passes of {local} samples"
            if passes > 1
            else f"a local batch of {local}"
        )
        raise UserError(
            f"{self.machine.at('accelerator.memory')}: {each} needs {binary(self.needed(local, together))} of the "
            f"accelerator's {binary(self.capacity)}, {binary(RESERVED)} of which libraries take; {largest}; use "
            "more nodes or a smaller batch"
        )
