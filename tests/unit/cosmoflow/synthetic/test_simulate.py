"""Universes: the physics against slow or independent versions of itself, and the making of data sets."""

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers.thread_world import on_ranks
from helpers.unpacked import content
from scipy.integrate import quad

from mlhpc.benchmarks.cosmoflow import Data, Simulation
from mlhpc.common.data import manifest
from mlhpc.common.data.generate import in_processes
from mlhpc.common.formats import tfrecord
from mlhpc.common.ranks.world import Solo
from mlhpc.cosmoflow.synthetic import evidence, gravity
from mlhpc.cosmoflow.synthetic.cosmology import MEAN, Cosmology
from mlhpc.cosmoflow.synthetic.show import show
from mlhpc.cosmoflow.synthetic.simulate import REDSHIFTS, cut, make, simulate, write_universe
from mlhpc.errors import AlreadyReported, UserError

SCALES = [1 / (1 + z) for z in REDSHIFTS]
MIDDLE = Cosmology.from_unit([0, 0, 0, 0], 0.3)
Vector = npt.NDArray[np.float64]


def small(**changes: object) -> Data:
    """A data set of 6 universes of 8³ voxels, each cut in 8 samples of 4³."""
    simulation = {"box_mpc_h": 128.0, "grid": 8, "particles": 16}
    settings = {
        "train_samples": 29,
        "eval_samples": 16,
        "sample_shape": (4, 4, 4, 4),
        "simulation": Simulation(**simulation),
    }
    return Data(**settings | changes)  # type: ignore[arg-type]


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
    k, power, number = evidence.power_spectrum(field, box, 12)
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

    assert distance(0) > 0.15  # cells: what 2LPT alone misses
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
        k, power, _ = evidence.power_spectrum(evidence.contrast(gravity.counts(today, n)), box, 8)
        spectra.append(power[k < 1.0])
    lpt, ten, twenty, forty = spectra
    assert np.abs(twenty / forty - 1).max() < np.abs(ten / forty - 1).max() < 0.15
    # 2LPT's particles fly through the haloes that particle-mesh forces hold together.
    assert forty[-1] > 1.5 * lpt[-1]


def test_few_cola_steps_lose_the_small_scales_by_as_much_as_documented() -> None:
    # Against plain leapfrog without COLA's splitting, 150 steps on the same mesh of 1 Mpc/h.
    n = box = 24
    modes = gravity.initial_modes(MIDDLE, box, n, np.random.default_rng(5))

    def power(moved: list[Vector]) -> Vector:
        counts = gravity.counts([axis.astype(np.float32) for axis in moved], n)
        return evidence.power_spectrum(evidence.contrast(counts), box, 12)[1][3:8]  # k = 1 to 2.5 h/Mpc

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
        powers.append(evidence.power_spectrum(evidence.contrast(gravity.counts(today, n)), box, 6)[1])
    coarse, used, fine = powers
    assert np.abs(used / fine - 1)[:5].max() < 0.15
    assert (coarse / fine)[3] < 0.75


# Counting particles


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
    # The preset mini at z = 3, where visiting voxels in the order of the array gave 14% more along the last axis.
    n, found = 64, np.zeros(3)
    wave = np.stack(np.meshgrid(*[np.abs(np.fft.fftfreq(n, 1 / n))] * 3, indexing="ij"))
    k = np.sqrt((wave**2).sum(axis=0))
    shell = (k > 0.3 * n) & (k < n / 2)
    for universe in range(4):
        counts, _ = simulate(Simulation(box_mpc_h=1024.0, grid=n, particles=2 * n), universe)
        power = np.abs(np.fft.fftn(evidence.contrast(counts[..., 0]))) ** 2
        found += [power[shell & (wave[axis] > 0.9 * k)].mean() for axis in range(3)]
    assert found / found.mean() == pytest.approx(1, abs=0.04)  # each mean scatters by 1.3%


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


# Whole universes


