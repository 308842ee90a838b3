"""Storms: balanced, and labelled with the right class."""

from dataclasses import fields

import numpy as np
import numpy.typing as npt
import pytest
from helpers.weather_samples import COLUMNS, GRID, NUMBER, ROWS
from scipy import ndimage

from mlhpc.benchmarks.deepcam import Simulation
from mlhpc.deepcam.synthetic import sphere
from mlhpc.deepcam.synthetic.label import label
from mlhpc.deepcam.synthetic.storms import Cyclone, Disturbance, River
from mlhpc.deepcam.synthetic.weather import weather

CALM = 1
"""A sample whose weather has no river at 150° east by chance, and no cyclone."""


def test_a_cyclones_wind_balances_its_pressure() -> None:
    cyclone = Cyclone(latitude=0.3, longitude=0.0, wind=45.0, radius=40e3, shape=1.5)
    coriolis = sphere.coriolis(0.3)
    distance = np.linspace(10e3, 300e3, 4000)
    pressure = cyclone.pressure(distance)
    speed = cyclone.speed(distance, coriolis)
    # Newton: V²/r + f V = (dp/dr) / ρ.
    pull = np.gradient(pressure, distance) / 1.15
    np.testing.assert_allclose((speed**2 / distance + coriolis * speed)[1:-1], pull[1:-1], rtol=2e-3)
    assert distance[np.argmax(speed)] == pytest.approx(40e3, rel=0.03)
    assert speed.max() == pytest.approx(45, rel=0.03)
    assert pressure[0] == pytest.approx(-cyclone.drop(), rel=0.001)


def calm(storm: Cyclone | River | None = None) -> npt.NDArray[np.float32]:
    """Weather without storms, and one planted by hand."""
    channels = weather(Simulation(cyclones=0, rivers=0, decoys=0), ROWS, COLUMNS, CALM)
    into = Disturbance(*(np.zeros((ROWS, COLUMNS), np.float32) for _ in fields(Disturbance)))
    if isinstance(storm, Cyclone):
        storm.plant(GRID, into)
        for name, added in (
            ("PSL", into.depression),
            ("U850", into.u),
            ("V850", into.v),
            ("T200", into.warming),
            ("T500", into.warming),
        ):
            channels[..., NUMBER[name]] += added
    return channels


@pytest.mark.parametrize("side", [-1, 1])
def test_a_strong_cyclone_is_marked_where_it_is(side: int) -> None:
    at = (ROWS // 2 + side * 20, 1)  # 19° from the equator, its west beyond longitude 0
    storm = Cyclone(float(GRID.latitude[at[0], 0]), float(GRID.longitude[0, at[1]]), 50, 60e3, 1.5)
    mask = label(calm(storm)) == 1
    assert not (label(calm()) == 1).any()
    assert mask[at] and 12 < mask.sum() < 200
    assert ndimage.label(mask | np.roll(mask, 20, axis=1))[1] >= 1 and mask[at[0], -1]
    rows, columns = np.nonzero(np.roll(mask, COLUMNS // 2, axis=1))
    assert np.abs(rows.mean() - at[0]) < 1 and np.abs(columns.mean() - COLUMNS // 2 - at[1]) < 1
    # Its radius is that of gales.
    east, north = GRID.offsets(storm.latitude, storm.longitude, slice(0, ROWS))
    distance = np.hypot(east, north)
    speed = storm.speed(distance[mask], sphere.coriolis(storm.latitude))
    assert 12 < speed[np.argmax(distance[mask])] < 22


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param({"weak": True}, id="no gale"),
        pytest.param({"T200": 0.0, "T500": 0.0}, id="no warm core"),
        pytest.param({"PSL": 0.0}, id="no low"),
        pytest.param({"U850": -1.0, "V850": -1.0}, id="turns the wrong way"),
    ],
)
def test_what_is_no_cyclone_is_not_marked(spoil: dict[str, float]) -> None:
    latitude, longitude = float(GRID.latitude[ROWS // 2 + 20, 0]), float(GRID.longitude[0, 100])
    storm = Cyclone(latitude, longitude, 14 if spoil.pop("weak", False) else 50, 60e3, 1.5)
    before, after = calm(), calm(storm)
    for name, factor in spoil.items():
        n = NUMBER[name]
        after[..., n] = before[..., n] + factor * (after[..., n] - before[..., n])
    assert not (label(after) == 1).any()


@pytest.mark.parametrize("through", [0.0, 0.7, 2.0])
def test_a_strain_has_a_cyclones_pressure_warmth_and_wind_speed_and_is_not_marked(through: float) -> None:
    latitude, longitude = float(GRID.latitude[ROWS // 2 + 20, 0]), float(GRID.longitude[0, 100])
    around, across = (
        Disturbance(*(np.zeros((ROWS, COLUMNS), np.float32) for _ in fields(Disturbance))) for _ in range(2)
    )
    Cyclone(latitude, longitude, 50, 60e3, 1.5).plant(GRID, around)
    strain = Cyclone(latitude, longitude, 50, 60e3, 1.5, through=through)
    strain.plant(GRID, across)
    for name in ("depression", "warming", "moisture", "rain"):
        np.testing.assert_array_equal(getattr(across, name), getattr(around, name))
    np.testing.assert_allclose(np.hypot(across.u, across.v), np.hypot(around.u, around.v), atol=1e-3)
    # Air leaves along the axis and enters across it.
    row, column, step = ROWS // 2 + 20, 100, 2
    east, north = round(step * np.cos(through)), round(step * np.sin(through))
    outward = across.u[row + north, column + east] * east + across.v[row + north, column + east] * north
    inward = across.u[row + east, column - north] * -north + across.v[row + east, column - north] * east
    assert outward > 5 and inward < -5
    assert (label(calm(Cyclone(latitude, longitude, 50, 60e3, 1.5))) == 1).any()
    assert not (label(calm(strain)) == 1).any()


def test_rivers_are_marked_by_shape_not_by_moisture_alone() -> None:
    channels = calm()
    assert (label(channels) == 2).mean() < 0.008  # by chance, half of what planted rivers cover
    # Wet, fast and poleward: first a long strip at 30° to 50° north, then a round blot of the same area.
    strip = (np.abs(np.rad2deg(GRID.latitude) - 40) < 10) & (
        np.abs(np.rad2deg(GRID.longitude) - 150 - 1.5 * (np.rad2deg(GRID.latitude) - 40)) < 3
    )
    blot = (np.rad2deg(GRID.latitude) - 40) ** 2 + (
        0.77 * (np.rad2deg(GRID.longitude) - 150)
    ) ** 2 < strip.sum() * 180 / ROWS * 360 / COLUMNS * 0.77 / np.pi
    for cells, marked in ((strip, True), (blot, False)):
        wet = calm()
        wet[cells, NUMBER["TMQ"]] = 45
        wet[cells, NUMBER["V850"]] = 25
        assert ((label(wet) == 2) & cells).sum() == (cells.sum() if marked else 0)
    # The same strip that flows towards the equator, and one across longitude 0.
    dry = calm()
    dry[strip, NUMBER["TMQ"]] = 45
    dry[strip, NUMBER["V850"]] = -25
    assert not ((label(dry) == 2) & strip).any()
    across = np.roll(calm(), -120, axis=1)
    moved = np.roll(strip, -120, axis=1)
    assert moved[:, 0].any() and moved[:, -1].any()
    across[moved, NUMBER["TMQ"]] = 45
    across[moved, NUMBER["V850"]] = 25
    assert ((label(across) == 2) & moved).sum() == moved.sum()
