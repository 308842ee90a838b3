"""What a run should cost on a machine: T = T_staging + T_epoch · epochs + T_extra (paper 001, equation 1).

Each term has a value and the ends of its interval; deviations add in quadrature. A step is the roofline over the
calibrated efficiency, launches, and the all-reduce; where the input path is slower than that, the step waits for
it. Staged, each node keeps the whole data set or its share (``staging.mode``), in the fastest tier that
holds it; not staged, a node reads any sample from the shared file system, or from memory what that holds.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.memory import RESERVED, largest_batch, memory_of
from mlhpc.perf.calibration import (
    Calibration,
    Efficiency,
    calibration,
    kind_of,
    roofline,
)
from mlhpc.perf.collectives import AllReduce, all_reduce
from mlhpc.perf.epochs import epochs_to_target
from mlhpc.perf.machines import Machine
from mlhpc.perf.movement import (
    FILE_SYSTEM,
    Placement,
    Scope,
    StagedBytes,
    Tier,
    exchange_seconds,
    input_seconds,
    place,
    staging_seconds,
    tiers,
    unstaged,
)
from mlhpc.perf.networks.layer import Network
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.parts import parts
from mlhpc.perf.samples import SampleBytes, sample_bytes
from mlhpc.perf.scaling import Estimate, Triple, added, multiplied, scaled
from mlhpc.perf.spatial import Spatial, divide, halo_seconds, slab_plan, spatial_of
from mlhpc.perf.units import binary, written


@dataclass(frozen=True)
class Step:
    """One training step, an update of the weights, in seconds. ``compute``: products and memory traffic,
    calibrated; ``launch``: what layers cost whatever the batch; ``reduce``: all-reduce; ``halo``: exchange within
    a sample; ``inputs``: what each stage of the input path takes for a step, of which the slowest counts; what is
    not hidden of it is ``wait``."""

    compute: float
    launch: float
    reduce: AllReduce
    halo: float
    inputs: dict[str, float]

    @property
    def input(self) -> float:
        return max(self.inputs.values(), default=0.0)

    @property
    def slowest_input(self) -> str:
        """The stage of the input path that takes longest; empty if no rate is known."""
        return max(self.inputs, key=lambda stage: self.inputs[stage], default="")

    @property
    def busy(self) -> float:
        return self.compute + self.launch + self.reduce.seconds + self.halo

    @property
    def wait(self) -> float:
        return max(0.0, self.input - self.busy)

    @property
    def seconds(self) -> float:
        return max(self.busy, self.input)

    @property
    def named(self) -> dict[str, float]:
        found = {"computing": self.compute, "launching and updating": self.launch,
                 "all-reduce": self.reduce.seconds, "waiting for input": self.wait}  # fmt: skip
        return {**found, "halo exchange": self.halo} if self.halo else found


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
        return self.run.hyperparameters.global_batch_size

    @property
    def spatial(self) -> Spatial | None:
        """What a group of ranks exchanges and keeps where ``training.spatial`` cuts the samples."""
        return spatial_of(self.run, self.local_batch_size)

    @property
    def samples_per_s(self) -> Triple:
        """Training samples of one accelerator; the low end is that of the slow end of the step."""
        share = self.batch / self.accelerators
        return share / self.step_s.value, share / self.step_s.high, share / self.step_s.low

    @property
    def epoch_s(self) -> Triple:
        return added(self.train_s, self.eval_s)

    @property
    def total_s(self) -> Triple | None:
        if self.epochs is None:
            return None
        trained = multiplied(self.epoch_s, self.epochs.ends)
        return added(self.staging_s, trained, self.extra_s)

    @property
    def bound(self) -> str:
        """The longest part of a training step; "waiting for input" whenever there is any such wait."""
        if self.step.wait > 0:
            return "waiting for input"
        return max(self.step.named, key=lambda name: self.step.named[name])

    @property
    def binding(self) -> str:
        """What limits a training step, in words."""
        if self.step.wait > 0 and self.input_rate is not None:
            fed, wanted = self.batch / self.step.seconds, self.batch / self.step.busy
            return (
                f"the input path limits: {_rate(fed)} of {_rate(wanted)} samples/s, {self.step.slowest_input}"
            )
        share = self.step.named[self.bound] / self.step.seconds
        return f"{self.bound} limits: {share:.0%} of a step"


def predict(machine: Machine, run: Run, nodes: int) -> Prediction:
    """``run`` on ``nodes`` of ``machine``, staged where the data set fits. Raises UserError if it cannot be
    there: too many nodes, a batch that cannot be divided or does not fit, a data set larger than every tier, a
    figure that the file lacks.
    """
    return Model(machine, run).at(nodes)


class Model:
    """What predictions of one run on one machine share. ``staged`` False: training data is read from
    the shared file system, in every epoch what memory does not hold from those before; ``scope``: what an epoch of
    such data is shuffled among (of staged data ``staging.mode`` says it). ``generation``: of the framework, the
    newest if None."""

    def __init__(
        self,
        machine: Machine,
        run: Run,
        *,
        staged: bool = True,
        scope: Scope = "sample",
        generation: str | None = None,
        calibrated: Calibration | None = None,
    ) -> None:
        """Raises UserError for a run whose steps are not all alike."""
        if getattr(run.training, "coarse_epochs", ()):
            raise UserError("epochs on coarser samples cannot be predicted; set training.coarse_epochs=[]")
        calibrated = calibrated or calibration()
        self.machine, self.run, self.calibrated, self.staged = machine, run, calibrated, staged
        self.scope: Scope = scope
        self.network: Network = network_of(run)
        self.bytes: SampleBytes = sample_bytes(run)
        train, evaluation = run.data.train_samples, run.data.eval_samples
        self.data_bytes = self.bytes.stored * train, self.bytes.stored * (train + evaluation)
        """Bytes of the training samples, and of the whole data set."""
        self.plan = slab_plan(run)
        self.kind = kind_of(self.network)
        self.efficiency = self.own_efficiency() or calibrated.efficiency(
            machine.family, self.kind, generation
        )
        self.roofline = roofline(self.network, machine, run.training.precision)
        self.published_roofline = roofline(self.network, machine, self.efficiency.precision)
        self.epochs = _epochs(run)
        self._memory = cache(lambda local: memory_of(run, local))
        self.largest = cache(self._largest)

    def own_efficiency(self) -> Efficiency | None:
        """What the machine file says of this kind of layer, in the run's precision."""
        key = f"efficiency.convolution_{self.kind[0]}d"
        if (share := self.machine.get(key)) is None:
            return None
        group = self.machine.name, self.machine.sources[key]
        return Efficiency(share, group, 0, self.run.training.precision, exact=True)

    def at(self, nodes: int) -> Prediction:
        """Raises UserError as :func:`predict`."""
        machine, run = self.machine, self.run
        if machine.nodes is not None and nodes > machine.nodes:
            raise UserError(
                f"{machine.at('nodes')}: {nodes} nodes requested, but {machine.name} has {machine.nodes}"
            )
        accelerators, batch = nodes * machine.per_node, run.hyperparameters.global_batch_size
        together, local = divide(batch, accelerators, self.plan)
        self.require_fits(self.of_a_pass(local), together)
        placed = self.placed(nodes, together)
        tier, moved = placed.tier, placed.moved
        step = self.step(nodes, together, local, tier)
        step_s, notes = self.interval(step)
        notes += placed.notes
        if together > 1 and self.plan is None:
            notes.append(
                "several accelerators per sample: the undivided share of a step is Fugaku's; this suite's "
                "benchmarks keep a sample on one accelerator"
            )
        steps = max(1, run.data.train_samples // batch)
        train_s = scaled(step_s.ends, steps)
        spent = parts()
        per_eval = run.data.eval_samples / run.data.train_samples
        eval_s = scaled(multiplied(train_s, spent.evaluation), per_eval)
        if moved is None:
            staging_s = first = self.first_epoch(nodes, together, local, step)
        else:
            received = moved.sent / nodes
            staging_s, first = staging_seconds(machine, moved.held, nodes, tier, received), (0.0, 0.0, 0.0)
        trained = multiplied(added(train_s, eval_s), self.epochs.ends if self.epochs else (1.0, 1.0, 1.0))
        rest = multiplied(trained, spent.rest)  # a longer first epoch is in what published runs spend
        extra = max(0.0, rest[0] - first[0]), max(0.0, rest[1] - first[0]), max(0.0, rest[2] - first[0])
        if moved and staging_s[0] > trained[0] and self.epochs:
            middle, slow, fast = (written(rate, "bytes/s") for rate in spent.staging_rate)
            notes.append(
                f"most of the time to train is staging, at the {middle} per node reached in published sets "
                f"({slow} to {fast}), independent of the machine"
            )
            if run.staging.mode == "replicate" and moved.sent == 0 and nodes > 1:
                notes.append(
                    "every node reads the whole data set from the shared file system; with "
                    "staging.read_once only one node does, and with staging.mode=shard each node reads its "
                    "part"
                )
        if moved and self.epochs and (once := self.exchange(nodes, tier)) is not None:
            notes.append(
                f"nodes exchange their shards: {written(self._exchanged(nodes), 'bytes')} before an epoch, "
                f"{once:.3g} s each"
            )
            value, low, high = (once * max(0.0, epochs - 1) for epochs in self.epochs.ends)
            extra = added(extra, (value, low, high))
        rate = None if step.input == 0 else batch / step.input
        return Prediction(machine, run, nodes, accelerators, together, local, step, step_s, self.efficiency, tier,
                          moved, staging_s, train_s, eval_s, self.epochs, extra, rate,
                          tuple(notes), self.memory(self.of_a_pass(local), together),
                          self.largest(together))  # fmt: skip

    def of_a_pass(self, local: int) -> int:
        """Samples of one of the backward passes whose gradients an update adds up. Raises UserError if
        ``local`` cannot be divided among them."""
        passes = self.run.backward_passes
        if local % passes:
            raise UserError(
                f"a local batch of {local} cannot be divided into {passes} equal backward passes; use fewer nodes "
                "or less gradient accumulation"
            )
        return local // passes

    def step(self, nodes: int, together: int, local: int, tier: Tier) -> Step:
        machine, net = self.machine, self.network
        compute = local * self.roofline / self.efficiency.value
        # An efficiency measured on the machine itself has its launches in it.
        launches = len(net.layers) * self.run.backward_passes
        launch = launches * self.calibrated.launch if self.efficiency.sets else 0.0
        if together > 1:
            divided = (1 - self.calibrated.undivided) / together + self.calibrated.undivided
            compute, launch = compute * divided, launch * divided
        reduce = all_reduce(machine, 4.0 * net.parameters, nodes, machine.per_node)
        return Step(
            compute,
            launch,
            reduce,
            halo_seconds(machine, self.run, nodes, together, local),
            input_seconds(machine, self.run.benchmark, self.bytes, local, tier),
        )

    def placed(self, nodes: int, together: int) -> Placement:
        if self.staged:
            return place(self.machine, self.run.staging, *self.data_bytes, nodes, together)
        train, _ = self.data_bytes
        return unstaged(self.machine, train, nodes, together, self.scope)

    def first_epoch(self, nodes: int, together: int, local: int, step: Step) -> Triple:
        """Seconds that the first epoch of data that is not staged takes longer than the others, because all of it
        comes from the file system and none from memory: staging without a separate name. The interval is that of
        the step, which hides more of the reading the longer it takes."""
        shared = next((tier for tier, _ in tiers(self.machine, nodes) if tier.name == FILE_SYSTEM), None)
        if shared is None:
            return 0.0, 0.0, 0.0
        steps = max(1, self.run.data.train_samples // self.run.hyperparameters.global_batch_size)
        cold, _ = self.interval(self.step(nodes, together, local, shared))
        warm, _ = self.interval(step)
        excess = [steps * (slow - fast) for slow, fast in zip(cold.ends, warm.ends, strict=True)]
        return excess[0], min(excess), max(excess)

    def exchange(self, nodes: int, tier: Tier) -> float | None:
        """Seconds in which nodes exchange their shards of the training data before an epoch, which they do before
        every one but the first; None if they do not."""
        if not self.run.staging.exchange or nodes == 1:
            return None
        return exchange_seconds(self.machine, self._exchanged(nodes) / nodes, tier)

    def _exchanged(self, nodes: int) -> float:
        """Bytes that all nodes send for an epoch."""
        return self.data_bytes[0] * (nodes - 1) / nodes

    def interval(self, step: Step) -> tuple[Estimate, list[str]]:
        """From how far the published sets lie from each other: nine of ten are within it."""
        half = self.calibrated.factor
        notes: list[str] = []
        if not self.efficiency.exact:
            half = half**2
            family = self.machine.family
            why = (
                f"the published sets of {self.kind}s on {family} are from another framework or year"
                if self.efficiency.group[0] == family
                else f"no published set of {self.kind}s on {family}: the efficiency of all families is used"
            )
            notes.append(f"{why}, so the interval is wider")
        low, high = max(step.busy / half, self.roofline_step(step)), step.busy * half
        change = self.published_roofline / self.roofline
        if abs(change - 1) > 0.05:
            mine, theirs = self.run.training.precision, self.efficiency.precision
            notes.append(f"{mine} is extrapolated by the roofline: those published sets ran {theirs}")
            low = max(min(low, step.busy * change / half), self.roofline_step(step))
            high = max(high, step.busy * change * half)
        if self.efficiency.sets and "2-D" in self.kind and self.run.benchmark == "resnet50":
            notes.append(
                "no published set of ResNet-50 available: the efficiency of 2-D convolutions is that of "
                "DeepCAM"
            )
        floor = step.input
        value = Estimate(max(step.busy, floor), max(low, floor), max(high, floor), self.efficiency.how)
        return value, notes

    def roofline_step(self, step: Step) -> float:
        return step.compute * self.efficiency.value

    def require_fits(self, local: int, together: int) -> None:
        """Raises UserError if a backward pass of ``local`` samples needs more than the accelerator's memory
        without what libraries take."""
        capacity = self.machine.figures["accelerator.memory"]
        if self.memory(local, together) <= capacity - RESERVED:
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
            f"{self.machine.at('accelerator.memory')}: {each} needs "
            f"{binary(self.memory(local, together))} of the accelerator's {binary(capacity)}, "
            f"{binary(RESERVED)} including libraries; "
            f"{largest}; use more nodes or a smaller batch"
        )

    def _largest(self, together: int) -> int:
        """Samples of the largest backward pass that fits, 0 where not even one does."""
        capacity = self.machine.figures["accelerator.memory"] - RESERVED
        if self.memory(1, together) > capacity:
            return 0
        return largest_batch(lambda samples: self.memory(samples, together), capacity)

    def memory(self, local: int, together: int) -> float:
        """Peak bytes of a step. Accelerators that share a sample share all but weights and optimizer state."""
        needed = self._memory(local)
        weights = needed.parameters + needed.copies + needed.optimizer
        return weights + (needed.peak - weights) / together


def over_nodes(
    machine: Machine, run: Run, *, most: int | None = None, staged: bool = True
) -> Iterator[Prediction]:
    """Predictions at 1, 2, 4, … nodes, as far as the machine goes and the batch can be divided; those that cannot
    be are left out."""
    model = Model(machine, run, staged=staged)
    nodes, last = 1, most or machine.nodes or 2**17
    while nodes <= last:
        with suppress(UserError):
            yield model.at(nodes)
        nodes *= 2


def weak(machine: Machine, run: Run, local_batch_size: int, nodes: Iterable[int]) -> Iterator[Prediction]:
    """Weak scaling: the same local batch on more and more nodes, so that the global batch grows."""
    for count in nodes:
        with suppress(UserError):
            yield predict(machine, with_batch(run, local_batch_size * count * machine.per_node), count)


def with_batch(run: Run, batch: int) -> Run:
    """``run`` with another global batch size."""
    hyperparameters = run.hyperparameters.model_copy(update={"global_batch_size": batch})
    return run.model_copy(update={"hyperparameters": hyperparameters})


def best(machine: Machine, runs: Iterable[Run]) -> Prediction | None:
    """The shortest time to train over ``runs`` (batch sizes) and node counts in powers of two, one accelerator a
    sample at most. None if none of them can be."""
    found = (p for run in runs for p in over_nodes(machine, run) if p.total_s and p.parts == 1)
    return min(found, key=lambda p: p.total_s[0] if p.total_s else math.inf, default=None)


def _epochs(run: Run) -> Estimate | None:
    try:
        return epochs_to_target(run.benchmark, run.preset, run.hyperparameters.global_batch_size)
    except UserError:
        return None


def _rate(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"
