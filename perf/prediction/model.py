"""The predicted time of a run on a machine: T = T_staging + T_epoch · epochs + T_extra (Farrell et al. 2021,
equation 1).

Each term has a value and the ends of its interval; deviations add in quadrature. A step is the roofline over the
calibrated efficiency, launches, and the all-reduce; if the input path is slower, the step waits for it. If data is
staged, each node keeps the whole data set or its share (``staging.mode``) in the fastest tier with enough
capacity; otherwise nodes read samples from the shared file system, or from memory if cached.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from typing import Any, NamedTuple

from mlhpc.benchmarks.load import dotted, load
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.memory import RESERVED, largest_batch, memory_of
from mlhpc.perf.calibration import Calibration, Efficiency, calibration, kind_of, roofline
from mlhpc.perf.collectives import all_reduce
from mlhpc.perf.epochs import epochs_to_target
from mlhpc.perf.machines import COPIES, Machine, dimension_of
from mlhpc.perf.movement import costs, gaps, input_seconds
from mlhpc.perf.networks.layer import Network
from mlhpc.perf.networks.registry import launches_of, network_of
from mlhpc.perf.parts import parts
from mlhpc.perf.prediction.result import Prediction, Step
from mlhpc.perf.samples import SampleBytes, sample_bytes
from mlhpc.perf.scaling import Estimate, Triple, added, multiplied, scaled
from mlhpc.perf.spatial import divide, halo_seconds, slab_plan
from mlhpc.perf.staging import Placement, exchange_seconds, place, staging_seconds, unstaged
from mlhpc.perf.tiers import FILE_SYSTEM, Scope, Tier, tiers
from mlhpc.quantities import bytes_text, count, seconds_text

_NOTHING: Triple = (0.0, 0.0, 0.0)


class Enlarged(NamedTuple):
    """A ``figure`` of a machine that is doubled in speed or size, and the resulting time to train in
    ``seconds``."""

    figure: str
    seconds: float


MOST_NODES = 2**17
"""Limit of the number of nodes if the machine file does not say how many there are."""


def predict(machine: Machine, run: Run, nodes: int) -> Prediction:
    """Predict ``run`` on ``nodes`` of ``machine``, with data staged if it fits. Raises UserError if the run is
    impossible on these nodes: too many nodes, a batch that cannot be divided or does not fit, a data set larger
    than every tier, or a figure missing from the machine file.
    """
    return Model(machine, run).at(nodes)


def enlarged(model: "Model", nodes: int) -> list[Enlarged]:
    """The time to train on ``nodes`` after doubling each figure of the machine in turn (halving latencies), and on
    twice as many nodes if possible, the most effective change first. Added capacity is used only if that makes the
    run faster. Raises UserError if the run is impossible on ``nodes``."""
    machine, rows = model.machine, []
    before = model.at(nodes).total_s or (math.inf,)
    for key, value in machine.figures.items():
        if key.startswith("efficiency."):  # belongs to the calibration, not to the machine
            continue
        better = {**machine.figures, key: value * (0.5 if dimension_of(key) == "s" else 2)}
        other = Model(
            replace(machine, figures=better), model.run, staged=model.staged, scope=model.scope,
            generation=model.generation, calibrated=model.calibrated,
        )  # fmt: skip
        seconds = (other.at(nodes).total_s or before)[0]
        rows.append(Enlarged(key, min(seconds, before[0]) if dimension_of(key) == "bytes" else seconds))
    with suppress(UserError):
        if total := model.at(2 * nodes).total_s:
            rows.append(Enlarged("nodes", total[0]))
    return sorted(rows, key=lambda row: row.seconds)


class Model:
    """Predictions of one run on one machine. ``staged`` False: training data is read from the shared file
    system, except for samples in memory from earlier epochs; ``scope``: shuffle scope of such data (for staged
    data it follows from ``staging.mode``). ``generation``: the framework's generation; None: the newest."""

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
        """Raises UserError for a run with different kinds of steps (some epochs on coarser samples)."""
        if getattr(run.training, "coarse_epochs", ()):
            raise UserError("training on coarser samples cannot be predicted; set training.coarse_epochs=[]")
        calibrated = calibrated or calibration()
        self.machine, self.run, self.calibrated, self.staged = machine, run, calibrated, staged
        self.scope: Scope = scope
        self.generation = generation
        self.network: Network = network_of(run)
        self.bytes: SampleBytes = sample_bytes(run)
        train, evaluation = run.data.train_samples, run.data.eval_samples
        self.data_bytes = self.bytes.stored * train, self.bytes.stored * (train + evaluation)
        """Bytes of the training samples, and of the whole data set."""
        self.steps = max(1, train // run.hyperparameters.global_batch_size)
        self.plan = slab_plan(run)
        self.kind = kind_of(self.network)
        self.efficiency = self.own_efficiency() or calibrated.efficiency(
            machine.family, self.kind, generation
        )
        self.roofline = roofline(self.network, machine, run.training.precision)
        self.published_roofline = roofline(self.network, machine, self.efficiency.precision)
        self.epochs = _epochs(run)
        self.fits = Fits(machine, run)

    def own_efficiency(self) -> Efficiency | None:
        """The machine file's efficiency for this kind of layer in the run's precision."""
        key = f"efficiency.convolution_{self.kind[0]}d"
        if (share := self.machine.get(key)) is None:
            return None
        group = self.machine.name, self.machine.sources[key]
        return Efficiency(share, group, 0, self.run.training.precision, exact=True)

    def at(self, nodes: int) -> Prediction:
        """The prediction on ``nodes`` nodes. Raises UserError like :func:`predict`."""
        machine, run = self.machine, self.run
        self.require(nodes)
        accelerators, batch = nodes * machine.per_node, run.hyperparameters.global_batch_size
        together, local = divide(batch, accelerators, self.plan)
        one_pass = self.of_a_pass(local)
        self.fits.require(one_pass, together)
        placed = self.placed(nodes, together)
        step = self.step(nodes, together, local, placed.tier)
        step_s, step_notes = self.interval(step)

        train_s = scaled(step_s.ends, self.steps)
        spent = parts()
        evaluated = run.data.eval_samples * run.evaluations_per_epoch / run.data.train_samples
        eval_s = scaled(multiplied(train_s, spent.evaluation), evaluated)
        trained = multiplied(added(train_s, eval_s), self.epochs.ends if self.epochs else (1.0, 1.0, 1.0))
        staging_s = self.staging(nodes, together, local, step, placed)
        first = 0.0 if placed.moved else staging_s[0]
        extra_s = _without(multiplied(trained, spent.rest), first)  # ``rest`` includes the first epoch
        notes = [*step_notes, *placed.notes, *self.notes(nodes, together, placed, staging_s, trained)]
        if placed.moved and self.epochs and (once := self.exchange(nodes, placed.tier)) is not None:
            between = [once * max(0.0, epochs - 1) for epochs in self.epochs.ends]
            extra_s = added(extra_s, (between[0], between[1], between[2]))
            notes.append(
                f"nodes exchange their shards: {bytes_text(self._exchanged(nodes))} before an epoch, "
                f"{seconds_text(once)} each"
            )
        return Prediction(
            machine=machine,
            run=run,
            nodes=nodes,
            accelerators=accelerators,
            parts=together,
            local_batch_size=local,
            step=step,
            step_s=step_s,
            efficiency=self.efficiency,
            tier=placed.tier,
            moved=placed.moved,
            staging_s=staging_s,
            train_s=train_s,
            eval_s=eval_s,
            epochs=self.epochs,
            extra_s=extra_s,
            input_rate=batch / step.input if step.input else None,
            notes=tuple(notes),
            memory=self.fits.needed(one_pass, together),
            largest_batch=self.fits.largest(together),
        )

    def sample(self, prediction: Prediction) -> dict[str, Any]:
        """The cost of a training sample of ``prediction`` in FLOPs and bytes, as JSON. ``memory``: peak bytes by
        local batch; ``costs`` and ``gaps``: as in Ibrahim et al. 2021, section V-C; ``unstaged_step_s``: seconds
        of a step if nothing were staged and nodes had fixed shares."""
        machine, run, net = self.machine, self.run, self.network
        moved, gradients = net.traffic(run.training.precision), 4.0 * net.parameters
        nodes, group, local = prediction.nodes, prediction.parts, prediction.local_batch_size
        shared = unstaged(machine, self.data_bytes[0], nodes, group, "node").tier
        elements = Counter[str]()
        for layer in net.layers:
            elements[layer.kind] += layer.output_elements
        by_batch = {
            2**n: costs(machine, prediction.tier, moved=moved, sample=self.bytes, gradients=gradients,
                        local_batch_size=2**n)
            for n in range(9)
        }  # fmt: skip
        return {
            "parameters": net.parameters,
            "input_elements": net.input_elements,
            "output_elements": elements,
            "flops": net.training_flops,
            "traffic_bytes": moved,
            **asdict(self.bytes),
            "memory": [[n, memory_of(run, n, gpu=not machine.is_cpu).needed] for n in by_batch],
            "gaps": gaps(machine),
            "costs": [[n, asdict(cost)] for n, cost in by_batch.items()],
            "unstaged_step_s": self.interval(self.step(nodes, group, local, shared))[0].value,
        }

    def over_nodes(self) -> Iterator[Prediction]:
        """Predictions at 1, 2, 4, … nodes, up to the size of the machine, if the batch can be divided; impossible
        ones are omitted."""
        nodes = 1
        while nodes <= (self.machine.nodes or MOST_NODES):
            with suppress(UserError):
                yield self.at(nodes)
            nodes *= 2

    def weak(self, local_batch_size: int, nodes: Iterable[int]) -> Iterator[Prediction]:
        """Weak scaling: the same local batch size on increasing numbers of nodes."""
        for each in nodes:
            with suppress(UserError):
                batch = local_batch_size * each * self.machine.per_node
                yield predict(self.machine, with_batch(self.run, batch), each)

    def limits(self, predictions: Sequence[Prediction]) -> list[str]:
        """Sentences that say why :meth:`over_nodes`, which returned ``predictions``, predicts neither half of the
        smallest nor twice the largest number of nodes. Empty if the machine has no more nodes."""
        reasons = []
        for nodes in (predictions[0].nodes // 2, predictions[-1].nodes * 2):
            if 1 <= nodes <= (self.machine.nodes or MOST_NODES):
                try:
                    self.at(nodes)
                except UserError as error:
                    reasons.append(f"not on {count(nodes, 'node')}: {error}")
        return reasons

    def require(self, nodes: int) -> None:
        """Raise UserError if the machine has fewer than ``nodes`` nodes."""
        machine = self.machine
        if machine.nodes is not None and nodes > machine.nodes:
            raise UserError(
                f"{machine.at('nodes')}: {nodes} nodes requested, but the machine has {machine.nodes}; use fewer"
            )

    # A step

    def of_a_pass(self, local: int) -> int:
        """Samples per backward pass; a step may accumulate several passes. Raises UserError if ``local`` cannot be
        divided among them."""
        passes = self.run.backward_passes
        if local % passes:
            raise UserError(
                f"the local batch of {local} must be a multiple of the {passes} backward passes; use fewer nodes"
            )
        return local // passes

    def step(self, nodes: int, together: int, local: int, tier: Tier) -> Step:
        """A step in which each group of ``together`` accelerators trains ``local`` samples, with data in
        ``tier``."""
        machine, net = self.machine, self.network
        compute = local * self.roofline / self.efficiency.value
        # An efficiency measured on the machine itself includes its launches.
        launches = len(net.layers) * self.run.backward_passes
        each = self.calibrated.launch if self.efficiency.launch is None else self.efficiency.launch
        launch = launches * each if self.efficiency.sets else 0.0
        kernels = launches_of(self.run)
        host = None if kernels is None else machine.launching(kernels, self.run.backward_passes * COPIES)
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
            host,
        )

    def interval(self, step: Step) -> tuple[Estimate, list[str]]:
        """The step in seconds, with an interval that contains nine of ten published sets, and notes on this
        interval."""
        family, known = self.machine.family, self.generation is not None
        half = self.calibrated.factor_of(self.efficiency, family, known=known)
        notes: list[str] = []
        if half == self.calibrated.of_an_accelerator:
            notes.append(
                f"no published result of {self.kind}s on {family}, so the efficiency of all families is used; of "
                f"families left out of the fit, nine of ten sets are within a factor of {half:.1f}"
            )
        elif half == self.calibrated.of_a_round:
            notes.append(
                f"the software is of a different round than the published sets on {family}; of rounds left out of "
                f"the fit, nine of ten sets are within a factor of {half:.1f}"
            )
        bound = step.compute * self.efficiency.value  # the bare roofline
        low, high = max(step.busy / half, bound), step.busy * half
        change = self.published_roofline / self.roofline
        if abs(change - 1) > 0.05:
            mine, theirs = self.run.training.precision, self.efficiency.precision
            notes.append(f"{mine} is extrapolated by the roofline from published sets that ran {theirs}")
            low = max(min(low, step.busy * change / half), bound)
            high = max(high, step.busy * change * half)
        if self.efficiency.sets and "2-D" in self.kind and self.run.benchmark == "resnet50":
            notes.append("no set of ResNet-50 is published, so DeepCAM's efficiency is used")
        floor = step.input
        value = Estimate(max(step.busy, floor), max(low, floor), max(high, floor), self.efficiency.how)
        return value, notes

    # Data

    def placed(self, nodes: int, together: int) -> Placement:
        """Return where the training data is placed. Raises UserError if no tier is large enough."""
        if self.staged:
            return place(self.machine, self.run.staging, *self.data_bytes, nodes, together)
        train, _ = self.data_bytes
        return unstaged(self.machine, train, nodes, together, self.scope)

    def staging(self, nodes: int, together: int, local: int, step: Step, placed: Placement) -> Triple:
        """Seconds of staging; if nothing is staged, the extra time of the first epoch."""
        if placed.moved is None:
            return self.first_epoch(nodes, together, local, step)
        received = placed.moved.sent / nodes
        return staging_seconds(self.machine, placed.moved.held, nodes, placed.tier, received)

    def first_epoch(self, nodes: int, together: int, local: int, step: Step) -> Triple:
        """Seconds by which the first epoch exceeds the others if data is not staged, because all of it comes from
        the file system and none from memory; in effect, this time is staging. The ends of the interval follow from
        the ends of the step's interval, since a longer step hides more of the reading."""
        shared = next((tier for tier, _ in tiers(self.machine, nodes) if tier.name == FILE_SYSTEM), None)
        if shared is None:
            return _NOTHING
        cold, _ = self.interval(self.step(nodes, together, local, shared))
        warm, _ = self.interval(step)
        excess = [self.steps * (slow - fast) for slow, fast in zip(cold.ends, warm.ends, strict=True)]
        return excess[0], min(excess), max(excess)

    def exchange(self, nodes: int, tier: Tier) -> float | None:
        """Seconds that nodes take to exchange their shards of the training data before each epoch except the
        first; None if they do not exchange shards."""
        if not self.run.staging.exchange or nodes == 1:
            return None
        return exchange_seconds(self.machine, self._exchanged(nodes) / nodes, tier)

    def _exchanged(self, nodes: int) -> float:
        """Bytes that all nodes together send before an epoch."""
        return self.data_bytes[0] * (nodes - 1) / nodes

    def notes(
        self, nodes: int, together: int, placed: Placement, staging_s: Triple, trained: Triple
    ) -> list[str]:
        """Notes on accelerators that share a sample, and on staging that takes longer than all epochs
        (``trained``)."""
        lines = []
        if together > 1 and self.plan is None:
            lines.append(
                "accelerators share a sample, with Fugaku's undivided share of a step; a run divides "
                "samples only with training.spatial"
            )
        if placed.moved and self.epochs and staging_s[0] > trained[0]:
            middle, slow, fast = (bytes_text(rate, "/s") for rate in parts().staging_rate)
            lines.append(
                f"staging takes most of the time to train, at the {middle} per node reached in published sets "
                f"({slow} to {fast}), whatever the machine"
            )
            if self.run.staging.mode == "replicate" and placed.moved.sent == 0 and nodes > 1:
                lines.append(
                    "every node reads the whole data set from the shared file system; with staging.read_once only "
                    "one node does, and with staging.mode=shard each node reads its part"
                )
        return lines


def with_batch(run: Run, batch: int) -> Run:
    """Return a copy of ``run`` with a different global batch size."""
    hyperparameters = run.hyperparameters.model_copy(update={"global_batch_size": batch})
    return run.model_copy(update={"hyperparameters": hyperparameters})


def best(models: Iterable[Model]) -> Prediction | None:
    """The prediction with the shortest time to train over ``models`` (runs with several batch sizes) and node
    counts in powers of two, with one accelerator per sample. None if all are impossible."""
    predictions = (p for model in models for p in model.over_nodes() if p.total_s and p.parts == 1)
    return min(predictions, key=lambda p: p.total_s[0] if p.total_s else math.inf, default=None)


def _without(a: Triple, seconds: float) -> Triple:
    """``a`` less ``seconds``, but not below zero."""
    return max(0.0, a[0] - seconds), max(0.0, a[1] - seconds), max(0.0, a[2] - seconds)


def _epochs(run: Run) -> Estimate | None:
    """Epochs to target; None if no convergence is published for the run's network, data and target."""
    try:
        published = load(run.benchmark, run.preset)
        if trained(run) != trained(published) or run.target.value != published.target.value:
            return None
        return epochs_to_target(run.benchmark, run.preset, run.hyperparameters.global_batch_size)
    except UserError:
        return None


def trained(run: Run) -> dict[str, Any]:
    """The settings of ``run`` that say which network it trains on which data, by dotted name. Convergence to a
    target depends on them."""
    wanted: dict[str, Any] = {"network": True, "data": {"sample_shape", "train_samples"}}
    return dict(dotted(run.model_dump(mode="json", include=wanted)))


class Fits:
    """Computes what fits into an accelerator's memory, for one run on one machine. ``local``: samples per backward
    pass; ``together``: accelerators that share a sample."""

    def __init__(self, machine: Machine, run: Run) -> None:
        self.machine, self.run = machine, run
        self.capacity = machine.figures["accelerator.memory"]
        self.memory = cache(lambda local: memory_of(run, local, gpu=not machine.is_cpu))
        self.largest = cache(self._largest)

    def needed(self, local: int, together: int) -> float:
        """Peak bytes of a step or an evaluation. Accelerators that share a sample divide everything except weights
        and optimizer state."""
        memory = self.memory(local)
        weights = memory.parameters + memory.copies + memory.optimizer
        return weights + (memory.needed - weights) / together

    def _largest(self, together: int) -> int:
        """Samples in the largest backward pass that fits; 0 if none fits."""
        return largest_batch(lambda samples: self.needed(samples, together), self.capacity - RESERVED)

    def require(self, local: int, together: int) -> None:
        """Raises UserError if a backward pass of ``local`` samples needs more memory than libraries leave free on
        the accelerator."""
        if self.needed(local, together) <= self.capacity - RESERVED:
            return
        fits = self.largest(together)
        largest = f"the largest that fits is {fits}" if fits else "not even one sample fits"
        passes, each = self.run.backward_passes, f"a local batch of {local}"
        if passes > 1:
            each = f"each of {passes} backward passes of {local} samples"
        raise UserError(
            f"{self.machine.at('accelerator.memory')}: {each} needs {bytes_text(self.needed(local, together))} of "
            f"the accelerator's {bytes_text(self.capacity)}, of which libraries take {bytes_text(RESERVED)}; "
            f"{largest}; use more nodes, a smaller batch, or a smaller training.eval_batch_size"
        )