def test_clustering_grows_as_linear_theory_says_on_large_scales() -> None:
    found = evidence.spectra(Simulation(box_mpc_h=1024.0, grid=64, particles=128), universes=6)
    large = found.k < 0.06  # a third of the Nyquist frequency
    assert large.sum() == 6
    assert np.abs(found.growth[:, large] - 1).max() < 0.06  # rounding to whole particles adds 1% at z = 3
    # And it is the right spectrum that grows: 6 universes of 1300 modes, before the voxels' window sets in.
    clean = (found.k > 0.012) & (found.k < 0.04)
    assert clean.sum() == 3
    assert np.abs(found.power[:, clean].mean(axis=1) - 1).max() < 0.1


def test_universes_differ_by_number_and_seed_and_fill_the_range_of_parameters() -> None:
    def units(seed: int, numbers: range) -> npt.NDArray[np.float32]:
        tiny = Simulation(box_mpc_h=64.0, grid=2, particles=2, seed=seed)
        return np.array([simulate(tiny, number)[1] for number in numbers])

    first = units(1, range(200))
    assert len({tuple(unit) for unit in first}) == 200
    assert not np.isin(units(2, range(50)), first).any()
    assert np.array_equal(units(1, range(30, 40)), first[30:40])
    assert first.min() < -0.97 and first.max() > 0.97 and np.abs(first.mean(axis=0)).max() < 0.15


def test_a_sample_has_the_published_samples_statistics() -> None:
    # Paper 002, figure 5: hundreds of values, a power law, few groups of four; gzip 5 times (section IV).
    # A sixteenth of a published sample's voxels has fewer rare values.
    counts, _ = simulate(Simulation(box_mpc_h=64.0, grid=64, particles=64, cola_steps=5), 0)
    found = evidence.statistics(counts)
    assert 100 < found.values < 1000
    assert found.groups < 0.06 * counts[..., 0].size
    assert found.groups < found.values**4 / 1e4
    assert -4 < found.slope < -1.5
    assert 3.5 < found.gzip < 6.5


def test_too_many_particles_for_int16_are_refused() -> None:
    with pytest.raises(UserError, match=r"\d+ particles in a voxel.*data\.simulation\.particles"):
        simulate(Simulation(box_mpc_h=100.0, grid=2, particles=70), 0)


# Data sets


def test_the_official_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = small()
    make(data, tmp_path / "d", Solo(), workers=1)
    assert "6 universes made, 0 kept" in capsys.readouterr().out
    train = sorted(path.name for path in (tmp_path / "d/train").iterdir())
    held = sorted(path.name for path in (tmp_path / "d/validation").iterdir())
    assert len(train) == 29 and len(held) == 16
    assert train[:2] == ["seed2019_universe000000_000.tfrecord", "seed2019_universe000000_001.tfrecord"]
    # No universe on both sides.
    assert not {name.split("_")[1] for name in train} & {name.split("_")[1] for name in held}
    # One example a file: the sub-volume that numpy's own cutting, as in the official tool, has there.
    counts, unit = simulate(data.simulation, 1)  # type: ignore[arg-type]
    pieces = [z for x in np.split(counts, 2) for y in np.split(x, 2, axis=1) for z in np.split(y, 2, axis=2)]
    for number, piece in enumerate(pieces):
        path = tmp_path / f"d/train/seed2019_universe000001_{number:03d}.tfrecord"
        assert path.read_bytes()[:2] == b"\x1f\x8b"
        ((x, y),) = tfrecord.read_examples(path)
        assert np.array_equal(np.frombuffer(x, "<i2").reshape(4, 4, 4, 4), piece)
        assert np.array_equal(y, unit)
    found = manifest.load(tmp_path / "d")
    assert found.samples("train") == 29 and found.samples("validation") == 16
    assert found.facts["simulation"]["box_mpc_h"] == 128.0 and found.facts["redshifts"] == [
        3.0,
        1.5,
        0.5,
        0.0,
    ]
    assert manifest.verify(tmp_path / "d", 2) == []


