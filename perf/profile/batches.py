"""Time per sample by part and batch size (Ibrahim et al. 2021, figures 5 to 7)."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import altair as alt
from rich.console import Console

from mlhpc.common.pages.blocks import Banner, Cell, Section, Table, number, table
from mlhpc.common.pages.charts import INK, SERIES, Figure, chart_of
from mlhpc.common.pages.html import render
from mlhpc.common.pages.plots import BY_COLUMN, Mark, columns, curves
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.perf.accelerator.memory import memory_of
from mlhpc.perf.profile.layers import divided
from mlhpc.perf.profile.ranks import ms
from mlhpc.perf.profile.tables import Shown
from mlhpc.quantities import bytes_text, seconds_text

PARTS = ("compute", "memory", "communication", "input wait", "other wait")
"""Compute: layers with matrix products. Memory: operations that mainly move data, i.e. the other layers, the
optimizer and copies. Matrix products may also be bound by memory, as the roofline shows."""

HEADS = {"communication": "exchange", "input wait": "input", "other wait": "other"}
"""Column heads that are shorter than the names, so that the table fits a terminal."""

NOTE = (
    "Times are of steps without a profiler, divided as an equal number of steps under one: waits as "
    "measured, and operations, which may overlap, by their shares of the rest. Samples are zeros in "
    "memory unless --data is given. Not a result of the benchmark."
)


class Printed(NamedTuple):
    """A time per sample in the paper, relative to batch size 1. ``bound``: whether it is a lower bound, since the
    paper states "up to"."""

    relative: float
    bound: bool = False


PAPER = {
    "cosmoflow": {1: Printed(1.0), 2: Printed(1 - 0.29)},
    "resnet50": {1: Printed(1.0), 2: Printed(1 / 2), 128: Printed(1.2 / 50), 256: Printed(1 / 50)},
    "deepcam": {1: Printed(1.0), 2: Printed(1 / 1.6, bound=True)},
}
"""The paper's figures by local batch size on a V100, from the text of Ibrahim et al. 2021, section V-D: CosmoFlow
"roughly 29%" better from 1 to 2 (figure 5); ResNet-50 2 times better for the first doubling, "roughly 50 times" at
256, 20% from 128 to 256 (figure 6); DeepCAM "up to 1.6 times" for a doubling, streamed from Lustre (figure 7)."""


def per_sample(shown: Shown) -> dict[str, float]:
    """Seconds per sample and rank by ``PARTS``; their sum is the time of a step without the profiler, divided by
    the step's samples.

    The time is divided as in the profiled step: waits keep their length, and operations, which may overlap, share
    the rest. Communication counts as a wait if its unhidden part was measured, otherwise as an operation.
    """
    profile, parts = shown.profile, shown.parts
    waits = {"input wait": parts.get("input wait", 0.0), "other wait": parts.get("wait", 0.0)}
    communication = {"communication": parts.get("communication", 0.0)}
    compute = sum(time.seconds for time in shown.times if time.product_flops)
    rest = sum(parts.values()) - sum(waits.values()) - sum(communication.values()) - compute
    operations = {"compute": compute, "memory": max(0.0, rest)}
    if profile.exchange and profile.exchange.exposed is not None:
        waits |= communication
    else:
        operations |= communication
    seconds = divided(profile.wall, waits, operations)
    scale = profile.plain / profile.wall / profile.samples
    return {name: seconds[name] * scale for name in PARTS}


def sample_seconds(shown: Shown) -> float:
    """Seconds per sample without the profiler."""
    return shown.profile.plain / shown.profile.samples


def show(shown: Sequence[Shown]) -> None:
    """Print the table."""
    console = Console(highlight=False)
    say(console, _title(shown), "bold")
    say(console, _about(shown))
    say(console, NOTE)
    print_table(by_batch(shown), console)
    print_table(memory_by_batch(shown), console)


def page(shown: Sequence[Shown]) -> str:
    """One self-contained HTML page."""
    note = (
        "Compute: layers with products. Memory: the other layers, the optimizer and copies. Communication: "
        "the part not hidden by computation. Published: a V100 in Ibrahim et al. 2021, section V-D, relative "
        'to the smallest batch here; ≥: stated as "up to".'
    )
    return render(
        eyebrow="mlhpc profile",
        heading=_title(shown),
        meta=_about(shown),
        banners=[Banner(NOTE)],
        blocks=[
            Section("Time per sample by batch size", note, (bars(shown), by_batch(shown))),
            Section("Memory by batch size", "", (memory_curves(shown), memory_by_batch(shown))),
        ],
        foot="After Ibrahim et al. 2021, figures 1 and 5 to 7.",
    )


def by_batch(shown: Sequence[Shown]) -> Table:
    """Milliseconds per sample by part, and the time relative to the smallest batch, next to the paper's value if
    the paper has both batch sizes."""
    least = sample_seconds(shown[0])

    def time(each: Shown, part: str) -> Cell:
        return ms(per_sample(each)[part])

    def printed(each: Shown) -> Cell:
        point = paper_relative(each, shown[0])
        return number(point and point.relative, ("≥{:.2g}" if point and point.bound else "{:.2g}").format)

    return table(
        "sample-by-batch",
        shown,
        {
            "batch": lambda each: str(each.profile.batch),
            **{HEADS.get(part, part): partial(time, part=part) for part in PARTS},
            "all": lambda each: ms(sample_seconds(each)),
            "relative": lambda each: number(sample_seconds(each) / least, "{:.2f}".format),
            "published": printed,
        },
    )


def memory_by_batch(shown: Sequence[Shown]) -> Table:
    """Peak memory at each batch size, measured and modelled."""
    return table(
        "memory-by-batch",
        shown,
        {
            "batch": lambda each: str(each.profile.batch),
            "peak memory": lambda each: number(each.profile.memory, bytes_text),
            "modelled": lambda each: number(modelled(each), bytes_text),
        },
    )


def memory_curves(shown: Sequence[Shown]) -> Figure:
    """Peak memory over batch size, measured and modelled, as lines (Ibrahim et al. 2021, figure 1)."""
    marks = [
        Mark(name, each.profile.batch, f"batch {each.profile.batch}", size / 1e9)
        for name, of in (("measured", lambda each: each.profile.memory), ("modelled", modelled))
        for each in shown
        if (size := of(each))
    ]
    return curves(marks, "samples per rank and backward pass", "peak memory, GB", "Memory by batch size")


def modelled(each: Shown) -> float:
    """The step's peak memory in bytes by the model of ``mlhpc predict``, to compare with the profiled peak."""
    return memory_of(each.run, each.profile.batch, gpu=each.profile.gpu).peak


