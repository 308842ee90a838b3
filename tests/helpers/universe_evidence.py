"""Evidence for the universes of ``simulate``: ``python tests/helpers/universe_evidence.py``.

``spectra`` compares the power spectra of a few universes with linear theory, ``statistics`` computes the
statistics of Ibrahim and Oliker 2022 (figure 5), and ``regression DATA`` measures how well the parameters can
be inferred from the power spectra of a data set: the limit of its volume, before a network is trained.
docs/reference/data_cosmoflow.md has the figures.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft

from mlhpc.benchmarks.cosmoflow import Simulation
from mlhpc.common.formats import tf_example, tfrecord
from mlhpc.cosmoflow.synthetic import gravity
from mlhpc.cosmoflow.synthetic.cosmology import PARAMETERS, Cosmology
from mlhpc.cosmoflow.synthetic.simulate import REDSHIFTS, simulate
from mlhpc.errors import UserError, count

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int16]


def power_spectrum(field: npt.NDArray[np.floating[Any]], box: float, bins: int) -> tuple[Array, Array, Array]:
    """Mean wave number (h/Mpc), power ((Mpc/h)³) and number of modes in ``bins`` equal shells of k.

    ``field [n, n, n]`` is a density contrast in a periodic box of ``box`` Mpc/h per side; the shells reach from
    half the fundamental mode to 1.6 times the Nyquist frequency. Modes and their conjugates both count.
    """
    n = field.shape[0]
    shell, weight, length = _shells(n, bins)
    modes = weight * np.abs(fft.rfftn(field).ravel()) ** 2
    number = np.bincount(shell, weight, bins + 2)[1:-1]
    power: Array = np.bincount(shell, modes, bins + 2)[1:-1] / number * box**3 / n**6
    k: Array = np.bincount(shell, weight * length, bins + 2)[1:-1] / number * 2 * np.pi / box
    return k, power, number.astype(np.float64)


@lru_cache(maxsize=2)
def _shells(n: int, bins: int) -> tuple[npt.NDArray[np.int64], Array, Array]:
    """For each mode kept by ``rfftn``: shell (0 and bins + 1 are outside), weight, |k| / fundamental."""
    length = np.sqrt(gravity.wave_numbers(n)[2].astype(np.float64))
    weight = np.full(length.shape, 2.0)
    # The planes that hold the conjugates of their own modes: k_z = 0 and, for even n, the Nyquist frequency.
    weight[..., [0, n // 2] if n % 2 == 0 else 0] = 1
    edges = np.linspace(0.5, 0.8 * n, bins + 1)
    return np.digitize(length, edges).ravel(), weight.ravel(), length.ravel()


def contrast(counts: npt.NDArray[np.number[Any]]) -> Array:
    """Density contrast of particle counts: count / mean - 1."""
    density: Array = counts / counts.mean() - 1
    return density


@dataclass(frozen=True)
class Regression:
    """Mean absolute error of each normalised parameter on the validation samples, with details."""

    errors: Array
    train: int
    validation: int

    @property
    def error(self) -> float:
        """The mean over the parameters, the target metric of the benchmark."""
        return float(self.errors.mean())


def power_spectrum_regression(data: Path, workers: int = 1) -> Regression:
    """Ridge regression of the parameters on the binned power spectra of the samples in ``data``.

    Features, by redshift: log power of the counts and of log(1 + counts) in shells, mean and spread of
    log(1 + counts); then their squares. The ridge is chosen by five-fold cross-validation in ``train/``.
    This estimate uses only the main statistic of the physics: a network should reach it, and has the same
    limit from the number of modes in the volume.

    Raises UserError if ``data`` has no samples or a file is corrupt.
    """
    sets = []
    for folder in ("train", "validation"):
        files = sorted((data / folder).glob("*.tfrecord"))
        if len(files) < 10:
            raise UserError(
                f"{data / folder}: {count(len(files), 'sample')}; a regression needs some hundreds"
            )
        with ProcessPoolExecutor(workers) as pool:
            rows = list(pool.map(_features, files, chunksize=16))
        sets.append((np.array([x for x, _ in rows]), np.array([y for _, y in rows])))
    (x, y), (x_held, y_held) = sets
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    design, held = (_with_squares((features - mean) / spread) for features in (x, x_held))
    folds = np.arange(len(y)) % 5

    def doubt(ridge: float) -> float:
        total = 0.0
        for fold in range(5):
            out = folds == fold
            total += float(np.abs(_ridge(design[~out], y[~out], design[out], ridge) - y[out]).sum())
        return total

    best = min(10.0 ** np.arange(-2, 5), key=doubt)
    errors = np.abs(_ridge(design, y, held, best) - y_held).mean(axis=0)
    return Regression(errors, len(y), len(y_held))


def _features(path: Path) -> tuple[Array, npt.NDArray[np.float32]]:
    ((raw, unit),) = tf_example.read_examples(path)
    voxels = np.frombuffer(raw, "<i2")
    n = round((voxels.size / len(REDSHIFTS)) ** (1 / 3))
    voxels = voxels.reshape(n, n, n, len(REDSHIFTS))
    parts: list[npt.ArrayLike] = []
    for channel in range(len(REDSHIFTS)):
        counts = voxels[..., channel].astype(np.float32)
        logs = np.log1p(counts)
        parts.append([logs.mean(), logs.std()])
        for field in (contrast(counts), logs - logs.mean()):
            parts.append(np.log(power_spectrum(field, 1.0, min(20, n // 2))[1] + 1e-12))
    return np.concatenate([np.ravel(part) for part in parts]), unit


def _with_squares(features: Array) -> Array:
    return np.hstack([features, features**2 - 1, np.ones((len(features), 1))])


def _ridge(x: Array, y: Array, held: Array, ridge: float) -> Array:
    weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    return np.clip(held @ weights, -1, 1)


@dataclass(frozen=True)
class Spectrum:
    """Mean power of some universes by shell of k, compared with linear theory at each of ``REDSHIFTS``.

    ``growth [4, shells]`` is measured P(z)/P(0) over D², ``power [4, shells]`` measured P over linear P.
    """

    k: Array
    growth: Array
    power: Array


def spectra(simulation: Simulation, universes: int, bins: int = 32) -> Spectrum:
    """Measure the power spectra of the first ``universes``, mean over modes and universes.

    The linear spectrum is that of each universe's own parameters. Without corrections: the voxel window
    lowers the power near the Nyquist frequency.
    """
    measured, linear = np.zeros((2, len(REDSHIFTS), bins))
    growth = np.zeros((len(REDSHIFTS), bins))
    scales = 1 / (1 + np.array(REDSHIFTS))
    k = np.zeros(bins)
    for universe in range(universes):
        counts, unit = simulate(simulation, universe)
        cosmology = Cosmology.from_unit(unit, simulation.spread)
        power = np.empty((len(REDSHIFTS), bins))
        for channel in range(len(REDSHIFTS)):
            k, power[channel], _ = power_spectrum(contrast(counts[..., channel]), simulation.box_mpc_h, bins)
        squared = cosmology.growth(scales)[:, None] ** 2
        measured += power / cosmology.power(k)
        linear += squared
        growth += power / power[-1] / squared
    return Spectrum(k, growth / universes, measured / linear)


@dataclass(frozen=True)
class Statistics:
    """The statistics of Ibrahim and Oliker 2022, figure 5, of one sample ``[n, n, n, 4]``.

    ``slope`` is that of log frequency against log value over the values above the mean in more than ten
    voxels; ``gzip`` is the size of the sample over its compressed size in the official preparation.
    """

    values: int
    groups: int
    largest: int
    slope: float
    gzip: float


def statistics(counts: Counts) -> Statistics:
    """Count unique values, unique groups of four, the tail of the frequencies, and the gzip ratio."""
    values, frequency = np.unique(counts, return_counts=True)
    groups = np.unique(np.ascontiguousarray(counts).view(np.int64)).size
    tail = (values > max(1.0, counts.mean())) & (frequency > 10)
    slope = float(np.polyfit(np.log(values[tail]), np.log(frequency[tail]), 1)[0])
    record = tf_example.encode_example(counts, np.zeros(len(PARAMETERS), np.float32))
    packed = len(tfrecord.compress(record, "zlib"))
    return Statistics(values.size, groups, int(values[-1]), slope, len(record) / packed)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser("python tests/helpers/universe_evidence.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    spectrum = commands.add_parser("spectra", help="power spectra against linear theory")
    counting = commands.add_parser(
        "statistics", help="the statistics of a sample in figure 5 of Ibrahim and Oliker 2022"
    )
    for command, box, particles, steps in ((spectrum, 1024.0, 256, 0), (counting, 128.0, 128, 10)):
        command.add_argument("--box", type=float, default=box, help="side in Mpc/h (%(default)s)")
        command.add_argument("--grid", type=int, default=128, help="voxels per side (%(default)s)")
        command.add_argument(
            "--particles", type=int, default=particles, help="particles per side (%(default)s)"
        )
        command.add_argument("--steps", type=int, default=steps, help="COLA steps (%(default)s)")
        command.add_argument("--universes", type=int, default=3, help="how many (%(default)s)")
    regression = commands.add_parser(
        "regression", help="parameters inferred from the power spectra of a data set"
    )
    regression.add_argument("data", type=Path, help="folder with train/ and validation/")
    regression.add_argument("--workers", type=int, default=2, help="processes (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.command == "regression":
        fit = power_spectrum_regression(options.data, options.workers)
        each = ", ".join(f"{name} {error:.3f}" for name, error in zip(PARAMETERS, fit.errors, strict=True))
        print(f"mean absolute error {fit.error:.3f} ({each}); {fit.train} + {fit.validation} samples")
        return
    simulation = Simulation(
        box_mpc_h=options.box, grid=options.grid, particles=options.particles, cola_steps=options.steps
    )
    if options.command == "spectra":
        shown = spectra(simulation, options.universes)
        print("k (h/Mpc)  " + "".join(f"P/P_lin z={z:<5g}" for z in REDSHIFTS), end="")
        print("".join(f"P(z)/P(0)/D² z={z:<5g}" for z in REDSHIFTS[:-1]))
        for k, power, growth in zip(shown.k, shown.power.T, shown.growth.T, strict=True):
            print(f"{k:9.4f}  " + "".join(f"{p:<14.3f}" for p in power), end="")
            print("".join(f"{g:<20.3f}" for g in growth[:-1]))
        return
    for universe in range(options.universes):
        counts, _ = simulate(simulation, universe)
        s = statistics(counts)
        print(
            f"universe {universe}: {s.values} values up to {s.largest}, {s.groups} groups of four of "
            f"{s.values**4:.1e} possible, frequency ~ value^{s.slope:.2f}, gzip {s.gzip:.2f} times smaller"
        )


if __name__ == "__main__":
    main()
