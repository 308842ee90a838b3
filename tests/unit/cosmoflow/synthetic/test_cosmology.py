"""Linear theory against independent implementations. Values from colossus 1.4.0 and CAMB 2.0.5 were recorded
with flat cosmologies without neutrinos or late radiation, T_CMB 2.7255 K, Ω_b = 0.0486."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.integrate import quad, solve_ivp
from scipy.special import spherical_jn

from mlhpc.cosmoflow.synthetic.cosmology import MEAN, Cosmology, variance

K = np.array([1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0])  # h/Mpc
REDSHIFTS = np.array([3.0, 1.5, 0.5, 9.0])


def flat(omega_m: float, sigma_8: float, n_s: float, h: float) -> Cosmology:
    return Cosmology(omega_m, sigma_8, n_s, h, omega_b_h2=0.0486 * h**2)


MIDDLE = flat(0.3089, 0.8159, 0.9667, 0.6774)
HEAVY = flat(0.386125, 0.8159, 0.77336, 0.50805)
LIGHT = flat(0.231675, 0.97908, 1.16004, 0.84675)

# colossus: matterPowerSpectrum(K) with its default model, "eisenstein98".
COLOSSUS_POWER = {
    MIDDLE: [3798.75, 14861.8, 21718.9, 23682.5, 12425.6, 5671.36, 1955.02, 310.95, 67.1345, 4.8801],
    HEAVY: [10136.0, 28604.9, 36080.0, 34508.3, 15583.0, 6551.0, 1772.36, 245.784, 46.3731, 2.71827],
    LIGHT: [3072.58, 16106.0, 26216.4, 30158.0, 16197.6, 7455.05, 2699.89, 518.564, 125.049, 10.9641],
}
# CAMB: linear matter power at z = 0, scaled to the same σ_8.
CAMB_POWER = {
    MIDDLE: [3838.15, 14990.1, 22168.4, 24237.6, 12407.5, 5501.22, 1969.92, 316.335, 68.1532, 4.87603],
    HEAVY: [10138.9, 28482.1, 36267.8, 34982.7, 15439.5, 6349.51, 1771.37, 249.56, 46.8222, 2.69625],
    LIGHT: [3111.56, 16337.3, 26921.0, 30806.0, 16341.8, 7413.28, 2705.01, 525.928, 126.558, 10.9296],
}
# colossus: growthFactor(REDSHIFTS).
COLOSSUS_GROWTH = {
    MIDDLE: [0.3167748, 0.497574, 0.7706386, 0.1274541],
    HEAVY: [0.3017035, 0.4763237, 0.7509459, 0.1211863],
    LIGHT: [0.3380556, 0.5267105, 0.7952969, 0.1363941],
}


@pytest.mark.parametrize("cosmology", COLOSSUS_POWER)
def test_power_agrees_with_another_implementation_of_eisenstein_hu(cosmology: Cosmology) -> None:
    np.testing.assert_allclose(cosmology.power(K), COLOSSUS_POWER[cosmology], rtol=2e-4)


@pytest.mark.parametrize("cosmology", CAMB_POWER)
def test_power_agrees_with_a_boltzmann_solver(cosmology: Cosmology) -> None:
    # EH98 say that their fit is good to a few per cent in the transfer function.
    np.testing.assert_allclose(cosmology.power(K), CAMB_POWER[cosmology], rtol=0.035)


def test_power_over_the_whole_range_of_parameters_agrees_as_documented() -> None:
    """The generator fixes the baryon density Ω_b h²: the lower Ω_M h², the larger the share of baryons, and the
    worse EH98 fit. The universes are the middle, five edges and 14 random ones."""
    recorded = json.loads(Path("tests/data/reference/cosmoflow_camb.json").read_text())
    deviations = []
    for universe in recorded["universes"]:
        power = Cosmology.from_unit(universe["unit"], 0.3).power(recorded["k_h_mpc"])
        deviations.append(np.abs(power / np.array(universe["power"]) - 1).max())
    assert len(deviations) == 20
    assert deviations[0] < 0.04  # the middle
    assert np.median(deviations) < 0.05
    assert max(deviations) < 0.13


@pytest.mark.parametrize("cosmology", COLOSSUS_GROWTH)
def test_growth_agrees_with_another_implementation(cosmology: Cosmology) -> None:
    np.testing.assert_allclose(cosmology.growth(1 / (1 + REDSHIFTS)), COLOSSUS_GROWTH[cosmology], rtol=3e-5)


def test_transfer_is_one_on_the_largest_scales() -> None:
    assert MIDDLE.transfer(1e-6) == pytest.approx(1, abs=1e-4)


def test_growth_without_dark_energy_is_the_expansion_factor() -> None:
    a = np.array([0.02, 0.1, 0.5, 1.0])
    einstein_de_sitter = Cosmology(1.0, 0.8, 0.96, 0.7)
    np.testing.assert_allclose(einstein_de_sitter.growth(a), a, rtol=1e-12)
    np.testing.assert_allclose(einstein_de_sitter.second_growth(a), -3 / 7 * a**2, rtol=1e-12)


@pytest.mark.parametrize("cosmology", [MIDDLE, HEAVY, LIGHT])
def test_both_growth_factors_solve_their_equations_of_motion(cosmology: Cosmology) -> None:
    # With T = a³E d/da: T² D = 3/2 Ω_M a D, T² D₂ = 3/2 Ω_M a (D₂ - D²), from a matter-dominated start.
    def motion(a: float, state: npt.NDArray[np.float64]) -> list[float]:
        d, speed, d2, speed2 = state
        pace = a**3 * float(cosmology.expansion(a))
        pull = 1.5 * cosmology.omega_m * a
        return [speed / pace, pull * d / pace, speed2 / pace, pull * (d2 - d * d) / pace]

    begin, ends = 1e-3, np.array([0.25, 0.4, 1 / 1.5, 1.0])
    pace = begin**3 * float(cosmology.expansion(begin))
    start = [begin, pace, -3 / 7 * begin**2, -6 / 7 * begin * pace]
    path = solve_ivp(motion, (begin, 1.0), start, t_eval=ends, rtol=1e-9, atol=1e-14).y
    today = path[0, -1]
    np.testing.assert_allclose(cosmology.growth(ends), path[0] / today, rtol=1e-4)
    # Bouchet 1995 give Ω^(-1/143) as a fit good to 0.5%.
    np.testing.assert_allclose(cosmology.second_growth(ends), path[2] / today**2, rtol=5e-3)


@pytest.mark.parametrize("cosmology", [MIDDLE, HEAVY, LIGHT])
def test_sigma_8_comes_back_from_the_spectrum(cosmology: Cosmology) -> None:
    # Another window (by Bessel functions) and another quadrature than those that normalised the spectrum.
    def integrand(lnk: float) -> float:
        k = np.exp(lnk)
        window = 3 * spherical_jn(1, 8 * k) / (8 * k)
        return float(k**3 * cosmology.power(np.array([k]))[0] / (2 * np.pi**2) * window**2)

    variance = sum(quad(integrand, lo, lo + 1, epsrel=1e-5)[0] for lo in range(-10, 4))
    assert np.sqrt(variance) == pytest.approx(cosmology.sigma_8, rel=5e-4)


def test_variance_of_a_power_law_is_the_known_one() -> None:
    # P = k^-2: σ² = ∫ dk W²(kR) / 2π² = 3π / 5R · 1 / 2π², by ∫₀^∞ j₁²(x)/x² dx = π/15.
    k = np.geomspace(1e-6, 1e4, 100_000)
    assert variance(k, k**-2.0, radius=8.0) == pytest.approx(3 * np.pi / 5 / 8 / (2 * np.pi**2), rel=1e-3)


def test_unit_parameters_span_the_spread_around_the_mean() -> None:
    middle = Cosmology.from_unit([0, 0, 0, 0], 0.3)
    assert (middle.omega_m, middle.sigma_8, middle.n_s, 100 * middle.h) == pytest.approx(MEAN)
    edge = Cosmology.from_unit([1, -1, 1, -1], 0.3)
    assert edge.omega_m == pytest.approx(0.3089 * 1.3)
    assert edge.sigma_8 == pytest.approx(0.8159 * 0.7)
    assert edge.n_s == pytest.approx(0.9667 * 1.3)
    assert edge.h == pytest.approx(0.6774 * 0.7)
    assert edge.omega_b_h2 == middle.omega_b_h2
