"""The result of an emulation on a terminal."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from mlhpc.common.pages.blocks import Cell, Table, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.iobench.definition.mlperf_storage import Size
from mlhpc.iobench.report.similarity import COSINE, DIFFERENCE, Similarity
from mlhpc.iobench.simulate.measured import Fit
from mlhpc.iobench.simulate.simulation import Simulated, System
from mlhpc.quantities import bytes_text, count, plain

FITS = 0.1
"""Maximum acceptable relative error of a simulation for the runs it was fitted to."""
_RESOURCES = {
    "compute": "compute",
    "storage": "storage",
    "decode": "decoding, preprocessing and the loader's own cost",
    "cpu": "the processor",
    "barrier": "the barrier between ranks",
}


def print_result(result: Mapping[str, Any], console: Console) -> None:
    """Print the epochs and evaluations as tables, followed by a summary."""
    if result["epochs"]:
        print_table(epochs_table(result["epochs"]), console)
    if result["evaluations"]:
        print_table(evaluations_table(result["evaluations"]), console)
    for line in (*summary_lines(result), *checkpoint_lines(result)):
        say(console, line)


def epochs_table(epochs: Sequence[Mapping[str, Any]]) -> Table:
    """A table of epochs: seconds of the slowest rank, and their parts as means over ranks."""
    return _times_table("epochs", "epoch", epochs, {"AU %": "au_percent"})


def evaluations_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    """A table of evaluations like ``epochs_table``, by the epoch that each evaluation followed."""
    return _times_table("evaluations", "evaluation", evaluations, {})


def _times_table(name: str, first: str, rows: Sequence[Mapping[str, Any]], more: Mapping[str, str]) -> Table:
    names = {"samples/s": "samples_per_s", "seconds": "seconds", "wait": "wait_s", "compute": "compute_s",
             "oversleep": "oversleep_s", "barrier": "barrier_s", **more}  # fmt: skip
    columns: dict[str, Callable[[Any], Cell | str]] = {first: lambda epoch: str(epoch["epoch"])}
    columns["steps"] = lambda epoch: str(epoch["steps"])
    columns |= {
        title: partial(lambda epoch, key: figure(epoch[key]), key=key) for title, key in names.items()
    }
    return table(name, rows, columns, text_columns=0)


def summary_lines(result: Mapping[str, Any]) -> list[str]:
    """Sentences about the result, with the basis of each figure."""
    lines = []
    reading = result["reading"]
    if reading["calls"]:
        asked = bytes_text(reading["bytes_asked"])
        fetched = reading["process_device_bytes"]
        device = "not counted" if fetched is None else bytes_text(fetched)
        resident = max(result["resident_before_epochs"], default=0.0)
        if "object_store" in result:
            lines.append(
                f"read: {asked} requested in {reading['calls']} GET requests after "
                f"{count(reading['opens'], 'HEAD request')}; the activity of the store's devices and "
                f"caches is unknown"
            )
        else:
            lines.append(
                f"read: {asked} requested in {reading['calls']} calls, {device} from the device; at most "
                f"{100 * resident:.0f}% of the data in the page cache before an epoch"
            )
        with_them = " and evaluations" if result["evaluations"] else ""
        shares = {"sequential": "sequential_percent", "I/O hidden behind compute": "hidden_percent"}
        known = [f"{name} {reading[key]:.0f}%" for name, key in shares.items() if reading[key] is not None]
        rate = f"rate: {bytes_text(reading['bandwidth'] or 0, '/s')} over the epochs{with_them}"
        lines.append("; ".join(filter(None, (rate, ", ".join(known)))))
    if result["au_percent"] is not None:
        line = (
            f"accelerator utilisation: {result['au_percent']:.1f}% by the wording of MLPerf Storage's rules"
        )
        if result["au_dlio_percent"] is not None:
            threshold = result["workload"]["metric"].get("au_percent")
            line += f", {result['au_dlio_percent']:.1f}% as its tool computes it"
            line += f" ({threshold:g}% required)" if threshold is not None else ""
        if (without := result.get("au_without_loader_percent")) is not None:
            line += f", {without:.1f}% without the cost of the loader"
        elif (loader := result["workload"]["reader"].get("loader", "none")) != "none":
            line += f"; the cost of the {loader} loader is not included"
        if result["au_null_percent"] is not None:
            steps = count(result["null_steps"], "step")
            line += f"; {result['au_null_percent']:.1f}% with the data in memory ({steps})"
        lines.append(line)
    elif result["epochs"]:
        lines.append(f"accelerator utilisation: not defined, since {_why_none(result)}")
    if bound := result["binding"]:
        parts = ", ".join(
            f"{name} {bound[name]:.1f}%"
            for name in ("compute", "storage", "decode", "cpu", "barrier", "oversleep", "rest")
        )
        lines.append(f"binding: {_RESOURCES[bound['resource']]}{_second(bound)} ({parts})")
    return lines


def _second(bound: Mapping[str, Any]) -> str:
    """The end of the sentence on the binding resource: the largest loss, if that is a different resource."""
    loss = bound["loss"]
    if loss is None:
        return ", storage keeps up" if bound["resource"] == "compute" else ""
    if loss == bound["resource"]:
        return ""
    lost = bound[loss] + (bound["oversleep"] if loss == "cpu" else 0.0)
    return f"; largest loss: {_RESOURCES[loss]}, {lost:.1f}%"


def _why_none(result: Mapping[str, Any]) -> str:
    metric = result["workload"]["metric"]
    excluded = metric["exclude_start_steps"] + metric["exclude_end_steps"]
    most = max(epoch["steps"] for epoch in result["epochs"])
    if most <= excluded:
        return f"the metric excludes {count(excluded, 'step')}, but epochs have at most {most}"
    return "steps have no computation (train.computation)"


def checkpoint_lines(result: Mapping[str, Any]) -> list[str]:
    """A line for each checkpoint that was written or read."""
    return [
        f"checkpoint {each['number']} {each['kind']}: {bytes_text(each['bytes'])} in "
        f"{plain(each['seconds'])} s, {bytes_text(each['bytes_per_s'], '/s')}"
        for each in result["checkpoints"]
    ]


def print_sizes(sizes: Mapping[str, Size], console: Console) -> None:
    """Print the required data size of each workload."""
    columns: dict[str, Callable[[tuple[str, Size]], str]] = {
        "workload": lambda row: row[0],
        "files": lambda row: str(row[1].files),
        "samples": lambda row: str(row[1].samples),
        "size": lambda row: bytes_text(row[1].bytes),
        "steps/epoch": lambda row: str(row[1].steps_per_epoch),
        "decided by": lambda row: row[1].bound,
    }
    print_table(table("sizes", sizes.items(), columns, prose=(5,)), console)


def figure(value: float | None) -> Cell:
    """A cell with about four digits, never in scientific notation."""
    return Cell("-" if value is None else plain(value), value=value)


def print_costs(costs: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print the costs of loaders in milliseconds: median, minimum and maximum of the measurements."""
    rows = []
    for loader, own in costs.items():
        worker = {"per batch": "batch", "per sample": "sample", "per MB": "per_mb"}
        rows += [(loader, f"worker, {name}", own[key]) for name, key in worker.items()]
        rows += [(loader, f"loop, step of {bytes_text(1e6 * size)}", each) for size, each in own["steps"]]
    columns: dict[str, Callable[[Any], str]] = {
        "loader": lambda row: row[0],
        "cost": lambda row: row[1],
        "ms": lambda row: plain(1e3 * row[2][0]),
        "from": lambda row: plain(1e3 * row[2][1]),
        "to": lambda row: plain(1e3 * row[2][2]),
    }
    print_table(table("loaders", rows, columns, text_columns=2), console)


