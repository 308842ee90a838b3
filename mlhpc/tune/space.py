"""The configurations from which ``mlhpc tune`` chooses, and the settings of a run with a given configuration.

A schedule is a factor on the length of the preset's schedule, or the name of a published preset, whose other
hyperparameters are then used as well. The table ``tune`` in a benchmark's TOML file names the learning rates and
the hyperparameters that count steps or epochs.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from mlhpc.benchmarks import load, registry, rules
from mlhpc.benchmarks.schema import Run
from mlhpc.emulated_step import refuse
from mlhpc.errors import UserError
from mlhpc.perf.machines import machine
from mlhpc.perf.prediction.model import Model, trained

SCHEDULES = ("0.5", "0.7", "1", "1.4")
RATES = (0.25, 4.0)
RATES_PER_OCTAVE = 4
"""Number of candidate learning rates per factor of two."""


class Config(NamedTuple):
    """A configuration. ``batch``: global batch size. ``rate``: the learning rate as a multiple of the preset's,
    which is scaled with the square root of the batch size (Krizhevsky 2014, section 5). ``schedule``: a factor on
    the length of the preset's schedule, or the name of a published preset."""

    batch: int
    ranks: int
    rate: float = 1.0
    schedule: str = "1"

    @property
    def stretch(self) -> float | None:
        """The factor on the length of the preset's schedule; None if ``schedule`` names a published preset."""
        with suppress(ValueError):
            return float(self.schedule)
        return None

    def __str__(self) -> str:
        return f"batch {self.batch}, ranks {self.ranks}, rate ×{self.rate:.3g}, schedule {self.schedule}"


@dataclass(frozen=True)
class Axes:
    """The values to choose from, by setting; an empty sequence means the default values. ``rate``: the smallest
    and the largest multiple of the preset's learning rate."""

    batch: Sequence[int] = ()
    ranks: Sequence[int] = (1,)
    rate: Sequence[float] = ()
    schedule: Sequence[str] = ()


