"""Charts of a step on one accelerator: the roofline with every layer, and memory by batch size (Ibrahim et
al. 2021, figures 1 and 2). Functions take plain data and return sections of a page (common/pages)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt

from mlhpc.common.pages import charts, plots
from mlhpc.common.pages.blocks import Cell, Section, Table, number, table
from mlhpc.common.pages.charts import INK, SOFT, Figure, Rows
from mlhpc.common.pages.plots import log_axis, on_axes, with_halo
from mlhpc.perf.accelerator.ibrahim2021 import Row
from mlhpc.perf.accelerator.memory import RESERVED, Memory
from mlhpc.perf.accelerator.roofline import Ceilings, Point, least_seconds
from mlhpc.quantities import bytes_text, digits, seconds_text, text_of

PRODUCT_KINDS = (
    "convolution",
    "pointwise convolution",
    "depthwise convolution",
    "transposed convolution",
    "dense",
)
OTHERS = "no matrix product"
_SIZES = alt.Scale(domain=[0, 0.2], range=[30, 500], clamp=True)
BOUNDS = {"tensor": "tensor cores", "float32": "float32 units", "memory": "memory bandwidth"}


def roofline_section(
    title: str, points: Sequence[Point], ceilings: Ceilings, paper: Row | None = None, update: str = ""
) -> Section:
    """Every layer under the roofs of ``ceilings``; ``paper``: the two points of Table II. The table sums the
    layers by kind. ``update``: a sentence about the optimizer."""
    seconds = least_seconds(points)
    shares = {bound: sum(p.seconds for p in points if p.bound == bound) / seconds for bound in BOUNDS}
    about = (
        f"Lower limit of a training sample: {seconds_text(seconds)}, of which "
        + ", ".join(f"{share:.0%} bound by {BOUNDS[bound]}" for bound, share in shares.items() if share)
        + ". Every layer reads its inputs and writes its outputs once in each pass, and runs at the peaks: "
        "real steps take longer."
    ) + update
    return Section(title, about, (roofline(points, ceilings, paper), _kinds(points)))


def roofline(points: Sequence[Point], ceilings: Ceilings, paper: Row | None = None) -> Figure:
    """Attainable FLOP/s by FLOPs per byte, both logarithmic; one mark per layer, sized by its share of the
    minimum time."""
    drawn = [point for point in points if point.flops and point.bytes]
    whole = least_seconds(points)
    rows = [_row(point, whole) for point in drawn] + _paper_rows(paper, ceilings)
    names = [name for name in (*PRODUCT_KINDS, OTHERS, _PAPER) if any(row["kind"] == name for row in rows)]
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


def memory_section(
    title: str,
    by_batch: Sequence[Memory],
    capacities: Sequence[tuple[str, float]],
    paper: Row | None = None,
    fits: int = 0,
) -> Section:
    """Memory of a step by local batch size, and the ``capacities`` (name, bytes). ``paper``: its activation
    memory and its largest batch. ``fits``: the largest power of two that fits."""
    about = f"The largest power of two that fits is {fits}" if fits else "Not even one sample fits"
    about += f", excluding {bytes_text(RESERVED)} of libraries (a CUDA context, workspaces of cuDNN)."
    return Section(title, about, (memory(by_batch, capacities, paper), _memory_table(by_batch)))


_PAPER_ACTIVATIONS = "Ibrahim et al. 2021: activations (16 bits)"


def memory(
    by_batch: Sequence[Memory], capacities: Sequence[tuple[str, float]], paper: Row | None = None
) -> Figure:
    """GB by batch size, both logarithmic (Ibrahim et al. 2021, figure 1)."""
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
    """The whole network of Table II: at its measured rate, and at its limit of traffic under the roofs."""
    if paper is None:
        return []
    measured = paper.intensity * paper.sustained
    attainable = ceilings.attainable(paper.intensity_limit, "convolution")
    return [
        _mark(_PAPER, "measured", paper.intensity, measured, weight=0.05),
        _mark(_PAPER, "at the limit of traffic", paper.intensity_limit, attainable, weight=0.05),
    ]


def _row(point: Point, whole: float) -> dict[str, Any]:
    kind = point.kind if point.kind in PRODUCT_KINDS else OTHERS
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
