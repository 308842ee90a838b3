"""Draws random storms and plants them in the weather: cyclones, atmospheric rivers, and near misses of both."""

from dataclasses import dataclass, fields

import numpy as np

from mlhpc.benchmarks.deepcam import Simulation
from mlhpc.deepcam.synthetic.sphere import RADIUS, Field, Grid, coriolis

DENSITY = 1.15
"""Density of the air near the sea, kg/m³."""

WARM_SEA = 299.5
"""Minimum water temperature for cyclones, K (26.5 °C: Gray 1968)."""


@dataclass(frozen=True)
class Disturbance:
    """The sum of what a sample's storms add to the weather; each field is ``[rows, columns]``."""

    pressure: Field
    """Pressure of rivers, Pa; the wind along them follows by geostrophy."""
    depression: Field
    """Pressure of cyclones, Pa; their wind is in ``u`` and ``v``, because geostrophy yields no wind so near the
    equator."""
    u: Field
    v: Field
    """Eastward and northward wind of cyclones, m/s."""
    warming: Field
    """Warming of the column from 1000 to 200 hPa, K."""
    moisture: Field
    """Share of the column's deficit in water vapour that is added, 0 to 1."""
    rain: Field
    """Rain rate, m/s."""


@dataclass(frozen=True)
class Cyclone:
    """A vortex with a warm core, after Holland 1980 (Monthly Weather Review 108, 1212)."""

    latitude: float
    longitude: float
    wind: float
    """The largest wind, m/s."""
    radius: float
    """Radius of the largest wind, metres."""
    shape: float
    """Holland's shape parameter B."""
    core: float = 1.0
    """Factor of the warming that accompanies the wind; if it is below 0, the core is cold."""
    low: float = 1.0
    """Share of the low pressure that would balance the wind."""
    through: float | None = None
    """If air flows through the low (as fast as it would flow around a cyclone): the axis along which it leaves on
    both sides, in radians north of east. None: the air flows around the low."""

    def drop(self) -> float:
        """The pressure deficit Δp of the centre, Pa, from V² = B Δp / (ρ e) (equation 8)."""
        return float(self.wind**2 * DENSITY * np.e / self.shape)

    def pressure(self, distance: Field) -> Field:
        """The pressure deficit at ``distance`` metres from the centre, Pa (equation 4)."""
        below: Field = self.drop() * (np.exp(-((self.radius / distance) ** self.shape)) - 1)
        return below

    def speed(self, distance: Field, coriolis: float) -> Field:
        """The gradient wind at ``distance`` metres (equation 5), m/s."""
        steep = (self.radius / distance) ** self.shape
        curl = distance * abs(coriolis) / 2
        square = self.shape * self.drop() / DENSITY * steep * np.exp(-steep)
        wind: Field = np.sqrt(square + curl**2) - curl
        return wind

    def plant(self, grid: Grid, into: Disturbance) -> None:
        """Add the cyclone to ``into``, near its centre."""
        rows = grid.reach(self.latitude, 12 * self.radius)
        east, north = grid.offsets(self.latitude, self.longitude, rows)
        distance = np.maximum(np.hypot(east, north), 0.02 * self.radius)
        near = distance / self.radius
        # Holland's profile extends to infinity; this factor ends it.
        edge = np.exp(-((near / 8) ** 4))
        into.depression[rows] += self.low * edge * self.pressure(distance)
        spin = np.sign(self.latitude) * edge * self.speed(distance, coriolis(self.latitude)) / distance
        if self.through is None:
            into.u[rows] -= spin * north
            into.v[rows] += spin * east
        else:
            cosine, sine = np.cos(2 * self.through), np.sin(2 * self.through)
            into.u[rows] += np.abs(spin) * (cosine * east + sine * north)
            into.v[rows] += np.abs(spin) * (sine * east - cosine * north)
        into.warming[rows] += self.core * (1.2 + 0.075 * self.wind) * np.exp(-((near / 2.5) ** 2))
        into.moisture[rows] = np.maximum(into.moisture[rows], np.exp(-((near / 4.5) ** 2)))
        # It rains in the eyewall and in two arms that spiral inward with the wind.
        arms = 0.5 + 0.5 * np.cos(2 * (np.arctan2(north, east) * np.sign(self.latitude) + 1.8 * np.log(near)))
        wall = np.exp(-(((near - 1.1) / 0.6) ** 2)) + 0.35 * arms**2 * np.exp(-((near / 4) ** 2))
        into.rain[rows] += 2.5e-8 * self.wind * wall


