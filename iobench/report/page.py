"""An emulation as one self-contained HTML page. ``templates/emulation.html`` contains the page's text and
determines the order of its sections."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt
import numpy as np

from mlhpc.common.pages import charts
from mlhpc.common.pages.blocks import Cell, Facts, Table, number, table
from mlhpc.common.pages.charts import Figure, chart_of
from mlhpc.common.pages.html import render
from mlhpc.common.pages.plots import Bar, Measure, columns, stacked_bars
from mlhpc.iobench.report.console import epochs_table, evaluations_table, figure, summary_lines
from mlhpc.quantities import binary_text, bytes_text, count, digits, plain

# Parts of the time, each with its colour, which is the same as on a run's page.
_PARTS = {
    "compute": ("step", "compute"),
    "storage": ("data_wait", "storage"),
    "decode": ("first_epoch_excess", "decoding"),
    "barrier": ("evaluation", "barrier"),
    "processor": ("staging", "processor and oversleep"),
    "rest": ("rest", "rest"),
}
_RATES = {
    "read_bytes": ("read", charts.SERIES[0][0]),
    "checkpoint_bytes": ("checkpoints", charts.SERIES[1][0]),
}
_RANKS = {
    "computing_s": ("compute", charts.PARTS["step"][0]),
    "waiting_s": ("wait for data", charts.PARTS["data_wait"][0]),
}


def page(result: Mapping[str, Any]) -> str:
    """The whole HTML text for a ``result.json``."""
    workload = result["workload"]
    facts = {name: text for name, _, text in (line.partition(": ") for line in summary_lines(result))}
    return render(
        template="mlhpc.iobench.report:emulation.html",
        title=f"I/O of {workload['name']}",
        heading=workload["name"],
        subtitle=workload.get("description", ""),
        meta=" · ".join(_circumstances(result)),
        result=result,
        resident=max(result["resident_before_epochs"], default=0.0),
        summary=Facts(facts) if facts else None,
        utilisation=_utilisation(result["binding"]) if result["binding"] else None,
        transfers=_transfers(result),
        timeline=_over_time(result["timeline"], result["ranks"]) if result.get("timeline") else None,
        epochs=epochs_table(result["epochs"]),
        evaluations=evaluations_table(result["evaluations"]),
        checkpoints=_checkpoints(result["checkpoints"]),
        ranks=_ranks(result["rank_results"]) if result["reading"]["calls"] else None,
    )


def _circumstances(result: Mapping[str, Any]) -> list[str]:
    circumstances = [f"{count(result['ranks'], 'rank')} on {count(result['nodes'], 'node')}"]
    if result.get("filesystem"):
        circumstances += [f"page cache: {result['cache']}", f"file system {result['filesystem']}"]
    if result.get("checkpoint_filesystem"):
        circumstances.append(f"checkpoints on {result['checkpoint_filesystem']}")
    return circumstances


def _utilisation(bound: Mapping[str, float]) -> Figure:
    shares = {**bound, "processor": bound["cpu"] + bound["oversleep"]}
    return stacked_bars(
        [Bar("", {colour: shares[part] for part, (colour, _) in _PARTS.items()})],
        "Share of the running time",
        parts=dict(_PARTS.values()),
        measure=Measure("share of the running time"),
        relative=True,
        bar_height=44,
        static_width=820,
    )


def _over_time(timeline: Mapping[str, Any], ranks: int) -> list[Figure]:
    """Figures of the bandwidths of all ranks over time, and of the number of ``ranks`` that compute and wait."""
    shown = [
        _areas(
            timeline, {name: kind}, Measure("MB/s", unit=1e6), f"{bytes_text(sum(timeline[name]))} over time"
        )
        for name, kind in _RATES.items()
        if any(timeline[name])
    ]
    if any(any(timeline[name]) for name in _RANKS):
        shown.append(_areas(timeline, _RANKS, Measure("ranks"), f"What {count(ranks, 'rank')} did"))
    return shown


def _areas(
    timeline: Mapping[str, Any], kinds: Mapping[str, tuple[str, str]], measure: Measure, what: str
) -> Figure:
    """A figure of the amounts per second of ``kinds`` (name and colour of each), stacked, over time."""
    interval, unit = timeline["interval_s"], measure.title
    rates = {kind: np.array(timeline[name]) / interval / measure.unit for name, (kind, _) in kinds.items()}
    rows = [
        {"x": n * interval, "y": rate, "kind": kind,
         "says": f"{kind}, {digits(n * interval)} s: {digits(rate)} {unit}"}
        for kind, each in rates.items()
        for n, rate in enumerate([*each.tolist(), each[-1]])  # a step ends where the next begins
    ]  # fmt: skip
    peaks = [f"{kind} at most {digits(float(each.max()))} {unit}" for kind, each in rates.items()]
    colours = alt.Scale(domain=list(rates), range=[colour for _, colour in kinds.values()])
    legend = alt.Legend(orient="top", symbolType="square", title=None)
    until = alt.Scale(domain=[0, len(timeline["read_bytes"]) * interval], nice=False)
    drawn = chart_of(
        rows, x=alt.X("x:Q", title="seconds", scale=until), y=alt.Y("y:Q", title=unit, stack="zero")
    )
    drawn = drawn.mark_area(interpolate="step-after")
    drawn = drawn.encode(color=alt.Color("kind:N", scale=colours, legend=legend))
    return charts.figure(alt.layer(drawn), f"{what}: {', '.join(peaks)}", height=110, static_width=820)


def _transfers(result: Mapping[str, Any]) -> list[Figure | Facts] | None:
    reading = result["reading"]
    if not reading["calls"]:
        return None
    sizes: Counter[int] = Counter()
    for rank in result["rank_results"]:
        for size, reads in rank["reading"]["sizes"].items():
            sizes[1 << (int(size) - 1).bit_length()] += reads
    rows: list[dict[str, Any]] = [
        {"x": f"≤ {binary_text(size)}", "y": reads, "says": f"≤ {binary_text(size)}: {count(reads, 'read')}"}
        for size, reads in sorted(sizes.items())
    ]
    says = "; ".join(row["says"] for row in rows)
    drawn = columns(rows, says, titles=("size of a read", "reads"), static_width=820)
    remote = "object_store" in result
    facts = {
        "asked": f"{bytes_text(reading['bytes_asked'])} in {reading['calls']} "
        + ("GET requests" if remote else "reads")
        + f", {reading['opens']} {'HEAD requests' if remote else 'files opened'}",
        "from the device": "not known: the devices are the object store's" if remote else
        _bytes(reading["process_device_bytes"]) + " for these processes, "
        + _bytes(reading["node_device_bytes"]) + " by all on these nodes",
        "hidden": f"{reading['hidden_percent'] or 0:.0f}% of {plain(reading['io_s'])} s per rank",
    }  # fmt: skip
    return [drawn, Facts(facts)]


def _bytes(value: int | None) -> str:
    return "not counted" if value is None else bytes_text(value)


def _checkpoints(checkpoints: Sequence[Mapping[str, Any]]) -> Table:
    return table(
        "checkpoints",
        checkpoints,
        {
            "checkpoint": lambda each: f"{each['kind']} {each['number']}",
            "size": lambda each: number(each["bytes"], bytes_text),
            "seconds": lambda each: figure(each["seconds"]),
            "of them fsync": lambda each: figure(each["fsync_s"]),
            "rate": lambda each: number(each["bytes_per_s"], lambda rate: bytes_text(rate, "/s")),
        },
    )


def _ranks(results: Sequence[Mapping[str, Any]]) -> Table:
    def wait(row: tuple[int, Mapping[str, Any]], percentile: str) -> Cell:
        return figure(row[1]["steps"]["wait_s"].get(percentile))

    def rate(row: tuple[int, Mapping[str, Any]]) -> Cell:
        reading = row[1]["reading"]
        return figure(reading["bytes"] / reading["reading_s"] / 1e6 if reading["reading_s"] else None)

    return table(
        "ranks",
        enumerate(results),
        {
            "rank": lambda row: str(row[0]),
            "host": lambda row: row[1]["host"],
            "reads": lambda row: str(row[1]["reading"]["calls"]),
            "asked": lambda row: number(row[1]["reading"]["bytes"], bytes_text),
            "MB/s while reading": rate,
            "wait p50 s": partial(wait, percentile="p50"),
            "p99 s": partial(wait, percentile="p99"),
            "max s": partial(wait, percentile="max"),
        },
        text_columns=2,
    )
