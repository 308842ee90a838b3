"""``mlhpc profile --device-model``: the launches of a training step on an accelerator that is only described.

PyTorch's operations are counted on tensors without memory (``common/pytorch/profile.py``). On the device, each
takes at least the larger of its bytes over the bandwidth and its FLOPs over the peak; on the host, each takes the
driver's time for a launch.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Banner, Cell, Section, Table, number, table
from mlhpc.common.pages.charts import ACCENT, SERIES, Figure
from mlhpc.common.pages.html import render, write
from mlhpc.common.pages.plots import columns
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.common.timing.profile import Launch, Profile, Request
from mlhpc.perf.accelerator.roofline import Bound, Point
from mlhpc.perf.calibration import calibration, kind_of, roofline, step_seconds
from mlhpc.perf.machines import COPIES, Machine, ceilings_of
from mlhpc.perf.networks.layer import Kind
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.prediction.accelerator import roofline as roofline_figure
from mlhpc.perf.profile.ranks import ms
from mlhpc.perf.published import Published, published
from mlhpc.perf.scaling import Triple
from mlhpc.quantities import digits, seconds_text

NOTE = (
    "Counted, not measured: the launches of the suite's own step, in the precision of published results unless "
    "one is set, and the minimum time that each takes. Real steps take longer."
)
PRINTED = 12
Measure = Callable[[Run, Request], Profile]
WITHOUT_RESULTS = 64
"""Local batch size used for a benchmark that has no published results."""


class Operation(NamedTuple):
    """All ``calls`` of an operation on tensors of one shape; ``point`` contains their minimum time in seconds."""

    launch: Launch
    calls: int
    point: Point


@dataclass(frozen=True)
class Floor:
    """A step with ``batch`` samples in each backward pass. Times in seconds: ``host``, the driver's time with each
    kernel launched separately, and with all in one graph (None: not known); ``predicted``, with its interval
    (None: no published result); ``measured``, in published results of such steps on such a device."""

    batch: int
    operations: Sequence[Operation]
    host: tuple[float, float] | None
    predicted: Triple | None
    measured: Sequence[float]

    @property
    def launches(self) -> int:
        """Number of kernel launches, including calls of cuDNN and cuBLAS."""
        return sum(each.calls * each.launch.kernels for each in self.operations)

    @property
    def device(self) -> float:
        """Seconds that the device needs at its peaks."""
        return sum(each.point.seconds for each in self.operations)

    def seconds(self, graph: bool) -> float:
        """The minimum seconds of a step: the host's or the device's, whichever is larger."""
        return max(self.device, self.host[graph] if self.host else 0.0)


def settings_of(benchmark: str) -> list[str]:
    """Settings with which the launches of a step of ``benchmark`` can be counted on any machine."""
    several = ["training.framework=pytorch"] * ("tensorflow" in registry.find(benchmark).frameworks)
    kernels = ["training.cpu_kernels=false"] * (benchmark == "deepcam")
    return ["training.device=cpu", "training.precision=mixed_float16", *several, *kernels]


def launches(options: argparse.Namespace, run: Run, machine: Machine, measure: Measure) -> None:
    """Prints the launches of a step of ``run`` on ``machine`` at the local batch sizes requested by ``options``,
    or else at those of published results."""
    asked = options.batches or ([options.batch] if options.batch else [])
    published_sizes = sorted({round(row.local_batch_size) for row in _last_round(run)}) or [WITHOUT_RESULTS]
    floors = [_floor(run, machine, batch, measure) for batch in asked or published_sizes]
    if options.json:
        print(json.dumps(_record(run, machine, floors), indent=1))
    else:
        console = Console(highlight=False)
        say(console, _title(run, machine), "bold")
        say(console, f"{_about(run)}. {NOTE}")
        print_table(_by_batch(floors), console)
        say(console, _evidence(machine, floors))
        print_table(_by_operation(floors[-1], PRINTED), console)
    if options.out:
        write(options.out, _page(run, machine, floors))


def _last_round(run: Run) -> list[Published]:
    """The sets of round 3.0 with the run's network and data."""
    rows = [row for row in published() if row.benchmark == run.benchmark and row.use == "seen"]
    own = run.network, run.data.sample_shape
    return [row for row in rows if (row.run.network, row.run.data.sample_shape) == own]


def _floor(run: Run, machine: Machine, batch: int, measure: Measure) -> Floor:
    counted = _operations(run, machine, batch, measure)
    kernels = sum(each.calls * each.launch.kernels for each in counted)
    network, precision, passes = network_of(run), run.training.precision, run.backward_passes
    efficiency = calibration().efficiency(machine.family, kind_of(network))
    predicted: Triple | None = None
    results = _last_round(run)
    if results and efficiency.factor and efficiency.launch is not None and precision == efficiency.precision:
        bound, layers = batch * roofline(network, machine, precision), len(network.layers)
        step = passes * step_seconds(bound, efficiency.value, layers, efficiency.launch, 0.0)
        predicted = step, step / efficiency.factor, step * efficiency.factor
    measured = [
        row.step_s
        for row in results
        if row.machine.family == machine.family
        and (round(row.local_batch_size), row.run.backward_passes) == (batch, passes)
    ]
    return Floor(batch, counted, machine.launching(kernels, passes * COPIES), predicted, measured)


