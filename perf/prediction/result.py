"""The prediction of one run: its steps, and the terms of its time to train."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Cell, Table, number, table
from mlhpc.perf.accelerator.memory import RESERVED
from mlhpc.perf.calibration import Efficiency
from mlhpc.perf.collectives import AllReduce
from mlhpc.perf.machines import Machine
from mlhpc.perf.networks.registry import launches_of
from mlhpc.perf.scaling import Estimate, Triple, added, multiplied
from mlhpc.perf.spatial import Spatial, spatial_of
from mlhpc.perf.staging import StagedBytes
from mlhpc.perf.tiers import Tier
from mlhpc.quantities import bytes_text, count, digits, seconds_text, whole

NO_EPOCHS = (
    "no convergence is published for this preset, network, data and target, so there is no time to train"
)
NO_INTERVAL = "no interval model"
"""Shown for waits, exchanges, and staging at the machine's own rates: single values whose error is not known."""

EAGER_LAUNCH = (34e-6, 82e-6)
"""Host seconds per kernel of ``launches_of`` in an eager step, least and most of three benchmarks and precisions:
PyTorch 2.11 on an Intel Xeon beside an H200 (``tests/perf/host_step.py``, 2026-11-26 and 27)."""

REPLAY = "0.25 to 0.4 ms"
"""The host's time of a replayed step, whatever the network, from the same runs."""


