"""Efficiencies derived from published results: the ratio of the roofline to real training.

The bare roofline is 8 to 48 times too fast for CosmoFlow. One efficiency per accelerator family, framework
generation and layer kind is fitted to the ``fit`` rows of ``published.csv``:

    step = local batch · roofline / efficiency + layers · launch + all-reduce

The roofline of a sample is the sum over layers and passes of the larger of FLOPs over the peak and bytes over the
memory's bandwidth; ``launch``, one constant for all sets, is the time per layer and step that does not depend on
the batch size (kernel launches, optimizer); all-reduce follows the model of ``collectives.py``, without overlap.
An efficiency is the median over the group's rows. All constants are computed from the file on demand, which takes
milliseconds.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

from mlhpc.errors import UserError
from mlhpc.perf.collectives import all_reduce
from mlhpc.perf.machines import Machine
from mlhpc.perf.networks.layer import Layer, Network, Precision
from mlhpc.perf.published import Published, published

SPEEDUP_OF_FOUR = 1.98
"""Training throughput with 4 accelerators per sample relative to 1, at the same batch (Farrell et al. 2021,
section 4.2.1: Fugaku, 16,384 processors, relative to an extrapolation from 512 to batch 4096)."""
ALL = "all families"
"""Takes the place of the family in the group of an efficiency that is used for families without sets."""
_RECENT = 2022
_UNKNOWN_FACTOR = 3.0
"""Used if no set can be left out, because each is the only one in its group."""
_LAUNCHES = [0.0, *(1e-5 * 1.25**n for n in range(20))]

Group = tuple[str, str, str]
"""Accelerator family, framework generation and kind of layer."""
By = Literal["round", "accelerator"]
"""The groups that are left out of a fit in turn: rounds or accelerator families."""
Kind = str
"""Layer kind of the efficiency, one of ``CALIBRATED``."""
CALIBRATED: tuple[Kind, ...] = ("2-D convolution", "3-D convolution")


@dataclass(frozen=True)
class Efficiency:
    """An efficiency. ``value``: share of the roofline reached. ``group``: its family and generation. ``sets``:
    number of published sets in the median; ``precision``: their precision. ``exact``: whether family and
    generation are the requested ones. ``launch`` and ``factor``: seconds per layer, and the error factor of eight
    of ten sets (see ``recent``); None: the calibration's own apply."""

    value: float
    group: tuple[str, str]
    sets: int
    precision: Precision
    exact: bool
    launch: float | None = None
    factor: float | None = None

    @property
    def how(self) -> str:
        """A phrase that states the origin of the efficiency."""
        family, generation = self.group
        if not self.sets:
            return f"{family}, {generation}"
        count = f"{self.sets} published set{'s' * (self.sets != 1)}"
        if self.exact:
            return f"{family}, {generation} ({count})"
        other = "accelerator" if family == ALL else "framework or year"
        return f"{family}, {generation} ({count}); of another {other}"


