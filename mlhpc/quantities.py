"""Numbers as text, and texts as numbers: sizes, times, rates and counts, written the same way everywhere.

Sizes of files and of memory, on hosts and accelerators, are in SI units (``bytes_text``: 1 GB is 10⁹ bytes).
Binary units (``binary_text``: 1 GiB is 2³⁰ bytes) are for quantities that are powers of two by definition: limits
in the code, settings with MiB in their name, edges of histograms. Figures from vendors' tools and MLPerf's system
descriptions are not converted. Numbers have three significant digits, commas between groups of three, and no
powers of ten.

Quantities in files and options are a number (``16``, ``1.5``, ``2e3``) and a unit, with or without a blank:

- bytes: ``B`` with k, M, G, T, P or E (powers of 1000), or Ki, Mi, Gi, Ti, Pi or Ei (powers of 1024). After a
  prefix up to P, the B may be omitted: ``512G``, ``256 KiB``. The first letter may be upper or lower case, also in
  rates.
- bytes/s: the same with ``B/s``. FLOP/s: ``FLOP/s`` with k to E.
- s: ``ns``, ``us`` or ``µs``, ``ms``, ``s``, ``min``, ``h``, ``d``.
- a share: a number without a unit, or with ``%``.

In workloads and ``--memory``, plain numbers are bytes.
"""

import math
import re
from typing import Literal

Dimension = Literal["bytes", "bytes/s", "FLOP/s", "s", "a share"]

UNKNOWN = "not known"
_SI = {"": 1.0} | {prefix: 1e3**n for n, prefix in enumerate("kMGTPE", 1)}
_IEC = {f"{prefix}i": 1024.0**n for n, prefix in enumerate("KMGTPE", 1)}
_BYTES = {f"{prefix}B": factor for prefix, factor in (_SI | _IEC).items()}
_SECONDS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_UNITS: dict[Dimension, dict[str, float]] = {
    "bytes": _BYTES | {unit[:-1]: factor for unit, factor in _BYTES.items() if unit[0] not in "BE"},
    "bytes/s": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "FLOP/s": {f"{prefix}FLOP/s": factor for prefix, factor in _SI.items()},
    "s": _SECONDS | {"µs": 1e-6},
    "a share": {"": 1.0, "%": 0.01},
}
_EXAMPLE = {
    "bytes": "16 GB",
    "bytes/s": "900 GB/s",
    "FLOP/s": "125 TFLOP/s",
    "s": "1.5 us",
    "a share": "0.31",
}
_SHOWN_FROM = {"d": 2 * 86400.0, "h": 7200.0, "min": 300.0}
"""Smallest number of seconds that is shown in each of these units; every other unit is used from one unit on."""
_ROUNDS_TO_ONE = 0.9995


