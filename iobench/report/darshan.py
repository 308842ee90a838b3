"""Reads Darshan's logs of finished jobs, and derives their similarity factors and a workload that reads in the
same way.

Darshan counts the reads of each file at one or several layers. POSIX counts include the reads that MPI-IO and HDF5
make for an application; STDIO has separate counts. Only DXT traces have the times of single reads. A log is parsed
by PyDarshan in a separate process, which PyDarshan's C library may abort on a damaged log.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from mlhpc.errors import UserError, install
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.report.observe import Reads
from mlhpc.quantities import count

MODULES = ("POSIX", "STDIO")
BINS = {"0_100": 50, "100_1K": 550, "1K_10K": 5_500, "10K_100K": 55_000, "100K_1M": 550_000, "1M_4M": 2_500_000,
        "4M_10M": 7_000_000, "10M_100M": 55_000_000, "100M_1G": 550_000_000, "1G_PLUS": 2 << 30}  # fmt: skip
"""The bins of Darshan's histogram of sizes (darshan-posix-log-format.h), each with a size in its middle."""
MOST_EXTENTS = 64
"""Maximum number of reads per file that a workload lists one by one."""


@dataclass
class ReadFile:
    """The reads of one file by one rank, or by all ranks together. ``size``: position of the last byte read, plus
    1; ``sizes``: number of reads by size, as far as known; ``span``: begin and end in seconds since the job's
    start; ``traced``: offset, size, begin and end of single reads, [reads, 4], without reads that returned
    nothing."""

    path: str
    ranks: int
    opens: int
    reads: int
    bytes: int
    size: int
    sequential: int
    consecutive: int
    seconds: float
    span: tuple[float, float]
    sizes: dict[int, int] = field(default_factory=dict)
    traced: Any = None


@dataclass
class Log:
    """A job: its command, ranks, seconds, and the files that it read. ``untraced``: the reason why the times of
    single reads are not known, if so."""

    command: str
    ranks: int
    seconds: float
    files: list[ReadFile]
    untraced: str = ""

    @property
    def is_traced(self) -> bool:
        """Return whether the times of all reads are known."""
        return all(file.traced is not None for file in self.files)

    def reads(self) -> Reads:
        """All reads. Without a trace, they have the sizes that Darshan counts, and a file's reads are assumed to
        take equally long and to follow each other without gaps from the start of its first read."""
        reads = Reads()
        for file in self.files:
            rows = file.traced if file.traced is not None else _evenly(file)
            reads.sizes += rows[:, 1].astype(int).tolist()
            reads.seconds += (rows[:, 3] - rows[:, 2]).tolist()
            reads.spans += [tuple(row) for row in rows[:, 2:].tolist()]
            reads.files.add(file.path)
            empty = file.reads - len(rows) if file.traced is not None else 0
            # Some ranks open it but do not read.
            reads.follow_ups += max(0, len(rows) - file.opens, file.sequential - empty)
            reads.sequential += max(0, file.sequential - empty)
            reads.consecutive += max(0, file.consecutive - empty)
        return reads


def _evenly(file: ReadFile) -> Any:
    sizes = np.repeat(list(file.sizes), list(file.sizes.values())).astype(float)
    each = file.seconds / len(sizes)
    begins = file.span[0] + each * np.arange(len(sizes))
    return np.column_stack([np.zeros(len(sizes)), sizes, begins, begins + each])


