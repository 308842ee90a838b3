"""Harmonics, random fields, derivatives and distances on the sphere, against SciPy and formulas."""

import math

import numpy as np
import pytest
from helpers.weather_samples import COLUMNS, GRID, LATITUDE, ROWS
from scipy import special

from mlhpc.deepcam.synthetic import sphere


@pytest.mark.parametrize(("order", "degree"), [(0, 0), (0, 7), (1, 1), (2, 9), (15, 40), (40, 40), (0, 40)])
def test_legendre_functions_are_scipys(order: int, degree: int) -> None:
    size = (2 - (order == 0)) * (2.0 * degree + 1)
    for k in range(degree - order + 1, degree + order + 1):
        size /= k
    expected = math.sqrt(size) * special.lpmv(
        order, degree, np.sin(GRID.latitude[ROWS // 2 :, 0].astype(float))
    )
    values = sphere.legendre(ROWS, 40)[order][degree - order]
    # scipy has the sign of Condon and Shortley.
    np.testing.assert_allclose(values, (-1) ** order * expected, atol=2e-4 * np.abs(expected).max())


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
