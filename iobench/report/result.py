"""Builds the ``result.json`` of an emulation: the measurements of each rank, and their totals."""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from mlhpc import __version__
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.steps import percentiles
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.emulate.record import Reading, Run
from mlhpc.iobench.emulate.steps import COLUMNS, EpochTimes
from mlhpc.iobench.report import timeline
from mlhpc.iobench.report.record import Result
from mlhpc.iobench.report.utilisation import Shares, binding, dlio_percent, shares

_PARTS = ("wait_s", "compute_s", "oversleep_s", "barrier_s")
_UTILISATIONS = ("au_percent", "au_dlio_percent", "au_without_loader_percent")


def rank_summary(workload: Workload, run: Run, null: Run | None) -> dict[str, Any]:
    """The summary that a rank sends to rank 0, in JSON types."""
    own_cores = os.sched_getaffinity(0)
    summary = {
        "host": os.uname().nodename,
        "cores": len(own_cores),
        "affinity": sorted(own_cores),
        "epochs": [_epoch(epoch, workload) for epoch in run.epochs],
        "evaluations": [_epoch(epoch, workload) for epoch in run.evaluations],
        "shares": asdict(shares(run.epochs, workload.metric)),
        "reading": asdict(run.reading) | {"sizes": {str(k): v for k, v in run.reading.sizes.items()}},
        "cpu_s": run.cpu_s,
        "load_s": run.load_s,
        "device_bytes": run.device_bytes,
        "node_device": run.node_device._asdict() if run.node_device else None,
        "resident": run.resident,
        "steps": _step_times(run.epochs),
        "timeline": timeline.of_rank(run),
        "checkpoints": [
            asdict(each) | {"start_s": each.start_s - run.origin, "end_s": each.end_s - run.origin}
            for each in run.transfers
        ],
    }
    if null:
        summary["null"] = {
            "shares": asdict(shares(null.epochs, workload.metric)),
            "cpu_s": null.cpu_s,
            "seconds": sum(epoch.seconds for epoch in null.epochs),
            "steps": sum(len(epoch.steps) for epoch in null.epochs),
        }
    return summary


def _epoch(epoch: EpochTimes, workload: Workload) -> dict[str, Any]:
    return {
        "epoch": epoch.epoch + 1,
        "steps": len(epoch.steps),
        "seconds": epoch.seconds,
        "checkpoint_s": epoch.checkpoint_s,
        **{name: float(epoch.column(name).sum()) for name in _PARTS},
        "au_percent": shares([epoch], workload.metric).utilisation,
        "au_dlio_percent": dlio_percent(epoch, workload.metric),
        "au_without_loader_percent": _without_loader(epoch, workload),
    }


def _without_loader(epoch: EpochTimes, workload: Workload) -> float | None:
    """DLIO's utilisation if the loop spent no time on the loader; None if it spends none, because the loader's
    cost is not known or all samples are in memory."""
    dataset, reader = workload.dataset, workload.reader
    if dataset is None or reader.loader_cost is None or reader.load_all:
        return None
    return dlio_percent(epoch, workload.metric, reader.step_s(dataset, reader.batch_size))


def _step_times(epochs: Sequence[EpochTimes]) -> dict[str, dict[str, float]]:
    """Percentiles of the steps' waits and of their relative oversleep."""
    steps = np.concatenate([epoch.steps for epoch in epochs]) if epochs else np.empty((0, 8))
    times = {"wait_s": percentiles(steps[:, 1].tolist())}
    has_compute = steps[:, 2] > 0
    if has_compute.any():
        relative = steps[has_compute, 3] / steps[has_compute, 2]
        times["oversleep_relative"] = {
            **percentiles(relative.tolist()),
            "mean": float(steps[has_compute, 3].sum() / steps[has_compute, 2].sum()),
        }
    return times


