"""Compares combinations of data set, loader and settings: whether their samples agree, and the bottleneck of each
combination."""

import multiprocessing
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from mlhpc.common.data.ceilings import Ceilings
from mlhpc.common.data.loader_bench import Figures, Way
from mlhpc.common.host.progress import progress
from mlhpc.common.pages.blocks import table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text, count, digits

_OTHER = "NO: different samples"
_HALF = 0.5
"""A resource is named as the bottleneck if its share exceeds this value."""
Measured = Mapping[Way, Sequence[Figures]]


def run_all(
    ways: Sequence[Way], epoch: Callable[[Way], Figures], rounds: int
) -> tuple[dict[Way, list[Figures]], dict[Way, str]]:
    """Call ``epoch`` for each way in turn, ``rounds`` times, with a separate process for each call. Returns the
    results of each way, and the message of each way that raises UserError. ``epoch`` must be picklable. Raises the
    first UserError if no way can be measured."""
    results: dict[Way, list[Figures]] = {way: [] for way in ways}
    reasons: dict[Way, str] = {}
    with progress(rounds * len(ways), "bench", "turns") as advance:
        for turn in range(rounds):
            for way in ways[:: 1 if turn % 2 else -1]:
                if way not in reasons:
                    try:
                        results[way].append(_in_process(epoch, way))
                    except UserError as error:
                        reasons[way] = str(error)
                advance(1)
    if len(reasons) == len(ways):
        raise UserError(reasons[ways[0]])
    return {way: figures for way, figures in results.items() if way not in reasons}, reasons


def agreements(measured: Measured, close: float, lossy: Callable[[Path], bool]) -> dict[Way, str]:
    """Compare each way's samples with the samples of the first way with the same batch size and sample type.
    Returns for each way "bit for bit", the mean difference of ``x``, or "NO" if that difference exceeds ``close``.
    If one of the two data sets is lossy, ``x`` may differ by any amount, but ``y`` must be equal."""
    first: dict[tuple[int, str], tuple[Way, Figures]] = {}
    agreement = {}
    for way, figures in measured.items():
        other, reference = first.setdefault((way.local_batch_size, way.sample_dtype), (way, figures[0]))
        limit = float("inf") if lossy(way.data) or lossy(other.data) else close
        verdicts = [_agreement(reference, each, limit) for each in figures]
        agreement[way] = next((verdict for verdict in verdicts if verdict.startswith("NO")), verdicts[-1])
    return agreement


def medians(figures: Sequence[Figures]) -> Figures:
    """The median of every number over the rounds, with the samples' checksums and values from the first round."""
    numbers = ("warm", "cold", "read", "delivered", "cpu_s", "memory")
    middle: dict[str, Any] = {
        name: statistics.median(getattr(each, name) for each in figures) for name in numbers
    }
    return figures[0]._replace(**middle)


def raised(ceilings: Ceilings, measured: Measured) -> Ceilings:
    """``ceilings``, each raised to the highest rate that a loader reached in any round. Loaders can exceed them:
    worker processes do not share one interpreter, as the threads that measured the ceilings do, and a storage
    device may have cached files that the page cache dropped."""
    rounds = [figures for each in measured.values() for figures in each]
    return replace(
        ceilings,
        copy=max([ceilings.copy, *(figures.delivered * figures.warm for figures in rounds)]),
        cold=max([ceilings.cold, *(figures.read * figures.cold for figures in rounds)]),
        warm=max([ceilings.warm, *(figures.read * figures.warm for figures in rounds)]),
    )


def decoding(figures: Figures, ceilings: Ceilings) -> float | None:
    """The fraction of the processor time per sample that is spent on decoding, checksums, normalisation and layout
    rather than on reading its file. None if no bytes are read."""
    if not (figures.read and figures.cpu_s):
        return None
    return min(1.0, max(0.0, 1 - figures.read * ceilings.read_cpu_s / figures.cpu_s))


def verdict(way: Way, figures: Figures, ceilings: Ceilings, step_s: float) -> str:
    """The bottleneck of training with steps of ``step_s`` seconds."""
    needed = way.local_batch_size / step_s
    if figures.cold >= needed:
        return "compute"
    if figures.warm >= needed:
        return "input: storage"
    if (decoding(figures, ceilings) or 0) > _HALF:
        return "input: decoding"
    if figures.delivered * figures.warm > _HALF * ceilings.copy:
        return "input: memory"
    return "input: reading"


