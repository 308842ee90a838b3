"""Records a command's reads with ``strace -f``, in the same way for a training run and for its emulation."""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import require_new
from mlhpc.common.files.untrusted import read_object
from mlhpc.common.timing.profile import covered
from mlhpc.errors import UserError
from mlhpc.iobench.report.similarity import FACTORS

NAME = "observation.json"
_CALLS = "openat,open,read,pread64,preadv,preadv2,readv,lseek,close,dup,dup2,dup3,fcntl,clone,clone3"
# PID seconds call(arguments) = result <duration>; -yy writes the path of a descriptor after it.
_LINE = re.compile(r"^(\d+)\s+([\d.]+) (\w+)\((.*)\)\s+= (-?\d+)(?:<(.*?)>)?.*?(?: <([\d.]+)>)$")
_HALF = re.compile(r"^(\d+)\s+([\d.]+) (\w+)\((.*) <unfinished \.\.\.>$")
_REST = re.compile(r"^(\d+)\s+([\d.]+) <\.\.\. (\w+) resumed>(.*)$")
_DESCRIPTOR = re.compile(r"^(\d+)<([^>]*)>")
_READS = {"read", "pread64", "preadv", "preadv2", "readv"}


@dataclass
class _File:
    """A file read by one process: end of the last read, and the file position of ``read``."""

    at: int = 0
    end: int = -1


@dataclass
class Reads:
    """All reads of files below a folder. As in Darshan, a read is sequential if it starts at or after the end of
    the same process's previous read of the file, and consecutive if it starts exactly there."""

    sizes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    follow_ups: int = 0
    sequential: int = 0
    consecutive: int = 0
    files: set[str] = field(default_factory=set)

    @property
    def io_percent(self) -> float:
        """Percentage of the time from the start of the first read to the end of the last in which at least one
        read was in progress."""
        if not self.spans:
            return 0.0
        whole = max(end for _, end in self.spans) - min(start for start, _ in self.spans)
        return 100 * covered(self.spans) / whole if whole > 0 else 100.0

    def factors(self) -> dict[str, float]:
        """The eight factors of Devarajan et al. 2021, Fig. 8. I/O time is the time in seconds in which at least
        one read was in progress; bandwidths are per read."""
        rates = [
            size / seconds for size, seconds in zip(self.sizes, self.seconds, strict=True) if seconds > 0
        ]
        follow_ups = max(1, self.follow_ups)
        values = (
            covered(self.spans),
            float(len(self.files)),
            self.sequential / follow_ups,
            self.consecutive / follow_ups,
            statistics.median(self.sizes or [0]),
            statistics.fmean(self.sizes or [0]),
            statistics.median(rates or [0.0]),
            statistics.fmean(rates or [0.0]),
        )
        return dict(zip(FACTORS, values, strict=True))


def observe(command: Sequence[str], below: Path, out: Path) -> int:
    """Run ``command`` under strace, and write its reads of files below ``below`` to ``out/observation.json``.
    Returns the exit status of the command, which may be nonzero, since a training run that misses its target also
    reads. Raises UserError if strace is missing or nothing was read."""
    if not command:
        raise UserError("no command to observe; write it after --")
    require_new(out)
    strace = shutil.which("strace")
    if strace is None:
        raise UserError("strace is missing; install it, for example with apt-get install strace")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "strace"
        options = ["-f", "-qq", "-ttt", "-T", "-y", "-s", "0", "--seccomp-bpf", "-e", f"trace={_CALLS}"]
        status = subprocess.run([strace, *options, "-o", str(log), "--", *command]).returncode
        with log.open(errors="replace") as lines:
            reads = parse(lines, str(below.resolve()))
    if not reads.sizes:
        raise UserError(f"the command (status {status}) read nothing below {below}; choose another --below")
    record = {
        "command": list(command), "status": status, "below": str(below), "reads": len(reads.sizes),
        "bytes": sum(reads.sizes), "io_percent": reads.io_percent, "factors": reads.factors(),
    }  # fmt: skip
    write_observation(record, out)
    return status


def write_observation(record: Mapping[str, Any], out: Path) -> None:
    """Write ``observation.json`` to the folder ``out``, which is created. Raises UserError if it exists."""
    require_new(out)
    out.mkdir(parents=True)
    atomic.write_bytes(out / NAME, (json.dumps(record, indent=1) + "\n").encode())


def read_observation(folder: Path) -> dict[str, float]:
    """The factors of an observation. Raises UserError if they are missing or invalid."""
    try:
        factors = read_object(folder / NAME, os.O_NOFOLLOW)["factors"]
        values = {name: float(factors[name]) for name in FACTORS}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{folder} contains no observation; record one with mlhpc io observe") from None
    if not all(0 <= value < float("inf") for value in values.values()):
        raise UserError(f"{folder / NAME} contains invalid factors; run mlhpc io observe again")
    return values


def parse(lines: Iterable[str], below: str) -> Reads:
    """The reads of files whose path begins with ``below``, in a log of ``strace -f -ttt -T -y -s 0``."""
    reads, files = Reads(), dict[str, dict[tuple[str, str], _File]]()
    process_of: dict[str, str] = {}  # by thread; the threads of a process share its descriptors
    unfinished: dict[tuple[str, str], tuple[str, str]] = {}
    for line in lines:
        text = line.rstrip("\n")
        if half := _HALF.match(text):
            unfinished[half[1], half[3]] = half[2], half[4]
            continue
        if rest := _REST.match(text):
            start, arguments = unfinished.pop((rest[1], rest[3]), ("", ""))
            text = f"{rest[1]} {start} {rest[3]}({arguments}{rest[4].lstrip()}"
        match = _LINE.match(text)
        if not match:
            continue
        thread, start, call, arguments, result, _, duration = match.groups()
        own = process_of.get(thread, thread)
        if call.startswith("clone"):
            process_of[result] = own if "CLONE_THREAD" in arguments else result
            continue
        of_process = files.setdefault(own, {})
        _note(reads, of_process, below, call, arguments, int(result), float(start), float(duration))
    return reads


def _note(
    reads: Reads,
    files: dict[tuple[str, str], _File],
    below: str,
    call: str,
    arguments: str,
    result: int,
    start: float,
    seconds: float,
) -> None:
    descriptor = _DESCRIPTOR.match(arguments)
    if descriptor is None or not descriptor[2].startswith(below + "/"):
        return
    number, path = descriptor.groups()
    if call == "close":
        files.pop((number, path), None)
        return
    file = files.setdefault((number, path), _File())
    if call == "lseek" and result >= 0:
        file.at = result
    elif call in _READS and result > 0:
        # The offset, if any, is the last argument, except that preadv2 has flags after it.
        last = arguments.rsplit(", ", 2 if call == "preadv2" else 1)[1]
        offset = int(last) if call.startswith("pread") else file.at
        reads.sizes.append(result)
        reads.seconds.append(seconds)
        reads.spans.append((start, start + seconds))
        reads.files.add(path)
        if file.end >= 0:
            reads.follow_ups += 1
            reads.sequential += offset >= file.end
            reads.consecutive += offset == file.end
        file.end = offset + result
        if not call.startswith("pread"):
            file.at = file.end
