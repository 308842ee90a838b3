"""Generates universes for CosmoFlow: parameters, a simulated box of dark matter, and sample files in the official
layout.

The published data set comes from pyCOLA runs with MUSIC initial conditions (Ibrahim and Oliker 2022, section V-B).
This module generates universes of the same kind at any size: linear theory (``cosmology``) yields Gaussian initial
conditions, and 2LPT and optionally COLA move the particles (``gravity``), which are then counted in voxels.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.cosmoflow import Data, Simulation
from mlhpc.common.data import generate, manifest
from mlhpc.common.files import atomic
from mlhpc.common.formats import tf_example, tfrecord
from mlhpc.common.ranks.world import World
from mlhpc.cosmoflow.synthetic import gravity
from mlhpc.cosmoflow.synthetic.cosmology import MEAN, OMEGA_B_H2, PARAMETERS, Cosmology
from mlhpc.errors import UserError
from mlhpc.quantities import count

REDSHIFTS = (3.0, 1.5, 0.5, 0.0)
"""The redshifts of a sample's channels, early to late. The published data set has four but does not state them."""


def simulate(simulation: Simulation, universe: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]:
    """Counts ``[grid, grid, grid, 4]`` at ``REDSHIFTS`` and the normalised parameters ``[4]`` of a universe.

    The random numbers depend only on ``(simulation.seed, universe)``, so a universe is the same on any rank.
    The counts of each redshift add up to ``particles``³. With up to one particle per voxel, each particle is
    tracked and counted in its voxel, as in the published data. With more, ``grid``³ clouds of particles are
    tracked (``gravity.cloud_counts``). This suits voxels larger than the particles' displacements, as in the small
    presets, where counting a lattice of single particles would show no structure at z = 3.

    Raises UserError if a voxel has more particles than int16 can represent.
    """
    rng = np.random.default_rng([simulation.seed, universe])
    unit = rng.uniform(-1, 1, len(PARAMETERS)).astype(np.float32)
    cosmology = Cosmology.from_unit(unit, simulation.spread)
    grid, followed = simulation.grid, min(simulation.particles, simulation.grid)
    modes = gravity.initial_modes(cosmology, simulation.box_mpc_h, followed, rng)
    scales = [1 / (1 + z) for z in REDSHIFTS]
    counts = np.empty((grid, grid, grid, len(scales)), np.int16)
    for channel, moved in enumerate(gravity.paths(cosmology, modes, scales, simulation.cola_steps)):
        if simulation.particles <= grid:
            in_voxels = gravity.counts(moved, grid)
        else:
            in_voxels = gravity.cloud_counts(moved, simulation.particles**3, rng)
        if in_voxels.max() > np.iinfo(np.int16).max:
            raise UserError(
                f"a voxel has {in_voxels.max()} particles, too many for int16; reduce data.simulation.particles"
            )
        counts[..., channel] = in_voxels
    return counts, unit


def cut(box: npt.NDArray[np.int16], size: int) -> Iterator[npt.NDArray[np.int16]]:
    """The sub-volumes ``[size, size, size, 4]`` of ``box`` [n, n, n, 4], with the last axis fastest, as in the
    official tool."""
    starts = range(0, box.shape[0], size)
    for x in starts:
        for y in starts:
            for z in starts:
                yield box[x : x + size, y : y + size, z : z + size]