@dataclass(frozen=True)
class Step:
    """One training step (a step of the optimizer) in seconds. ``compute``: products and memory traffic,
    calibrated; ``launch``: the time per layer independent of the batch size; ``reduce``: all-reduce;
    ``halo``: exchange within a sample; ``inputs``: the time of each stage of the input path per step, of which the
    slowest counts; ``wait``: the part of the slowest stage's time that computation does not hide. ``host``: the
    driver's time on the host with each kernel launched separately, and with all in one graph; None if not
    known."""

    compute: float
    launch: float
    reduce: AllReduce
    halo: float
    inputs: dict[str, float]
    host: tuple[float, float] | None = None

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
    """The prediction of ``run`` on ``nodes`` of ``machine``. Times in seconds; each estimate is a value with the
    ends of its interval.

    ``parts``: accelerators that share a sample; ``local_batch_size``: samples of such a group in a step, over all
    its backward passes. ``staging_s``: for data that is not staged, the extra time of the first epoch; ``moved``:
    the bytes moved by staging, None if nothing is staged. ``epochs``, and everything that depends on it, is None
    if no convergence is published. ``notes``: the basis of the figures. ``memory``: peak bytes of a step on an
    accelerator; ``largest_batch``: samples in the largest backward pass that fits the memory of ``parts``
    accelerators.
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
        """Exchanges and memory of a group of ranks that divides samples with ``training.spatial``; None without
        it."""
        return spatial_of(self.run, self.local_batch_size, gpu=not self.machine.is_cpu)

    @property
    def samples_per_s(self) -> Triple:
        """Training samples/s of one accelerator; the low end corresponds to the slow end of the step."""
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
        """The name of the longest part of a training step; "waiting for input" if the step waits at all."""
        if self.step.wait > 0:
            return "waiting for input"
        return max(self.step.named, key=lambda name: self.step.named[name])

    @property
    def binding(self) -> str:
        """What limits a training step, in words."""
        if self.step.wait > 0 and self.input_rate is not None:
            fed, wanted = (digits(self.batch / seconds) for seconds in (self.step.seconds, self.step.busy))
            return f"the input path limits: {fed} of {wanted} samples/s, {self.step.slowest_input}"
        share = self.step.named[self.bound] / self.step.seconds
        return f"{self.bound} limits: {share:.0%} of a step"

    @property
    def title(self) -> str:
        """Benchmark, preset and machine."""
        return f"{self.run.benchmark}, preset {self.run.preset}, on {self.machine.title}"

    @property
    def configuration(self) -> str:
        """Nodes, accelerators and batch sizes of the run, as text."""
        each = (
            f"{self.parts} accelerators per sample"
            if self.parts > 1
            else f"local batch {self.local_batch_size}"
        )
        each += f" in {self.run.backward_passes} backward passes" if self.run.backward_passes > 1 else ""
        return (
            f"{count(self.nodes, 'node')}, {count(self.accelerators, 'accelerator')}, global batch {self.batch}, "
            f"{each}, {self.run.training.precision}"
        )

    @property
    def terms(self) -> dict[str, Triple]:
        """The terms of the time to train in display order: seconds, and epochs."""
        rows = {"training step": self.step_s.ends, "  training": self.train_s, "  evaluation": self.eval_s}
        rows |= {"T_epoch": self.epoch_s, "T_staging": self.staging_s}
        if self.epochs and self.total_s:
            rows |= {"epochs": self.epochs.ends, "T_extra": self.extra_s, "time to train": self.total_s}
        return rows

    @property
    def facts(self) -> dict[str, str]:
        """Everything in the prediction that is not a term of the time to train, by label."""
        value, low, high = (digits(rate) for rate in self.samples_per_s)
        together = whole(self.samples_per_s[0] * self.accelerators)
        unknown = "" if self.tier.read else ", whose bandwidth is not in the machine file"
        facts = {
            "throughput": f"{value} samples/s per accelerator ({low} to {high}), {together} in all",
            "binding": self.binding,
            "memory": f"{bytes_text(self.memory)}; {self.fits}",
            "training data": f"in {self.tier.name}{unknown}",
            "staging": self._moved(),
            **self._host,
            "all-reduce": f"{self.step.reduce.algorithm}, bound by {self.step.reduce.bound}",
            "efficiency": f"{digits(self.efficiency.value)} of the roofline, {self.efficiency.how}",
            "epochs": self.epochs.how if self.epochs else NO_EPOCHS,
        }
        if spatial := self.spatial:
            facts["halos"] = f"all ranks send {bytes_text(spatial.halo_bytes)} per epoch, evaluation included"
            kept = bytes_text(spatial.saved_bytes)
            facts["activations"] = f"a rank keeps {kept} for {count(self.local_batch_size, 'sample')}"
        return facts | {f"note {n}": note for n, note in enumerate(self.notes, 1)}

    @property
    def _host(self) -> dict[str, str]:
        if self.step.host is None:
            return {}
        each, graph = map(seconds_text, self.step.host)
        said = f"the driver takes at least {each} of host time per step, {graph} if the step is one graph"
        if launches := launches_of(self.run):
            low, high = (seconds_text(launches * launch) for launch in EAGER_LAUNCH)
            said += (
                f"; PyTorch takes about {low} to {high} eagerly, {REPLAY} replaying graphs, beside an H200"
            )
        return {"host": said}

    @property
    def fits(self) -> str:
        """The largest batch that fits on an accelerator, or on those sharing a sample, as text."""
        capacity = bytes_text(self.machine.figures["accelerator.memory"])
        whose = f"an accelerator's {capacity}"
        if self.parts > 1:
            whose = f"{self.parts} accelerators of {capacity} each"
        once = " in a backward pass" if self.run.backward_passes > 1 else ""
        reserved = f"{bytes_text(RESERVED)} for libraries"
        return f"the largest batch that fits {whose} is {self.largest_batch}{once}, with {reserved}"

    def _moved(self) -> str:
        """The staging mode and the bytes that staging moves, in words."""
        if self.moved is None:
            return "none"
        held, source, sent = map(bytes_text, (self.moved.held, self.moved.source, self.moved.sent))
        passed = f", {sent} from node to node" if self.moved.sent else ""
        return (
            f"{self.run.staging.mode}: {held} to each node, {source} read from the shared file system{passed}"
        )

    def record(self) -> dict[str, Any]:
        """The prediction as JSON: intervals are [value, low, high], times in seconds."""
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
            "host_s": self.step.host,
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


def terms_table(p: Prediction) -> Table:
    """The parts of a step, and the terms of the time to train with their intervals."""

    def term(row: tuple[str, Sequence[float]], which: int) -> Cell:
        name, values = row
        if which and len(values) > which and values[1] == values[2]:
            # Staging at the machine's own rates, or none.
            return Cell(NO_INTERVAL if which == 1 and values[0] else "")
        text = "{:.1f}".format if name == "epochs" else seconds_text
        return number(values[which], text) if which < len(values) else Cell()

    parts = {f"step: {name}": (seconds,) for name, seconds in p.step.named.items()}
    ends = {title: partial(term, which=n) for n, title in enumerate(("predicted", "low", "high"))}
    return table("prediction", list((parts | p.terms).items()), {"term": lambda row: row[0], **ends})
