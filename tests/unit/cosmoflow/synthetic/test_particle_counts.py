"""Particles to counts: cloud-in-cell, its rounding, and its isotropy."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from helpers import universe_evidence as evidence
from helpers.universes import MIDDLE, SCALES, Vector

from mlhpc.benchmarks.cosmoflow import Simulation
from mlhpc.cosmoflow.synthetic import gravity
from mlhpc.cosmoflow.synthetic.simulate import simulate


def slow_cloud_in_cell(moved: list[npt.NDArray[np.float32]]) -> Vector:
    n = moved[0].shape[0]
    density = np.zeros((n, n, n))
    for site in itertools.product(range(n), repeat=3):
        # In units of cells, the cloud reaches half a cell to either side of its centre.
        low = [site[axis] + float(moved[axis][site]) for axis in range(3)]
        for corner in itertools.product((0, 1), repeat=3):
            cell = [math.floor(x) + c for x, c in zip(low, corner, strict=True)]
            share = math.prod(1 - abs(x - c) for x, c in zip(low, cell, strict=True))
            density[tuple(c % n for c in cell)] += share
    return density


def shaken(n: int, seed: int = 7) -> list[npt.NDArray[np.float32]]:
    return list(np.random.default_rng(seed).normal(0, 2, (3, n, n, n)).astype(np.float32))


def test_counts_are_cloud_in_cell_rounded_by_less_than_one_particle() -> None:
    moved = shaken(6)
    expected = slow_cloud_in_cell(moved)
    np.testing.assert_allclose(gravity._deposit(*gravity._clouds(moved, 6), 6), expected, atol=1e-5)
    counts = gravity.cloud_counts(moved, 1728, np.random.default_rng(9))
    assert counts.sum() == 1728
    assert np.abs(counts - 8 * expected).max() < 1 + 1e-4


def test_rounding_adds_white_noise_without_a_direction() -> None:
    # Counts less the cloud-in-cell density they round: by numpy's own transform, along each axis near k_Nyquist.
    n = 64
    modes = gravity.initial_modes(MIDDLE, 1024.0, n, np.random.default_rng(2))
    (moved,) = gravity.paths(MIDDLE, modes, SCALES[:1], 0)
    expected = 8 * gravity._deposit(*gravity._clouds(moved, n), n)
    noise = gravity.cloud_counts(moved, 8 * n**3, np.random.default_rng(3)) - expected
    fraction = expected % 1
    power = np.abs(np.fft.fftn(noise)) ** 2 / n**3
    # A count rounded up with probability f has the variance f (1 - f); white noise has it at every k.
    assert power.mean() == pytest.approx((fraction * (1 - fraction)).mean(), rel=0.01)
    wave = np.stack(np.meshgrid(*[np.abs(np.fft.fftfreq(n, 1 / n))] * 3, indexing="ij"))
    k = np.sqrt((wave**2).sum(axis=0))
    for shell in ((1, n / 8), (0.3 * n, n / 2)):
        for axis in range(3):
            cone = (k >= shell[0]) & (k <= shell[1]) & (wave[axis] > 0.8 * k)
            independent = cone.sum() / 2  # a mode and its conjugate are one
            pull = (power[cone].mean() / power.mean() - 1) * np.sqrt(independent)
            assert abs(pull) < 4, (shell, axis)


def test_power_near_the_nyquist_frequency_is_the_same_along_every_axis() -> None:
    # Voxels of 16 Mpc/h at z = 3, where visiting voxels in the array's order gave 14% more along the last axis.
    n, by_axis = 64, np.zeros(3)
    wave = np.stack(np.meshgrid(*[np.abs(np.fft.fftfreq(n, 1 / n))] * 3, indexing="ij"))
    k = np.sqrt((wave**2).sum(axis=0))
    shell = (k > 0.3 * n) & (k < n / 2)
    for universe in range(4):
        counts, _ = simulate(Simulation(box_mpc_h=1024.0, grid=n, particles=2 * n), universe)
        power = np.abs(np.fft.fftn(evidence.contrast(counts[..., 0]))) ** 2
        by_axis += [power[shell & (wave[axis] > 0.9 * k)].mean() for axis in range(3)]
    assert by_axis / by_axis.mean() == pytest.approx(1, abs=0.04)  # each mean scatters by 1.3%


def test_gathering_has_the_weights_of_depositing() -> None:
    # Σ over particles of a field there = Σ over cells of the field times the density.
    moved, field = shaken(6), np.random.default_rng(8).normal(size=(6, 6, 6)).astype(np.float32)
    clouds = gravity._clouds(moved, 6)
    assert gravity._gather(field, *clouds).sum() == pytest.approx(
        float((field * gravity._deposit(*clouds, 6)).sum()), abs=1e-3
    )


@pytest.mark.parametrize("grid", [3, 6, 12])
def test_counts_equal_a_plain_loop(grid: int) -> None:
    moved = shaken(6)
    slow = np.zeros((grid,) * 3, int)
    for site in itertools.product(range(6), repeat=3):
        place = [(site[a] + 0.5 + float(moved[a][site])) * grid / 6 for a in range(3)]
        slow[tuple(math.floor(x) % grid for x in place)] += 1
    assert np.abs(gravity.counts(moved, grid) - slow).sum() <= 2  # a particle on an edge may round either way


@pytest.mark.parametrize(("particles", "steps"), [(32, 0), (20, 0), (12, 3), (16, 0), (24, 3)])
def test_no_particle_is_lost(particles: int, steps: int) -> None:
    simulation = Simulation(box_mpc_h=100.0, grid=16, particles=particles, cola_steps=steps)
    counts, unit = simulate(simulation, 3)
    assert counts.dtype == np.int16 and counts.shape == (16, 16, 16, 4) and unit.dtype == np.float32
    assert counts.sum(axis=(0, 1, 2)).tolist() == [particles**3] * 4
    assert counts.min() >= 0
