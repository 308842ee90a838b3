"""A profile in the terminal, and as a page."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
from rich import box
from rich.console import Console
from rich.table import Table as Printed

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.charts import ACCENT, SERIES, Figure, data, figure
from mlhpc.common.pages.html import Banner, Cell, Section, Table, render
from mlhpc.common.pages.plots import tooltips
from mlhpc.common.timing.profile import Profile
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.profile.layers import Bin, LayerTime

LAYERS_PRINTED = 12
OPERATIONS_PRINTED = 10
WORDS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "communication",
    "input": "input to the device, copies",
    "other": "loss and other",
    "wait": "wait: nothing computes",
}
NOTE = (
    "Training steps on zeros in memory under a profiler, which slows them: shares are what it shows. No input "
    "path, one rank. Not a result of the benchmark."
)


@dataclass(frozen=True)
class Shown:
    """All that is printed of a profile. ``bins`` are empty without ``ceilings``."""

    run: Run
    profile: Profile
    times: Sequence[LayerTime]
    parts: dict[str, float]
    operations: Sequence[tuple[str, float, float]]
    ceilings: Ceilings | None
    bins: Sequence[Bin]

    @property
    def title(self) -> str:
        return f"{registry.title(self.run.benchmark)}, a training step by layer"

    @property
    def about(self) -> str:
        p = self.profile
        return (
            f"preset {self.run.preset}, {p.batch} samples, {self.run.training.precision}, {p.device}, mean of "
            f"{p.steps} steps: {1e3 * p.wall:.4g} ms a step"
        )


def by_kind(times: Sequence[LayerTime]) -> list[tuple[str, float, float]]:
    """(kind, forward seconds, backward seconds), the slowest first."""
    kinds: dict[str, dict[str, float]] = defaultdict(lambda: {"forward": 0.0, "backward": 0.0})
    for time in times:
        kinds[time.kind][time.direction] += time.seconds
    rows = [(kind, both["forward"], both["backward"]) for kind, both in kinds.items()]
    return sorted(rows, key=lambda row: -row[1] - row[2])


def efficiency_text(bins: Sequence[Bin]) -> str:
    """Paper 000's summary of figure 3: potential time over time."""
    total, potential = sum(b.seconds for b in bins), sum(b.potential for b in bins)
    return f"{potential / total:.0%}" if total else "none"


def show(shown: Shown) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{shown.title}[/]", soft_wrap=True)
    console.print(shown.about, soft_wrap=True)
    console.print(NOTE, soft_wrap=True)
    _print(console, _parts(shown))
    _print(console, _kinds(shown))
    _print(console, _layers(shown, LAYERS_PRINTED))
    _print(console, _operations(shown, OPERATIONS_PRINTED))
    if shown.ceilings:
        console.print(_of_peaks(shown), soft_wrap=True)
        _print(console, _bins(shown))


def page(shown: Shown) -> str:
    """One self-contained HTML page."""
    blocks: list[Any] = [
        Section("Where a step goes", "", (_parts(shown), _kinds(shown))),
        Section("Layers", "Forward and backward, the slowest first.", (_layers(shown),)),
        Section("Operations", "On a GPU kernels; time of their own.", (_operations(shown, 100),)),
    ]
    if shown.ceilings:
        blocks.insert(
            1, Section("Hardware efficiency", _of_peaks(shown), (efficiency(shown.bins), _bins(shown)))
        )
    return render(
        "mlhpc.perf.profile",
        "profile.html",
        title=shown.title,
        heading=shown.title,
        meta=shown.about,
        banners=[Banner(NOTE)],
        blocks=blocks,
        foot="Efficiency and its histogram after Ibrahim et al. 2021, figure 3.",
    )


