"""Simulated weather and its masks: against formulas, the planet we know, and what the masks claim."""

import math
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import numpy.typing as npt
import pytest
from scipy import ndimage, special

from mlhpc.benchmarks.deepcam import Simulation
from mlhpc.deepcam.data.hdf5 import CHANNELS
from mlhpc.deepcam.synthetic import label as rules
from mlhpc.deepcam.synthetic import sphere
from mlhpc.deepcam.synthetic.label import label
from mlhpc.deepcam.synthetic.simulate import simulate
from mlhpc.deepcam.synthetic.storms import Cyclone, Disturbance, River
from mlhpc.deepcam.synthetic.weather import UNITS, planet, saturation, weather

Vector = npt.NDArray[np.float64]
ROWS, COLUMNS = 192, 288
GRID = sphere.grid(ROWS, COLUMNS)
CALM = 1
"""A sample whose weather has no river at 150° east by chance, and no cyclone."""
LATITUDE = np.rad2deg(GRID.latitude[:, 0])
NUMBER = {name: number for number, name in enumerate(CHANNELS)}


@pytest.fixture(scope="module")
def samples() -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]]:
    return [simulate(Simulation(), ROWS, COLUMNS, number) for number in range(24)]


@pytest.fixture(scope="module")
def channel(samples: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]]) -> dict[str, Vector]:
    """All samples by channel: ``[samples, rows, columns]``."""
    together = np.stack([channels for channels, _ in samples]).astype(float)
    return {name: together[..., number] for name, number in NUMBER.items()}


def near(latitude: float, width: float = 5) -> npt.NDArray[np.bool_]:
    return np.abs(LATITUDE - latitude) < width


# The sphere


