"""An emulation as one self-contained HTML page."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mlhpc.common.pages import plots
from mlhpc.common.pages.charts import Figure
from mlhpc.common.pages.html import Banner, Cell, Facts, Grid, Section, Table, render
from mlhpc.errors import count
from mlhpc.iobench.definition.quantities import format_bytes
from mlhpc.iobench.report.console import summary_lines

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
        "mlhpc.iobench.report",
        "io.html",
        title=f"I/O of {workload['name']}",
        blocks=[_summary(result), _utilisation(result), _transfers(result), _epochs(result), _checkpoints(result),
                _ranks(result)],
        foot="Accelerator utilisation: compute time of the steps as configured over running time, without each "
        "epoch's first step. No accelerator was used. Null storage: steps of the same workload with its "
        "data in memory.",
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
    figure = plots.stacked_bars(
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
    return Section("Where the time went", about, (figure,))


def _transfers(result: Mapping[str, Any]) -> Section | None:
    reading = result["reading"]
    if not reading["calls"]:
        return None
    sizes: Counter[int] = Counter()
    for rank in result["rank_results"]:
        for size, number in rank["reading"]["sizes"].items():
            sizes[1 << (int(size) - 1).bit_length()] += number
    rows = [
        {"x": f"≤ {_binary(size)}", "value": sizes[size], "reads": str(sizes[size])} for size in sorted(sizes)
    ]
    says = "; ".join(f"{row['x']}: {row['reads']} reads" for row in rows)
    figure: Figure = plots.columns(
        rows, says, x_title="size of a read", y_title="reads", tooltip=[("x", "size"), ("reads", "reads")]
    )
    facts = {
        "asked": f"{format_bytes(reading['bytes_asked'])} in {reading['calls']} reads, "
        f"{reading['opens']} files opened",
        "from the device": _bytes(reading["process_device_bytes"]) + " for these processes, "
        + _bytes(reading["node_device_bytes"]) + " by all on these nodes",
        "hidden": f"{reading['hidden_percent'] or 0:.0f}% of {reading['io_s']:.3g} s a rank",
    }  # fmt: skip
    return Section("Reads", blocks=(Grid((figure,), 1), Facts(facts)))


def _bytes(value: int | None) -> str:
    return "not counted" if value is None else format_bytes(value)


def _binary(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"


def _epochs(result: Mapping[str, Any]) -> Section | None:
    names = ("seconds", "wait_s", "compute_s", "oversleep_s", "barrier_s")
    rows = tuple(
        (
            Cell(str(epoch["epoch"])),
            Cell(str(epoch["steps"])),
            _number(epoch["samples_per_s"]),
            *(_number(epoch[name]) for name in names),
            _number(epoch["au_percent"]),
        )
        for epoch in result["epochs"]
    )
    head = ("epoch", "steps", "samples/s", "seconds", "wait", "compute", "oversleep", "barrier", "AU %")
    about = "Seconds of the slowest rank; its parts are means over ranks."
    return Section("Epochs", about, (Table("epochs", head, rows),)) if rows else None


def _checkpoints(result: Mapping[str, Any]) -> Section | None:
    rows = tuple(
        (
            Cell(f"{each['kind']} {each['number']}"),
            Cell(format_bytes(each["bytes"]), value=each["bytes"]),
            _number(each["seconds"]),
            _number(each["fsync_s"]),
            Cell(format_bytes(each["bytes_per_s"]) + "/s", value=each["bytes_per_s"]),
        )
        for each in result["checkpoints"]
    )
    head = ("checkpoint", "size", "seconds", "of them fsync", "rate")
    return (
        Section("Checkpoints", "Of the slowest rank.", (Table("checkpoints", head, rows),)) if rows else None
    )


def _ranks(result: Mapping[str, Any]) -> Section:
    rows = []
    for number, rank in enumerate(result["rank_results"]):
        reading, waits = rank["reading"], rank["steps"]["wait_s"]
        rows.append(
            (
                Cell(str(number)),
                Cell(rank["host"]),
                Cell(str(reading["calls"])),
                Cell(format_bytes(reading["bytes"]), value=reading["bytes"]),
                _number(reading["bytes"] / reading["reading_s"] / 1e6 if reading["reading_s"] else None),
                _number(waits.get("p50")),
                _number(waits.get("p99")),
                _number(waits.get("max")),
            )
        )
    head = ("rank", "host", "reads", "asked", "MB/s while reading", "wait p50 s", "p99 s", "max s")
    return Section("Ranks", blocks=(Table("ranks", head, tuple(rows), text_columns=2),))


def _number(value: float | None) -> Cell:
    return Cell("-" if value is None else f"{value:.4g}", value=value)
