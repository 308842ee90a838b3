"""A moment of weather on a whole planet: sixteen channels that belong together, in physical units.

Nothing is integrated in time. The zonal structure is prescribed; Gaussian waves on the sphere disturb
sea-level pressure and the thickness of the troposphere; the rest follows by what ties an atmosphere
together in one moment: hydrostatic heights, geostrophic wind, saturation. Storms are planted in pressure,
wind, temperature and moisture (``storms``). A seed has a planet of its own, whose continents are the same
in all samples.
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
"""Of the channels: column water vapour; wind at 850 hPa and at the lowest
level; specific humidity, pressure and sea-level pressure; temperature at 200 and 500 hPa; precipitation;
temperature of the surface and at 2 m; heights of 1000 hPa, 200 hPa and the lowest level."""

GRAVITY = 9.80665
GAS = 287.05
"""Of dry air, J/kg/K."""
SCALE = GAS / GRAVITY
"""Metres that a layer is thick per kelvin, where pressure falls by a factor e (hypsometric equation)."""

# Degrees of the random waves: (degree of the largest variance, exponent of the tail). A height's n^-5 is the
# n^-3 of kinetic energy that weather has from 1000 km down (Nastrom and Gage 1985).
_WAVES = {"pressure": (8, 5), "aloft": (7, 5), "moisture": (12, 2.5), "rain": (40, 2), "sea": (10, 4)}
_DEGREE = 110


@dataclass(frozen=True)
class Planet:
    land: Field
    """Share of a cell that is land, 0 to 1."""
    height: Field
    """Of the ground above the sea, metres, at least 0."""


@lru_cache(maxsize=4)
def planet(seed: int, rows: int, columns: int) -> Planet:
    """The continents of a seed, about three tenths of the surface, and their mountains."""
    rng = np.random.default_rng([seed, 0])
    shape, relief = sphere.random_fields(rows, columns, _spectra(((3, 3.2), (16, 2.4))), rng)
    weight = np.broadcast_to(sphere.grid(rows, columns).weight, shape.shape).ravel()
    order = np.argsort(shape, axis=None)
    coast = shape.ravel()[order[np.searchsorted(np.cumsum(weight[order]), 0.7 * weight.sum())]]
    inland = shape - coast
    land = 1 / (1 + np.exp(-np.clip(inland / np.float32(0.03), -30, 30)))
    height = np.clip(inland * (500 + 1100 * np.exp(0.6 * relief)), 0, 5500)
    return Planet(land.astype(np.float32), height.astype(np.float32))


def weather(simulation: Simulation, rows: int, columns: int, sample: int) -> Field:
    """The channels ``[rows, columns, 16]`` of a sample, in the order of ``CHANNELS``.

    All randomness comes from ``(simulation.seed, sample)``.
    """
    grid, ground = sphere.grid(rows, columns), planet(simulation.seed, rows, columns)
    rng = np.random.default_rng([simulation.seed, 1, sample])
    season, noon = math.sin(rng.uniform(0, 2 * math.pi)), rng.uniform(0, 2 * math.pi)
    waves = dict(
        zip(
            _WAVES,
            sphere.random_fields(rows, columns, _spectra(tuple(_WAVES.values())), rng),
            strict=True,
        )
    )
    waves["pressure"] -= 0.1 * (waves["pressure"] ** 2 - 1)  # lows are deeper than highs are high
    degrees = np.rad2deg(grid.latitude)
    thermal = np.deg2rad(degrees - 6 * season)  # latitude from the thermal equator
    winter = 1 - 0.25 * season * np.sin(grid.latitude)  # of the hemisphere: more than 1 in winter

    # Pressure and thickness.
    def belt(latitude: float, width: float) -> Field:
        bell: Field = np.exp(-(((degrees - 3 * season - latitude) / width) ** 2))
        return bell

    tracks = (0.15 + belt(50, 18) + belt(-52, 18)) * winter
    pressure = 101_050 + 850 * (belt(33, 12) + belt(-33, 12)) - 2300 * belt(-64, 12) - 500 * belt(60, 12)
    pressure = pressure + 900 * tracks * waves["pressure"]
    # Waves that grow lean westward with height: a quarter of a wave of degree 8 is 11°.
    leaning = np.roll(waves["pressure"], -columns // 32, axis=1)
    cold = np.sin(thermal) ** 2
    column = 259 - 27 * cold**1.15 * winter  # mean temperature between 1000 and 200 hPa
    thickness = SCALE * np.log(5) * column + np.zeros_like(pressure)
    disturbed = tracks * (105 * leaning + 95 * waves["aloft"])

    # The surface without its weather: sea, land.
    sea = np.maximum(301 - 31 * cold**1.3 + 0.9 * waves["sea"], 271.4)
    land = 303 - 48 * cold**1.3 + 14 * season * np.sin(grid.latitude)
    level = sea + ground.land * (land - sea)  # as if at sea level

    storm = storms.plant(grid, simulation, season, sea, ground.land, 0.5 * waves["moisture"], rng)
    pressure = pressure + storm.pressure
    warmer = disturbed / (SCALE * np.log(5))
    air = level + (0.4 + 0.7 * ground.land) * warmer - 0.0065 * ground.height

    # Heights, and the wind that balances them: at 850 hPa, a tenth of the way up to 200 in log pressure.
    low = SCALE * level * np.log(pressure / 1e5)
    east, north = grid.gradient(low + 0.1 * (thickness + disturbed))
    f = sphere.coriolis(grid.latitude)
    turning = GRAVITY * f / (f**2 + 3e-5**2)  # g/f, but bounded at the equator
    near_equator = np.rad2deg(thermal) / 10
    trades = -3.5 * np.exp(-((near_equator / 1.4) ** 2))
    hadley = -2.5 * near_equator * np.exp(0.5 - 0.5 * near_equator**2)
    u, v = -turning * north + trades + storm.u, turning * east + 0.3 * hadley + storm.v
    # Friction slows the lowest wind and turns it towards the low: more over land.
    east, north = grid.gradient(low)
    u_free, v_free = -turning * north + trades + storm.u, turning * east + hadley + storm.v
    angle = np.deg2rad(15 + 15 * ground.land) * np.tanh(degrees / 8)
    slow = 0.78 - 0.25 * ground.land
    u_low = slow * (u_free * np.cos(angle) - v_free * np.sin(angle))
    v_low = slow * (u_free * np.sin(angle) + v_free * np.cos(angle))

    stratosphere = 219 - 5 * cold + 7 * season * np.sin(grid.latitude) ** 3
    t200 = stratosphere - 0.6 * warmer + 0.25 * waves["aloft"] + 0.7 * storm.warming
    t500 = column + 9.5 + 1.3 * warmer + 0.3 * waves["moisture"] + 0.9 * storm.warming

    # What follows from all that.
    pressure = pressure + storm.depression
    low = SCALE * level * np.log(pressure / 1e5)
    high = low + thickness + disturbed + SCALE * np.log(5) * storm.warming
    surface = pressure * np.exp(-ground.height / (SCALE * (level - 0.00325 * ground.height)))
    day = np.cos(grid.latitude) * np.cos(grid.longitude - np.float32(noon))
    skin = sea + ground.land * (air + 7 * day - sea)
    saturated = saturation(air, surface)
    humid = 0.80 - 0.22 * ground.land + 0.05 * waves["moisture"]
    near = saturated * np.clip(humid + 0.3 * storm.moisture * (1 - humid), 0.1, 1)
    # Water vapour falls off over 2.4 km.
    full = 1.2 * 2400 * saturation(level, pressure) * np.exp(-ground.height / 2400)
    poleward = np.tanh(v * np.sign(grid.latitude) / 14)
    humidity = 0.44 + 0.36 * np.exp(-((near_equator / 0.9) ** 2)) + 0.16 * np.abs(np.sin(grid.latitude)) ** 2
    humidity = humidity * np.exp(0.17 * waves["moisture"] + 0.16 * poleward)
    humidity = np.minimum(humidity + storm.moisture * np.maximum(1.05 - humidity, 0), 1.1)
    vapour = full * humidity
    wet = np.maximum((humidity - 0.6) / 0.2, 0) ** 1.5 * (vapour / 30)
    rain = 7e-8 * wet * np.exp(0.55 * waves["rain"]) + storm.rain

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
        "Z1000": low,
        "Z200": high,
        # The lowest of CAM5's 30 levels is at 0.9926 of the surface pressure.
        "ZBOT": SCALE * np.log(1 / 0.9926) * air,
    }
    channels = np.empty((rows, columns, len(CHANNELS)), np.float32)
    for number, name in enumerate(CHANNELS):
        channels[..., number] = fields[name]
    return channels


def saturation(temperature: Field, pressure: Field) -> Field:
    """Specific humidity of saturated air, kg/kg, of temperature in K and pressure in Pa (Bolton 1980,
    equation 10)."""
    vapour = 611.2 * np.exp(17.67 * (temperature - 273.15) / (temperature - 29.65))
    return (0.622 * vapour / (pressure - 0.378 * vapour)).astype(np.float32)


def _spectra(shapes: tuple[tuple[float, float], ...]) -> npt.NDArray[np.float64]:
    """Variances by degree, 1 in all: rising to a degree, then a power law."""
    n = np.arange(_DEGREE + 1)
    spectra = np.array([n / peak / (1 + (n / peak) ** (tail + 1)) for peak, tail in shapes])
    shares: npt.NDArray[np.float64] = spectra / spectra.sum(axis=1, keepdims=True)
    return shares