def _operations(run: Run, machine: Machine, batch: int, measure: Measure) -> list[Operation]:
    """The operations of a step, the slowest first."""
    from mlhpc.common.pytorch.profile import fake_tensors  # needs PyTorch

    request = Request(batch, 1, passes=run.backward_passes, counted=True)
    with fake_tensors():
        calls = Counter(measure(run, request).launches)
    ceilings = ceilings_of(machine, run.training.precision)

    def point(launch: Launch, many: int) -> Point:
        compute, memory = launch.flops / ceilings.tensor, launch.bytes / ceilings.bandwidth
        kind: Kind = "convolution" if launch.flops else "activation"
        bound: Bound = "tensor" if compute > memory else "memory"
        named = f"{launch.operation} {launch.dtype} {list(launch.shape)}"
        seconds = many * max(compute, memory)
        return Point(named, kind, many * launch.flops, many * launch.bytes, bound, seconds)

    operations = [Operation(launch, many, point(launch, many)) for launch, many in calls.items()]
    return sorted(operations, key=lambda each: -each.point.seconds)


def _title(run: Run, machine: Machine) -> str:
    model = machine.facts["accelerator.model"]
    return f"{registry.title(run.benchmark)}, the launches of a training step on {model}"


def _about(run: Run) -> str:
    return f"preset {run.preset}, {run.training.precision}, PyTorch, one rank"


def _evidence(machine: Machine, floors: Sequence[Floor]) -> str:
    """An explanation of the times, with the rounds of the published results on such a device; or a note that there
    are none."""
    if not any(floor.predicted or floor.measured for floor in floors):
        return f"{machine.family}: no published result"
    return (
        "least: the larger of the host's and the device's time; predicted: from rounds 2.0 and 3.0, without "
        "all-reduce, with an interval for 80% of sets; published: of round 3.0, with all-reduce (seen in the fit)"
    )


def _by_batch(floors: Sequence[Floor]) -> Table:
    def ends(floor: Floor) -> str:
        if floor.predicted is None:
            return ""
        return "{} ({} to {})".format(*(digits(1e3 * seconds) for seconds in floor.predicted))

    def least(floor: Floor, graph: bool) -> Cell:
        bound = "host" if floor.seconds(graph) > floor.device else "device"
        return number(1e3 * floor.seconds(graph), f"{{:.3g}} {bound}".format)

    return table(
        "floors",
        floors,
        {
            "batch": lambda floor: number(floor.batch, str),
            "launches": lambda floor: number(floor.launches, str),
            "TFLOP": lambda floor: number(sum(each.point.flops for each in floor.operations) / 1e12, digits),
            "GB": lambda floor: number(sum(each.point.bytes for each in floor.operations) / 1e9, digits),
            "least ms": partial(least, graph=False),
            "of a graph": partial(least, graph=True),
            "predicted ms": ends,
            "published": lambda floor: ", ".join(digits(1e3 * seconds) for seconds in floor.measured),
        },
    )


def _by_operation(floor: Floor, most: int | None = None) -> Table:
    return table(
        "operations",
        floor.operations[:most],
        {
            f"operation, batch {floor.batch}": lambda each: each.launch.operation,
            "type": lambda each: each.launch.dtype,
            "result": lambda each: "x".join(map(str, each.launch.shape)),
            "launches": lambda each: number(each.calls * each.launch.kernels, str),
            "GFLOP": lambda each: number(each.point.flops / 1e9, digits),
            "MB": lambda each: number(each.point.bytes / 1e6, digits),
            "least, ms": lambda each: ms(each.point.seconds),
            "share": lambda each: number(each.point.seconds / floor.device, "{:.1%}".format),
        },
        text_columns=3,
    )


def _figure(floors: Sequence[Floor]) -> Figure:
    """The host's and the device's minimum time per step, by local batch size."""
    colours = {"device": ACCENT[0], "host": SERIES[2][0], "host, one graph": SERIES[3][0]}
    rows = [
        {"x": str(floor.batch), "y": 1e3 * seconds, "part": part,
         "says": f"batch {floor.batch}, {part}: {seconds_text(seconds)}"}
        for floor in floors
        for part, seconds in zip(colours, (floor.device, *(floor.host or ())), strict=False)
    ]  # fmt: skip
    return columns(
        rows,
        "Minimum time of a step. " + "; ".join(row["says"] for row in rows),
        titles=("local batch, samples", "ms per step"),
        colours=colours,
        beside=True,
        title="Minimum time of a step",
        height=260,
    )


def _page(run: Run, machine: Machine, floors: Sequence[Floor]) -> str:
    last = floors[-1]
    ceilings = ceilings_of(machine, run.training.precision)
    drawn = roofline_figure([each.point for each in last.operations], ceilings)
    return render(
        eyebrow="mlhpc profile",
        heading=_title(run, machine),
        meta=_about(run),
        banners=[Banner(NOTE)],
        blocks=[
            Section("Steps by local batch", _evidence(machine, floors), (_figure(floors), _by_batch(floors))),
            Section("Launches", f"Of a step of {last.batch}, by operation.", (drawn, _by_operation(last))),
        ],
        foot="Roofline: Williams et al. 2009.",
    )


def _record(run: Run, machine: Machine, floors: Sequence[Floor]) -> dict[str, Any]:
    steps = [
        {
            "batch": floor.batch,
            "launches": floor.launches,
            "device_s": floor.device,
            "host_s": floor.host and floor.host[0],
            "graph_host_s": floor.host and floor.host[1],
            "floor_s": floor.seconds(graph=False),
            "graph_floor_s": floor.seconds(graph=True),
            "predicted_s": floor.predicted,
            "published_s": list(floor.measured),
            "operations": [
                each.launch._asdict() | {"calls": each.calls, "seconds": each.point.seconds}
                for each in floor.operations
            ],
        }
        for floor in floors
    ]
    named = {"benchmark": run.benchmark, "preset": run.preset, "precision": run.training.precision}
    return {**named, "machine": machine.name, "evidence": _evidence(machine, floors), "steps": steps}
