"""Access to the parts of the suite that are written in C (setup.py). An installation without a compiler omits
them."""

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def compiled_library(beside: str, name: str) -> ctypes.CDLL | None:
    """The library ``name`` in the same folder as the module file ``beside``; None if it was not compiled."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(beside).with_name(name + suffix)
        if path.exists():
            return ctypes.CDLL(str(path))
    return None
