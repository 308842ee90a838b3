"""One accelerator as sections of a page: the roofline with every layer, memory by batch size, and the cost of
moving data (Ibrahim et al. 2021, figures 1, 2 and 4)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt

from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages import charts, plots
from mlhpc.common.pages.blocks import Cell, Section, Table, number, table
from mlhpc.common.pages.charts import INK, SOFT, Figure, Rows
from mlhpc.common.pages.plots import Mark, curves, log_axis, on_axes, with_halo
from mlhpc.perf.accelerator.ibrahim2021 import TABLE_II, Row
from mlhpc.perf.accelerator.memory import RESERVED, Memory, power_of_two, update_of
from mlhpc.perf.accelerator.roofline import Ceilings, Point, least_seconds, points
from mlhpc.perf.machines import Machine, ceilings_of
from mlhpc.perf.movement import GIB, MIB, costs, required_bandwidth
from mlhpc.perf.networks.layer import PRODUCTS
from mlhpc.perf.prediction.model import Model
from mlhpc.perf.tiers import Tier
from mlhpc.quantities import bytes_text, digits, seconds_text, si_text, text_of

BATCHES = tuple(2**n for n in range(9))
OTHERS = "no matrix product"
_SIZES = alt.Scale(domain=[0, 0.2], range=[30, 500], clamp=True)
BOUNDS = {"tensor": "tensor cores", "float32": "float32 units", "memory": "memory bandwidth"}


def accelerator(model: Model, tier: Tier) -> list[Section]:
    """The cost of moving data in ``tier``; the roofline with every layer, summed by kind in a table; and the
    memory by batch size."""
    machine, run, network = model.machine, model.run, model.network
    precision, paper = run.training.precision, TABLE_II.get(run.benchmark)
    ceilings = ceilings_of(machine, precision)
    layers = points(network, ceilings, precision)
    seconds = least_seconds(layers)
    shares = {bound: sum(p.seconds for p in layers if p.bound == bound) / seconds for bound in BOUNDS}
    optimizer = str(getattr(run.hyperparameters, "opt_name", "none")).lower()
    update = update_of(network, optimizer)
    limits = (
        f"Lower limit per training sample: {seconds_text(seconds)}, of which "
        + ", ".join(f"{share:.0%} bound by {BOUNDS[bound]}" for bound, share in shares.items() if share)
        + ". Every layer reads its inputs and writes its outputs once in each pass, and runs at peak rates; "
        f"real steps take longer. The update of all weights ({optimizer}) is added once per step: "
        f"{si_text(update.operations, 'FLOP')} and {bytes_text(update.bytes)} at least."
    )
    by_batch: list[Memory] = []
    for batch in BATCHES:
        by_batch.append(model.fits.memory(batch))
        if by_batch[-1].peak > 2 * model.fits.capacity:
            break
    capacity = (f"{ceilings.name}, {bytes_text(model.fits.capacity)}", model.fits.capacity)
    largest = model.fits.largest(1)
    fits = "Not even one sample fits"
    if largest:
        fits = f"The largest power of two that fits is {power_of_two(largest)}"
    fits += f", excluding {bytes_text(RESERVED)} for libraries (CUDA context, cuDNN workspaces)."
    return [
        *cost(model, tier),
        Section("Roofline", limits, (roofline(layers, ceilings, paper), _kinds(layers))),
        Section("Memory", fits, (memory(by_batch, [capacity], paper), _memory_table(by_batch))),
    ]


def cost(model: Model, tier: Tier) -> list[Section]:
    """The cost of moving data, as in figure 4 of Ibrahim et al. 2021, for a data set in ``tier``; with the paper's
    points if the machine is the paper's."""
    machine, run, network, sample = model.machine, model.run, model.network, model.bytes
    moved = network.traffic(run.training.precision)
    sizes: Any = {"moved": moved, "sample": sample, "gradients": 4 * network.parameters}
    rows: list[Mark] = []
    binding: dict[str, int] = {}
    for batch in BATCHES:
        step_costs = costs(machine, tier, **sizes, local_batch_size=batch)
        binding.setdefault(step_costs.binding, batch)
        named = {
            "model and activations": step_costs.activations,
            "all-reduce": step_costs.all_reduce,
            "sample over the host's link": step_costs.sample[0],
            f"sample from {tier.name}": step_costs.sample[1],
        }
        rows += [Mark(name, batch, f"batch {batch}", value / 1e9) for name, value in named.items() if value]
    bottlenecks = "; ".join(f"{name} from a batch of {batch} on" for name, batch in binding.items())
    about = (
        "Bytes per sample, times the accelerator's memory bandwidth over that of the link that carries them: a "
        f"lower bound on the time. The highest cost is the bottleneck: {bottlenecks}. "
    ) + _required(machine, run, network.training_flops, sample.received, moved)
    if (paper := TABLE_II.get(run.benchmark)) and machine.name == "cori-gpu":
        papers = {"activations": paper.hbm_limit_gib * GIB, "sample from NVMe": paper.sample_mib * MIB * 2250}
        rows += [Mark(f"Ibrahim et al. 2021: {name}", b, f"batch {b}", size / 1e9)
                 for name, size in papers.items() for b in BATCHES]  # fmt: skip
        about += " Ibrahim et al. 2021: their activations written and read once, and their 16-bit samples."
    if not rows:
        return []
    y_title = "cost per sample, GB of accelerator memory"
    chart = curves(rows, "local batch, samples", y_title, "Cost of data movement")
    return [Section("Cost against batch", about, (chart,))]


