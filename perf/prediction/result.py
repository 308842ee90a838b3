"""What is predicted of one run: its steps, and the terms of its time to train."""

from dataclasses import asdict, dataclass
from typing import Any

from mlhpc.benchmarks.schema import Run
from mlhpc.perf.calibration import Efficiency
from mlhpc.perf.collectives import AllReduce
from mlhpc.perf.machines import Machine
from mlhpc.perf.scaling import Estimate, Triple, added, multiplied
from mlhpc.perf.spatial import Spatial, spatial_of
from mlhpc.perf.staging import StagedBytes
from mlhpc.perf.tiers import Tier
from mlhpc.quantities import digits


@dataclass(frozen=True)
class Step:
    """One training step (a step of the optimizer) in seconds. ``compute``: products and memory traffic,
    calibrated; ``launch``: the time per layer independent of the batch size; ``reduce``: all-reduce;
    ``halo``: exchange within a sample; ``inputs``: the time of each stage of the input path per step, of
    which the slowest counts; ``wait``: its part that is not hidden."""

    compute: float
    launch: float
    reduce: AllReduce
    halo: float
    inputs: dict[str, float]

    @property
    def input(self) -> float:
        """Seconds of the slowest stage of the input path."""
        return max(self.inputs.values(), default=0.0)

    @property
    def slowest_input(self) -> str:
        """The stage of the input path that takes longest; empty if no rate is known."""
        return max(self.inputs, key=lambda stage: self.inputs[stage], default="")

    @property
    def busy(self) -> float:
        """Seconds without waiting for input."""
        return self.compute + self.launch + self.reduce.seconds + self.halo

    @property
    def wait(self) -> float:
        """Seconds of waiting for input."""
        return max(0.0, self.input - self.busy)

    @property
    def seconds(self) -> float:
        """The whole step."""
        return max(self.busy, self.input)

    @property
    def named(self) -> dict[str, float]:
        """The parts of the step, which add up to it."""
        terms = {"computing": self.compute, "launching and updating": self.launch,
                 "all-reduce": self.reduce.seconds, "waiting for input": self.wait}  # fmt: skip
        return {**terms, "halo exchange": self.halo} if self.halo else terms


@dataclass(frozen=True)
class Prediction:
    """One run of ``run`` on ``nodes`` of ``machine``. Times in seconds; each estimate is a value with its ends.

    ``parts``: accelerators on one sample; ``local_batch_size``: samples of such a group in a step, in all its
    backward passes. ``staging_s``: of data that is not staged, what the first epoch takes longer; ``moved``: the
    bytes of staging, None if nothing is staged. ``epochs`` and all that needs them is None if no convergence
    is published. ``notes``: what the figures rest on. ``memory``: peak bytes of a step on an accelerator;
    ``largest_batch``: samples of the largest backward pass that fits the memory of the ``parts`` accelerators of a
    sample.
    """

    machine: Machine
    run: Run
    nodes: int
    accelerators: int
    parts: int
    local_batch_size: int
    step: Step
    step_s: Estimate
    efficiency: Efficiency
    tier: Tier
    moved: StagedBytes | None
    staging_s: Triple
    train_s: Triple
    eval_s: Triple
    epochs: Estimate | None
    extra_s: Triple
    input_rate: float | None
    notes: tuple[str, ...]
    memory: float
    largest_batch: int

    @property
    def batch(self) -> int:
        """Global batch size."""
        return self.run.hyperparameters.global_batch_size

    @property
    def spatial(self) -> Spatial | None:
        """Exchanges and memory of a group of ranks with ``training.spatial``."""
        return spatial_of(self.run, self.local_batch_size, gpu=not self.machine.is_cpu)

    @property
    def samples_per_s(self) -> Triple:
        """Training samples of one accelerator; the low end corresponds to the slow end of the step."""
        share = self.batch / self.accelerators
        return share / self.step_s.value, share / self.step_s.high, share / self.step_s.low

    @property
    def epoch_s(self) -> Triple:
        """T_epoch: training and evaluation."""
        return added(self.train_s, self.eval_s)

    @property
    def total_s(self) -> Triple | None:
        """Time to train; None without ``epochs``."""
        if self.epochs is None:
            return None
        trained = multiplied(self.epoch_s, self.epochs.ends)
        return added(self.staging_s, trained, self.extra_s)

    @property
    def bound(self) -> str:
        """The longest part of a training step; "waiting for input" if there is any such wait."""
        if self.step.wait > 0:
            return "waiting for input"
        return max(self.step.named, key=lambda name: self.step.named[name])

    @property
    def binding(self) -> str:
        """Description of the limit of a training step."""
        if self.step.wait > 0 and self.input_rate is not None:
            fed, wanted = (digits(self.batch / seconds) for seconds in (self.step.seconds, self.step.busy))
            return f"the input path limits: {fed} of {wanted} samples/s, {self.step.slowest_input}"
        share = self.step.named[self.bound] / self.step.seconds
        return f"{self.bound} limits: {share:.0%} of a step"

    def record(self) -> dict[str, Any]:
        """As JSON: intervals are [value, low, high], times in seconds."""
        return {
            "benchmark": self.run.benchmark,
            "preset": self.run.preset,
            "machine": self.machine.name,
            "nodes": self.nodes,
            "accelerators": self.accelerators,
            "global_batch_size": self.batch,
            "local_batch_size": self.local_batch_size,
            "backward_passes": self.run.backward_passes,
            "accelerators_per_sample": self.parts,
            "precision": self.run.training.precision,
            "step_s": list(self.step_s.ends),
            "step_parts_s": self.step.named,
            "samples_per_s_per_accelerator": list(self.samples_per_s),
            "staging_s": list(self.staging_s),
            "staged_bytes": asdict(self.moved) if self.moved else None,
            "train_s": list(self.train_s),
            "eval_s": list(self.eval_s),
            "epoch_s": list(self.epoch_s),
            "epochs": list(self.epochs.ends) if self.epochs else None,
            "extra_s": list(self.extra_s),
            "time_to_train_s": list(self.total_s) if self.total_s else None,
            "spatial": asdict(self.spatial) if self.spatial else None,
            "memory_bytes": self.memory,
            "largest_batch_that_fits": self.largest_batch,
            "tier": self.tier.name,
            "binding": self.binding,
            "efficiency": self.efficiency.value,
            "efficiency_of": self.efficiency.how,
            "notes": list(self.notes),
        }