def test_the_bytes_depend_on_neither_workers_nor_ranks(tmp_path: Path) -> None:
    data = small()
    make(data, tmp_path / "one", Solo(), workers=1)
    make(data, tmp_path / "two", Solo(), workers=2)
    outcomes = on_ranks(3, 1, lambda world: make(data, tmp_path / "ranks", world, workers=1))
    assert outcomes == [None] * 3
    assert content(tmp_path / "one") == content(tmp_path / "two") == content(tmp_path / "ranks")


def test_a_restart_keeps_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = small()
    make(data, tmp_path, Solo(), workers=1)
    before = content(tmp_path)
    gone = tmp_path / "train/seed2019_universe000002_005.tfrecord"
    gone.unlink()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tfrecord")}
    capsys.readouterr()
    make(data, tmp_path, Solo(), workers=1)
    assert "1 universe made, 5 kept" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tfrecord") if path != gone} == times
    assert content(tmp_path) == before


def test_a_killed_making_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    simulation = Simulation(box_mpc_h=256.0, grid=16, particles=32)
    data = small(
        sample_shape=(16, 16, 16, 4), train_samples=300, eval_samples=4, simulation=simulation, gzip=False
    )
    program = (
        "import sys; from pathlib import Path; from mlhpc.benchmarks.cosmoflow import Data;"
        "from mlhpc.common.ranks.world import Solo; from mlhpc.cosmoflow.synthetic.simulate import make;"
        "make(Data.model_validate_json(sys.argv[1]), Path(sys.argv[2]), Solo(), 1)"
    )
    cut_off = tmp_path / "cut off"
    victim = subprocess.Popen([sys.executable, "-c", program, data.model_dump_json(), str(cut_off)])
    try:
        while not (cut_off / "train").is_dir() or len(os.listdir(cut_off / "train")) < 10:
            assert victim.poll() is None
            time.sleep(0.005)
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    there = len(list(cut_off.rglob("*.tfrecord")))
    assert 10 <= there < 300
    make(data, cut_off, Solo(), workers=1)
    make(data, tmp_path / "whole", Solo(), workers=1)
    leftovers = {name for name in content(cut_off) if name.endswith(".part")}
    assert {n: b for n, b in content(cut_off).items() if n not in leftovers} == content(tmp_path / "whole")


