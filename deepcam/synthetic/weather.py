"""Global weather at one moment: sixteen physically consistent channels in physical units.

Nothing is integrated in time. The zonal structure is prescribed; Gaussian waves on the sphere perturb sea-level
pressure, temperature, moisture and the thickness of the troposphere; hydrostatic and geostrophic balance and
saturation determine the rest. Storms are planted in pressure, wind, temperature and moisture (``storms``). Each
seed has its own planet, whose continents are the same in all samples.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.deepcam import Simulation
from mlhpc.deepcam.data.hdf5 import CHANNELS
from mlhpc.deepcam.synthetic import sphere, storms
from mlhpc.deepcam.synthetic.sphere import Field

UNITS = {
    "TMQ": "kg/m²",
    "U850": "m/s",
    "V850": "m/s",
    "UBOT": "m/s",
    "VBOT": "m/s",
    "QREFHT": "kg/kg",
    "PS": "Pa",
    "PSL": "Pa",
    "T200": "K",
    "T500": "K",
    "PRECT": "m/s",
    "TS": "K",
    "TREFHT": "K",
    "Z1000": "m",
    "Z200": "m",
    "ZBOT": "m",
}
"""The units of the channels, which are column water vapour; wind at 850 hPa and at the lowest level; specific
humidity, pressure and sea-level pressure; temperature at 200 and 500 hPa; precipitation; temperature of the
surface and at 2 m; heights of 1000 hPa, 200 hPa and the lowest level."""

GRAVITY = 9.80665
GAS = 287.05
"""Gas constant of dry air, J/kg/K."""
SCALE = GAS / GRAVITY
"""Thickness in metres, per kelvin, of a layer in which pressure falls by a factor e (hypsometric equation)."""


@dataclass(frozen=True)
class Spectrum:
    """The variance as a function of degree: it rises up to ``peak``, then falls with the exponent ``tail``, and
    from ``bend`` on with the exponent ``fine``."""

    peak: float
    tail: float
    bend: float = math.inf
    fine: float = 0

    def shares(self, degrees: int) -> npt.NDArray[np.float64]:
        """The variance of each degree below ``degrees``, [degrees]; the variances add up to 1."""
        n = np.arange(degrees)
        shares: npt.NDArray[np.float64] = n / self.peak / (1 + (n / self.peak) ** (self.tail + 1))
        if math.isfinite(self.bend):
            shares *= (1 + (n / self.bend) ** 2) ** ((self.tail - self.fine) / 2)
        shares /= shares.sum()
        return shares


# Kinetic energy and temperature follow n^-3 below 1000 km and n^-5/3 below about 400 km (Nastrom and Gage 1985).
# The wind is the gradient of a height, whose exponents are therefore larger by 2. Rain is red noise.
_WAVES = {
    "pressure": Spectrum(8, 5, 70, 11 / 3),
    "aloft": Spectrum(7, 5, 70, 11 / 3),
    "heat": Spectrum(12, 3, 70, 5 / 3),
    "moisture": Spectrum(12, 2.5, 70, 5 / 3),
    "rain": Spectrum(25, 1.5),
    "sea": Spectrum(10, 4),
}


@dataclass(frozen=True)
class Planet:
    land: Field
    """Share of a cell that is land, 0 to 1."""
    height: Field
    """Height of the ground above the sea, metres, at least 0."""


@lru_cache(maxsize=4)
def planet(seed: int, rows: int, columns: int) -> Planet:
    """The planet of a seed: its continents, which cover about three tenths of the surface, and their mountains."""
    rng = np.random.default_rng([seed, 0])
    shape, relief = _random_fields(rows, columns, (Spectrum(3, 3.2), Spectrum(16, 2.4)), rng)
    weight = np.broadcast_to(sphere.grid(rows, columns).weight, shape.shape).ravel()
    order = np.argsort(shape, axis=None)
    coast = shape.ravel()[order[np.searchsorted(np.cumsum(weight[order]), 0.7 * weight.sum())]]
    inland = shape - coast
    land = 1 / (1 + np.exp(-np.clip(inland / np.float32(0.03), -30, 30)))
    height = np.clip(inland * (550 + 1300 * np.exp(0.6 * relief)), 0, 5500)
    return Planet(land.astype(np.float32), height.astype(np.float32))


def weather(simulation: Simulation, rows: int, columns: int, sample: int) -> Field:
    """The channels ``[rows, columns, 16]`` of a sample, in the order of ``CHANNELS``.

    The random numbers depend only on ``(simulation.seed, sample)``.
    """
    grid, ground = sphere.grid(rows, columns), planet(simulation.seed, rows, columns)
    rng = np.random.default_rng([simulation.seed, 1, sample])
    season, noon = math.sin(rng.uniform(0, 2 * math.pi)), rng.uniform(0, 2 * math.pi)
    waves = dict(zip(_WAVES, _random_fields(rows, columns, tuple(_WAVES.values()), rng), strict=True))
    waves["pressure"] -= 0.1 * (waves["pressure"] ** 2 - 1)  # lows are deeper than highs are high
    degrees = np.rad2deg(grid.latitude)
    thermal = np.deg2rad(degrees - 6 * season)  # latitude from the thermal equator
    winter = 1 - 0.25 * season * np.sin(grid.latitude)  # more than 1 in the winter hemisphere

    # Pressure and thickness.
    def belt(latitude: float, width: float) -> Field:
        bell: Field = np.exp(-(((degrees - 3 * season - latitude) / width) ** 2))
        return bell

    tracks = (0.15 + belt(50, 18) + belt(-52, 18)) * winter
    pressure = 101_050 + 850 * (belt(33, 12) + belt(-33, 12)) - 3600 * belt(-64, 14) - 500 * belt(60, 12)
    pressure = pressure + 1150 * tracks * waves["pressure"]
    # Growing waves tilt westward with height; a quarter of a wave of degree 8 is 11°.
    leaning = np.roll(waves["pressure"], -columns // 32, axis=1)
    cold = np.sin(thermal) ** 2
    column = 259 - 32 * cold**1.15 * winter  # mean temperature between 1000 and 200 hPa
    thickness = SCALE * np.log(5) * column + np.zeros_like(pressure)
    disturbed = tracks * (120 * leaning + 105 * waves["aloft"])

    # The surface without weather: sea and land.
    sea = np.maximum(301 - 31 * cold**1.3 + 0.9 * waves["sea"], 271.4)
    # Sea ice insulates, so the air above it is far colder than water can be, especially in winter.
    ice = np.clip((np.abs(np.rad2deg(thermal)) - 58) / 22, 0, 1)
    surface_of_sea = sea - ice * (25 - 14 * season * np.sin(grid.latitude))
    land = 304 - 62 * cold**1.3 + 15 * season * np.sin(grid.latitude)
    level = surface_of_sea + ground.land * (land - surface_of_sea)  # reduced to sea level

    storm = storms.plant(grid, simulation, season, sea, ground.land, 0.5 * waves["moisture"], rng)
    pressure = pressure + storm.pressure
    warmer = disturbed / (SCALE * np.log(5)) + 0.9 * (0.4 + tracks) * waves["heat"]
    air = level + (0.4 + 0.7 * ground.land) * warmer - 0.0065 * ground.height

    # Heights and the wind that balances them; 850 hPa is a tenth of the way up to 200 hPa in log pressure.
    low = SCALE * level * np.log(pressure / 1e5)
    east, north = grid.gradient(low + 0.1 * (thickness + disturbed))
    f = sphere.coriolis(grid.latitude)
    turning = GRAVITY * f / (f**2 + 3e-5**2)  # g/f, but bounded at the equator
    near_equator = np.rad2deg(thermal) / 10
    trades = -3.5 * np.exp(-((near_equator / 1.4) ** 2))
    hadley = -2.5 * near_equator * np.exp(0.5 - 0.5 * near_equator**2)
    u, v = -turning * north + trades + storm.u, turning * east + 0.3 * hadley + storm.v
    # Friction slows the lowest wind and turns it towards the low, more so over land.
    east, north = grid.gradient(low)
    u_free, v_free = -turning * north + trades + storm.u, turning * east + hadley + storm.v
    angle = np.deg2rad(15 + 15 * ground.land) * np.tanh(degrees / 8)
    slow = 0.82 - 0.25 * ground.land
    u_low = slow * (u_free * np.cos(angle) - v_free * np.sin(angle))
    v_low = slow * (u_free * np.sin(angle) + v_free * np.cos(angle))

    stratosphere = 218 - 13 * cold**2 + 9 * season * np.sin(grid.latitude) ** 3
    t200 = stratosphere - 0.9 * warmer + 0.25 * waves["aloft"] + 0.7 * storm.warming
    t500 = column + 9.5 + 1.3 * warmer + 0.3 * waves["moisture"] + 0.9 * storm.warming

    # Derived quantities.
    pressure = pressure + storm.depression
    low = SCALE * level * np.log(pressure / 1e5)
    high = low + thickness + disturbed + SCALE * np.log(5) * storm.warming
    surface = pressure * np.exp(-ground.height / (SCALE * (level - 0.00325 * ground.height)))
    day = np.cos(grid.latitude) * np.cos(grid.longitude - np.float32(noon))
    skin = surface_of_sea + ground.land * (air + 7 * day - surface_of_sea)
    saturated = saturation(air, surface)
    humid = 0.80 - 0.22 * ground.land + 0.05 * waves["moisture"]
    near = saturated * np.clip(humid + 0.3 * storm.moisture * (1 - humid), 0.1, 1)
    # Water vapour decreases with a scale height of 2.4 km.
    full = 1.2 * 2400 * saturation(level, pressure) * np.exp(-ground.height / 2400)
    poleward = np.tanh(v * np.sign(grid.latitude) / 14)
    humidity = 0.44 + 0.36 * np.exp(-((near_equator / 0.9) ** 2)) + 0.16 * np.abs(np.sin(grid.latitude)) ** 2
    humidity = humidity * np.exp(0.17 * waves["moisture"] + 0.16 * poleward)
    humidity = np.minimum(humidity + storm.moisture * np.maximum(1.05 - humidity, 0), 1.1)
    vapour = full * humidity
    wet = np.maximum((humidity - 0.6) / 0.2, 0) ** 1.5 * (vapour / 30)
    # Most rain falls in a small part of the area; a climate model has drizzle in nearly all the rest.
    drizzle = 1.5e-9 * np.minimum(humidity, 1) ** 3 * (vapour / 20)
    rain = (1.2e-7 * wet + drizzle) * np.exp(0.85 * waves["rain"] - 0.4) + storm.rain * np.exp(
        0.4 * waves["rain"]
    )

    lowest = SCALE * np.log(1 / 0.9926) * air  # CAM5's lowest level, at 0.9926 of the surface pressure

    fields = {
        "TMQ": vapour,
        "U850": u,
        "V850": v,
        "UBOT": u_low,
        "VBOT": v_low,
        "QREFHT": near,
        "PS": surface,
        "PSL": pressure,
        "T200": t200,
        "T500": t500,
        "PRECT": rain,
        "TS": skin,
        "TREFHT": air,
        # Where 1000 hPa is below the ground, the height of the lowest level is used.
        "Z1000": np.where(ground.height > 0, np.maximum(low, ground.height + lowest), low),
        "Z200": high,
        "ZBOT": lowest,
    }
    channels = np.empty((rows, columns, len(CHANNELS)), np.float32)
    for number, name in enumerate(CHANNELS):
        channels[..., number] = fields[name]
    return channels


def saturation(temperature: Field, pressure: Field) -> Field:
    """Specific humidity of saturated air, kg/kg, at a temperature in K and a pressure in Pa, all of one shape
    (Bolton 1980, equation 10)."""
    vapour = 611.2 * np.exp(17.67 * (temperature - 273.15) / (temperature - 29.65))
    return (0.622 * vapour / (pressure - 0.378 * vapour)).astype(np.float32)


def _random_fields(rows: int, columns: int, spectra: tuple[Spectrum, ...], rng: np.random.Generator) -> Field:
    """For each spectrum, a field ``[rows, columns]`` of unit variance, with degrees up to the grid's
    resolution."""
    degrees = min(rows, columns) // 2
    return sphere.random_fields(rows, columns, np.array([s.shares(degrees) for s in spectra]), rng)
