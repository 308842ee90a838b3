"""Time of a sample by part against the batch (paper 000, figures 5 to 7)."""

from collections.abc import Sequence
from typing import Any

import altair as alt
from rich.console import Console

from mlhpc.common.pages.blocks import Banner, Cell, Section, Table, number, table
from mlhpc.common.pages.charts import INK, SERIES, Figure, data, figure
from mlhpc.common.pages.html import render
from mlhpc.common.pages.plots import tooltips
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.perf.profile.tables import NOTE, Shown

PARTS = ("compute", "memory", "communication", "input wait", "other wait")
"""Compute: layers with products. Memory: what only moves numbers: the other layers, the optimizer, copies. A
layer's products may be bound by memory too, which the roofline says."""

HEADS = {"communication": "exchange", "input wait": "input", "other wait": "other"}
"""Short, so that the table fits a terminal."""

PAPER = {
    "cosmoflow": {1: 1.0, 2: 1 - 0.29},
    "resnet50": {1: 1.0, 2: 1 / 2, 128: 1.2 / 50, 256: 1 / 50},
    "deepcam": {1: 1.0, 2: 1 / 1.6},
}
"""Time of a sample by local batch, relative to batch 1, in words of paper 000, section V-D, on a V100: CosmoFlow
29% better from 1 to 2 (figure 5); ResNet-50 2 times at first, "roughly 50 times" at 256, 20% from 128 to 256
(figure 6); DeepCAM "up to 1.6 times" for a doubling, streamed from Lustre (figure 7)."""


def per_sample(shown: Shown) -> dict[str, float]:
    """Seconds a sample and rank by ``PARTS``; their sum is the step's time over its batch. Where operations
    overlap, each counts by its share."""
    parts, wall = shown.parts, shown.profile.wall
    whole = sum(parts.values())
    compute = sum(time.seconds for time in shown.times if time.product_flops)
    waits = {"communication": parts.get("communication", 0.0), "input wait": parts.get("input wait", 0.0)}
    other = parts.get("wait", 0.0)
    memory = max(0.0, whole - compute - sum(waits.values()) - other)
    seconds = {"compute": compute, "memory": memory, **waits, "other wait": other}
    scale = wall / whole / shown.profile.batch if whole else 0.0
    return {name: seconds[name] * scale for name in PARTS}


def show(shown: Sequence[Shown]) -> None:
    console = Console(highlight=False)
    say(console, _title(shown), "bold")
    say(console, _about(shown))
    say(console, NOTE)
    print_table(by_batch(shown), console)


def page(shown: Sequence[Shown]) -> str:
    """One self-contained HTML page."""
    note = (
        "Compute: layers with products. Memory: the other layers, the optimizer and copies. Communication: what "
        "no computation hides. Paper 000's column is for a V100 in words of its section V-D, relative to batch 1."
    )
    return render(
        eyebrow="mlhpc profile",
        heading=_title(shown),
        meta=_about(shown),
        banners=[Banner(NOTE)],
        blocks=[Section("Time of a sample by batch", note, (bars(shown), by_batch(shown)))],
        foot="After Ibrahim et al. 2021, figures 5 to 7.",
    )


def by_batch(shown: Sequence[Shown]) -> Table:
    """Milliseconds a sample by part; relative to the smallest batch, beside the paper's where it has both."""
    paper = PAPER.get(shown[0].run.benchmark, {})
    first = shown[0].profile
    least = first.wall / first.batch

    def printed(each: Shown) -> Cell:
        here, base = paper.get(each.profile.batch), paper.get(first.batch)
        return number(here / base if here and base else None, "{:.2g}".format)

    return table(
        "sample-by-batch",
        shown,
        {
            "batch": lambda each: str(each.profile.batch),
            **{HEADS.get(part, part): _part(part) for part in PARTS},
            "all": lambda each: _ms(each.profile.wall / each.profile.batch),
            "relative": lambda each: number(each.profile.wall / each.profile.batch / least, "{:.2f}".format),
            "paper": printed,
        },
    )


def bars(shown: Sequence[Shown]) -> Figure:
    """A bar a batch, stacked by part."""
    rows: list[dict[str, Any]] = []
    for each in shown:
        for order, (part, seconds) in enumerate(per_sample(each).items()):
            rows.append(
                {
                    "batch": str(each.profile.batch),
                    "part": part,
                    "ms": 1e3 * seconds,
                    "order": order,
                    "text": f"{1e3 * seconds:.3g} ms",
                }
            )
    used = [part for part in PARTS if any(row["ms"] for row in rows if row["part"] == part)]
    colours = [SERIES[PARTS.index(part)][0] for part in used]
    columns = (
        alt.Chart(data([row for row in rows if row["part"] in used]))
        .mark_bar()
        .encode(
            x=alt.X("batch:N", sort=None, title="samples a step and rank", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("ms:Q", title="ms a sample", stack="zero"),
            order=alt.Order("order:Q"),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=used, range=colours),
                legend=alt.Legend(symbolType="square", columns=3),
            ),
            tooltip=tooltips([("batch", "batch"), ("part", "part"), ("text", "a sample")]),
        )
    )
    last = shown[-1].profile
    ms = f"{1e3 * last.wall / last.batch:.3g} ms at {last.batch}"
    alt_text = f"Time of a sample by part at {len(shown)} batches; {ms}"
    points = _paper_points(shown)
    chart = alt.layer(columns, points) if points else columns
    note = "Diamonds: paper 000, relative to the smallest batch here." if points else ""
    return figure(chart, alt_text, title="Time of a sample by part", note=note, height=280)


def _paper_points(shown: Sequence[Shown]) -> alt.Chart | None:
    """The paper's ratios times what was measured at the smallest batch; None where it has none of the others."""
    paper = PAPER.get(shown[0].run.benchmark, {})
    first = shown[0].profile
    base = paper.get(first.batch)
    sizes = [each.profile.batch for each in shown[1:] if each.profile.batch in paper]
    if not base or not sizes:
        return None
    measured = 1e3 * first.wall / first.batch
    rows = [{"batch": str(size), "ms": paper[size] / base * measured} for size in sizes]
    marks = alt.Chart(data(rows)).mark_point(shape="diamond", filled=True, size=90, color=INK[0])
    points: alt.Chart = marks.encode(x=alt.X("batch:N", sort=None), y=alt.Y("ms:Q"))
    return points


def _part(part: str) -> Any:
    return lambda each: _ms(per_sample(each)[part])


def _ms(seconds: float) -> Cell:
    return number(1e3 * seconds, "{:.3g}".format)


def _title(shown: Sequence[Shown]) -> str:
    return f"{shown[0].benchmark}, time of a sample by batch"


def _about(shown: Sequence[Shown]) -> str:
    first = shown[0]
    return (
        f"preset {first.run.preset}, {first.run.training.framework}, {first.run.training.precision}, "
        f"{first.profile.device}, {first.ranks_text}, mean of {first.profile.steps} steps each: ms a "
        "sample and rank; paper: 000's time relative to its smallest batch"
    )