def make(data: Data, out: Path, world: World, workers: int, raw: bool = False) -> None:
    """Generate the data set of a preset under ``out``, with its manifest. Called by all ranks.

    Sub-volume ``iii`` of a universe is the file ``seed<seed>_universe<number>_<iii>.tfrecord`` in ``train/`` or
    ``validation/``. With ``raw``, whole universes are written as ``seed<seed>/universe<number>.hdf5``, which
    ``mlhpc data convert`` divides into the same sub-volumes. The first universes are for training, and the next
    ones for validation, so that none is in both.

    The ranks divide the universes among them, and each uses ``workers`` processes. Files appear complete or not at
    all; existing files are kept, so that the same call resumes an interrupted one. The content does not depend on
    the numbers of ranks and workers.

    Raises UserError, the same on all ranks, for inconsistent settings, a folder created with other settings, a
    full disk, or a killed worker.
    """
    simulation = _checked(data)
    cuts = (simulation.grid // data.sample_shape[0]) ** 3
    train, validation = -(-data.train_samples // cuts), -(-data.eval_samples // cuts)
    stem = "universe{:06d}"
    if raw:
        tasks = [(u, [f"seed{simulation.seed}/{stem.format(u)}.hdf5"]) for u in range(train + validation)]
    else:
        tasks = [
            (
                begin + u,
                [f"{folder}/seed{simulation.seed}_{stem.format(begin + u)}_{i:03d}.tfrecord" for i in part],
            )
            for folder, begin, samples in (
                ("train", 0, data.train_samples),
                ("validation", train, data.eval_samples),
            )
            for u in range(-(-samples // cuts))
            for part in [range(min(cuts, samples - u * cuts))]
        ]
    settings = {"raw": raw, "generator": Simulation.generator, **data.model_dump(mode="json")}
    write = partial(_write_raw if raw else _write_samples, data, out)
    made = generate.write_missing(out, settings, tasks, write, "universes", world, workers)
    if made or not (out / manifest.NAME).exists():
        files = sum(len(names) for _, names in tasks)
        generate.write_manifest(out, _facts(data, raw), files, world, workers)
    if world.rank == 0:
        print(f"{out}: {count(made, 'universe')} made, {len(tasks) - made} kept")


def _checked(data: Data) -> Simulation:
    simulation, shape = data.simulation, data.sample_shape
    if simulation is None:
        raise UserError("the official data set cannot be generated; see docs/reference/data_cosmoflow.md")
    if len(shape) != 4 or len(set(shape[:3])) != 1 or shape[3] != len(REDSHIFTS):
        raise UserError(
            f"data.sample_shape {list(shape)} must be [n, n, n, {len(REDSHIFTS)}] for simulated universes"
        )
    if simulation.grid % shape[0]:
        raise UserError(f"data.simulation.grid={simulation.grid} must be a multiple of {shape[0]}")
    return simulation


def _facts(data: Data, raw: bool) -> dict[str, object]:
    """The manifest entries that describe the data set."""
    facts: dict[str, object] = {
        "benchmark": "cosmoflow",
        "sample_shape": list(data.sample_shape),
        "simulation": data.simulation.model_dump() if data.simulation else None,
        "generator": Simulation.generator,
        "redshifts": list(REDSHIFTS),
        "parameters": list(PARAMETERS),
        "mean_parameters": list(MEAN),
        "omega_b_h2": OMEGA_B_H2,
        "made_by": "mlhpc data make cosmoflow" + (" --raw" if raw else ""),
    }
    if raw:
        return facts
    return facts | {
        "gzip": data.gzip,
        **({"packer": data.packer} if data.gzip else {}),
        "samples": {"train": data.train_samples, "validation": data.eval_samples},
    }


def _write_samples(data: Data, out: Path, task: tuple[int, list[str]]) -> None:
    universe, names = task
    assert data.simulation is not None
    counts, unit = simulate(data.simulation, universe)
    wanted = {int(name.removesuffix(".tfrecord").rpartition("_")[2]): out / name for name in names}
    for number, sample in enumerate(cut(counts, data.sample_shape[0])):
        if number in wanted:
            record = tf_example.encode_example(sample, unit)
            tfrecord.write_records(wanted[number], [record], data.gzip, data.packer)


def _write_raw(data: Data, out: Path, task: tuple[int, list[str]]) -> None:
    universe, (name,) = task
    assert data.simulation is not None
    write_universe(out / name, *simulate(data.simulation, universe), spread=data.simulation.spread)


def write_universe(
    path: Path, counts: npt.NDArray[np.int16], unit: npt.NDArray[np.float32], spread: float
) -> None:
    """Write a universe as HDF5: ``full``, int16 ``[g, g, g, 4]``, and ``unitPar``, float32 ``[4]``, as in the
    published raw files, and additionally ``physPar`` (the parameters in their units) and ``redshifts``.

    The file appears when it is complete. Raises the file system's OSError.
    """
    import h5py

    with atomic.writing(path) as fd, open(fd, "r+b", closefd=False) as stream, h5py.File(stream, "w") as file:
        file["full"] = counts
        file["unitPar"] = unit
        file["physPar"] = (np.array(MEAN) * (1 + spread * unit)).astype(np.float32)
        file["redshifts"] = np.array(REDSHIFTS, np.float32)