def result(
    workload: Workload, ranks: Sequence[Mapping[str, Any]], world: World, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The result over all ranks. ``facts``: the data folder, cache policy and the like, which are added
    unchanged."""
    batch = workload.reader.batch_size if workload.dataset else 0
    epochs, evaluations = (
        [_over_ranks(parts, size) for parts in zip(*(rank[kind] for rank in ranks), strict=True)]
        for kind, size in (("epochs", batch), ("evaluations", workload.reader.eval_batch_size))
    )
    real = _total([rank["shares"] for rank in ranks])
    null = _total([rank["null"]["shares"] for rank in ranks]) if "null" in ranks[0] else None
    busy = _cpu_busy(ranks) if null else None
    bound = binding(real, null, busy) if null and busy is not None else None
    training_s = sum(epoch["seconds"] - epoch["checkpoint_s"] for epoch in epochs)
    load_s = max(rank["load_s"] for rank in ranks)
    evaluation_s = sum(evaluation["seconds"] for evaluation in evaluations)
    samples = sum(epoch["samples"] for epoch in epochs)
    content = {
        "mlhpc": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kind": "io",
        "workload": workload.model_dump(mode="json", exclude_none=True),
        "ranks": world.size,
        "nodes": world.nodes,
        "launcher": world.launcher,
        **facts,
        "samples": samples,
        "samples_per_s": samples / training_s if samples else None,
        **{name: _mean(epoch[name] for epoch in epochs) for name in _UTILISATIONS},
        "au_percent": real.utilisation,
        "au_null_percent": null.utilisation if null else None,
        "null_steps": ranks[0]["null"]["steps"] if null else 0,
        "null_cpu_busy_percent": busy,
        "binding": bound and bound.model_dump(),
        "load_s": load_s,
        "epochs": epochs,
        "evaluations": evaluations,
        "reading": reading(ranks, load_s + training_s + evaluation_s),
        "resident_before_epochs": np.mean([rank["resident"] for rank in ranks], axis=0).tolist(),
        "checkpoints": checkpoints(ranks),
        "timeline": timeline.of_ranks([rank["timeline"] for rank in ranks]),
        "rank_results": [
            {name: rank[name] for name in rank if name not in ("affinity", "timeline")} for rank in ranks
        ],
    }
    return Result.model_validate(content).model_dump(mode="json", exclude_unset=True)


def _total(parts: Sequence[Mapping[str, float]]) -> Shares:
    return Shares(**{name: sum(part[name] for part in parts) for name in parts[0]})


def _cpu_busy(ranks: Sequence[Mapping[str, Any]]) -> float:
    """CPU utilisation of the busiest node in the null run, in per cent of the cores that its ranks may use."""
    used, cores = Counter[str](), defaultdict[str, set[int]](set)
    seconds = max(rank["null"]["seconds"] for rank in ranks)
    for rank in ranks:
        used[rank["host"]] += rank["null"]["cpu_s"]
        # The cores of bound ranks add up, whereas unbound ranks share the same cores.
        cores[rank["host"]].update(rank["affinity"])
    return max(100 * used[host] / (len(cores[host]) * seconds) for host in used) if seconds else 0.0


def _over_ranks(parts: Sequence[Mapping[str, Any]], batch: int) -> dict[str, Any]:
    """An epoch over all ranks, with steps of ``batch`` samples per rank (0: nothing is read): the duration of the
    slowest rank, and means of the parts."""
    samples = sum(part["steps"] for part in parts) * batch
    seconds = max(part["seconds"] for part in parts)
    checkpoint_s = max(part["checkpoint_s"] for part in parts)
    return {
        "epoch": parts[0]["epoch"],
        "steps": parts[0]["steps"],
        "seconds": seconds,
        "checkpoint_s": checkpoint_s,
        "samples": samples,
        "samples_per_s": samples / (seconds - checkpoint_s) if samples and seconds > checkpoint_s else None,
        **{name: _mean(part[name] for part in parts) for name in (*_PARTS, *_UTILISATIONS)},
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def reading(ranks: Sequence[Mapping[str, Any]], elapsed_s: float) -> dict[str, Any]:
    """The reads of all ranks in ``elapsed_s`` seconds: counts, sizes, shares, rates, and the share of I/O that was
    hidden."""
    parts = [Reading(**rank["reading"]) for rank in ranks]
    sizes: Counter[int] = Counter()
    for part in parts:
        sizes.update({int(size): count for size, count in part.sizes.items()})

    def total(name: str) -> Any:
        return sum(getattr(part, name) for part in parts)

    calls, requested, follow_ups = total("calls"), total("bytes"), total("follow_ups")
    device = [rank["device_bytes"] for rank in ranks]
    node = [rank["node_device"]["read_bytes"] for rank in ranks if rank["node_device"]]
    reading_s = total("reading_s")
    return {
        "calls": calls,
        "opens": total("opens"),
        "bytes_asked": requested,
        "content_bytes": total("content_bytes"),
        "process_device_bytes": sum(device) if all(value is not None for value in device) else None,
        "node_device_bytes": sum(node) if node else None,
        "transfer_sizes": size_statistics(sizes),
        "sequential_percent": 100 * total("sequential") / follow_ups if follow_ups else None,
        "consecutive_percent": 100 * total("consecutive") / follow_ups if follow_ups else None,
        "bandwidth": requested / elapsed_s if elapsed_s else None,
        "bandwidth_while_reading": sum(part.bytes / part.reading_s for part in parts if part.reading_s)
        or None,
        "io_s": reading_s / len(parts),
        "hidden_percent": 100 * (1 - total("waited_s") / reading_s) if reading_s else None,
        "thread_s": {
            name: total(name) for name in ("open_s", "call_s", "decode_s", "preprocess_s", "blocked_s")
        },
    }


def size_statistics(sizes: Counter[int]) -> dict[str, float] | None:
    """Smallest, largest, mean and median read size, from the number of reads by size."""
    count = sum(sizes.values())
    if not count:
        return None
    ordered = sorted(sizes)
    median = ordered[int(np.searchsorted(np.cumsum([sizes[size] for size in ordered]), count / 2))]
    mean = sum(size * times for size, times in sizes.items()) / count
    return {"min": ordered[0], "mean": mean, "median": median, "max": ordered[-1]}


def checkpoints(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each checkpoint over its ranks: the longest time, and the total bandwidth in that time."""
    same: dict[tuple[bool, int], list[Mapping[str, Any]]] = {}
    for each in (each for rank in ranks for each in rank["checkpoints"]):
        same.setdefault((each["kind"] == "read", each["number"]), []).append(each)
    rows = []
    for _, parts in sorted(same.items(), key=itemgetter(0)):
        seconds, size = max(part["seconds"] for part in parts), sum(part["bytes"] for part in parts)
        row = {"kind": parts[0]["kind"], "number": parts[0]["number"] + 1, "bytes": size, "seconds": seconds}
        fsync_s = max(part["fsync_s"] for part in parts)
        rows.append(row | {"fsync_s": fsync_s, "bytes_per_s": size / seconds if seconds else math.inf})
    return rows


def write_steps(run: Run, path: Path) -> None:
    """Write the steps of a rank as CSV; epochs and steps count from 1. Raises OSError."""
    lines = [",".join(("epoch", "step", *COLUMNS))]
    for epoch in run.epochs:
        origin = float(epoch.steps[0, 0]) if len(epoch.steps) else 0.0
        for number, row in enumerate(epoch.steps, 1):
            times = (f"{value:.7f}" for value in (row[0] - origin, *row[1:5]))
            counts = (str(int(value)) for value in row[5:])
            lines.append(",".join((str(epoch.epoch + 1), str(number), *times, *counts)))
    path.write_text("\n".join(lines) + "\n")