def parse_quantity(text: str, dimension: Dimension, bare: str = "") -> float:
    """The value of ``text`` in bytes, bytes/s, FLOP/s or seconds, or as a share, by the grammar in this module's
    docstring. ``bare``: the unit assumed for a number without a unit; empty if a unit is required. Raises
    ValueError, with the reason, for invalid text."""
    match = re.fullmatch(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([^\s\d]\S*)?\s*", text)
    units, example = _UNITS[dimension], _EXAMPLE[dimension]
    unit = (match[2] if match else None) or bare
    if not match or (not unit and unit not in units):
        raise ValueError(f"{text!r} is not a number with a unit, such as {example!r}")
    if unit not in units and dimension != "s":
        unit = unit[0].swapcase() + unit[1:]
    if unit not in units:
        raise ValueError(f"{text!r}: {match[2]!r} is not a unit of {dimension}; write it as {example!r}")
    try:
        value = float(match[1]) * units[unit]
    except ValueError:
        raise ValueError(f"{text!r} is not a number with a unit, such as {example!r}") from None
    if math.isinf(value):
        raise ValueError(f"{text!r} is too large")
    return value


def text_of(value: float, dimension: Dimension) -> str:
    """The inverse of ``parse_quantity``: a value as text with three digits and its unit."""
    if dimension == "s":
        return seconds_text(value)
    if dimension == "a share":
        return digits(value)
    return si_text(value, {"bytes": "B"}.get(dimension, "B/s" if dimension == "bytes/s" else "FLOP/s"))


def digits(value: float | None, significant: int = 3) -> str:
    """A number with at least ``significant`` digits and without trailing zeros, such as ``3.62``, ``36.2``,
    ``362`` or ``3,617``; empty for None and non-finite values."""
    if value is None or not math.isfinite(value):
        return ""
    decimals = significant - 1 - math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:,.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if decimals > 0 else text


def four_digits(value: float | None) -> str:
    """Like ``digits`` with four significant digits; a function to format a table column."""
    return digits(value, 4)


def si_text(value: float | None, unit: str, significant: int = 3) -> str:
    """A value in SI units, such as ``12.3 kJ``, with the prefix for which the number is from 1 to 999; "not known"
    for None and infinity."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    prefix, factor = _prefix(float(f"{value:.{significant}g}"))
    return f"{digits(value / factor, significant)} {prefix}{unit}"


def _prefix(value: float) -> tuple[str, float]:
    return max(
        (pair for pair in _SI.items() if abs(value) >= pair[1]), key=lambda pair: pair[1], default=("", 1.0)
    )


def joules_text(joules: float | None) -> str:
    """Energy as text, such as ``81.23 kJ``; "incomplete" for None."""
    return "incomplete" if joules is None else si_text(joules, "J", 4)


def watts_text(watts: float) -> str:
    """Power as text, such as ``1.234 kW``."""
    return si_text(watts, "W", 4)


def bytes_text(size: float | None, per: str = "") -> str:
    """Bytes in SI units: ``25.3 GB``, or ``25.3 GB/s`` with ``per="/s"``."""
    return si_text(size, f"B{per}")


def binary_text(size: float) -> str:
    """Bytes in binary units, such as ``16 MiB``, for sizes that are powers of two by definition."""
    fitting = (prefix for prefix in reversed(_IEC) if size >= _ROUNDS_TO_ONE * _IEC[prefix])
    prefix = next(fitting, "")
    return f"{digits(size / _IEC.get(prefix, 1.0))} {prefix}B"


def seconds_text(seconds: float | None) -> str:
    """A time as one number and one unit, such as ``8.62 ms``, ``46.8 s``, ``12.3 min`` or ``5.1 h``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    for unit, factor in _SECONDS.items():
        if abs(seconds) >= _SHOWN_FROM.get(unit, _ROUNDS_TO_ONE * factor):
            return f"{digits(seconds / factor)} {unit}"
    return f"{digits(seconds * 1e9)} ns" if seconds else "0 s"


def duration_text(seconds: float | None) -> str:
    """A measured time as text: below 5 minutes, in seconds as by ``seconds_text``; above, in two units, such as
    ``25 min 46.9 s``, ``5 h 27 min`` or ``3 d 4 h``."""
    if seconds is None or not 100 <= seconds < math.inf:
        return seconds_text(seconds)
    tenths = round(10 * seconds)
    if tenths < 3000:
        return f"{digits(tenths / 10, 4)} s"
    if tenths < 72_000:
        return _two(tenths, 600, 10, "min", "s")
    minutes = round(seconds / 60)
    return (
        _two(minutes, 60, 1, "h", "min") if minutes < 2880 else _two(round(seconds / 3600), 24, 1, "d", "h")
    )


def _two(number: int, per_large: int, per_small: int, large: str, small: str) -> str:
    whole, rest = divmod(number, per_large)
    return f"{whole} {large}" + (f" {digits(rest / per_small)} {small}" if rest else "")


def minutes(seconds: float | None) -> str:
    """Seconds as minutes with four decimals, such as ``25.7812``, the form in which scores are stated; empty for
    None."""
    return "" if seconds is None else f"{seconds / 60:.4f}"


def size_unit(size: float) -> tuple[str, float]:
    """The unit for an axis up to ``size`` bytes, and the number of bytes in that unit."""
    prefix, factor = _prefix(size)
    return f"{prefix}B", factor


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit for an axis up to ``seconds``, and the number of seconds in that unit."""
    if seconds < 300:
        return "s", 1.0
    return ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)


def whole(value: float | None, none: str = "not logged") -> str:
    """A whole number as text, such as ``262,144``; ``none`` for None and non-finite values."""
    return none if value is None or not math.isfinite(value) else f"{value:,.0f}"


def count(number: int, noun: str) -> str:
    """A number and a noun, such as ``1 rank``, ``2 ranks`` or ``1,024 ranks``; the noun's plural must end in s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def decimals(value: float) -> int:
    """The number of decimals with which ``value`` has about four digits."""
    return 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 3


def plain(value: float | None) -> str:
    """A number as text for a table column, with about four digits and fixed decimals: ``36.20``, ``1,024``; empty
    for None."""
    if value is None or not math.isfinite(value):
        return ""
    if 0 < value < 0.001:
        return "< 0.001"
    if -0.0005 < value < 0:  # below the resolution of clocks
        value = 0.0
    return f"{value:,.{decimals(value)}f}"
