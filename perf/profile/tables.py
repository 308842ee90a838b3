"""Prints a profile in the terminal, and as a page."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.blocks import Banner, Cell, Columns, Section, Table, number, table
from mlhpc.common.pages.charts import ACCENT, SERIES, Figure
from mlhpc.common.pages.html import render
from mlhpc.common.pages.plots import columns
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.common.timing.profile import Profile
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.profile.counters import COUNTERS_NOTE, Counted, counters_table
from mlhpc.perf.profile.layers import Bin, LayerTime, of_step
from mlhpc.perf.profile.ranks import (
    EXCHANGE_NOTE,
    exchange_table,
    message_table,
    ms,
    reading_note,
    reading_table,
)
from mlhpc.quantities import bytes_text, count, four_digits, seconds_text, text_of

_SIDE_BY_SIDE = 1.005
"""If the time of all threads exceeds the step by this factor, operations overlapped; less may be rounding."""
LAYERS_PRINTED = 12
OPERATIONS_PRINTED = 10
WORDS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "communication",
    "input": "input to the device, copies",
    "other": "loss and other",
    "input wait": "wait for a batch of the loader",
    "wait": "wait: nothing computes",
}
NOTE = (
    "Training steps under a profiler, which may slow them down: use the shares, not the times. A step is a "
    "step of the optimizer with all its backward passes. Samples are zeros in memory unless --data is "
    "given. Not a result of the benchmark."
)


@dataclass(frozen=True)
class Shown:
    """The data shown for the profiles of all ``ranks``; times, parts and operations are rank 0's. ``bins`` are
    empty without ``ceilings``; ``elsewhere``: why the ceilings belong to a different machine, or empty;
    ``counted``: the hardware's counts, if a file of counters was passed.
    """

    run: Run
    ranks: Sequence[Profile]
    times: Sequence[LayerTime]
    parts: dict[str, float]
    operations: Sequence[tuple[str, float, float]]
    ceilings: Ceilings | None
    bins: Sequence[Bin]
    elsewhere: str = ""
    counted: Sequence[Counted] = ()

    @property
    def profile(self) -> Profile:
        """The profile of rank 0."""
        return self.ranks[0]

    @property
    def of_step(self) -> dict[str, float]:
        """The parts of the step in seconds, which add up to the step."""
        return of_step(self.profile)

    @property
    def side_by_side(self) -> str:
        """A sentence on operations that ran concurrently; an empty string if none did."""
        threads, step = sum(self.parts.values()), self.profile.wall
        if threads <= _SIDE_BY_SIDE * step:
            return ""
        what = "streams of the device" if self.profile.gpu else "threads"
        return (
            f"Operations ran concurrently: {seconds_text(threads)} over {what} in a step of {seconds_text(step)}. "
            f"Parts of the step are their shares of it; times of layers and operations are summed over {what}."
        )

    @property
    def benchmark(self) -> str:
        """The title of the benchmark."""
        return registry.title(self.run.benchmark)

    @property
    def title(self) -> str:
        """The title of the page."""
        return f"{self.benchmark}, a training step by layer"

    @property
    def ranks_text(self) -> str:
        """The number of ranks, as text."""
        return count(len(self.ranks), "rank")

    @property
    def about(self) -> str:
        """What was measured, as text."""
        p = self.profile
        passes = f" in each of {p.passes} backward passes per step" if p.passes > 1 else ""
        return (
            f"preset {self.run.preset}, {self.run.training.framework}, {p.batch} samples per rank{passes}, "
            f"{self.run.training.precision}, {p.device}, {self.ranks_text}, mean of {p.steps} steps: "
            f"{seconds_text(p.wall)} per step under the profiler, {seconds_text(p.plain)} without it (median)"
        )


def by_kind(times: Sequence[LayerTime]) -> list[tuple[str, float, float]]:
    """(kind, forward seconds, backward seconds), the slowest first."""
    kinds: dict[str, dict[str, float]] = defaultdict(lambda: {"forward": 0.0, "backward": 0.0})
    for time in times:
        kinds[time.kind][time.direction] += time.seconds
    rows = [(kind, both["forward"], both["backward"]) for kind, both in kinds.items()]
    return sorted(rows, key=lambda row: -row[1] - row[2])


def efficiency_text(bins: Sequence[Bin]) -> str:
    """The ratio of potential to measured time, the summary of figure 3 of Ibrahim et al. 2021, as text."""
    total, potential = sum(b.seconds for b in bins), sum(b.potential for b in bins)
    return f"{potential / total:.0%}" if total else "none"


def show(shown: Shown) -> None:
    """Print the tables."""
    console = Console(highlight=False)
    say(console, shown.title, "bold")
    say(console, shown.about)
    say(console, NOTE)
    print_table(_parts(shown), console)
    if shown.side_by_side:
        say(console, shown.side_by_side)
    if shown.profile.exchange:
        say(console, EXCHANGE_NOTE)
        print_table(exchange_table(shown.ranks), console)
        print_table(message_table(shown.ranks), console)
    if shown.profile.reading:
        say(console, reading_note(shown.ranks))
        print_table(reading_table(shown.ranks), console)
    print_table(_kinds(shown), console)
    print_table(_layers(shown, LAYERS_PRINTED), console)
    print_table(_operations(shown, OPERATIONS_PRINTED), console)
    if shown.ceilings:
        say(console, _of_peaks(shown))
        print_table(_bins(shown), console)
    if shown.counted:
        say(console, COUNTERS_NOTE)
        print_table(counters_table(shown.counted, shown.ceilings), console)


def page(shown: Shown) -> str:
    """One self-contained HTML page."""
    ranks, profile = shown.ranks, shown.profile
    exchanged, read = (exchange_table(ranks), message_table(ranks)), (reading_table(ranks),)
    peaks = (efficiency(shown.bins), _bins(shown)) if shown.ceilings else ()
    counted = (counters_table(shown.counted, shown.ceilings),) if shown.counted else ()
    blocks = [
        Section("Breakdown of a step", shown.side_by_side, (_step_figure(shown), _parts(shown))),
        Section("Kinds of layers", "", (_kinds_figure(shown), _kinds(shown))),
        Section("Communication of each rank", EXCHANGE_NOTE, exchanged) if profile.exchange else None,
        Section("Input of each rank", reading_note(ranks), read) if profile.reading else None,
        Section("Hardware efficiency", _of_peaks(shown), peaks) if peaks else None,
        Section("Hardware counters", COUNTERS_NOTE, counted) if counted else None,
        Section("Layers", "Forward and backward, the slowest first.", (_layers(shown),)),
        Section("Operations", "On a GPU: kernels. Self time.", (_operations(shown, 100),)),
    ]
    return render(
        eyebrow="mlhpc profile",
        heading=shown.title,
        meta=shown.about,
        banners=[Banner(NOTE), *([Banner(f"{shown.elsewhere}.", "Warning:")] if shown.elsewhere else [])],
        blocks=blocks,
        foot="Efficiency and its histogram after Ibrahim et al. 2021, figure 3.",
    )


def efficiency(bins: Sequence[Bin]) -> Figure:
    """Time by hardware efficiency in ten bins, and the time at full use of the same hardware (Ibrahim et al.
    2021, figure 3)."""
    colours = {"measured": ACCENT[0], "at full efficiency": SERIES[2][0]}
    rows = [
        {"x": f"{b.low:.0%}–{b.high:.0%}", "y": 1e3 * seconds, "part": what,
         "says": f"efficiency {b.low:.0%}–{b.high:.0%}, {what}: {seconds_text(seconds)} per step, "
         f"{count(b.layers, 'layer')}"}
        for b in bins for what, seconds in zip(colours, (b.seconds, b.potential), strict=True)
    ]  # fmt: skip
    left = efficiency_text(bins)
    return columns(
        rows,
        f"Time of a step by hardware efficiency of its layers; {left} of it at full efficiency",
        titles=("hardware efficiency", "ms per step"),
        colours=colours,
        beside=True,
        title="Hardware efficiency",
        height=260,
    )


def _of_peaks(shown: Shown) -> str:
    assert shown.ceilings
    return (
        f"Against {shown.ceilings.name}: products {text_of(shown.ceilings.tensor, 'FLOP/s')}, float32 "
        f"{text_of(shown.ceilings.float32, 'FLOP/s')}, memory {bytes_text(shown.ceilings.bandwidth, '/s')}. At "
        f"full efficiency the layers would take {efficiency_text(shown.bins)} of their time."
    )


def _words(shown: Shown) -> dict[str, str]:
    return WORDS | ({"input wait": "wait of the host for a batch, at most"} if shown.profile.gpu else {})


def _parts(shown: Shown) -> Table:
    words, step = _words(shown), shown.profile.wall
    threads: Columns[tuple[str, float]] = {
        f"of all {'streams' if shown.profile.gpu else 'threads'}, ms": lambda row: ms(shown.parts[row[0]])
    }
    return table(
        "step-by-part",
        list(shown.of_step.items()),
        {
            "part": lambda row: words[row[0]],
            "ms per step": lambda row: ms(row[1]),
            "share": lambda row: number(row[1] / step, "{:.1%}".format),
            **(threads if shown.side_by_side else {}),
        },
    )


def _step_figure(shown: Shown) -> Figure:
    """A figure with a column for each part of the step."""
    words = _words(shown)
    rows: list[dict[str, Any]] = [
        {"x": words[part], "y": 1e3 * seconds,
         "says": f"{words[part]}: {seconds_text(seconds)}, {seconds / shown.profile.wall:.1%} of the step"}
        for part, seconds in shown.of_step.items()
    ]  # fmt: skip
    return columns(
        rows,
        "Parts of a step. " + "; ".join(row["says"] for row in rows),
        titles=("", "ms per step"),
        title="Parts of a step",
        height=260,
    )


def _kinds_figure(shown: Shown) -> Figure:
    """A figure with a column for each kind of layer, forward and backward."""
    colours = {"forward": ACCENT[0], "backward": SERIES[2][0]}
    rows: list[dict[str, Any]] = [
        {
            "x": kind,
            "y": 1e3 * seconds,
            "part": direction,
            "says": f"{kind}, {direction}: {seconds_text(seconds)}",
        }
        for kind, *both in by_kind(shown.times)
        for direction, seconds in zip(colours, both, strict=True)
    ]
    return columns(
        rows,
        "Time by kind of layer. " + "; ".join(row["says"] for row in rows),
        titles=("kind of layer", "ms per step"),
        colours=colours,
        title="Time by kind of layer",
        height=260,
    )


def _kinds(shown: Shown) -> Table:
    return table(
        "step-by-kind",
        by_kind(shown.times),
        {
            "kind of layer": lambda row: row[0],
            "forward, ms": lambda row: ms(row[1]),
            "backward, ms": lambda row: ms(row[2]),
        },
    )


def _layers(shown: Shown, most: int | None = None) -> Table:
    def rate(time: LayerTime) -> Cell:
        gflops = (time.product_flops + time.other_flops) / time.seconds / 1e9
        return number(gflops or None, four_digits)

    ceilings = shown.ceilings
    efficiency_of: Columns[LayerTime] = (
        {"efficiency": lambda time: number(time.efficiency(ceilings), "{:.0%}".format)} if ceilings else {}
    )
    return table(
        "step-by-layer",
        sorted(shown.times, key=lambda time: -time.seconds)[:most],
        {
            "layer": lambda time: time.name,
            "kind": lambda time: time.kind,
            "direction": lambda time: time.direction,
            "ms per step": lambda time: ms(time.seconds),
            "GFLOP/s": rate,
            **efficiency_of,
        },
        text_columns=3,
    )


def _operations(shown: Shown, most: int) -> Table:
    return table(
        "step-by-operation",
        shown.operations[:most],
        {
            "operation": lambda row: row[0],
            "ms per step": lambda row: ms(row[1]),
            "calls": lambda row: number(row[2], four_digits),
        },
    )


def _bins(shown: Shown) -> Table:
    return table(
        "efficiency",
        shown.bins,
        {
            "hardware efficiency": lambda b: f"{b.low:.0%} to {b.high:.0%}",
            "ms per step": lambda b: ms(b.seconds),
            "at full efficiency, ms": lambda b: ms(b.potential),
            "layers": lambda b: number(b.layers, str),
        },
    )