@pytest.mark.parametrize(("order", "degree"), [(0, 0), (0, 7), (1, 1), (2, 9), (15, 40), (40, 40), (0, 40)])
def test_legendre_functions_are_scipys(order: int, degree: int) -> None:
    size = (2 - (order == 0)) * (2 * degree + 1)
    for k in range(degree - order + 1, degree + order + 1):
        size /= k
    expected = math.sqrt(size) * special.lpmv(
        order, degree, np.sin(GRID.latitude[ROWS // 2 :, 0].astype(float))
    )
    found = sphere.legendre(ROWS, 40)[order][degree - order]
    # scipy has the sign of Condon and Shortley.
    np.testing.assert_allclose(found, (-1) ** order * expected, atol=2e-4 * np.abs(expected).max())


def test_random_fields_are_correlated_by_angle_alone() -> None:
    # The addition theorem: Σ variance P_n(cos γ), wherever on the sphere and in whatever direction.
    spectrum = np.zeros((1, 9))
    spectrum[0, [2, 5, 8]] = 0.5, 0.3, 0.2
    rng = np.random.default_rng(5)
    drawn = np.concatenate([sphere.random_fields(36, 72, spectrum, rng) for _ in range(2000)])

    def correlation(a: tuple[int, int], b: tuple[int, int]) -> float:
        return float((drawn[:, *a] * drawn[:, *b]).mean())

    def expected(angle: float) -> float:
        return sum(v * special.eval_legendre(n, math.cos(angle)) for n, v in enumerate(spectrum[0]))

    degree = math.pi / 180
    pairs = [
        ((18, 3), (18, 3), 0.0),
        ((0, 9), (0, 9), 0.0),
        ((18, 0), (26, 0), 40 * degree),
        ((10, 70), (10, 70 - 36), 2 * 52.5 * degree),  # over the pole
        ((35, 4), (35, 40), 5 * degree),
    ]
    for a, b, angle in pairs:
        assert correlation(a, b) == pytest.approx(expected(angle), abs=0.1)
    # Across longitude 0, at 2.5°: two steps of 5° along a small circle.
    cosine = math.sin(2.5 * degree) ** 2 + math.cos(2.5 * degree) ** 2 * math.cos(10 * degree)
    assert correlation((18, 71), (18, 1)) == pytest.approx(expected(math.acos(cosine)), abs=0.1)


def test_derivatives_of_known_fields() -> None:
    latitude, longitude = GRID.latitude, GRID.longitude
    field = (np.sin(3 * longitude) * np.cos(latitude) ** 3).astype(np.float32)
    east, north = GRID.gradient(field)
    inside = np.abs(LATITUDE) < 85
    scale = 3 / sphere.RADIUS
    np.testing.assert_allclose(
        east[inside], (scale * np.cos(3 * longitude) * np.cos(latitude) ** 2)[inside], atol=0.002 * scale
    )
    slope = -scale * np.sin(3 * longitude) * np.cos(latitude) ** 2 * np.sin(latitude)
    np.testing.assert_allclose(north[inside], slope[inside], atol=0.002 * scale)
    # The air that turns with a faster planet has the vorticity 2ω sin φ.
    u = np.broadcast_to(10 * np.cos(latitude), (ROWS, COLUMNS)).astype(np.float32)
    curl = GRID.vorticity(u, np.zeros_like(u))
    expected = np.broadcast_to(20 / sphere.RADIUS * np.sin(latitude), curl.shape)
    np.testing.assert_allclose(curl[inside], expected[inside], atol=2e-9)


def test_offsets_are_great_circles() -> None:
    latitude, longitude = math.radians(-33), math.radians(359)
    east, north = GRID.offsets(latitude, longitude, slice(0, ROWS))
    # The haversine formula.
    a = (
        np.sin((GRID.latitude - latitude) / 2) ** 2
        + math.cos(latitude) * np.cos(GRID.latitude) * np.sin((GRID.longitude - longitude) / 2) ** 2
    )
    np.testing.assert_allclose(np.hypot(east, north), 2 * sphere.RADIUS * np.arcsin(np.sqrt(a)), rtol=1e-3)
    assert east[70, 20] > 0 and east[70, 260] < 0  # across longitude 0
    assert north[100, 0] > 0 > north[20, 0]
    reached = GRID.reach(latitude, 1e6)
    assert (np.abs(north[:, -1])[: reached.start] > 0.98e6).all()
    assert (np.abs(north[:, -1])[reached.stop :] > 0.98e6).all()


# The storms


def test_a_cyclones_wind_balances_its_pressure() -> None:
    cyclone = Cyclone(latitude=0.3, longitude=0.0, wind=45.0, radius=40e3, shape=1.5)
    coriolis = sphere.coriolis(0.3)
    distance = np.linspace(10e3, 300e3, 4000)
    pressure = cyclone.pressure(distance)  # type: ignore[arg-type]
    speed = cyclone.speed(distance, coriolis)  # type: ignore[arg-type]
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


# The weather


def test_values_are_those_of_an_atmosphere(channel: dict[str, Vector]) -> None:
    # Wider than the records of the earth, narrower than a mistake of unit.
    limits = {
        "TMQ": (0.01, 100),
        "U850": (-90, 90),
        "V850": (-90, 90),
        "UBOT": (-75, 75),
        "VBOT": (-75, 75),
        "QREFHT": (0, 0.03),
        "PS": (42_000, 107_500),
        "PSL": (87_000, 107_500),
        "T200": (185, 245),
        "T500": (215, 290),
        "PRECT": (0, 3e-5),
        "TS": (190, 335),
        "TREFHT": (190, 325),
        "Z1000": (-1000, 6000),
        "Z200": (9_500, 13_000),
        "ZBOT": (40, 75),
    }
    assert set(limits) == set(CHANNELS) == set(UNITS)
    for name, (low, high) in limits.items():
        assert low <= channel[name].min() < channel[name].max() <= high, name
    weight = GRID.weight[:, 0].astype(float)
    # Global means: 1013 hPa, 25 kg/m², 2.7 mm a day, 288 K (Trenberth and Smith 2005; IPCC AR6).
    for name, mean, within in (
        ("PSL", 101_300, 500),
        ("TMQ", 25, 5),
        ("PRECT", 3.1e-8, 1e-8),
        ("TREFHT", 288, 4),
    ):
        assert (channel[name].mean(axis=(0, 2)) * weight).mean() == pytest.approx(mean, abs=within), name


# Means and standard deviations over cells (not areas) of CAM5.1 at the published grid: the normalisation in
# ClimateNet's config.json (Prabhat and others 2021, Geosci. Model Dev. 14, 107), the same model and channels.
CAM5 = {
    "TMQ": (19.2185, 15.8173),
    "U850": (1.55302, 8.29762),
    "V850": (0.254132, 6.23163),
    "UBOT": (0.124879, 6.65329),
    "VBOT": (0.315416, 5.78419),
    "QREFHT": (0.00778778, 0.00621529),
    "PS": (96571.6, 9700.12),
    "PSL": (100814.1, 1461.08),
    "T200": (213.209, 7.88973),
    "T500": (253.038, 12.8253),
    "PRECT": (2.94582e-8, 1.55638e-7),
    "TS": (278.711, 23.6825),
    "TREFHT": (278.421, 22.5119),
    "Z1000": (474.173, 832.808),
    "Z200": (11736.1, 633.259),
    "ZBOT": (61.3115, 4.90950),
}


@pytest.mark.parametrize("name", CAM5)
def test_amplitudes_are_those_of_the_climate_model(channel: dict[str, Vector], name: str) -> None:
    mean, deviation = CAM5[name]
    assert 0.7 < channel[name].std() / deviation < 1.4
    assert abs(channel[name].mean() - mean) < 0.4 * deviation


def test_it_drizzles_nearly_everywhere_and_rains_in_few_places(channel: dict[str, Vector]) -> None:
    rain = channel["PRECT"]
    assert (rain == 0).mean() < 1e-3
    # Half of a climate model's rain falls in under a tenth of the area.
    heaviest = np.sort(rain, axis=None)[::-1]
    assert np.searchsorted(np.cumsum(heaviest), heaviest.sum() / 2) < 0.15 * heaviest.size


@pytest.mark.parametrize(
    ("name", "steepest"),
    [("U850", -3.3), ("V850", -3.3), ("T500", -3.3), ("T200", -3.3), ("TMQ", -3), ("PSL", -5)],
)
def test_small_scales_fall_as_in_nature(name: str, steepest: float) -> None:
    """Along circles of latitude, by numpy's transform: between n^-3 and n^-5/3 for wind, temperature and moisture
    (Nastrom and Gage 1985), a height's power falling by up to two more."""
    rows, columns = 384, 576
    belt = slice(rows // 2 + 64, rows // 2 + 96)  # 30° to 45° north
    found = np.zeros(columns // 2 + 1)
    for number in range(3):
        lines = weather(Simulation(cyclones=0, rivers=0, decoys=0), rows, columns, number)[
            belt, :, NUMBER[name]
        ]
        found += (np.abs(np.fft.rfft(lines - lines.mean(axis=1, keepdims=True), axis=1)) ** 2).mean(axis=0)
    waves = np.arange(40, 110)
    slope = np.polyfit(np.log(waves), np.log(found[waves]), 1)[0]
    assert steepest < slope < -1.4


def test_pressure_warm_core_and_wind_each_rule_out_some_vortices(
    samples: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def number() -> int:
        return sum(len(rules.cyclones(GRID, channels)) for channels, _ in samples)

    strict = number()
    for relaxation in (
        {"MIN_RISE": 200.0},
        {"MIN_WARM_CORE": -9.0, "MIN_WARMER_THAN_SIDES": -9.0},
        {"MIN_WIND": 12.0},
    ):
        with monkeypatch.context() as relaxed:
            for name, value in relaxation.items():
                relaxed.setattr(rules, name, value)
            assert number() > strict, relaxation


def test_no_single_channel_finds_the_cyclones(
    samples: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]],
) -> None:
    # A threshold on the roughness (Laplacian) of one channel: area under the ROC curve, and the best IoU.
    truth = np.concatenate([(mask == 1).ravel() for _, mask in samples])
    for name in ("PSL", "U850", "T500"):
        maps = []
        for channels, _ in samples:
            field = channels[..., NUMBER[name]].astype(float)
            maps.append(np.abs(ndimage.laplace(field, mode="wrap")).ravel())
        value = np.concatenate(maps)
        order = np.argsort(-value)
        hits = np.cumsum(truth[order])
        wrong = np.arange(1, truth.size + 1) - hits
        area = hits[~truth[order]].mean() / truth.sum()
        best = (hits / (truth.sum() + wrong)).max()
        assert area < 0.999 and best < 0.5


def test_fields_are_smooth_and_do_not_break_at_longitude_0(channel: dict[str, Vector]) -> None:
    for name, field in channel.items():
        steps = np.abs(np.diff(field, axis=2, append=field[..., :1]))
        assert np.median(steps) < 0.1 * field.std(), name
        assert steps[..., -1].mean() < 2 * steps.mean(), name


def test_zonal_structure(channel: dict[str, Vector]) -> None:
    zonal = {name: field.mean(axis=(0, 2)) for name, field in channel.items()}
    for name in ("T500", "TREFHT", "TS", "Z200", "TMQ", "QREFHT"):
        for side in (-1, 1):
            belts = [zonal[name][near(side * latitude)].mean() for latitude in (5, 30, 50, 70)]
            assert belts == sorted(belts, reverse=True), name
    # Trade winds from the east towards the equator, westerlies, and rain where the trades meet.
    for side in (-1, 1):
        assert zonal["UBOT"][near(side * 12)].mean() < -1
        assert side * zonal["VBOT"][near(side * 12)].mean() < -0.5
        assert zonal["U850"][near(side * 47)].mean() > 4
        # Geostrophic jets aloft: g/f times the slope of Z200.
        drop = zonal["Z200"][near(side * 25, 2)].mean() - zonal["Z200"][near(side * 55, 2)].mean()
        jet = 9.8 * drop / (math.radians(30) * sphere.RADIUS) / sphere.coriolis(math.radians(40))
        assert 10 < jet < 45
    assert zonal["PRECT"][near(0, 8)].mean() > 2 * zonal["PRECT"][near(25) | near(-25)].mean()
    # High in the subtropics, low in the southern ocean, deeper than in the north.
    assert zonal["PSL"][near(-33)].mean() > 101_500 < zonal["PSL"][near(33)].mean()
    assert zonal["PSL"][near(-63)].mean() < 99_500 < zonal["PSL"][near(60)].mean()


def test_seasons(channel: dict[str, Vector]) -> None:
    # Where land is warm in the north, it is cold in the south, and the rain belt goes with the sun.
    land = planet(2021, ROWS, COLUMNS).land > 0.5
    north, south = land & (LATITUDE > 30)[:, None], land & (LATITUDE < -20)[:, None]
    warm_north, warm_south = (channel["TREFHT"][:, part].mean(axis=1) for part in (north, south))
    assert np.corrcoef(warm_north, warm_south)[0, 1] < -0.8
    tropics = np.abs(LATITUDE) < 20
    rain = channel["PRECT"][:, tropics].mean(axis=2)
    belt = (rain * LATITUDE[tropics]).sum(axis=1) / rain.sum(axis=1)
    assert np.corrcoef(belt, warm_north)[0, 1] > 0.7


@pytest.mark.parametrize("side", [-1, 1])
def test_wind_is_geostrophic_outside_the_tropics(channel: dict[str, Vector], side: int) -> None:
    belt = near(side * 47, 12)
    ground = ndimage.binary_dilation(planet(2021, ROWS, COLUMNS).height > 0, np.ones((3, 3)))
    sea = np.broadcast_to(~ground[belt], (len(channel["PSL"]), belt.sum(), COLUMNS))
    f = sphere.coriolis(GRID.latitude[belt].astype(float))
    for height, u, v, least in (("Z1000", "U850", "V850", 0.85), ("Z1000", "UBOT", "VBOT", 0.75)):
        slopes = [GRID.gradient(field.astype(np.float32)) for field in channel[height]]
        east, north = (np.stack(part).astype(float)[:, belt] for part in zip(*slopes, strict=True))
        for wind, balanced in ((u, -9.8 / f * north), (v, 9.8 / f * east)):
            assert np.corrcoef(channel[wind][:, belt][sea], balanced[sea])[0, 1] > least
    # Friction: the lowest wind blows from high to low pressure, the wind at 850 hPa hardly.
    pressure = [GRID.gradient(field.astype(np.float32)) for field in channel["PSL"]]
    down = [
        np.mean([(u * e + v * n)[belt].mean() for u, v, (e, n) in zip(us, vs, pressure, strict=True)])
        for us, vs in ((channel["UBOT"], channel["VBOT"]), (channel["U850"], channel["V850"]))
    ]
    assert down[0] < 0 and down[0] < 3 * down[1]


def test_channels_belong_together(channel: dict[str, Vector]) -> None:
    # Hydrostatic: Z1000 from PSL; thickness is the temperature of the column, once the zonal mean is off.
    expected = 29.27 * channel["TREFHT"] * np.log(channel["PSL"] / 1e5)
    sea = planet(2021, ROWS, COLUMNS).land < 0.01
    np.testing.assert_allclose(channel["Z1000"][:, sea], expected[:, sea], atol=12)

    def eddies(field: Vector) -> Vector:
        return (field - field.mean(axis=2, keepdims=True))[:, near(45, 15) | near(-45, 15)].ravel()

    thickness = channel["Z200"] - expected  # in place of Z1000, which over land is the height of the ground
    assert np.corrcoef(eddies(thickness), eddies(channel["T500"]))[0, 1] > 0.9
    # In the stratosphere it is the other way round (e.g. Randel and others 2007, on the tropopause).
    assert np.corrcoef(eddies(channel["T500"]), eddies(channel["T200"]))[0, 1] < -0.5
    # Waves lean westward: the low at the surface is east of the trough aloft.
    north = near(50, 8)
    low, high = (channel[name][:, north] for name in ("PSL", "Z200"))
    low, high = (field - field.mean(axis=2, keepdims=True) for field in (low, high))
    shifts = np.arange(-30, 31)
    fit = [(low * np.roll(high, shift, axis=2)).mean() for shift in shifts]
    assert 3 <= shifts[np.argmax(fit)] * 360 / COLUMNS <= 30
    # Poleward air is moister; no air holds more than it can.
    poleward = channel["V850"] * np.sign(LATITUDE)[:, None]
    assert np.corrcoef(eddies(poleward), eddies(channel["TMQ"]))[0, 1] > 0.15
    full = saturation(channel["TREFHT"].astype(np.float32), channel["PS"].astype(np.float32))
    assert (channel["QREFHT"] <= 1.001 * full).all()
    assert np.corrcoef(channel["PRECT"].ravel(), channel["TMQ"].ravel())[0, 1] > 0.3


def test_saturation_is_that_of_tables() -> None:
    # Saturation vapour pressure over water, 2339 Pa at 20 °C and 611 Pa at 0 °C (Smithsonian tables).
    for celsius, vapour in ((20, 2339), (0, 611)):
        expected = 0.622 * vapour / (101_325 - 0.378 * vapour)
        found = saturation(np.float32(celsius + 273.15), np.float32(101_325))  # type: ignore[arg-type]
        assert found == pytest.approx(expected, rel=0.005)


def test_ground(channel: dict[str, Vector]) -> None:
    ground = planet(2021, ROWS, COLUMNS)
    weight = GRID.weight / COLUMNS / ROWS
    assert (weight * ground.land).sum() == pytest.approx(0.3, abs=0.02)
    high = ground.height > 500
    assert high.any() and (ground.height >= 0).all() and ground.height.max() > 3000
    assert (channel["PS"][:, high] < channel["PSL"][:, high] - 4000).all()
    np.testing.assert_allclose(
        channel["PS"][:, ground.height == 0], channel["PSL"][:, ground.height == 0], rtol=1e-6
    )
    # Pressure and temperature fall with height: 1 hPa in 8 to 10 m, 6.5 K in a kilometre.
    depth = (channel["PSL"] - channel["PS"])[:, high].mean(axis=0) / ground.height[high]
    assert (depth > 7).all() and (depth < 14).all()
    # The ground is the same in every sample, and another planet has another.
    assert np.ptp(np.log(channel["PSL"] / channel["PS"])[:, high], axis=0).max() < 0.25
    assert not np.array_equal(planet(1, ROWS, COLUMNS).land, ground.land)


# The masks


def parts(mask: npt.NDArray[np.uint8], kind: int) -> Iterator[npt.NDArray[np.bool_]]:
    numbers, count = ndimage.label(mask == kind, np.ones((3, 3)))
    for number in range(1, count + 1):
        part = numbers == number
        if not part[:, [0, -1]].any():  # those across longitude 0 come in two
            yield part


def test_marked_cyclones_are_warm_lows_that_turn_as_their_hemisphere_does(
    samples: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]],
) -> None:
    seen, wetter = {-1: 0, 1: 0}, []
    for channels, mask in samples:
        value = {name: channels[..., number].astype(float) for name, number in NUMBER.items()}
        for part in parts(mask, 1):
            around = ndimage.binary_dilation(part, iterations=6) & ~ndimage.binary_dilation(
                part, iterations=3
            )
            centre = np.unravel_index(np.argmin(np.where(part, value["PSL"], np.inf)), part.shape)
            assert value["PSL"][centre] < value["PSL"][around].mean() - 400
            inside = (
                np.hypot(*np.ogrid[-centre[0] : ROWS - centre[0], -centre[1] : COLUMNS - centre[1]]) < 1.5
            )
            for name in ("T200", "T500"):
                assert value[name][inside].mean() > value[name][around].mean() + 0.3
            assert value["TMQ"][part].mean() > value["TMQ"][around].mean()
            wetter.append(value["PRECT"][part].mean() > value["PRECT"][around].mean())
            side = int(np.sign(LATITUDE[centre[0]]))
            assert abs(LATITUDE[centre[0]]) < 40
            # The circulation around the mask's edge is anticlockwise in the north.
            rows, columns = np.nonzero(part)
            turn = (columns - centre[1]) * value["V850"][part] - (rows - centre[0]) * value["U850"][part]
            assert side * turn.sum() > 0
            seen[side] += 1
    assert min(seen.values()) > 5 and np.mean(wetter) > 0.9


def test_marked_rivers_are_long_and_moist_and_flow_poleward(
    samples: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]],
) -> None:
    shapes, poleward, wetter = [], [], []
    for channels, mask in samples:
        vapour, v = (channels[..., NUMBER[name]].astype(float) for name in ("TMQ", "V850"))
        for part in parts(mask, 2):
            if (ndimage.binary_dilation(part) & (mask == 1)).any():
                continue  # a cyclone took its share of it
            rows, columns = np.nonzero(part)
            # Kilometres on the plane that touches the planet in the middle of it.
            middle = math.radians(LATITUDE[rows].mean())
            x = 111.2 * 360 / COLUMNS * (columns - columns.mean()) * math.cos(middle)
            y = 111.2 * (LATITUDE[rows] - LATITUDE[rows].mean())
            length = np.hypot(np.ptp(x), np.ptp(y))
            width = 111.2**2 * 180 / ROWS * 360 / COLUMNS * len(x) * math.cos(middle) / length
            assert length > 1800 and length > 1.8 * width
            shapes.append(np.sqrt(np.divide(*np.linalg.eigvalsh(np.cov(x, y))[::-1])))
            around = ndimage.binary_dilation(part, iterations=8) & ~ndimage.binary_dilation(
                part, iterations=2
            )
            wetter.append(vapour[part].mean() / vapour[around].mean())
            poleward.append((v[part] * np.sign(LATITUDE[rows])).mean())
    assert len(shapes) > 50 and np.median(shapes) > 3  # standard deviations along and across
    assert min(wetter) > 1.05 and np.median(wetter) > 1.2
    assert min(poleward) > 1 and np.median(poleward) > 8