class Space:
    """The possible configurations of ``benchmark`` with ``preset`` and ``settings``. ``default``: the preset
    itself, on the first number in ``axes.ranks``. ``candidates``: all possible configurations. ``points``: the
    published presets that train the same network on the same data. ``staged``: whether runs stage their data.

    Raises UserError if the default is impossible, or if a requested value is impossible with all other values.
    """

    def __init__(
        self, benchmark: str, preset: str, settings: Sequence[str], axes: Axes, *, staged: bool = False
    ) -> None:
        self.benchmark, self.preset, self.settings, self.staged = benchmark, preset, list(settings), staged
        self.run = load.load(benchmark, preset, settings)
        refuse(self.run, "tuning")
        self._keys: dict[str, list[str]] = load.definition_of(benchmark).get("tune", {})
        if not self._keys:
            raise UserError(f"{benchmark} cannot be tuned: its TOML file has no [tune] table")
        closed = [name for name in load.presets(benchmark) if name.startswith("closed") and name != preset]
        points = {name: load.load(benchmark, name) for name in closed}
        self.points = {name: run for name, run in points.items() if trained(run) == trained(self.run)}
        batch, *published = (_batch(run) for run in (self.run, *self.points.values()))
        self.default = Config(batch, axes.ranks[0])
        self.batches = sorted({batch, *(axes.batch or (batch // 2 or 1, 2 * batch, 4 * batch, *published))})
        self.ranks = list(axes.ranks)
        rates = axes.rate or [*RATES, *map(self._multiple, self.points.values())]
        self.rates = [min(rates), max(rates)]
        self.schedules = list(dict.fromkeys(("1", *(axes.schedule or (*SCHEDULES, *self.points)))))
        self.run_of(self.default)
        self._possible = self._find_possible(axes)
        low, high = (round(math.log2(end) * RATES_PER_OCTAVE, 6) for end in self.rates)
        octaves = [n / RATES_PER_OCTAVE for n in range(math.ceil(low), math.floor(high) + 1)]
        self.candidates = [
            Config(batch, ranks, 2**octave, schedule)
            for (batch, ranks, schedule), octave in product(self._possible, octaves)
        ]
        if not self.candidates:
            raise UserError(
                f"--rate {self.rates[0]:g},{self.rates[1]:g} contains none of the candidate rates, "
                f"{RATES_PER_OCTAVE} for each doubling; pass a wider range"
            )

    def content(self) -> dict[str, Any]:
        """The properties that distinguish this space from other spaces, as JSON."""
        named = ("benchmark", "preset", "settings", "batches", "ranks", "rates", "schedules")
        return {name: getattr(self, name) for name in named}

    def _find_possible(self, axes: Axes) -> list[tuple[int, int, str]]:
        possible: list[tuple[int, int, str]] = []
        why: dict[tuple[str, object], str] = {}
        for batch, ranks, schedule in product(self.batches, self.ranks, self.schedules):
            chosen: set[tuple[str, object]] = {("batch", batch), ("ranks", ranks), ("schedule", schedule)}
            try:
                self.run_of(Config(batch, ranks, schedule=schedule))
            except UserError as error:
                why |= {each: str(error) for each in chosen - why.keys()}
            else:
                why |= dict.fromkeys(chosen, "")
                possible.append((batch, ranks, schedule))
        for (axis, value), reason in why.items():
            if reason and getattr(axes, axis):  # impossible defaults are dropped
                raise UserError(f"--{axis} {value}: {reason}")
        return possible

    def starts(self, machine_name: str | None) -> list[Config]:
        """The published presets that are among the candidates, on the largest number of ranks; with a machine, on
        the number of ranks with the shortest time predicted by ``mlhpc predict``, in order of predicted time.
        Raises UserError for an unknown machine."""
        own = [point for ranks in self.ranks for point in self._published(ranks)]
        if machine_name is None:
            return [point for point in own if point.ranks == max(self.ranks)]
        given = machine(machine_name)
        seconds: dict[Config, float] = {}
        for config in own:
            nodes, rest = divmod(config.ranks, given.per_node)
            with suppress(UserError):  # configurations that cannot run on this machine
                total = None if rest else Model(given, self.run_of(config)).at(nodes).total_s
                seconds |= {config: total[0]} if total else {}
        fastest: dict[str, Config] = {}
        for config in sorted(seconds, key=lambda config: seconds[config]):
            fastest.setdefault(config.schedule, config)
        return list(fastest.values())

    def _published(self, ranks: int) -> Iterator[Config]:
        for name, point in self.points.items():
            config = Config(_batch(point), ranks, self._multiple(point), name)
            if (*config[:2], name) in self._possible and self.rates[0] <= config.rate <= self.rates[1]:
                yield config

    def _multiple(self, point: Run) -> float:
        """The learning rate of a published preset, as a multiple in the sense of ``Config.rate``."""
        return self._rate(point) / (self._rate(self.run) * math.sqrt(_batch(point) / self.default.batch))

    def _rate_key(self, run: Run) -> str:
        """The key of the learning rate for the optimizer of ``run``: of all learning-rate keys, the one that the
        run logs."""
        return next(key for key in self._keys["rate"] if key in run.hyperparameters.logged())

    def _rate(self, run: Run) -> float:
        return float(getattr(run.hyperparameters, self._rate_key(run)))

    def settings_of(self, config: Config) -> list[str]:
        """The settings (``table.key=value``) that turn the preset into ``config``. Raises UserError for a schedule
        that is neither a positive factor nor one of ``points``."""
        if config == self.default._replace(ranks=config.ranks):
            return []
        source, stretch = self.run, config.stretch
        if stretch is None:
            if config.schedule not in self.points:
                known = ", ".join(self.points) or "no preset"
                raise UserError(
                    f"neither a factor, such as 0.7, nor a published preset of this network ({known})"
                )
            source, stretch = self.points[config.schedule], 1.0
        if not 0.01 <= stretch <= 100:
            raise UserError("factors must be from 0.01 to 100")
        theirs = source.hyperparameters.model_dump(mode="json")
        steps = stretch * theirs["global_batch_size"] / config.batch
        own = self.run.hyperparameters.model_dump(mode="json")
        chosen = theirs | {"global_batch_size": config.batch}
        chosen |= {key: _times(theirs[key], stretch) for key in self._keys.get("epochs", ())}
        chosen |= {key: _times(theirs[key], steps) for key in self._keys.get("steps", ())}
        key = self._rate_key(source)
        rate = self._rate(self.run) * config.rate * math.sqrt(config.batch / self.default.batch)
        unit = load.closed_table(self.benchmark, "closed_free").get(key, {}).get("multiple_of")
        chosen[key] = float(f"{rate:.5g}") if unit is None else round(max(1, round(rate / unit)) * unit, 9)
        changed = {f"hyperparameters.{key}": value for key, value in chosen.items() if value != own[key]}
        epochs = _times(source.training.max_epochs, stretch)
        if epochs != self.run.training.max_epochs:
            changed["training.max_epochs"] = epochs
        return [f"{key}={load.toml_value(value)}" for key, value in changed.items()]

    def run_of(self, config: Config) -> Run:
        """The run with the configuration ``config``. Raises UserError if this run is impossible, or if the preset
        is closed but the run would not be."""
        run = load.load(self.benchmark, self.preset, [*self.settings, *self.settings_of(config)])
        run.require_startable(config.ranks, staged=self.staged)
        if check := registry.find(self.benchmark).check:
            registry.load_object(check)(run)
        samples = run.data.train_samples
        if config.batch > samples:
            raise UserError(f"a batch of {config.batch} exceeds the {samples} training samples")
        rules.enforce(rules.RunContext(run))
        return run


def _batch(run: Run) -> int:
    return run.hyperparameters.global_batch_size


def _times(value: Any, factor: float) -> Any:
    """A number of steps or epochs, or each number in a list, times ``factor``; 0 remains 0."""
    if isinstance(value, list):
        return [_times(each, factor) for each in value]
    return max(1, round(value * factor)) if value else 0