def label(way: Way, ways: Sequence[Way]) -> str:
    """The settings in which the combination ``way`` differs from the other combinations."""
    parts: dict[str, Callable[[Way], str]] = {
        "data": lambda each: each.data.name,
        "loader": lambda each: each.loader,
        "sample_dtype": lambda each: each.sample_dtype,
        "local_batch_size": lambda each: f"batch {each.local_batch_size}",
        "workers": lambda each: f"{each.workers} workers",
    }
    varied = [part(way) for name, part in parts.items() if len({getattr(each, name) for each in ways}) > 1]
    return ", ".join(varied) or way.loader


def show(
    measured: Measured,
    reasons: Mapping[Way, str],
    agree: Mapping[Way, str],
    ceilings: Ceilings,
    step_s: float | None,
    console: Console,
) -> None:
    """Print the medians, the agreement of the samples and the ceilings."""
    ways = [*measured, *reasons]
    median = {way: medians(rounds) for way, rounds in measured.items()}

    def of(way: Way, write: Callable[[Figures], str]) -> str:
        return write(median[way]) if way in median else "-"

    def decoded(figures: Figures) -> str:
        share = decoding(figures, ceilings)
        return "-" if share is None else f"{share:.0%}"

    columns: dict[str, Callable[[Way], str]] = {
        "loader": lambda way: label(way, ways),
        "warm": lambda way: of(way, lambda f: digits(f.warm)),
        "cold": lambda way: of(way, lambda f: digits(f.cold)),
        "read": lambda way: of(way, lambda f: bytes_text(f.read)),
        "CPU ms": lambda way: of(way, lambda f: digits(1000 * f.cpu_s)),
        "decoding": lambda way: of(way, decoded),
        "memory": lambda way: of(way, lambda f: bytes_text(f.memory)),
        "same samples": lambda way: agree.get(way, "-"),
    }
    if step_s:
        columns["bound by"] = lambda way: of(way, lambda f: verdict(way, f, ceilings, step_s))
    say(
        console,
        "samples/s with a warm and a cold page cache; bytes read and CPU ms per sample; memory used by the loader",
    )
    print_table(table("loaders", ways, columns, prose=(7, 8)), console)
    for way, reason in reasons.items():
        say(console, f"{label(way, ways)}: {reason}")
    say(
        console,
        f"ceilings with {count(ceilings.threads, 'thread')}: memory copy {bytes_text(ceilings.copy, '/s')}; "
        f"the same files {bytes_text(ceilings.cold, '/s')} from storage (cold), {bytes_text(ceilings.warm, '/s')} "
        "from the page cache",
    )


def content(
    measured: Measured,
    reasons: Mapping[Way, str],
    agree: Mapping[Way, str],
    ceilings: Ceilings,
    step_s: float | None,
) -> dict[str, Any]:
    """All results, as the JSON described in docs/reference/json.md."""
    rows = []
    for way, rounds in measured.items():
        figures = medians(rounds)
        row = asdict(way) | {
            "data": str(way.data),
            "samples_per_s_warm": figures.warm,
            "samples_per_s_cold": figures.cold,
            "bytes_read_per_sample": figures.read,
            "bytes_delivered_per_sample": figures.delivered,
            "cpu_s_per_sample": figures.cpu_s,
            "decoding_share": decoding(figures, ceilings),
            "memory_bytes": figures.memory,
            "same_samples": agree[way],
        }
        rows.append(row | ({"bound_by": verdict(way, figures, ceilings, step_s)} if step_s else {}))
    failed = [asdict(way) | {"data": str(way.data), "error": reason} for way, reason in reasons.items()]
    return {"step_s": step_s, "ceilings": asdict(ceilings), "ways": rows, "failed": failed}


def _agreement(first: Figures, other: Figures, close: float) -> str:
    if other.labels != first.labels or other.excerpt.shape != first.excerpt.shape:
        return _OTHER
    if other.checksum == first.checksum:
        return "bit for bit"
    difference = float(np.abs(other.excerpt - first.excerpt).mean())
    return f"to {difference:.2g}" if difference <= close else f"{_OTHER}, mean difference {difference:.2g}"


def _in_process(epoch: Callable[[Way], Figures], way: Way) -> Figures:
    # A new process, so that no loader inherits the threads or the memory of the previous one.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(epoch, way).result()