def test_raw_universes_cut_to_the_same_samples(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    data = small()
    make(data, tmp_path / "raw", Solo(), workers=1, raw=True)
    make(data, tmp_path / "cut", Solo(), workers=1)
    files = sorted((tmp_path / "raw").glob("*/*.hdf5"))
    assert [path.name for path in files] == [f"universe{u:06d}.hdf5" for u in range(6)]
    assert {path.parent.name for path in files} == {"seed2019"}
    with h5py.File(files[5]) as file:
        full, unit, physical = file["full"][:], file["unitPar"][:], file["physPar"][:]
        assert file["redshifts"][:].tolist() == [3.0, 1.5, 0.5, 0.0]
    assert full.dtype == np.int16 and full.shape == (8, 8, 8, 4) and unit.dtype == np.float32
    np.testing.assert_allclose(physical, np.array(MEAN) * (1 + 0.3 * unit), rtol=1e-6)
    for number, piece in enumerate(cut(full, 4)):
        path = tmp_path / f"cut/validation/seed2019_universe000005_{number:03d}.tfrecord"
        ((x, y),) = tfrecord.read_examples(path)
        assert x == piece.tobytes() and np.array_equal(y, unit)


def times_in(path: Path, first: float, last: float) -> list[int]:
    """The seconds from ``first`` to ``last`` in the file, as HDF5 stores times: four bytes, little-endian."""
    content = path.read_bytes()
    return [t for t in range(int(first), int(last) + 1) if t.to_bytes(4, "little") in content]


def test_raw_files_appear_complete_and_hold_no_time_of_writing(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    counts, unit = simulate(Simulation(box_mpc_h=64.0, grid=4, particles=4), 0)
    begin = time.time()
    write_universe(tmp_path / "a.hdf5", counts, unit, 0.3)
    write_universe(tmp_path / "b.hdf5", counts, unit, 0.3)
    with h5py.File(tmp_path / "dated.hdf5", "w") as file:
        file.create_dataset("full", data=counts, track_times=True)
    end = time.time()
    assert (tmp_path / "a.hdf5").read_bytes() == (tmp_path / "b.hdf5").read_bytes()
    assert times_in(tmp_path / "a.hdf5", begin, end) == []
    assert times_in(tmp_path / "dated.hdf5", begin, end), (
        "HDF5 stores times otherwise: this test sees nothing"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.hdf5", "b.hdf5", "dated.hdf5"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"simulation": None}, "official data set"),
        ({"sample_shape": (4, 4, 4)}, r"universes give \[n, n, n, 4\]"),
        ({"sample_shape": (4, 4, 2, 4)}, r"universes give \[n, n, n, 4\]"),
        ({"sample_shape": (3, 3, 3, 4)}, "make it a multiple of 3"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make(small(**changes), tmp_path / "d", Solo(), workers=1)
    assert not (tmp_path / "d").exists()


def test_two_data_sets_are_never_mixed(tmp_path: Path) -> None:
    make(small(), tmp_path / "d", Solo(), workers=1)
    other = Simulation(box_mpc_h=100.0, grid=8, particles=16)
    with pytest.raises(UserError, match="another simulation; remove it or give another folder"):
        make(small(simulation=other), tmp_path / "d", Solo(), workers=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("…")
    with pytest.raises(UserError, match="not empty"):
        make(small(), tmp_path / "mine", Solo(), workers=1)


def test_an_error_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    # The seventieth particle a side overflows a voxel in every universe; rank 2 of 3 has none to make.
    data = small(
        train_samples=1,
        eval_samples=1,
        sample_shape=(2, 2, 2, 4),
        simulation=Simulation(box_mpc_h=100.0, grid=2, particles=70),
    )
    outcomes = on_ranks(3, 1, lambda world: make(data, tmp_path / "d", world, workers=1))
    assert [type(outcome) for outcome in outcomes] == [UserError, AlreadyReported, AlreadyReported]
    assert len({str(outcome) for outcome in outcomes}) == 1


def _die(task: tuple[int, list[str]]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_reported_not_waited_for() -> None:
    with pytest.raises(UserError, match="killed, probably out of memory"):
        in_processes(_die, [(0, []), (1, [])], 2, lambda count: None)


# The picture and the regression


def test_show_draws_a_sample(tmp_path: Path) -> None:
    make(small(), tmp_path / "d", Solo(), workers=1)
    sample = tmp_path / "d/train/seed2019_universe000000_000.tfrecord"
    show(sample, tmp_path / "sample.png")
    assert (tmp_path / "sample.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(UserError, match=r"cannot be written: there is no folder .*no such; make it or"):
        show(sample, tmp_path / "no such/sample.png")
    tfrecord.write_records(
        tmp_path / "odd", [tfrecord.encode_example(np.zeros(9, np.int16), np.zeros(4))], False
    )
    with pytest.raises(UserError, match="not one sample"):
        show(tmp_path / "odd", tmp_path / "odd.png")


def test_power_spectra_tell_the_parameters(tmp_path: Path) -> None:
    data = Data(
        train_samples=400,
        eval_samples=100,
        sample_shape=(16, 16, 16, 4),
        simulation=Simulation(box_mpc_h=256.0, grid=16, particles=32),
    )
    make(data, tmp_path, Solo(), workers=1)
    found = evidence.power_spectrum_regression(tmp_path)
    # Guessing the middle is wrong by 0.5. The amplitude is easy, the Hubble constant hard.
    assert found.error < 0.35
    assert found.errors[1] < 0.12
