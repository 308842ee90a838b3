"""Random damage: to bytes, and to JSON values."""

from pathlib import Path
from random import Random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 10**12, 2**63, 10**30, 10**400, -0.0, 1e308, float("inf"), float("nan"), "", "x",
    "../../../../tmp/x", "/dev/zero", "common", "closed", "deepcam_lamb", "{0.__class__}", "%s%n", "\x1b]0;x\x07",
    "\ud800", "\u202e", "[/red]", "<script>", "$(touch x)", "a" * 5000, "__import__('os')", [], {}, [[]],
    [1, "2", None], {"value": {}}, {"": 1},
)  # fmt: skip
"""Values of other types, bounds and meanings than any reader expects."""


BOMBS = (
    (b"[],", 200_000), (b"[", 100_000), (b'{"a":', 50_000), (b'{"a":1},', 50_000), (b"{a=", 20_000),
    (b"a.", 20_000), (b"[a]\n", 50_000), (b"1:", 50_000), (b"*a,", 1000), (b"\xc2\x80", 200_000),
)  # fmt: skip
"""What stands for far more memory or time than it has bytes, and how often it is repeated."""
SPARSE = b"terabyte"
"""The end of an input that is written as a file of a terabyte with the input at its beginning, without blocks."""


def write(path: Path, data: bytes) -> None:
    """The file of an input."""
    with path.open("wb") as file:
        file.write(data.removesuffix(SPARSE))
        if data.endswith(SPARSE):
            file.truncate(2**40)


def damaged_bytes(rng: Random, data: bytes) -> bytes:
    """``data`` with a few bits flipped, ranges removed, repeated or overwritten, or cut; rarely with an expansion
    bomb in it, or followed by a terabyte of nothing."""
    changed = bytearray(data)
    if rng.random() < 0.01:
        part, times = rng.choice(BOMBS)
        at = rng.randrange(len(changed) + 1)
        return bytes(changed[:at] + part * times + changed[at:])
    if rng.random() < 0.005:
        return data + SPARSE
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not changed:
            break
        start = rng.randrange(len(changed))
        end = min(len(changed), start + rng.choice((1, 2, 8, 64, 512)))
        match rng.randrange(6):
            case 0:
                changed[start] ^= 1 << rng.randrange(8)
            case 1:
                del changed[start:end]
            case 2:
                changed[start:start] = changed[start:end]
            case 3:
                changed[start:end] = rng.randbytes(end - start)
            case 4:
                changed[start:end] = rng.choice((b"\x00", b"\xff", b"9", b"[", b'"', b"\n")) * (end - start)
            case 5:
                del changed[start:]
    return bytes(changed)


def damaged_value(rng: Random, value: Any) -> Any:
    """A JSON value with one of the values in it replaced, removed or repeated, anywhere."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.1:
            del changed[key]
        else:
            changed[key] = damaged_value(rng, value[key])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        item = [] if rng.random() < 0.1 else [damaged_value(rng, value[index])]
        return value[:index] + item + value[index + rng.randrange(2) :]
    return rng.choice(HOSTILE)
