"""The result of an emulation on a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from mlhpc.errors import count
from mlhpc.iobench.definition.mlperf_storage import Size
from mlhpc.iobench.definition.quantities import format_bytes
from mlhpc.iobench.report.similarity import COSINE, DIFFERENCE, Similarity
from mlhpc.iobench.simulate.measured import Fit
from mlhpc.iobench.simulate.simulation import Simulated, System

FITS = 0.1
"""Largest relative error with which a simulation reproduces the runs it was fitted on."""
_RESOURCES = {
    "compute": "nothing: the storage keeps up",
    "storage": "storage",
    "decode": "decoding and preprocessing in the reader threads",
    "cpu": "the processor",
    "barrier": "the barrier between ranks",
}


def print_result(result: Mapping[str, Any], console: Console) -> None:
    """The epochs as a table, and under it what they come to."""
    table = Table(box=None, pad_edge=False)
    for name in ("epoch", "steps", "samples/s", "seconds", "wait", "compute", "oversleep", "barrier", "AU %"):
        table.add_column(name, justify="right")
    for epoch in result["epochs"]:
        seconds = (
            f"{epoch[key]:.3g}" for key in ("seconds", "wait_s", "compute_s", "oversleep_s", "barrier_s")
        )
        table.add_row(
            str(epoch["epoch"]), str(epoch["steps"]), _number(epoch["samples_per_s"]), *seconds,
            _number(epoch["au_percent"]),
        )  # fmt: skip
    if result["epochs"]:
        console.print(table)
    for line in summary_lines(result):
        console.print(line, highlight=False, soft_wrap=True)


def summary_lines(result: Mapping[str, Any]) -> list[str]:
    """The result in sentences, each figure with what it was measured on."""
    lines = []
    reading = result["reading"]
    if reading["calls"]:
        fetched = reading["process_device_bytes"]
        device = "not counted" if fetched is None else format_bytes(fetched)
        resident = max(result["resident_before_epochs"], default=0.0)
        lines.append(
            f"read: {format_bytes(reading['bytes_asked'])} asked in {reading['calls']} calls, {device} from the "
            f"device; at most {100 * resident:.0f}% of the data in the page cache before an epoch"
        )
        lines.append(
            f"rate: {format_bytes(reading['bandwidth'] or 0)}/s over the epochs; sequential "
            f"{_percent(reading['sequential_percent'])}, I/O hidden behind compute "
            f"{_percent(reading['hidden_percent'])}"
        )
    if result["au_percent"] is not None:
        line = f"accelerator utilisation: {result['au_percent']:.1f}%"
        threshold = result["workload"]["metric"].get("au_percent")
        line += f" ({threshold:g}% to reach)" if threshold is not None else ""
        if result["au_null_percent"] is not None:
            steps = count(result["null_steps"], "step")
            line += f"; {result['au_null_percent']:.1f}% with the data in memory ({steps})"
        lines.append(line)
    if bound := result["binding"]:
        parts = ", ".join(
            f"{name} {bound[name]:.1f}%"
            for name in ("compute", "storage", "decode", "cpu", "barrier", "oversleep", "rest")
        )
        lines.append(f"binding: {_RESOURCES[bound['resource']]} ({parts})")
    for each in result["checkpoints"]:
        lines.append(
            f"checkpoint {each['number']} {each['kind']}: {format_bytes(each['bytes'])} in "
            f"{each['seconds']:.3g} s, {format_bytes(each['bytes_per_s'])}/s"
        )
    return lines


def print_sizes(sizes: Mapping[str, Size], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("workload")
    for name in ("files", "samples", "size", "steps/epoch", "decided by"):
        table.add_column(name, justify="right")
    for name, size in sizes.items():
        table.add_row(
            name,
            str(size.files),
            str(size.samples),
            format_bytes(size.bytes),
            str(size.steps_per_epoch),
            size.bound,
        )
    console.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


def print_similarity(found: Similarity, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("factor")
    table.add_column("difference", justify="right")
    for name, difference in found.differences.items():
        table.add_row(name, f"{100 * difference:+.1f}%")
    console.print(table)
    name, largest = found.largest
    verdict = "alike" if found.alike else f"not alike: {COSINE} and {100 * DIFFERENCE:.0f}% are required"
    console.print(
        f"cosine {found.cosine:.3f}, largest difference {100 * abs(largest):.1f}% ({name}): {verdict}",
        highlight=False,
        soft_wrap=True,
    )


def print_simulated(fitted: Fit, system: System, found: Sequence[Simulated], console: Console) -> None:
    """The simulated runs, each beside as many times the rate of the first as it has ranks more."""
    table = Table(box=None, pad_edge=False)
    for name in ("ranks", "samples/s", "of linear", "AU %", "binds"):
        table.add_column(name, justify="left" if name == "binds" else "right")
    for each in found:
        linear = found[0].samples_per_s / found[0].ranks * each.ranks
        table.add_row(
            str(each.ranks), _number(each.samples_per_s), f"{each.samples_per_s / linear:.0%}",
            _number(each.au_percent), each.binding,
        )  # fmt: skip
    console.print(table)
    service, (one, two) = fitted.service, zip(fitted.measured, fitted.simulated, strict=True)
    doubt = "" if fitted.error < FITS else "; they do not agree, so the simulation has no grounds"
    console.print(
        f"fitted on 1 and 2 ranks: {one[0]:.4g} and {two[0]:.4g} samples/s measured, {one[1]:.4g} and "
        f"{two[1]:.4g} simulated{doubt}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"measured, of a sample: {1e3 * service.device_s:.3g} ms of the storage alone, "
        f"{1e3 * service.latency_s:.3g} ms beside others, {1e3 * service.decode_s:.3g} ms of a core; "
        f"{1e3 * service.open_s:.3g} ms to open a file. Simulated: {count(system.targets, 'storage target')}, "
        f"{count(system.metadata, 'metadata server')}, {count(system.ranks_per_node, 'rank')} on each node of "
        f"{count(system.cores, 'core')}",
        highlight=False,
        soft_wrap=True,
    )


class Measured(Protocol):
    """A combination of settings and its runs (``iobench.sweep.Point``)."""

    rates: list[float]

    @property
    def rate(self) -> float: ...
    @property
    def named(self) -> str: ...


class Compared(Protocol):
    """Two combinations (``iobench.sweep.Comparison``)."""

    @property
    def own(self) -> Measured: ...
    @property
    def recommended(self) -> Measured: ...
    @property
    def gain(self) -> float: ...
    @property
    def confirmed(self) -> bool: ...


def print_sweep(points: Sequence[Measured], found: Mapping[str, Compared | None], console: Console) -> None:
    """Every combination with its runs' median, least and most, and what is recommended."""
    table = Table(box=None, pad_edge=False)
    for name in ("settings", "samples/s", "from", "to", "of its own"):
        table.add_column(name, justify="left" if name == "settings" else "right")
    for point in points:
        least, most = min(point.rates), max(point.rates)
        ratio = f"{point.rate / points[0].rate:.2f}"
        table.add_row(point.named, _number(point.rate), _number(least), _number(most), ratio)
    console.print(table)
    again = found["again"]
    if again is None:
        return console.print("nothing is faster than the workload's own settings")
    console.print(f"recommended: {again.recommended.named}", highlight=False, soft_wrap=True)
    for each, where in ((again, "measured again"), (found.get("in_a_run"), "in mlhpc run")):
        if each:
            verdict = "every run was faster" if each.confirmed else "not confirmed: the runs overlap"
            console.print(
                f"{where}: {each.gain:.2f} times as fast; {verdict}", highlight=False, soft_wrap=True
            )
