"""A response surface that replaces runs (``mlhpc tune --surface FILE``), to test the search on a problem with a
known optimum."""

import math
import tomllib
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationError

from mlhpc.benchmarks.schema import FrozenModel
from mlhpc.common.files.untrusted import read_text
from mlhpc.errors import UserError
from mlhpc.record.fields import first_problem
from mlhpc.tune.model import Outcome
from mlhpc.tune.space import Config, Space


class Surface(FrozenModel):
    """Time to train as a function of the configuration: staging time plus epochs times seconds per epoch.
    ``rate_*``: parameters of the dependence on the learning rate, as a multiple of the preset's."""

    epochs: PositiveFloat = Field(
        description="epochs to the target for small batches at the best rate and schedule"
    )
    critical_batch: PositiveFloat = Field(
        description="batch size at which training takes twice as many epochs as at a small one"
    )
    rate: PositiveFloat = Field(description="best multiple of the learning rate at batch size ``rate_batch``")
    rate_batch: PositiveFloat
    rate_power: float = Field(
        ge=-8, le=8, description="the best learning rate is proportional to the batch size to this power"
    )
    rate_curvature: NonNegativeFloat = Field(
        description="relative increase in epochs per squared octave of distance from the best rate"
    )
    rate_limit: PositiveFloat = Field(
        description="runs diverge if the rate is this many octaves above the best"
    )
    schedule: dict[str, PositiveFloat] = Field(
        description="factor by which each schedule multiplies the epochs"
    )
    samples: PositiveFloat = Field(description="samples per epoch")
    step_s: NonNegativeFloat = Field(description="seconds per step that do not depend on the batch")
    sample_s: PositiveFloat = Field(description="seconds per sample on one rank")
    exchange_s: NonNegativeFloat = Field(description="seconds that each doubling of the ranks adds to a step")
    staging_s: NonNegativeFloat = 0.0
    noise: float = Field(ge=0, le=2, description="run-to-run standard deviation of log(epochs to target)")

    def best_rate(self, batch: int) -> float:
        """The best multiple of the preset's learning rate at a batch size."""
        return float(self.rate * (batch / self.rate_batch) ** self.rate_power)

    def epochs_of(self, config: Config) -> float:
        """Epochs to the target without noise; infinite if the target is never reached."""
        octaves = math.log2(config.rate / self.best_rate(config.batch))
        slower = self.schedule[config.schedule] * (1 + self.rate_curvature * octaves**2)
        epochs = self.epochs * (1 + config.batch / self.critical_batch) * slower
        return math.inf if octaves > self.rate_limit else epochs

    def seconds_of(self, config: Config) -> float:
        """Time to train without noise."""
        return self.staging_s + self.epochs_of(config) * self._epoch_s(config)

    def _epoch_s(self, config: Config) -> float:
        step_s = self.step_s + self.sample_s * config.batch / config.ranks
        return self.samples / config.batch * (step_s + self.exchange_s * math.log2(config.ranks))

    def excess(self, config: Config, configs: Iterable[Config]) -> float:
        """The fraction by which ``config`` takes longer than the fastest of ``configs`` would if each had its best
        learning rate."""
        best = min(self.seconds_of(each._replace(rate=self.best_rate(each.batch))) for each in configs)
        return self.seconds_of(config) / best - 1

    def run(self, config: Config, name: str, seed: int, limit: float) -> Outcome:
        """The outcome of a simulated run with noise, stopped after ``limit`` seconds; the same arguments produce
        the same outcome."""
        rng = np.random.default_rng([seed, zlib.crc32(f"{name} {config}".encode())])
        epochs = self.epochs_of(config) * math.exp(rng.normal(0, self.noise))
        epoch_s = self._epoch_s(config) * math.exp(rng.normal(0, 0.01))
        seconds = self.staging_s + epochs * epoch_s
        if math.isinf(seconds) and math.isinf(limit):
            return Outcome(config, "missed", 100 * epoch_s, 100, epoch_s)
        if seconds > limit:
            return Outcome(config, "stopped", limit, max(1.0, (limit - self.staging_s) / epoch_s), epoch_s)
        return Outcome(config, "converged", seconds, epochs, epoch_s)


def surface_of(path: Path, space: Space) -> Surface:
    """The surface in the TOML file ``path``. Raises UserError if the file is invalid or lacks a schedule of
    ``space``."""
    try:
        surface = Surface(**tomllib.loads(read_text(path)))
    except OSError as error:
        raise UserError(f"--surface {path}: {error.strerror}") from None
    except ValidationError as error:
        raise UserError(f"--surface {path}: {first_problem(error)}") from None
    except ValueError as error:
        raise UserError(f"--surface {path}: {error}") from None
    if missing := [each for each in space.schedules if each not in surface.schedule]:
        raise UserError(f"--surface {path}: no schedule {missing[0]}; add it, or pass others with --schedule")
    return surface