@dataclass(frozen=True)
class Calibration:
    """The fitted constants. ``efficiencies`` by group: value, number of sets and their precision. ``launch``:
    seconds per layer. ``undivided``: share of a step that is not divided among several accelerators per sample.

    Three fields are error bounds: nine of ten sets left out of the fit have a ratio of measured to predicted step
    time within this factor. ``factor``: each ``fit`` set is left out alone, so that others of its group remain
    (error for known software). ``of_a_round``: whole rounds are left out in turn, counting sets whose accelerator
    occurs in other rounds (other software). ``of_an_accelerator``: whole families are left out in turn.
    """

    efficiencies: dict[Group, tuple[float, int, Precision]]
    launch: float
    undivided: float
    factor: float
    of_a_round: float = _UNKNOWN_FACTOR
    of_an_accelerator: float = _UNKNOWN_FACTOR
    recent: "Recent | None" = None

    def factor_of(self, efficiency: Efficiency, family: str, *, known: bool) -> float:
        """The error bound of a prediction on ``family`` that uses ``efficiency``. ``known``: whether the predicted
        run uses the software from which the efficiency was derived."""
        if efficiency.factor:
            return efficiency.factor
        # Measured on the machine itself, or published for it.
        if not efficiency.sets or (known and efficiency.exact):
            return self.factor
        return self.of_a_round if efficiency.group[0] == family else self.of_an_accelerator

    def efficiency(self, family: str, kind: Kind, generation: str | None = None) -> Efficiency:
        """The efficiency of this generation (None: the newest), or else of the family's generation nearest in
        year. A family that occurs only in round 3.0 gets the efficiency of ``recent``; a family without sets gets
        the median over the newest generation of all families. Raises UserError for an unknown kind."""
        groups = {(f, g): e for (f, g, k), e in self.efficiencies.items() if k == kind}
        if not groups:
            raise UserError(f"no known efficiency for layers of type {kind!r}")
        if own := [g for f, g in groups if f == family]:
            wanted = _year(generation) if generation else 9999
            same = [
                g for g in own if generation and g.rpartition(" ")[0] == generation.rpartition(" ")[0]
            ] or own
            best = min(same, key=lambda g: (g != generation, abs(_year(g) - wanted), "NGC" not in g))
            return Efficiency(groups[family, best][0], (family, best), *groups[family, best][1:],
                              exact=generation in (None, best))  # fmt: skip
        if self.recent and family in self.recent.families:
            return self.recent.efficiencies[kind]
        newest = max(_year(g) for _, g in groups)
        latest = [e for (_, g), e in groups.items() if _year(g) == newest]
        value = statistics.median(share for share, _, _ in latest)
        precision = statistics.mode(precision for _, _, precision in latest)
        sets = sum(count for _, count, _ in latest)
        return Efficiency(value, (ALL, f"{newest}"), sets, precision, exact=False)


@dataclass(frozen=True)
class Recent:
    """Efficiencies of PyTorch on accelerators of ``families``, by kind of layer: see ``recent``."""

    families: frozenset[str]
    efficiencies: dict[Kind, Efficiency]


def kind_of(network: Network) -> Kind:
    """The kind of layer with most of the network's FLOPs; convolutions are distinguished by their number of
    spatial axes. Raises UserError, naming the largest layer, if no published set covers the kind."""
    flops: dict[str, int] = {}
    largest: dict[str, Layer] = {}
    for layer in network:
        if layer.training_flops:
            axes = len(layer.output) - 1
            kind = f"{axes}-D convolution" if "convolution" in layer.kind else layer.kind
            flops[kind] = flops.get(kind, 0) + layer.training_flops
            largest[kind] = max(largest.get(kind, layer), layer, key=lambda one: one.training_flops)
    if not flops:
        raise UserError(
            f"network {network.name} has no matrix products or convolutions, so it cannot be modelled"
        )
    dominant = max(flops, key=lambda kind: flops[kind])
    if dominant not in CALIBRATED:
        raise UserError(
            f"network {network.name}, layer {largest[dominant].name!r}: most of its work is of kind "
            f"{dominant!r}, but efficiency is known only for {' and '.join(CALIBRATED)}s"
        )
    return dominant


def roofline(network: Network, machine: Machine, precision: Precision) -> float:
    """Minimum seconds per training sample, without launches and communication."""
    peak, _ = machine.peak(precision)
    bandwidth = machine.figures["accelerator.bandwidth"]
    return sum(
        max(part.flops / peak, part.traffic(precision) / bandwidth)
        for layer in network
        for part in layer.passes
    )


class _Row(NamedTuple):
    """The values of a published set that the fit uses. In seconds: the measured ``step``, the roofline ``bound``
    of the local batch, and the all-reduce (``reduce``)."""

    group: Group
    precision: Precision
    step: float
    bound: float
    layers: int
    reduce: float


def communication(machine: Machine, size: float, accelerators: int) -> float:
    """Seconds of one run's all-reduce of ``size`` bytes; 0 if the machine file has no network."""
    if "network.bandwidth" not in machine.figures:
        return 0.0
    nodes = math.ceil(accelerators / machine.per_node)
    return all_reduce(machine, size, nodes, min(machine.per_node, accelerators)).seconds