def test_class_frequencies_are_those_of_the_published_set() -> None:
    # Of mlcommons/hpc: the loss weights of DeepCAM were made from them.
    published = (0.986267818390377, 0.0004578708870701058, 0.01327431072255291)
    masks = [simulate(Simulation(), 384, 576, number)[1] for number in range(30)]
    found = np.bincount(np.concatenate(masks, axis=None), minlength=3) / sum(mask.size for mask in masks)
    assert found[0] == pytest.approx(published[0], abs=0.004)
    assert found[1:] == pytest.approx(published[1:], rel=0.3)
    # Nearly every sample holds all classes, so that a guess of background alone has an IoU of a third.
    assert np.mean([len(np.unique(mask)) == 3 for mask in masks]) > 0.9


def test_a_sample_comes_from_its_seed_and_number_alone() -> None:
    first = simulate(Simulation(), 32, 48, 5)
    simulate(Simulation(seed=3), 48, 64, 5)
    again = simulate(Simulation(test_samples=7), 32, 48, 5)
    assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])
    for other in (simulate(Simulation(), 32, 48, 6), simulate(Simulation(seed=1), 32, 48, 5)):
        assert (
            not np.isclose(first[0][..., NUMBER["PSL"]], other[0][..., NUMBER["PSL"]], rtol=1e-6)
            .any(axis=1)
            .all()
        )


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (32, 48), (48, 32), (64, 128)])
def test_any_grid(rows: int, columns: int) -> None:
    for number in range(8):
        channels, mask = simulate(Simulation(), rows, columns, number)
        assert channels.shape == (rows, columns, 16) and channels.dtype == np.float32
        assert mask.shape == (rows, columns) and mask.dtype == np.uint8
        assert np.isfinite(channels).all() and set(np.unique(mask)) <= {0, 1, 2}


def test_storm_size_enlarges_storms() -> None:
    areas = []
    for size in (1.0, 2.5):
        masks = [simulate(Simulation(storm_size=size), 96, 144, number)[1] for number in range(30)]
        areas.append([np.mean([mask == kind for mask in masks]) for kind in (1, 2)])
    assert areas[1][0] > 1.5 * areas[0][0] and areas[1][1] > 1.2 * areas[0][1]