def efficiency(bins: Sequence[Bin]) -> Figure:
    """Time by hardware efficiency in ten bins, and what would be left at full use of the same hardware (paper 000,
    figure 3)."""
    measured, potential = "measured", "at full efficiency"
    rows = []
    for bin_ in bins:
        name = f"{bin_.low:.0%}–{bin_.high:.0%}"
        layers = str(bin_.layers)
        for what, seconds in ((measured, bin_.seconds), (potential, bin_.potential)):
            text = f"{1e3 * seconds:.3g} ms"
            rows.append({"bin": name, "what": what, "ms": 1e3 * seconds, "text": text, "layers": layers})
    scale = alt.Scale(domain=[measured, potential], range=[ACCENT[0], SERIES[2][0]])
    chart = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=alt.X("bin:N", sort=None, title="hardware efficiency", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("what:N", sort=None),
            y=alt.Y("ms:Q", title="ms a step"),
            color=alt.Color("what:N", scale=scale, legend=alt.Legend(symbolType="square")),
            tooltip=tooltips(
                [("bin", "efficiency"), ("what", "time"), ("text", "a step"), ("layers", "layers")]
            ),
        )
    )
    left = efficiency_text(bins)
    alt_text = f"Time of a step by hardware efficiency of its layers; {left} of it at full efficiency"
    return figure(chart, alt_text, title="Hardware efficiency", height=260)


def _of_peaks(shown: Shown) -> str:
    assert shown.ceilings
    return (
        f"Against {shown.ceilings.name}: products {shown.ceilings.tensor / 1e12:.4g} TFLOP/s, float32 "
        f"{shown.ceilings.float32 / 1e12:.4g} TFLOP/s, memory {shown.ceilings.bandwidth / 1e9:.4g} GB/s. At full "
        f"efficiency the layers would take {efficiency_text(shown.bins)} of their time."
    )


def _parts(shown: Shown) -> Table:
    total = sum(shown.parts.values())
    rows = tuple(
        (Cell(WORDS[part]), _ms(seconds), Cell(f"{seconds / total:.1%}", value=seconds / total))
        for part, seconds in shown.parts.items()
    )
    return Table("step-by-part", ("part", "ms a step", "share"), rows)


def _kinds(shown: Shown) -> Table:
    rows = tuple((Cell(kind), _ms(fwd), _ms(bwd)) for kind, fwd, bwd in by_kind(shown.times))
    return Table("step-by-kind", ("kind of layer", "forward, ms", "backward, ms"), rows)


def _layers(shown: Shown, most: int | None = None) -> Table:
    head = ["layer", "kind", "direction", "ms a step", "GFLOP/s"]
    slowest = sorted(shown.times, key=lambda time: -time.seconds)[:most]
    rows = []
    for time in slowest:
        rate = (time.product_flops + time.other_flops) / time.seconds
        cells = [Cell(time.name), Cell(time.kind), Cell(time.direction), _ms(time.seconds)]
        cells.append(Cell(f"{rate / 1e9:.4g}" if rate else "", value=rate))
        if shown.ceilings:
            share = time.efficiency(shown.ceilings)
            cells.append(Cell(f"{share:.0%}", value=share))
        rows.append(tuple(cells))
    if shown.ceilings:
        head.append("efficiency")
    return Table("step-by-layer", tuple(head), tuple(rows), text_columns=3)


def _operations(shown: Shown, most: int) -> Table:
    rows = tuple(
        (Cell(name), _ms(seconds), Cell(f"{calls:.4g}", value=calls))
        for name, seconds, calls in shown.operations[:most]
    )
    return Table("step-by-operation", ("operation", "ms a step", "calls"), rows)


def _bins(shown: Shown) -> Table:
    rows = tuple(
        (
            Cell(f"{b.low:.0%} to {b.high:.0%}"),
            _ms(b.seconds),
            _ms(b.potential),
            Cell(str(b.layers), value=b.layers),
        )
        for b in shown.bins
    )
    return Table("efficiency", ("hardware efficiency", "ms a step", "at full efficiency, ms", "layers"), rows)


def _ms(seconds: float) -> Cell:
    return Cell(f"{1e3 * seconds:.3g}", value=1e3 * seconds)


def _print(console: Console, table: Table) -> None:
    printed = Printed(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(table.head):
        printed.add_column(title, justify="left" if number < table.text_columns else "right", overflow="fold")
    for row in table.rows:
        printed.add_row(*(cell.text for cell in row))
    console.print(printed)