@dataclass(frozen=True)
class River:
    """A filament of moist air that flows poleward, with a low on its western and a high on its eastern side."""

    start: float
    end: float
    """Latitudes of the start and the end, which have the same sign."""
    longitude: float
    """Longitude of the start."""
    eastward: float
    """Longitude of the end relative to the start."""
    bow: float
    """Longitude of the middle relative to a straight line from start to end."""
    width: float
    """Standard deviation of the cross-section, metres."""
    wind: float
    """The largest wind, m/s."""
    moisture: float
    """Share of the deficit in water vapour that is filled on the axis, 0 to 1."""

    def plant(self, grid: Grid, ruffle: Field, into: Disturbance) -> None:
        """Add the river to ``into``. So that it is not a straight stripe, ``ruffle`` [rows, columns] displaces the
        cells across the river, in units of its width."""
        low, high = sorted((self.start, self.end))
        margin = 0.12 * (high - low)
        rows = slice(*np.searchsorted(grid.latitude[:, 0], (low - margin, high + margin)))
        latitude = grid.latitude[rows]
        along = (latitude - self.start) / (self.end - self.start)
        axis = self.longitude + self.eastward * along + self.bow * np.sin(np.pi * along)
        turn = (grid.longitude - axis + np.pi) % (2 * np.pi) - np.pi
        slant = self.eastward + np.pi * self.bow * np.cos(np.pi * along)
        slant = np.cos(latitude) * slant / (self.end - self.start)
        across = RADIUS * np.cos(latitude) * turn / np.sqrt(1 + slant**2) / self.width + ruffle[rows]
        ends = _smooth((along + 0.12) / 0.24) * _smooth((1.12 - along) / 0.24)
        steep = DENSITY * np.abs(coriolis(latitude)) * self.wind * self.width
        into.pressure[rows] += ends * steep * np.tanh(across) * np.exp(-((across / 4.5) ** 2))
        profile = ends * np.exp(-(across**2) / 2)
        into.moisture[rows] = np.maximum(into.moisture[rows], self.moisture * profile)
        into.rain[rows] += 9e-8 * self.moisture * profile**2


