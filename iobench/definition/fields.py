"""Types of a workload's fields: counts, sizes (``"256 KiB"``), times (0.323, ``{mean = 0.3, stdev = 0.01}``)."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from mlhpc.benchmarks.schema import FrozenModel
from mlhpc.quantities import parse_quantity


def _bytes(value: Any) -> Any:
    """Convert a number or a text (``mlhpc.quantities``) to a number of bytes. Fractions of a byte, as in published
    means, are rounded."""
    if isinstance(value, str):
        return round(parse_quantity(value, "bytes", bare="B"))
    return round(value) if isinstance(value, float) and math.isfinite(value) else value


LARGEST = 10**24
"""Upper limit of numbers of bytes, files, samples and steps; products of a few of them still fit a float."""

Count = Annotated[PositiveInt, Field(le=LARGEST)]
CountOrNone = Annotated[NonNegativeInt, Field(le=LARGEST)]
Bytes = Annotated[PositiveInt, Field(le=LARGEST), BeforeValidator(_bytes)]
BytesOrNone = Annotated[NonNegativeInt, Field(le=LARGEST), BeforeValidator(_bytes)]
"""Bytes, or 0, whose special meaning is described by the field."""


class Duration(FrozenModel):
    """Seconds that are constant or drawn from a distribution, with the same parameters as in DLIO's files.

    ``normal``: mean and stdev; ``uniform``: min and max; ``gamma``: shape and scale; ``exponential``: scale, which
    is the mean; ``poisson``: lam events on average of ``scale`` seconds each. Negative draws count as 0.
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
        missing = [name for name in _DISTRIBUTIONS[self.type].needs if getattr(self, name) is None]
        if missing:
            raise ValueError(f"a {self.type} distribution needs {' and '.join(missing)}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    @property
    def expected(self) -> float:
        """The mean in seconds, before negative draws are replaced by 0."""
        return float(_DISTRIBUTIONS[self.type].mean(self))

    @property
    def constant(self) -> bool:
        """Return whether every draw is the same."""
        return self.type == "normal" and not self.stdev

    def draw(self, random: np.random.Generator) -> float:
        """Draw the seconds of one wait."""
        return (
            self.expected if self.constant else max(0.0, float(_DISTRIBUTIONS[self.type].draw(self, random)))
        )


class _Distribution(NamedTuple):
    """The required parameters of a distribution, and functions for its mean and for a draw."""

    needs: tuple[str, ...]
    mean: Callable[[Any], float]
    draw: Callable[[Any, np.random.Generator], float]


def _events_s(duration: Duration) -> float:
    return 1.0 if duration.scale is None else duration.scale


_DISTRIBUTIONS = {
    "normal": _Distribution(("mean",), lambda d: d.mean, lambda d, random: random.normal(d.mean, d.stdev)),
    "uniform": _Distribution(
        ("min", "max"), lambda d: (d.min + d.max) / 2, lambda d, random: random.uniform(d.min, d.max)
    ),
    "gamma": _Distribution(
        ("shape", "scale"), lambda d: d.shape * d.scale, lambda d, random: random.gamma(d.shape, d.scale)
    ),
    "exponential": _Distribution(
        ("scale",), lambda d: d.scale, lambda d, random: random.exponential(d.scale)
    ),
    "poisson": _Distribution(
        ("lam",), lambda d: d.lam * _events_s(d), lambda d, random: random.poisson(d.lam) * _events_s(d)
    ),
}