@cache
def _of(row: Published) -> _Row:
    machine, net = row.machine, row.network
    kind = kind_of(net)
    reduce = communication(machine, 4 * net.parameters, row.accelerators)
    bound = roofline(net, machine, row.precision)
    step = row.step_s
    if row.spatial == 1:
        bound *= row.local_batch_size
    else:
        # The step of the same batch on a quarter of the accelerators, computed from the speed-up; other divisions
        # are not fitted.
        step = row.batch / (row.accelerators * row.samples_per_s) * SPEEDUP_OF_FOUR
    return _Row((machine.family, row.generation, kind), row.precision, step, bound, len(net.layers), reduce)


def step_seconds(bound: float, efficiency: float, layers: int, launch: float, reduce: float) -> float:
    """The formula in the module's docstring, in seconds."""
    return bound / efficiency + layers * launch + reduce


def _efficiencies(rows: Sequence[_Row], launch: float) -> dict[Group, tuple[float, int, Precision]]:
    groups: dict[Group, list[float]] = {}
    precision = {row.group: row.precision for row in rows}
    for row in rows:
        left = max(row.step - row.layers * launch - row.reduce, 0.1 * row.step)
        groups.setdefault(row.group, []).append(min(1.0, row.bound / left))
    return {
        group: (statistics.median(shares), len(shares), precision[group]) for group, shares in groups.items()
    }


def _error(rows: Sequence[_Row], launch: float) -> float:
    """Mean absolute error of log(step time), with each row predicted from the others of its group."""
    return statistics.fmean(abs(math.log(ratio)) for ratio in _left_out(rows, launch))


def _left_out(rows: Sequence[_Row], launch: float) -> list[float]:
    """The ratio of measured to predicted step time of each row that is predicted from the others of its group;
    rows without others are omitted."""
    ratios = []
    for row in rows:
        if others := [other for other in rows if other is not row and other.group == row.group]:
            efficiency = _efficiencies(others, launch)[row.group][0]
            ratios.append(row.step / step_seconds(row.bound, efficiency, row.layers, launch, row.reduce))
    return ratios


def fit(sets: Sequence[Published]) -> Calibration:
    """Calibrate with the sets marked ``fit``. Raises UserError if there are none."""
    used = [row for row in sets if row.use == "fit" and row.spatial in (1, 4)]
    if not used:
        raise UserError("no set is marked fit, so the model cannot be calibrated")
    apart: dict[By, list[float]] = {"round": [], "accelerator": []}
    for by, ratios in apart.items():
        for row, calibrated in left_out([row for row in sets if row.is_early], used, by):
            rate, how = rate_of(row, row.machine, calibrated)
            if by == "accelerator" or how.group[0] == row.machine.family:
                ratios.append(rate / row.samples_per_s)
    return replace(
        _fitted(used),
        recent=recent(sets),
        of_a_round=nine_of_ten(apart["round"]),
        of_an_accelerator=nine_of_ten(apart["accelerator"]),
    )


def _fitted(used: Sequence[Published]) -> Calibration:
    rows = [_of(row) for row in used]
    launch = min(_LAUNCHES, key=lambda value: _error(rows, value)) if _left_out(rows, 0.0) else 0.0
    factor = nine_of_ten(_left_out(rows, launch))
    return Calibration(_efficiencies(rows, launch), launch, _undivided(used, rows), factor)


