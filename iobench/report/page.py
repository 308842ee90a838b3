"""An emulation as one self-contained HTML page."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mlhpc.common.pages import plots
from mlhpc.common.pages.blocks import Banner, Facts, Grid, Section, number, table
from mlhpc.common.pages.html import render
from mlhpc.errors import count
from mlhpc.iobench.definition.quantities import format_bytes
from mlhpc.iobench.report.console import epochs_table, figure, summary_lines

# Parts of the time, with the colour of a run's page that each has.
_PARTS = {
    "compute": ("step", "compute"),
    "storage": ("data_wait", "storage"),
    "decode": ("first_epoch_excess", "decoding"),
    "barrier": ("evaluation", "barrier"),
    "processor": ("staging", "processor"),
    "rest": ("rest", "rest"),
}


def page(result: Mapping[str, Any]) -> str:
    """The whole HTML text of ``result.json``."""
    workload = result["workload"]
    machine = f"{count(result['ranks'], 'rank')} on {count(result['nodes'], 'node')}"
    return render(
        title=f"I/O of {workload['name']}",
        blocks=[_summary(result), _utilisation(result), _transfers(result), _epochs(result), _checkpoints(result),
                _ranks(result)],
        foot="Accelerator utilisation: compute time of the steps as configured over running time, without each "
        "epoch's first step. No accelerator was used. Null storage: steps of the same workload with its "
        "data in memory.",
        eyebrow="mlhpc I/O emulation",
        heading=workload["name"],
        subtitle=workload.get("description", ""),
        meta=f"{machine} · page cache: {result['cache']} · file system {result.get('filesystem', 'none')}",
        banners=_banners(result),
    )  # fmt: skip


def _banners(result: Mapping[str, Any]) -> list[Banner]:
    found = [Banner("An emulation: nothing was trained. Not a result of MLPerf Storage.")]
    resident = max(result["resident_before_epochs"], default=0.0)
    if resident > 0.01:
        found.append(
            Banner(f"{100 * resident:.0f}% of the data was in the page cache before an epoch.", tone="bad")
        )
    if result.get("data_in_ram"):
        found.append(Banner("The data was on a RAM file system.", tone="bad"))
    return found


def _summary(result: Mapping[str, Any]) -> Section:
    lines = (line.partition(": ") for line in summary_lines(result))
    return Section("Summary", blocks=(Facts({name: text for name, _, text in lines}),))


def _utilisation(result: Mapping[str, Any]) -> Section | None:
    bound = result["binding"]
    if not bound:
        return None
    shares = {**bound, "processor": bound["cpu"] + bound["oversleep"]}
    rows = [
        {
            "bar": "run", "name": "", "key": colour, "part": label, "value": shares[part] / 100,
            "label": f"{shares[part]:.0f}%" if shares[part] >= 4 else "", "share": f"{shares[part]:.1f}%",
        }
        for part, (colour, label) in _PARTS.items()
        if shares[part] > 0
    ]  # fmt: skip
    says = "; ".join(f"{row['part']}: {row['share']}" for row in rows)
    drawn = plots.stacked_bars(
        rows,
        says,
        parts=dict(_PARTS.values()),
        value_title="share of the running time",
        tooltip=[("part", "part"), ("share", "share")],
        relative=True,
        bar_height=44,
        static_width=820,
    )
    about = (
        f"Accelerator utilisation {bound['compute']:.1f}%, with the data in memory "
        f"{result['au_null_percent']:.1f}%. Storage: what waiting for data and for "
        "other ranks costs beyond the run with the data in memory."
    )
    return Section("Where the time went", about, (drawn,))


def _transfers(result: Mapping[str, Any]) -> Section | None:
    reading = result["reading"]
    if not reading["calls"]:
        return None
    sizes: Counter[int] = Counter()
    for rank in result["rank_results"]:
        for size, reads in rank["reading"]["sizes"].items():
            sizes[1 << (int(size) - 1).bit_length()] += reads
    rows = [
        {"x": f"≤ {_binary(size)}", "value": sizes[size], "reads": str(sizes[size])} for size in sorted(sizes)
    ]
    says = "; ".join(f"{row['x']}: {row['reads']} reads" for row in rows)
    drawn = plots.columns(
        rows, says, x_title="size of a read", y_title="reads", tooltip=[("x", "size"), ("reads", "reads")]
    )
    remote = "object_store" in result
    facts = {
        "asked": f"{format_bytes(reading['bytes_asked'])} in {reading['calls']} "
        + ("GET requests" if remote else "reads")
        + f", {reading['opens']} {'HEAD requests' if remote else 'files opened'}",
        "from the device": "not known: the devices are the object store's" if remote else
        _bytes(reading["process_device_bytes"]) + " for these processes, "
        + _bytes(reading["node_device_bytes"]) + " by all on these nodes",
        "hidden": f"{reading['hidden_percent'] or 0:.0f}% of {reading['io_s']:.3g} s a rank",
    }  # fmt: skip
    return Section("Reads", blocks=(Grid((drawn,), 1), Facts(facts)))


def _bytes(value: int | None) -> str:
    return "not counted" if value is None else format_bytes(value)


def _binary(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"


def _epochs(result: Mapping[str, Any]) -> Section | None:
    if not result["epochs"]:
        return None
    about = "Seconds of the slowest rank; its parts are means over ranks."
    return Section("Epochs", about, (epochs_table(result),))


def _checkpoints(result: Mapping[str, Any]) -> Section | None:
    if not result["checkpoints"]:
        return None
    checkpoints = table(
        "checkpoints",
        result["checkpoints"],
        {
            "checkpoint": lambda each: f"{each['kind']} {each['number']}",
            "size": lambda each: number(each["bytes"], format_bytes),
            "seconds": lambda each: figure(each["seconds"]),
            "of them fsync": lambda each: figure(each["fsync_s"]),
            "rate": lambda each: number(each["bytes_per_s"], lambda rate: format_bytes(rate) + "/s"),
        },
    )
    return Section("Checkpoints", "Of the slowest rank.", (checkpoints,))


def _ranks(result: Mapping[str, Any]) -> Section:
    ranks = table(
        "ranks",
        list(enumerate(result["rank_results"])),
        {
            "rank": lambda row: str(row[0]),
            "host": lambda row: row[1]["host"],
            "reads": lambda row: str(row[1]["reading"]["calls"]),
            "asked": lambda row: number(row[1]["reading"]["bytes"], format_bytes),
            "MB/s while reading": lambda row: figure(_rate(row[1]["reading"])),
            "wait p50 s": lambda row: figure(row[1]["steps"]["wait_s"].get("p50")),
            "p99 s": lambda row: figure(row[1]["steps"]["wait_s"].get("p99")),
            "max s": lambda row: figure(row[1]["steps"]["wait_s"].get("max")),
        },
        text_columns=2,
    )
    return Section("Ranks", blocks=(ranks,))


def _rate(reading: Mapping[str, Any]) -> float | None:
    """MB/s while reading."""
    return reading["bytes"] / reading["reading_s"] / 1e6 if reading["reading_s"] else None
