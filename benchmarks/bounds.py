"""Conditions from the table ``closed_free`` of a benchmark's TOML file: the bounds within which the closed
division lets a setting be chosen."""

import math
from collections.abc import Callable, Mapping
from typing import Any

_SIGNS = {
    "at_least": "≥ {:g}",
    "above": "> {:g}",
    "at_most": "≤ {:g}",
    "below": "< {:g}",
    "multiple_of": "a multiple of {:g}",
    "power_of_two_times": "{:g} · 2ⁿ",
}
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "at_most": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
    "multiple_of": lambda value, unit: _is_whole(value / unit),
    "power_of_two_times": lambda value, unit: value > 0 and _is_whole(math.log2(value / unit)),
    "one_of": lambda value, options: value in options,
}


def within(value: Any, condition: Mapping[str, Any]) -> bool:
    """Return whether ``value`` satisfies every part of ``condition``."""
    return all(_HOLDS[name](value, limit) for name, limit in condition.items())


def bounds(condition: Mapping[str, Any]) -> str:
    """``condition``, from ``closed_free``, in words and symbols, such as "≥ 1 and a multiple of 8"."""
    if "one_of" in condition:
        return " or ".join(map(str, condition["one_of"]))
    return " and ".join(_SIGNS[name].format(limit) for name, limit in condition.items()) or "any value"


def _is_whole(number: float) -> bool:
    """Return whether ``number`` is whole, apart from the rounding error of a division."""
    return math.isclose(number, round(number), rel_tol=1e-9, abs_tol=1e-9)
