"""Quantities with units, as in machine files: ``900 GB/s``, ``1.6 TB``, ``125 TFLOP/s``, ``1.5 us``."""

import math
import re

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_BYTES = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}

UNITS = {
    "bytes": _BYTES,
    "bytes/s": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "FLOP/s": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
    "a share": {"": 1.0},
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9},
}
"""Units by dimension, with their value in bytes, bytes/s, FLOP/s, seconds or 1. Prefixes are
decimal, those with an i binary."""
_EXAMPLE = {
    "bytes": "16 GB",
    "bytes/s": "900 GB/s",
    "FLOP/s": "125 TFLOP/s",
    "s": "1.5 us",
    "a share": "0.31",
}


def quantity(text: str, dimension: str) -> float:
    """``text`` in the base unit of ``dimension`` (a key of ``UNITS``). Raises ValueError with the reason: not
    a number with a unit, a unit of another dimension, or a number that is not positive and finite."""
    match = re.fullmatch(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([^\s\d]\S*)?\s*", text)
    units = UNITS[dimension]
    if not match:
        raise ValueError(f"{text!r} is not a number with a unit, such as {_EXAMPLE[dimension]!r}")
    unit = match[2] or ""
    if not unit and unit not in units:
        raise ValueError(f"{text!r} is not a number with a unit, such as {_EXAMPLE[dimension]!r}")
    if unit not in units:
        raise ValueError(f"{text!r} has the unit {unit!r}, which is not a unit of {dimension}; write it as "
                         f"{_EXAMPLE[dimension]!r}")  # fmt: skip
    try:
        value = float(match[1]) * units[unit]
    except ValueError:
        raise ValueError(f"{text!r} is not a number with a unit, such as {_EXAMPLE[dimension]!r}") from None
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{text!r} must be positive")
    return value


def binary(size: float) -> str:
    """``size`` bytes of memory as three digits and a binary unit, ``39.6 GiB``, as reported by drivers and
    frameworks."""
    for prefix, factor in reversed(_BINARY.items()):
        if size >= factor * 0.9995:
            shown = size / factor
            return f"{shown:.3g} {prefix}B" if shown < 999.5 else f"{shown:.0f} {prefix}B"
    return f"{size:.0f} B"


def written(value: float, dimension: str) -> str:
    """Three digits and a suitable unit: the human-readable inverse of :func:`quantity`."""
    if dimension == "s":
        for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
            if value >= factor:
                return f"{value / factor:.3g} {unit}"
        return f"{value * 1e9:.3g} ns"
    if dimension == "a share":
        return f"{value:.3g}"
    base = {"bytes": "B", "bytes/s": "B/s", "FLOP/s": "FLOP/s"}[dimension]
    for prefix, factor in reversed(_DECIMAL.items()):
        if value >= factor * 0.9995 or not prefix:
            shown = value / factor
            return f"{shown:.3g} {prefix}{base}" if shown < 999.5 else f"{shown:.0f} {prefix}{base}"
    raise AssertionError


def whole_number(value: float) -> str:
    """``3 617``."""
    return f"{value:,.0f}".replace(",", " ")


def rate_text(value: float) -> str:
    """``3.62``, ``361``, ``3 617``: three digits, never a power of ten."""
    return whole_number(value) if value >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def seconds_text(seconds: float) -> str:
    """``8.62 ms``, ``46.8 s``, ``12.3 min``, ``5.1 h``."""
    if seconds == 0:
        return "0 s"
    units = (("d", 86400, 172800), ("h", 3600, 7200), ("min", 60, 300), ("s", 1, 1), ("ms", 1e-3, 1e-3))
    for unit, factor, least in units:
        if seconds >= least:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