def read_log(path: Path, below: Path | None = None) -> Log:
    """The reads of files below ``below`` (None: of all files) in a log. Raises UserError if the log cannot be
    read, is damaged, or has no such reads."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; pass a Darshan log, JOB.darshan")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            log: Log = pool.submit(_parsed, path).result()
        except UserError:
            raise
        except BrokenProcessPool:
            raise UserError(
                f"{path} made Darshan's reader crash: it is damaged, or from another Darshan release"
            ) from None
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            raise UserError(
                f"{path}: PyDarshan cannot read this log ({error or type(error).__name__})"
            ) from None
    if below:
        log.files = [file for file in log.files if Path(file.path).is_relative_to(below.resolve())]
    if not log.files:
        raise UserError(
            f"{path} contains no reads{f' below {below}' if below else ''}; see darshan-parser {path}"
        )
    return log


def _parsed(path: Path) -> Log:
    """Parse a log, in a separate process because the library prints its errors and continues."""
    try:
        from darshan.report import DarshanReport
    except ModuleNotFoundError as error:
        absent = f"{path} requires the package {error.name}, which is not installed"
        raise UserError(f"{absent}; {install('darshan')}") from None
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        report = DarshanReport(str(path), read_all=False)
        traces, untraced = _traces(report)
        job = report.metadata["job"]
        files = [file for module in MODULES for file in _files(report, module, traces, int(job["nprocs"]))]
        said.seek(0)
        for line in said.read().decode(errors="replace").splitlines():
            if "DXT POSIX module version" not in line:  # omit a trace that cannot be read
                raise UserError(f"{path} is damaged: {line}")
    return Log(str(report.metadata["exe"]), int(job["nprocs"]), float(job["run_time"]), files, untraced)


def _traces(report: Any) -> tuple[dict[int, list[tuple[int, Any]]], str]:
    """Rank and reads, [reads, 4], of each traced file, and a reason why there may be none."""
    if "DXT_POSIX" not in report.modules:
        return {}, "the job was not traced (DXT_ENABLE_IO_TRACE=1)"
    report.mod_read_all_dxt_records("DXT_POSIX")
    traces: dict[int, list[tuple[int, Any]]] = {}
    for record in report.records["DXT_POSIX"].to_df():
        rows = record["read_segments"]
        if len(rows):
            columns = rows[["offset", "length", "start_time", "end_time"]]
            traces.setdefault(record["id"], []).append((record["rank"], columns.to_numpy(float)))
    other = "the trace was written by another release of Darshan"
    return traces, "the trace is incomplete" if traces else other


def _files(report: Any, module: str, traces: Mapping[int, Any], ranks: int) -> Iterator[ReadFile]:
    """The files that were read at the layer ``module``."""
    if module not in report.modules:
        return
    report.mod_read_all_records(module)
    tables = report.records[module].to_df()
    rows = (tables[kind].to_dict("records") for kind in ("counters", "fcounters"))
    for counts, times in zip(*rows, strict=True):
        if counts[f"{module}_READS"] > 0 and counts[f"{module}_BYTES_READ"] > 0:
            of_file = traces.get(counts["id"], []) if module == "POSIX" else []
            traced = [own for rank, own in of_file if counts["rank"] in (rank, -1)]
            yield _file(module, report.name_records[counts["id"]], {**counts, **times}, traced, ranks)


def _file(module: str, path: str, row: Mapping[str, Any], traced: list[Any], ranks: int) -> ReadFile:
    def number(name: str) -> int:
        return int(row.get(f"{module}_{name}", 0))

    def seconds(name: str) -> float:
        return float(row[f"{module}_F_{name}"])

    file = ReadFile(
        path, ranks if row["rank"] < 0 else 1, number("OPENS"), number("READS"), number("BYTES_READ"),
        number("MAX_BYTE_READ") + 1, number("SEQ_READS"), number("CONSEC_READS"), seconds("READ_TIME"),
        (seconds("READ_START_TIMESTAMP"), seconds("READ_END_TIMESTAMP")),
    )  # fmt: skip
    if traced and sum(map(len, traced)) == file.reads:
        rows = np.concatenate(traced)
        file.traced = rows[rows[:, 1] > 0]
    file.sizes = _sizes(number, file)
    return file


def _sizes(number: Any, file: ReadFile) -> dict[int, int]:
    """Number of reads by size: from the four most frequent sizes if there were no others, otherwise from the
    histogram."""
    common = {number(f"ACCESS{n}_ACCESS"): number(f"ACCESS{n}_COUNT") for n in range(1, 5)}
    common = {size: times for size, times in common.items() if size and times}
    counted = {BINS[name]: number(f"SIZE_READ_{name}") for name in BINS}
    if not number("WRITES") and sum(common.values()) == file.reads:
        return common
    sizes = {size: times for size, times in counted.items() if times}
    return sizes or {max(1, file.bytes // file.reads): file.reads}


def observation(log: Log, below: Path | None) -> dict[str, Any]:
    """The content of ``observation.json``. ``traced``: whether the times of single reads are known; otherwise I/O
    time and bandwidths are estimates."""
    reads = log.reads()
    total, number = sum(file.bytes for file in log.files), len(reads.sizes)
    factors = reads.factors() | {"transfer_mean": total / number}
    return {
        "command": log.command.split(), "status": None, "below": str(below or ""), "reads": number, "bytes": total,
        "io_percent": reads.io_percent,
        "traced": log.is_traced, "untraced": None if log.is_traced else log.untraced, "factors": factors,
    }  # fmt: skip


def workload(log: Log, name: str) -> Workload:
    """A workload that reads the same amount in requests of the same size and order. Files are emulated as raw
    bytes. Values that a log lacks are assumed: a batch is one sample, and a step computes for its share of the
    time in which the job was not reading. Raises ValueError if no workload fits."""
    sizes, patterns = Counter[int](), Counter[tuple[tuple[int, int], ...]]()
    for file in log.files:
        rows = file.traced[:, :2].astype(int) if file.traced is not None else np.empty((0, 2), int)
        sizes.update(rows[:, 1].tolist() or file.sizes)
        patterns[tuple(dict.fromkeys(map(tuple, rows.tolist())))] += 1
    whole = {file.path: file.size for file in log.files}
    mean_size, transfer = round(float(np.mean(list(whole.values())))), max(sizes, key=lambda n: n * sizes[n])
    reads = log.reads()
    ordered = reads.follow_ups == 0 or 2 * reads.sequential >= reads.follow_ups
    per_file = 1 if ordered else max(1, mean_size // transfer)
    dataset: dict[str, Any] = {"format": "binary", "files": len(whole)}
    dataset |= {"samples_per_file": per_file, "sample_bytes": mean_size // per_file}
    reader: dict[str, Any] = {"sample_order": "sequential" if ordered else "shuffled"}
    pattern, alike = patterns.most_common(1)[0]
    if 1 < len(pattern) <= MOST_EXTENTS and 2 * alike > len(log.files):  # such as arrays' positions
        dataset |= {"samples_per_file": 1, "sample_bytes": max(offset + size for offset, size in pattern)}
        reader["extents"] = [{"offset": offset, "bytes": size} for offset, size in pattern]
    elif transfer < mean_size // per_file:
        reader["transfer_bytes"] = transfer
    epochs = max(1, round(sum(file.bytes for file in log.files) / sum(whole.values())))
    steps = epochs * max(1, len(whole) * dataset["samples_per_file"] // log.ranks)
    computing = max(0.0, log.seconds - reads.factors()["io_time"]) / steps
    program = Path((log.command.split() or ["a job"])[0]).name
    return Workload.model_validate({
        "name": name, "description": f"as Darshan saw {program} on {count(log.ranks, 'rank')}",
        "dataset": dataset, "reader": reader, "train": {"epochs": epochs, "computation": computing},
    })  # fmt: skip
