"""The readers that ``run.py`` fuzzes. Another one is one more ``Reader`` in ``READERS``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz import data, emulation, images, network, observe, pages, submission


@dataclass(frozen=True)
class Reader:
    """``make_input(rng)``: an input, the same for the same generator; ``read(data, scratch)``: reads it, as a file
    in the folder ``scratch`` where it needs one, and asserts what must hold; ``refusals``: the exceptions with
    which it may refuse an input."""

    name: str
    make_input: Callable[[Random], bytes]
    read: Callable[[bytes, Path], None]
    refusals: tuple[type[Exception], ...]


READERS = {
    name: Reader(name, make_input, read, refusals)
    for name, make_input, read, refusals in (
        *submission.READERS,
        *pages.READERS,
        *data.READERS,
        *images.READERS,
        *network.READERS,
        *observe.READERS,
        *emulation.READERS,
    )
}
