"""Expands Slurm's compressed host lists without ``scontrol``, which most containers lack."""

import math
import re
from itertools import product

from mlhpc.errors import UserError

MOST = 1_000_000
"""Maximum number of hosts, or of ranks per node, in a list; a longer list cannot be Slurm's and would exhaust
memory."""


def expand_hosts(compressed: str) -> list[str]:
    """The hosts of ``compressed`` in order: ``n[08-10,12],login`` is n08, n09, n10, n12, login.

    Format: https://slurm.schedmd.com/scontrol.html, ``show hostnames``. Raises ``UserError`` if
    ``compressed`` does not have that format.
    """
    # A comma separates hosts only outside of brackets.
    words = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", compressed)
    if ",".join(words) != compressed or not words:
        raise UserError(f"{compressed!r} is not a Slurm host list, such as n[0-3,7]")
    hosts: list[str] = []
    for word in words:
        hosts += _expand_word(word)
        _require_few(len(hosts))
    return hosts


def _expand_word(word: str) -> list[str]:
    """Expand a word with brackets: ``r[1-2]n[0-1]`` is r1n0, r1n1, r2n0, r2n1. The last bracket varies fastest."""
    parts = re.split(r"\[([^\]]*)\]", word)  # every second part was in brackets
    choices = [_expand_ranges(part, word) if i % 2 else [part] for i, part in enumerate(parts)]
    _require_few(math.prod(map(len, choices)))
    return ["".join(choice) for choice in product(*choices)]


def _expand_ranges(ranges: str, word: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", item)
        if not match:
            raise UserError(f"{word!r} is not a Slurm host list: {item!r} is neither a number nor a range")
        first, last = match[1], match[2] or match[1]
        _require_few(len(numbers) + int(last) - int(first))
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(compressed: str) -> list[int]:
    """Slurm's tasks per node, expanded: ``2(x3),1`` is 2, 2, 2, 1. Raises ``UserError``."""
    counts: list[int] = []
    for item in compressed.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:\(x(\d{1,18})\))?", item)
        if not match:
            raise UserError(f"{compressed!r} is not a Slurm list of task counts per node, such as 2(x3),1")
        _require_few(len(counts) + int(match[2] or 1))
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _require_few(number: int) -> None:
    if number > MOST:
        raise UserError(f"a Slurm list names more than {MOST} nodes; check the job's SLURM_ variables")
