"""Gravity of the simulated universes, against slow or independent versions of itself."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from helpers.universe_statistics import contrast, power_spectrum
from helpers.universes import MIDDLE, SCALES, Vector
from scipy.integrate import quad

from mlhpc.cosmoflow.synthetic import gravity
from mlhpc.cosmoflow.synthetic.cosmology import MEAN

# The initial conditions


def test_the_realised_density_has_the_requested_sigma_8() -> None:
    # Spheres of 8 Mpc/h in a linear field of 4 Mpc/h cells; the seeds differ by about 1%.
    n, box = 128, 512.0
    k = 2 * np.pi / box * np.sqrt(gravity.wave_numbers(n)[2])
    x = np.where(k == 0, 1, 8 * k)
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    spheres = []
    for seed in range(3):
        modes = gravity.initial_modes(MIDDLE, box, n, np.random.default_rng(seed))
        spheres.append(np.fft.irfftn(modes * window, s=(n, n, n), axes=(0, 1, 2)).std())
    assert np.mean(spheres) == pytest.approx(MEAN[1], rel=0.03)


def test_the_initial_modes_follow_the_linear_spectrum() -> None:
    n, box = 64, 1024.0
    modes = gravity.initial_modes(MIDDLE, box, n, np.random.default_rng(1))
    field = np.fft.irfftn(modes, s=(n, n, n), axes=(0, 1, 2))
    k, power, number = power_spectrum(field, box, 12)
    # The power of N modes (N/2 independent) scatters by √(2/N); the shells are broad, hence 3% more.
    pull = (power / MIDDLE.power(k) - 1) / np.hypot(np.sqrt(2 / number), 0.03)
    assert np.abs(pull).max() < 3


# Lagrangian perturbation theory


def slow_displacements(density: npt.NDArray[np.complex128]) -> tuple[list[Vector], list[Vector]]:
    """2LPT by plain sums over plane waves. ``density[n, n, n]`` are all modes of the linear density."""
    n = density.shape[0]
    numbers = [i - n if i > n // 2 else i for i in range(n)]
    sites = [np.array(q) for q in itertools.product(range(n), repeat=3)]

    def derivative(potential: npt.NDArray[np.complex128], axes: tuple[int, ...]) -> Vector:
        values = np.zeros(len(sites), complex)
        for index in itertools.product(range(n), repeat=3):
            wave = np.array([numbers[i] for i in index])
            factor = math.prod((0 if 2 * wave[a] == n else 2j * np.pi * wave[a] / n) for a in axes)
            phases = np.array([np.exp(2j * np.pi * (wave @ q) / n) for q in sites])
            values += factor * potential[index] * phases / n**3
        return values.real.reshape(n, n, n)

    def potential(source: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
        solved = np.zeros_like(source)
        for index in itertools.product(range(n), repeat=3):
            square = sum((2 * np.pi * numbers[i] / n) ** 2 for i in index)
            solved[index] = -source[index] / square if square else 0
        return solved

    first = potential(density)
    hessian = {(i, j): derivative(first, (i, j)) for i in range(3) for j in range(i, 3)}
    source = sum(
        hessian[i, i] * hessian[j, j] - hessian[i, j] ** 2 for i, j in itertools.combinations(range(3), 2)
    )
    second = potential(np.fft.fftn(source))
    return [-derivative(first, (i,)) for i in range(3)], [derivative(second, (i,)) for i in range(3)]


def test_displacements_equal_plain_sums_over_plane_waves() -> None:
    field = np.random.default_rng(3).standard_normal((4, 4, 4)).astype(np.float32)
    first, second = gravity.displacements(np.fft.rfftn(field).astype(np.complex64))
    slow_first, slow_second = slow_displacements(np.fft.fftn(field))
    np.testing.assert_allclose(first, slow_first, atol=2e-6)
    np.testing.assert_allclose(second, slow_second, atol=2e-6)
    assert np.std(second) > 0.01


def test_a_plane_wave_has_no_second_order_and_attracts_as_zeldovich_says() -> None:
    # ∇⁻²∇δ of a faint wave is minus its displacement. The lattice of particles itself adds 5%.
    n = 32
    x = 2 * np.pi * (np.arange(n) + 0.5) / n
    wave = np.broadcast_to(0.005 * np.cos(x)[:, None, None], (n, n, n))
    first, second = gravity.displacements(np.fft.rfftn(wave).astype(np.complex64))
    assert np.abs(second).max() < 1e-6
    pull = gravity.attraction(first)
    assert np.abs(pull[0] - first[0]).max() < 0.07 * np.abs(first[0]).max()
    assert np.abs(pull[1:]).max() < 1e-5


def plain_particle_mesh(modes: npt.NDArray[np.complex64], steps: int) -> list[Vector]:
    """How far particles come from a = 0.1 to 1 by plain leapfrog, no COLA: T x = v, T v = 3/2 Ω_M a g, with
    T = a³E d/da and g the mesh's attraction. The start has 2LPT's places and velocities."""
    first, second = gravity.displacements(modes)
    begin, step = gravity.COLA_START, 1e-4

    def start(a: float) -> list[Vector]:
        d1, d2 = float(MIDDLE.growth(a)), float(MIDDLE.second_growth(a))
        return [d1 * p1.astype(float) + d2 * p2 for p1, p2 in zip(first, second, strict=True)]

    def pace(a: float) -> float:
        return a**3 * float(MIDDLE.expansion(a))

    place = start(begin)
    ahead, behind = start(begin + step), start(begin - step)
    speed = [pace(begin) * (b - a) / (2 * step) for a, b in zip(behind, ahead, strict=True)]
    edges = np.geomspace(begin, 1, steps + 1)
    for a0, a1 in itertools.pairwise(edges):
        middle = (a0 + a1) / 2
        place = [x + v * (middle - a0) / pace((a0 + middle) / 2) for x, v in zip(place, speed, strict=True)]
        pull = gravity.attraction([x.astype(np.float32) for x in place])
        kick = 1.5 * MIDDLE.omega_m * middle * (a1 - a0) / pace(middle)
        speed = [v + kick * g for v, g in zip(speed, pull, strict=True)]
        place = [x + v * (a1 - middle) / pace((middle + a1) / 2) for x, v in zip(place, speed, strict=True)]
    return place


def test_cola_tends_to_plain_particle_mesh_steps() -> None:
    modes = gravity.initial_modes(MIDDLE, 64.0, 16, np.random.default_rng(6))
    plain = np.array(plain_particle_mesh(modes, 200))

    def distance(steps: int) -> float:
        *_, today = gravity.paths(MIDDLE, modes, SCALES, steps)
        return float(np.sqrt(np.mean((np.array(today) - plain) ** 2)))

    assert distance(0) > 0.15  # cells: what 2LPT without COLA misses
    assert distance(10) < 0.1 * distance(0)
    assert distance(100) < 0.002 * distance(0)


@pytest.mark.parametrize(("begin", "end"), [(0.10, 0.11), (0.95, 1.0)])
def test_kick_and_drift_tend_to_the_time_that_passes(begin: float, end: float) -> None:
    # Both integrate dt = da / (a³E), the kick and the drift with a weight that is 1 at the middle.
    passed = quad(lambda a: 1 / (a**3 * float(MIDDLE.expansion(a))), begin, end)[0]
    middle = (begin + end) / 2
    assert gravity._kick(MIDDLE, begin, end, middle) == pytest.approx(passed, rel=1e-2)
    assert gravity._drift(MIDDLE, begin, end, middle) == pytest.approx(passed, rel=1e-2)


def test_cola_converges_in_the_number_of_steps_and_clusters_more_than_2lpt() -> None:
    n, box = 32, 64.0
    modes = gravity.initial_modes(MIDDLE, box, n, np.random.default_rng(5))
    spectra = []
    for steps in (0, 10, 20, 40):
        *_, today = gravity.paths(MIDDLE, modes, SCALES, steps)
        k, power, _ = power_spectrum(contrast(gravity.counts(today, n)), box, 8)
        spectra.append(power[k < 1.0])
    lpt, ten, twenty, forty = spectra
    assert np.abs(twenty / forty - 1).max() < np.abs(ten / forty - 1).max() < 0.15
    # 2LPT's particles fly through the haloes that particle-mesh forces hold together.
    assert forty[-1] > 1.5 * lpt[-1]


def test_few_cola_steps_lose_the_small_scales_by_as_much_as_documented() -> None:
    # Against plain leapfrog without COLA's splitting, 150 steps on the same mesh of 1 Mpc/h.
    n = box = 24
    modes = gravity.initial_modes(MIDDLE, box, n, np.random.default_rng(5))

    def power(moved: Sequence[npt.NDArray[np.floating]]) -> Vector:
        counts = gravity.counts([axis.astype(np.float32) for axis in moved], n)
        return power_spectrum(contrast(counts), box, 12)[1][3:8]  # k = 1 to 2.5 h/Mpc

    plain = power(plain_particle_mesh(modes, 150))
    ratio = {}
    for steps in (5, 10, 40):
        *_, today = gravity.paths(MIDDLE, modes, SCALES, steps)
        ratio[steps] = power(today) / plain
    assert ratio[5].mean() < ratio[10].mean() < ratio[40].mean()
    assert 0.65 < ratio[10].min() < ratio[10].max() < 1.02
    assert np.abs(ratio[40] - 1).max() < 0.08


def test_the_force_mesh_is_fine_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    n, box = 32, 64.0
    modes = gravity.initial_modes(MIDDLE, box, n, np.random.default_rng(5))
    powers = []
    for mesh in (1, 2, 3):
        monkeypatch.setattr(gravity, "FORCE_MESH", mesh)
        *_, today = gravity.paths(MIDDLE, modes, SCALES, 10)
        powers.append(power_spectrum(contrast(gravity.counts(today, n)), box, 6)[1])
    coarse, used, fine = powers
    assert np.abs(used / fine - 1)[:5].max() < 0.15
    assert (coarse / fine)[3] < 0.75