def paper_relative(each: Shown, first: Shown) -> Printed | None:
    """The paper's time per sample at the batch of ``each`` relative to that of ``first``; None if the paper lacks
    one of them."""
    paper = PAPER.get(first.run.benchmark, {})
    printed, base = paper.get(each.profile.batch), paper.get(first.profile.batch)
    if printed is None or base is None or base.bound:
        return None
    return Printed(printed.relative / base.relative, printed.bound)


def bars(shown: Sequence[Shown]) -> Figure:
    """Time per sample as a stacked bar per batch size."""
    seconds = {str(each.profile.batch): per_sample(each) for each in shown}
    used = [part for part in PARTS if any(of[part] for of in seconds.values())]
    rows = [
        {
            "x": batch,
            "y": 1e3 * of[part],
            "part": part,
            "says": f"batch {batch}, {part}: {seconds_text(of[part])}",
        }
        for batch, of in seconds.items()
        for part in used
    ]
    last = f"{seconds_text(sample_seconds(shown[-1]))} at {shown[-1].profile.batch}"
    points = _paper_points(shown)
    drawn = {point["shape"] for point in points}
    marks = chart_of(points, x=BY_COLUMN).mark_point(filled=True, size=90, color=INK[0])
    return columns(
        rows,
        f"Time per sample by part at {len(shown)} batches; {last}",
        titles=("samples per rank and backward pass", "ms per sample"),
        colours={part: SERIES[PARTS.index(part)][0] for part in used},
        over=[marks.encode(y="y:Q", shape=alt.Shape("shape:N", scale=None, legend=None))],
        title="Time per sample by part",
        note=" ".join(text for shape, text in _SHAPES.items() if shape in drawn),
        height=280,
    )


_SHAPES = {
    "diamond": "Diamonds: Ibrahim et al. 2021, relative to the smallest batch here.",
    "triangle-up": 'Triangles: Ibrahim et al. 2021 state "up to"; so their time is at least this.',
}


def _paper_points(shown: Sequence[Shown]) -> list[dict[str, Any]]:
    """The paper's ratios, multiplied by the measured value at the smallest batch; lower bounds are drawn as
    triangles."""
    measured = 1e3 * sample_seconds(shown[0])
    points = [(str(each.profile.batch), paper_relative(each, shown[0])) for each in shown[1:]]
    return [
        {"x": batch, "y": printed.relative * measured, "shape": "triangle-up" if printed.bound else "diamond"}
        for batch, printed in points
        if printed
    ]


def _title(shown: Sequence[Shown]) -> str:
    return f"{shown[0].benchmark}, time of a sample by batch"


def _about(shown: Sequence[Shown]) -> str:
    first = shown[0]
    passes = f"{first.profile.passes} backward passes per step, " if first.profile.passes > 1 else ""
    return (
        f"preset {first.run.preset}, {first.run.training.framework}, {first.run.training.precision}, "
        f"{first.profile.device}, {first.ranks_text}, {passes}median of {first.profile.steps} steps each: ms a "
        "sample and rank; published: Ibrahim et al. 2021, relative to the smallest batch, ≥ where they state "
        '"up to"'
    )