def _required(machine: Machine, run: Run, flops: int, received: float, moved: float) -> str:
    """A sentence on the bytes/s that an accelerator needs at its peak (Ibrahim et al. 2021, section VII)."""
    peak, _ = machine.peak(run.training.precision)
    needs = (required_bandwidth(flops, size, peak) for size in (received, moved))
    samples, memory = (bytes_text(need, "/s") for need in needs)
    return f"At its peak an accelerator would handle {samples} of samples and {memory} of memory traffic."


def roofline(points: Sequence[Point], ceilings: Ceilings, paper: Row | None = None) -> Figure:
    """A chart of attainable FLOP/s over FLOPs per byte, both logarithmic, with one mark per layer, sized by the
    layer's share of the minimum time."""
    drawn = [point for point in points if point.flops and point.bytes]
    whole = least_seconds(points)
    rows = [_row(point, whole) for point in drawn] + _paper_rows(paper, ceilings)
    names = [name for name in (*PRODUCTS, OTHERS, _PAPER) if any(row["kind"] == name for row in rows)]
    x_axis = log_axis(
        [*(row["x"] for row in rows), ceilings.balance], "FLOPs per byte of memory traffic", room=2
    )
    y_axis = log_axis([*(row["y"] for row in rows), ceilings.tensor / 1e12], "TFLOP/s attainable", room=1.7)
    by: Any = {"scale": alt.Scale(domain=names), "legend": alt.Legend(columns=3)}
    picked, opacity = charts.pickable("kind", 0.08, 0.7)
    marks = on_axes(rows, x_axis, y_axis).mark_point(filled=True, clip=True).add_params(picked)
    size = alt.Size("weight:Q", legend=None, scale=_SIZES)
    marks = marks.encode(
        color=alt.Color("kind:N", **by), shape=alt.Shape("kind:N", **by), size=size, opacity=opacity
    )
    roofs, names_at = _roofs(ceilings, x_axis.low, x_axis.high, y_axis.low)
    lines = on_axes(roofs, x_axis, y_axis).encode(detail="roof:N")
    lines = lines.mark_line(color=INK[0], strokeWidth=1.5, clip=True)
    texts = with_halo(on_axes(names_at, x_axis, y_axis).encode(text="roof:N"), SOFT[0], align="right", dy=-8)
    alt_text = (
        f"Roofline of {len(drawn)} layers on {ceilings.name}: memory {bytes_text(ceilings.bandwidth, '/s')}, "
        f"float32 {text_of(ceilings.float32, 'FLOP/s')}, tensor cores {text_of(ceilings.tensor, 'FLOP/s')}"
    )
    return charts.figure(
        alt.layer(lines, marks, *texts), alt_text, title=f"Roofline, {ceilings.name}", height=360
    )


_PAPER_ACTIVATIONS = "Ibrahim et al. 2021: activations (16 bits)"


def memory(
    by_batch: Sequence[Memory], capacities: Sequence[tuple[str, float]], paper: Row | None = None
) -> Figure:
    """A chart of memory in GB over batch size, both logarithmic (Ibrahim et al. 2021, figure 1)."""
    rows: list[dict[str, Any]] = []
    for memory in by_batch:
        kept = memory.parameters + memory.copies + memory.gradients + memory.optimizer
        sizes: dict[str, float] = {
            "peak of a step": memory.peak,
            "activations kept": memory.activations,
            "weights, gradients, optimizer": kept,
            "input": memory.input,
        }
        if paper and memory.batch <= paper.largest_batch:
            sizes[_PAPER_ACTIVATIONS] = memory.batch * paper.activations_gib * 2**30
        rows += [
            {"series": what, "x": memory.batch, "y": size / 1e9,
             "says": f"{what}, batch {memory.batch}: {bytes_text(size)}"}
            for what, size in sizes.items()
        ]  # fmt: skip
    names = list(dict.fromkeys(row["series"] for row in rows))
    sizes_gb = [row["y"] for row in rows] + [size / 1e9 for _, size in capacities]
    x_axis = log_axis([memory.batch for memory in by_batch], "local batch, samples", base=2, room=1.2)
    y_axis = log_axis(sizes_gb, "GB", room=1.5)
    alt_text = f"Memory of a training step for batches of {by_batch[0].batch} to {by_batch[-1].batch}, in GB"
    y = alt.Y("y:Q", **y_axis.channel)
    return plots.lines(
        on_axes(rows, x_axis, y_axis),
        alt_text,
        series=names,
        under=plots.limits([(size / 1e9, name) for name, size in capacities], y),
        title="Memory by batch",
        height=320,
    )


