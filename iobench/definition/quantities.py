"""Human-readable sizes and times: ``"256 KiB"``, ``"2 TB"``, 0.323, ``{mean = 0.3, stdev = 0.01}``."""

import math
import re
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from mlhpc.benchmarks.schema import FrozenModel

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{infix}": base**power
    for power, prefix in enumerate("KMGTP", 1)
    for infix, base in (("B", 1000), ("", 1000), ("iB", 1024), ("i", 1024))
}


def parse_bytes(value: Any) -> Any:
    """A number of bytes from a number or a text with a unit: KB is 1000 bytes, KiB 1024 (SI and IEC 80000-13).

    Fractions of a byte are rounded: published means have them. Raises ValueError for other text.
    """
    if isinstance(value, float) and math.isfinite(value):
        return round(value)
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    unit = match[2][:1].upper() + match[2][1:] if match else ""
    if not match or unit not in _UNITS or not math.isfinite(float(match[1]) * _UNITS[unit]):
        raise ValueError("not a size; give bytes, or a number with KB, KiB, MB, MiB, GB, GiB, TB or TiB")
    return round(float(match[1]) * _UNITS[unit])


def format_bytes(size: float) -> str:
    """``1.5 GB``: three significant digits, decimal units."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = min(len(units) - 1, int(math.log10(size) / 3 + 1e-9)) if size >= 1 else 0
    return f"{size / 1000**power:.3g} {units[power]}"


LARGEST = 10**24
"""Larger than any number of bytes, files, samples or steps. Products of a few of them still fit a float."""

Count = Annotated[PositiveInt, Field(le=LARGEST)]
CountOrNone = Annotated[NonNegativeInt, Field(le=LARGEST)]
Bytes = Annotated[PositiveInt, Field(le=LARGEST), BeforeValidator(parse_bytes)]
BytesOrNone = Annotated[NonNegativeInt, Field(le=LARGEST), BeforeValidator(parse_bytes)]
"""Zero has a special meaning, described by the field."""


class Duration(FrozenModel):
    """Seconds, the same every time or drawn from a distribution, with the parameters of DLIO's files.

    ``normal``: mean and stdev; ``uniform``: min and max; ``gamma``: shape and scale; ``exponential``: scale, the
    mean; ``poisson``: lam events of ``scale`` seconds each. Draws below 0 count as 0.
    """

    type: Literal["normal", "uniform", "gamma", "exponential", "poisson"] = "normal"
    mean: NonNegativeFloat | None = None
    stdev: NonNegativeFloat = 0.0
    min: NonNegativeFloat | None = None
    max: NonNegativeFloat | None = None
    shape: NonNegativeFloat | None = None
    scale: NonNegativeFloat | None = None
    lam: NonNegativeFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return {"mean": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {
            "normal": ("mean",),
            "uniform": ("min", "max"),
            "gamma": ("shape", "scale"),
            "exponential": ("scale",),
            "poisson": ("lam",),
        }[self.type]
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"a {self.type} distribution needs {' and '.join(missing)}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    @property
    def expected(self) -> float:
        """The mean in seconds, before draws below 0 are cut off."""
        match self.type:
            case "uniform":
                return (_of(self.min) + _of(self.max)) / 2
            case "gamma":
                return _of(self.shape) * _of(self.scale)
            case "exponential":
                return _of(self.scale)
            case "poisson":
                return _of(self.lam) * (1.0 if self.scale is None else self.scale)
        return _of(self.mean)

    @property
    def constant(self) -> bool:
        return self.type == "normal" and not self.stdev

    def draw(self, random: np.random.Generator) -> float:
        """Seconds of one wait."""
        if self.constant:
            return _of(self.mean)
        match self.type:
            case "uniform":
                value = random.uniform(_of(self.min), _of(self.max))
            case "gamma":
                value = random.gamma(_of(self.shape), _of(self.scale))
            case "exponential":
                value = random.exponential(_of(self.scale))
            case "poisson":
                value = random.poisson(_of(self.lam)) * (1.0 if self.scale is None else self.scale)
            case _:
                value = random.normal(_of(self.mean), self.stdev)
        return max(0.0, float(value))


def _of(value: float | None) -> float:
    assert value is not None
    return value
