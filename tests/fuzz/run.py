"""Fuzzing the readers of files that others may have written.

    python tests/fuzz/run.py [--minutes M] [--inputs N] [--seed S] [--keep DIR] [READER ...]

Runs every reader (or those named) on N random inputs, or for M minutes of processor time, whichever comes first.
A reader may refuse an input with a UserError or the errors that it documents. Anything else is a failure, as are
256 MiB of memory beyond the input's size and 10 s of processor time; the input is then kept in DIR (default:
fuzz-failures). Exit status 1 when there was one. A seed gives the same inputs in every run.
"""

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.readers import READERS, Reader
from helpers.limits import MEMORY, TooSlow, limited

Verdict = Literal["read", "refused"] | str
"""What came of an input; any other string is the traceback of a failure."""

ENDS_THE_PROCESS = {"io_result", "run_page", "comparison", "study"}
"""Readers that draw charts: V8 ends the process where it gets no memory, so these have no bound."""


@dataclass(frozen=True)
class Outcome:
    """How many inputs a reader got, how many of them it refused, and the inputs on which it failed, with why.
    ``seconds`` of the clock and of the processor."""

    inputs: int
    refused: int
    seconds: float
    cpu_seconds: float
    failures: tuple[tuple[bytes, str], ...]


def fuzz(reader: Reader, *, inputs: int, seconds: float, seed: int, most_failures: int = 5) -> Outcome:
    """Runs ``reader`` on up to ``inputs`` inputs, starting few after ``seconds`` of processor time."""
    begin, cpu = time.monotonic(), _cpu_seconds()
    done = refused = 0
    failures: list[tuple[bytes, str]] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_memory()) as scratch:
        _judge(
            reader, reader.make_input(random.Random(reader.name)), Path(scratch), None
        )  # imports its modules
        while done < inputs and len(failures) < most_failures:
            if done % 16 == 0 and _cpu_seconds() - cpu >= seconds:  # asking takes longer than a small input
                break
            data = reader.make_input(random.Random(f"{reader.name}/{seed}/{done}"))
            done += 1
            bound = None if reader.name in ENDS_THE_PROCESS else MEMORY + len(data)
            verdict = _judge(reader, data, Path(scratch), bound)
            refused += verdict == "refused"
            if verdict not in ("read", "refused"):
                failures.append((data, verdict))
    return Outcome(done, refused, time.monotonic() - begin, _cpu_seconds() - cpu, tuple(failures))


def _memory() -> str | None:
    """A folder in memory: files that live for milliseconds need no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _judge(reader: Reader, data: bytes, scratch: Path, memory: int | None) -> Verdict:
    """``memory``: bytes that the reader may use; None: any, and any time."""
    try:
        with limited(memory=memory) if memory else nullcontext():
            reader.read(data, scratch)
    except reader.refusals:
        return "refused"
    except (Exception, TooSlow):
        return traceback.format_exc()
    return "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)} (default: all)"
    )
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="of processor time per reader (default: 1)"
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, help="per reader (default: 1 000 000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for failing inputs")
    options = parser.parse_args()
    if unknown := set(options.readers) - READERS.keys():
        parser.error(f"no reader {', '.join(sorted(unknown))}; there are {', '.join(READERS)}")
    failed = False
    for name in options.readers or READERS:
        outcome = fuzz(READERS[name], inputs=options.inputs, seconds=60 * options.minutes, seed=options.seed)
        print(
            f"{name}: {outcome.inputs} inputs in {outcome.seconds:.1f} s ({outcome.cpu_seconds:.1f} CPU s), "
            f"{outcome.refused} refused, {len(outcome.failures)} failures",
            flush=True,
        )
        for number, (data, why) in enumerate(outcome.failures):
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{name}-{number}").write_bytes(data)
            print(why, file=sys.stderr)
        failed |= bool(outcome.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