def plant(
    grid: Grid,
    simulation: Simulation,
    season: float,
    sea: Field,
    land: Field,
    ruffle: Field,
    rng: np.random.Generator,
) -> Disturbance:
    """Draw the storms of a sample, and return their sum.

    ``season``: 1 in the northern summer and -1 in the southern. ``sea``: temperature of the sea in K; ``land``:
    share of land; both [rows, columns]. ``ruffle``: see ``River.plant``. Storms are at least about one cell in
    size, as in a climate model on this grid, which cannot resolve smaller ones.
    """
    into = Disturbance(*(np.zeros((grid.rows, grid.columns), np.float32) for _ in fields(Disturbance)))
    for _ in range(_number(simulation.rivers, rng)):
        _river(grid, simulation, season, rng).plant(grid, ruffle, into)
    for _ in range(rng.poisson(simulation.decoys)):
        _near_river(grid, simulation, rng).plant(grid, ruffle, into)
    degrees = np.abs(np.rad2deg(grid.latitude))
    warm = np.clip((sea - (WARM_SEA - 1)) / 2, 0, 1) * (land < 0.5) * np.cos(grid.latitude)
    likely = np.cumsum(warm * ((degrees > 8) & (degrees < 32)), dtype=np.float64)
    strains = rng.poisson(simulation.strains)
    for n in range(_number(simulation.cyclones, rng) + strains):
        wind, shape = rng.uniform(15, 62), rng.uniform(1.2, 1.8)
        radius = simulation.storm_size * rng.uniform(28e3, 60e3)
        cell = int(np.searchsorted(likely, rng.uniform() * likely[-1]))
        if likely[-1] == 0:
            continue
        Cyclone(
            latitude=float(grid.latitude[cell // grid.columns, 0]),
            longitude=float(grid.longitude[0, cell % grid.columns]),
            wind=wind,
            radius=float(np.hypot(radius, 0.35 * grid.spacing)),
            shape=shape,
            through=rng.uniform(0, np.pi) if n < strains else None,
        ).plant(grid, into)
    for _ in range(rng.poisson(simulation.decoys)):
        _near_cyclone(grid, simulation, rng).plant(grid, into)
    return into


def _river(grid: Grid, simulation: Simulation, season: float, rng: np.random.Generator) -> River:
    # The winter hemisphere has more of them, because its storm tracks are stronger.
    side = 1 if rng.uniform() < 0.5 - 0.2 * season else -1
    start, end = np.deg2rad((rng.uniform(15, 25), rng.uniform(42, 60)))
    return River(
        start=side * start,
        end=side * end,
        longitude=rng.uniform(0, 2 * np.pi),
        eastward=np.deg2rad(rng.uniform(20, 65)),
        bow=np.deg2rad(rng.uniform(-8, 14)),
        width=float(np.hypot(simulation.storm_size * rng.uniform(160e3, 260e3), 0.6 * grid.spacing)),
        wind=rng.uniform(12, 30),
        moisture=rng.uniform(0.6, 1),
    )


def _near_cyclone(grid: Grid, simulation: Simulation, rng: np.random.Generator) -> Cyclone:
    """A vortex that lacks one property of a tropical cyclone: strength, a warm core, or a closed low."""
    side = 1 if rng.uniform() < 0.5 else -1
    kind = rng.integers(3)
    weak, cold, open_wave = kind == 0, kind == 1, kind == 2
    radius = simulation.storm_size * rng.uniform(28e3, 90e3)
    return Cyclone(
        latitude=side * np.deg2rad(rng.uniform(22, 45) if cold else rng.uniform(8, 30)),
        longitude=rng.uniform(0, 2 * np.pi),
        wind=rng.uniform(8, 17) if weak else rng.uniform(17, 40),
        radius=float(np.hypot(radius, 0.35 * grid.spacing)),
        shape=rng.uniform(1.2, 1.8),
        core=rng.uniform(-1.2, -0.1) if cold else rng.uniform(0.3, 1.0),
        low=rng.uniform(0.0, 0.2) if open_wave else 1.0,
    )


def _near_river(grid: Grid, simulation: Simulation, rng: np.random.Generator) -> River:
    """A filament that lacks one property of an atmospheric river: wind, moisture, or length."""
    side = 1 if rng.uniform() < 0.5 else -1
    kind = rng.integers(3)
    slow, dry, short = kind == 0, kind == 1, kind == 2
    start = rng.uniform(18, 40) if short else rng.uniform(15, 25)
    end = start + rng.uniform(8, 13) if short else rng.uniform(42, 60)
    return River(
        start=side * np.deg2rad(start),
        end=side * np.deg2rad(end),
        longitude=rng.uniform(0, 2 * np.pi),
        eastward=np.deg2rad(rng.uniform(3, 10) if short else rng.uniform(20, 65)),
        bow=np.deg2rad(rng.uniform(-2, 3) if short else rng.uniform(-8, 14)),
        width=float(np.hypot(simulation.storm_size * rng.uniform(160e3, 260e3), 0.6 * grid.spacing)),
        wind=rng.uniform(0, 5) if slow else rng.uniform(12, 30),
        moisture=rng.uniform(0.05, 0.3) if dry else rng.uniform(0.6, 1),
    )


def _number(mean: float, rng: np.random.Generator) -> int:
    """A random number of storms: at least one, since a sample without storms teaches nothing about them, plus a
    Poisson number."""
    return 1 + int(rng.poisson(max(mean - 1, 0))) if mean > 0 else 0


def _smooth(x: Field) -> Field:
    """A smooth rise from 0 at 0 to 1 at 1."""
    x = np.clip(x, 0, 1)
    return x * x * (3 - 2 * x)