def recent(sets: Sequence[Published]) -> Recent | None:
    """One efficiency for each kind of layer, and one time per layer, shared by all accelerators with bfloat16 in
    the PyTorch sets of rounds 2.0 (``fit``) and 3.0 (``seen``), because A100 and H100 need about the same time per
    layer and reach about the same share of the roofline. Returns None without sets of round 3.0."""
    used = [
        row
        for row in sets
        if row.use in ("fit", "seen") and row.framework == "PyTorch" and row.year >= _RECENT and row.spatial == 1
        and row.machine.get("accelerator.bfloat16")
    ]  # fmt: skip
    families = frozenset(row.machine.family for row in used)
    if not any(row.use == "seen" for row in used):
        return None
    group = " and ".join(sorted(families)), f"PyTorch, {_RECENT} and later"
    rows = [row._replace(group=(*group, row.group[2])) for row in map(_of, used)]
    launch = min(_LAUNCHES, key=lambda value: _error(rows, value))
    ratios = _left_out(rows, launch)
    # An additional set is within it with probability 0.8 (Vovk, Gammerman and Shafer 2005, conformal prediction).
    factor = _factor_of(ratios, min(len(ratios), math.ceil(0.8 * (len(ratios) + 1))))
    return Recent(families, {
        kind: Efficiency(value, group, count, precision, exact=True, launch=launch, factor=factor)
        for (_, _, kind), (value, count, precision) in _efficiencies(rows, launch).items()
    })  # fmt: skip


def nine_of_ten(ratios: Sequence[float]) -> float:
    """The smallest factor f for which at least nine of ten ratios are between 1/f and f."""
    return _factor_of(ratios, math.ceil(0.9 * len(ratios)))


def _factor_of(ratios: Sequence[float], count: int) -> float:
    """The smallest factor f for which ``count`` of the ratios are between 1/f and f."""
    off = sorted(abs(math.log(ratio)) for ratio in ratios)
    # Rounded up, so that the set that determines the factor is itself within it.
    return math.exp(off[count - 1]) * (1 + 1e-9) if off else _UNKNOWN_FACTOR


def group_of(row: Published, by: By) -> str:
    """The round or the accelerator family of a set."""
    return row.round if by == "round" else row.machine.family


def left_out(
    rows: Sequence[Published], sets: Sequence[Published], by: By
) -> Iterator[tuple[Published, Calibration]]:
    """Yield each of ``rows``, with a calibration on the ``fit`` rows of ``sets`` from other rounds or accelerator
    families. Rows whose kind of layer has no efficiency in that calibration are omitted."""
    used = [row for row in sets if row.use == "fit" and row.spatial in (1, 4)]
    for group in dict.fromkeys(group_of(row, by) for row in rows):
        others = [row for row in used if group_of(row, by) != group]
        if not others:
            continue
        calibrated = _fitted(others)
        for row in rows:
            known = {kind for _, _, kind in calibrated.efficiencies}
            if group_of(row, by) == group and kind_of(row.network) in known:
                yield row, calibrated


def rate_of(row: Published, machine: Machine, calibrated: Calibration) -> tuple[float, Efficiency]:
    """Predicted samples/s of one accelerator, and the efficiency used."""
    net = row.network
    efficiency = calibrated.efficiency(machine.family, kind_of(net), row.generation)
    bound = roofline(net, machine, efficiency.precision) * max(1.0, row.local_batch_size)
    reduce = communication(machine, 4 * net.parameters, row.accelerators)
    launch = calibrated.launch if efficiency.launch is None else efficiency.launch
    step = step_seconds(bound, efficiency.value, len(net.layers), launch, reduce)
    if row.spatial > 1:
        share = calibrated.undivided
        step = (step - reduce) * ((1 - share) / row.spatial + share) + reduce
    return row.local_batch_size / step, efficiency


def _undivided(sets: Sequence[Published], rows: Sequence[_Row]) -> float:
    """The undivided share u in T(P) = C·((1−u)/P + u) + all-reduce, from a set with 4 accelerators per sample."""
    for published_row, row in zip(sets, rows, strict=True):
        if published_row.spatial == 4:
            whole = row.step - row.reduce
            four = row.step / SPEEDUP_OF_FOUR - row.reduce
            return min(1.0, max(0.0, (four / whole - 0.25) / 0.75))
    return 1.0


def _year(generation: str | None) -> int:
    return int(generation.rpartition(" ")[2]) if generation else 0


@cache
def calibration() -> Calibration:
    """The calibration with the suite's published results."""
    return fit(published())