def print_similarity(similarity: Similarity, console: Console) -> None:
    """Print the differences, and whether the two runs count as similar."""
    columns: dict[str, Callable[[tuple[str, float]], str]] = {
        "factor": lambda row: row[0],
        "difference": lambda row: f"{100 * row[1]:+.1f}%",
    }
    print_table(table("similarity", similarity.differences.items(), columns), console)
    name, largest = similarity.largest
    verdict = (
        "alike"
        if similarity.alike
        else f"not alike: at least {COSINE} and at most {100 * DIFFERENCE:.0f}% are required"
    )
    say(
        console,
        f"cosine {similarity.cosine:.3f}, largest difference {100 * abs(largest):.1f}% ({name}): {verdict}",
    )


def print_simulated(fitted: Fit, system: System, runs: Sequence[Simulated], console: Console) -> None:
    """Print the simulated runs, with their efficiency relative to the first."""
    of_one = runs[0].samples_per_s / runs[0].ranks
    columns: dict[str, Callable[[Simulated], Cell | str]] = {
        "ranks": lambda each: str(each.ranks),
        "samples/s": lambda each: figure(each.samples_per_s),
        "of linear": lambda each: f"{each.samples_per_s / (of_one * each.ranks):.0%}",
        "AU %": lambda each: figure(each.au_percent),
        "binds": lambda each: each.binding,
    }
    print_table(table("simulated", runs, columns, text_columns=0, prose=(4,)), console)
    service, (one, two) = fitted.service, zip(fitted.measured, fitted.simulated, strict=True)
    doubt = "" if fitted.error < FITS else "; they do not agree, so the simulation is unreliable"
    say(
        console,
        f"fitted to the runs on 1 and 2 ranks: measured {plain(one[0])} and {plain(two[0])} samples/s, simulated "
        f"{plain(one[1])} and {plain(two[1])}{doubt}",
    )
    if not fitted.told_apart:
        low, high = fitted.exclusive
        say(
            console,
            f"the two ranks hardly competed: {low:.0%} to {high:.0%} of a read may block other reads, so results "
            "for more ranks are a guess; repeat the run on two ranks with --set train.computation=0 "
            "--set reader.threads=4 --set reader.prefetch=8",
        )
    say(
        console,
        f"measured per sample: {plain(1e3 * service.device_s)} ms of exclusive storage time, "
        f"{plain(1e3 * service.latency_s)} ms of concurrent reading, {plain(1e3 * service.decode_s)} ms of core "
        f"time; {plain(1e3 * service.open_s)} ms to open a file. Simulated: "
        f"{count(system.targets, 'storage target')}, {count(system.metadata, 'metadata server')}, "
        f"{count(system.ranks_per_node, 'rank')} per node, with {count(system.cores, 'core')}",
    )