_PAPER = "Ibrahim et al. 2021, whole network"


def _paper_rows(paper: Row | None, ceilings: Ceilings) -> list[dict[str, Any]]:
    """Points for the whole network of Table II: at its measured rate, and at the roofline's limit for the least
    traffic."""
    if paper is None:
        return []
    measured = paper.intensity * paper.sustained
    attainable = ceilings.attainable(paper.intensity_limit, "convolution")
    return [
        _mark(_PAPER, "measured", paper.intensity, measured, weight=0.05),
        _mark(_PAPER, "at the limit of traffic", paper.intensity_limit, attainable, weight=0.05),
    ]


def _row(point: Point, whole: float) -> dict[str, Any]:
    kind = point.kind if point.kind in PRODUCTS else OTHERS
    weight = point.seconds / whole
    share = f"{seconds_text(point.seconds)}, {weight:.1%}"
    return _mark(
        kind, point.layer, point.intensity, point.rate, weight=weight, share=share, bound=BOUNDS[point.bound]
    )


def _mark(
    kind: str, layer: str, intensity: float, rate: float, *, weight: float, share: str = "", bound: str = ""
) -> dict[str, Any]:
    says = (
        kind,
        layer,
        text_of(rate, "FLOP/s"),
        f"{digits(intensity)} FLOPs per byte",
        share,
        bound and f"bound by {bound}",
    )
    row = {"kind": kind, "layer": layer, "x": intensity, "y": rate / 1e12, "weight": weight}
    return row | {"says": ", ".join(filter(None, says))}


def _roofs(ceilings: Ceilings, left: float, right: float, bottom: float) -> tuple[Rows, Rows]:
    """The ends of each roof, and the position of its label."""
    bandwidth = ceilings.bandwidth / 1e12
    flat = {f"tensor cores {text_of(ceilings.tensor, 'FLOP/s')}": ceilings.tensor / 1e12}
    if ceilings.float32 != ceilings.tensor:
        flat[f"float32 {text_of(ceilings.float32, 'FLOP/s')}"] = ceilings.float32 / 1e12
    slope = f"memory {bytes_text(ceilings.bandwidth, '/s')}"
    start = max(left, bottom / bandwidth)
    middle = (start * ceilings.balance) ** 0.5
    lines = [{"roof": slope, "x": x, "y": x * bandwidth} for x in (start, ceilings.balance)]
    for name, height in flat.items():
        lines += [{"roof": name, "x": x, "y": height} for x in (max(left, height / bandwidth), right)]
    labels = [{"roof": name, "x": right, "y": height} for name, height in flat.items()]
    return lines, [*labels, {"roof": slope, "x": middle, "y": middle * bandwidth}]


def _kinds(points: Sequence[Point]) -> Table:
    """The layers summed by kind."""
    whole = least_seconds(points)
    kinds: dict[str, list[Point]] = {}
    for point in points:
        kinds.setdefault(point.kind, []).append(point)

    sums = [
        (kind, len(these), sum(p.flops for p in these), sum(p.bytes for p in these), least_seconds(these))
        for kind, these in kinds.items()
    ]
    return table(
        "layers-by-kind",
        sorted(sums, key=lambda row: -row[4]),
        {
            "kind of layer": lambda row: row[0],
            "layers": lambda row: number(row[1], str),
            "GFLOP": lambda row: number(row[2] / 1e9, digits),
            "moved": lambda row: number(row[3], bytes_text),
            "FLOPs per byte": lambda row: number(row[2] / row[3] if row[3] else None, digits),
            "least ms": lambda row: number(1e3 * row[4], digits),
            "share": lambda row: number(row[4] / whole, "{:.1%}".format),
        },
    )


_MEMORY_PARTS = ("gradients", "optimizer", "input", "activations", "peak")


def _memory_table(by_batch: Sequence[Memory]) -> Table:
    return table(
        "memory-by-batch",
        by_batch,
        {
            "batch": lambda memory: str(memory.batch),
            "weights": lambda memory: number(memory.parameters + memory.copies, bytes_text),
            **{part: partial(_part, part=part) for part in _MEMORY_PARTS},
            "peak at": lambda memory: memory.peak_at,
        },
    )


def _part(memory: Memory, part: str) -> Cell:
    return number(getattr(memory, part), bytes_text)
