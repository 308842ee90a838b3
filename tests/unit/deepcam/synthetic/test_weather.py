"""Simulated weather, against formulas, Earth's climate and the climate model."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from helpers.weather_samples import COLUMNS, GRID, LATITUDE, NUMBER, ROWS
from scipy import ndimage

from mlhpc.benchmarks.deepcam import Simulation
from mlhpc.deepcam.data.hdf5 import CHANNELS
from mlhpc.deepcam.synthetic import label as rules
from mlhpc.deepcam.synthetic import sphere
from mlhpc.deepcam.synthetic.weather import UNITS, planet, saturation, weather

Vector = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def channel(samples: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]]) -> dict[str, Vector]:
    """All samples by channel: ``[samples, rows, columns]``."""
    together = np.stack([channels for channels, _ in samples]).astype(float)
    return {name: together[..., number] for name, number in NUMBER.items()}


def near(latitude: float, width: float = 5) -> npt.NDArray[np.bool_]:
    return np.abs(LATITUDE - latitude) < width


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
    spectrum = np.zeros(columns // 2 + 1)
    for number in range(3):
        lines = weather(Simulation(cyclones=0, rivers=0, decoys=0), rows, columns, number)[
            belt, :, NUMBER[name]
        ]
        spectrum += (np.abs(np.fft.rfft(lines - lines.mean(axis=1, keepdims=True), axis=1)) ** 2).mean(axis=0)
    waves = np.arange(40, 110)
    slope = np.polyfit(np.log(waves), np.log(spectrum[waves]), 1)[0]
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
        humidity = saturation(np.float32(celsius + 273.15), np.float32(101_325))  # type: ignore[arg-type]
        assert humidity == pytest.approx(expected, rel=0.005)


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
    # The ground is the same in every sample, and different on another planet.
    assert np.ptp(np.log(channel["PSL"] / channel["PS"])[:, high], axis=0).max() < 0.25
    assert not np.array_equal(planet(1, ROWS, COLUMNS).land, ground.land)
