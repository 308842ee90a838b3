"""Universes for CosmoFlow: parameters, a simulated box of dark matter, sample files in the official layout.

The published data set comes from pyCOLA runs on MUSIC initial conditions (paper 002, section V-B). This
module makes universes of the same kind at any size: linear theory (``cosmology``) gives Gaussian initial
conditions, 2LPT and optionally COLA move the particles (``gravity``), and a voxel holds their number.
"""

import ctypes
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.cosmoflow import Data, Simulation
from mlhpc.common.data import atomic, manifest, tfrecord
from mlhpc.common.errors import UserError
from mlhpc.common.progress import progress
from mlhpc.common.ranks.world import World
from mlhpc.cosmoflow import gravity
from mlhpc.cosmoflow.cosmology import MEAN, OMEGA_B_H2, PARAMETERS, Cosmology

REDSHIFTS = (3.0, 1.5, 0.5, 0.0)
"""The channels of a sample, early to late. The published set has four redshifts and does not state them."""

_SETTINGS = ".simulation.json"
"""Says how the files beside it were made, so that a restart never mixes two data sets. Hidden: not staged."""


def simulate(simulation: Simulation, universe: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float32]]:
    """Counts ``[grid, grid, grid, 4]`` at ``REDSHIFTS`` and the normalised parameters ``[4]`` of a universe.

    All randomness comes from ``(simulation.seed, universe)``, so a universe is the same on any rank. Each
    redshift has ``particles``³ counts in all. Up to a particle a voxel, each particle is followed and counted
    where it stands, as in the published data. Beyond, ``grid``³ clouds of particles are followed
    (``gravity.cloud_counts``): for voxels that are larger than the way particles go, as those of the small
    presets are, where counting a lattice of single particles would see no structure at z = 3.

    Raises UserError when a voxel holds more particles than an int16 can.
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
            count = gravity.counts(moved, grid)
        else:
            count = gravity.cloud_counts(moved, simulation.particles**3, rng.uniform())
        if count.max() > np.iinfo(np.int16).max:
            raise UserError(
                f"universe {universe} has {count.max()} particles in a voxel, more than an int16 holds; "
                "set data.simulation.particles lower or data.simulation.grid higher"
            )
        counts[..., channel] = count
    return counts, unit


def cut(box: npt.NDArray[np.int16], size: int) -> Iterator[npt.NDArray[np.int16]]:
    """The sub-volumes ``[size, size, size, 4]`` of a box, last axis fastest, as the official tool cuts."""
    starts = range(0, box.shape[0], size)
    for x in starts:
        for y in starts:
            for z in starts:
                yield box[x : x + size, y : y + size, z : z + size]


def make(data: Data, out: Path, world: World, workers: int, raw: bool = False) -> None:
    """Make the data set of a preset under ``out``, and its manifest. Called by all ranks.

    Sub-volume ``iii`` of a universe is ``seed<seed>_universe<number>_<iii>.tfrecord`` in ``train/`` or
    ``validation/``; with ``raw``, whole universes are ``seed<seed>/universe<number>.hdf5``, which
    ``mlhpc data convert`` cuts into the same sub-volumes. Training takes the first universes and validation
    the next, so none is in both.

    The ranks share the universes, ``workers`` processes in each. Files appear complete or not at all, and
    those that are there are kept, so the same call goes on where one was cut off. The bytes do not depend on
    ranks or workers.

    Raises UserError, the same on all ranks: settings that do not fit, a directory made with other settings,
    a full disk, a worker that was killed.
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
                first + u,
                [f"{folder}/seed{simulation.seed}_{stem.format(first + u)}_{i:03d}.tfrecord" for i in part],
            )
            for folder, first, samples in (
                ("train", 0, data.train_samples),
                ("validation", train, data.eval_samples),
            )
            for u in range(-(-samples // cuts))
            for part in [range(min(cuts, samples - u * cuts))]
        ]
    work = partial(_write_raw if raw else _write_samples, data, out)
    missing: list[tuple[int, list[str]]] = []

    def prepare() -> None:
        if world.rank == 0:
            _settle(out, {"raw": raw, **data.model_dump(mode="json")})
            missing.extend(_missing(out, tasks))

    def make_mine() -> None:
        with progress(len(todo), "universes", "universes", show=world.rank == 0) as advance:
            _run(work, todo, workers, advance)

    _together(world, prepare)
    # One rank looks what is there, before any writes: the others would see files of a moment later.
    missing = world.broadcast(missing)
    todo = missing[world.rank :: world.size]
    _together(world, make_mine)
    if missing or not (out / manifest.NAME).exists():
        files = sum(len(names) for _, names in tasks)
        with progress(files, "checksums", "files", show=world.rank == 0) as advance:
            manifest.index(out, _facts(data, raw), world, workers, lambda size: advance(world.size))
    if world.rank == 0:
        print(f"{out}: {len(missing)} universes made, {len(tasks) - len(missing)} kept")


def _checked(data: Data) -> Simulation:
    simulation, shape = data.simulation, data.sample_shape
    if simulation is None:
        raise UserError(
            "this preset needs the official data set, which cannot be made here; see docs/data_cosmoflow.md"
        )
    if len(shape) != 4 or len(set(shape[:3])) != 1 or shape[3] != len(REDSHIFTS):
        raise UserError(f"data.sample_shape is {list(shape)}; universes give [n, n, n, {len(REDSHIFTS)}]")
    if simulation.grid % shape[0]:
        raise UserError(
            f"data.simulation.grid = {simulation.grid} cannot be cut into samples of {shape[0]} voxels "
            f"a side; make it a multiple of {shape[0]}"
        )
    return simulation


def _facts(data: Data, raw: bool) -> dict[str, object]:
    """What the manifest says of the data set."""
    facts: dict[str, object] = {
        "benchmark": "cosmoflow",
        "sample_shape": list(data.sample_shape),
        "simulation": data.simulation.model_dump() if data.simulation else None,
        "redshifts": list(REDSHIFTS),
        "parameters": list(PARAMETERS),
        "mean_parameters": list(MEAN),
        "omega_b_h2": OMEGA_B_H2,
        "made_by": "mlhpc data make cosmoflow" + (" --raw" if raw else ""),
    }
    return (
        facts if raw else facts | {"samples": {"train": data.train_samples, "validation": data.eval_samples}}
    )


def _settle(out: Path, settings: dict[str, object]) -> None:
    """Make ``out`` the place of a data set with these ``settings``, or find that it is."""
    path = out / _SETTINGS
    try:
        if not path.exists():
            if out.exists() and any(out.iterdir()):
                raise UserError(
                    f"{out}: not empty, and not a data set of 'mlhpc data make'; give another --out"
                )
            out.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(path, json.dumps(settings, indent=1).encode())
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}; give another --out") from error
    # Through JSON, as what was read has been: tuples are lists there.
    if found != json.loads(json.dumps(settings)):
        differ = sorted(key for key in found.keys() | settings.keys() if found.get(key) != settings.get(key))
        raise UserError(
            f"{out}: holds a data set made with another {', '.join(differ)}; remove it or give another --out"
        )


def _missing(out: Path, tasks: Sequence[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """The universes of which a file is missing, with the missing files."""
    folders = {os.path.dirname(name) for _, names in tasks for name in names}
    for folder in folders:
        (out / folder).mkdir(exist_ok=True)
    there = {f"{folder}/{name}" for folder in folders for name in os.listdir(out / folder)}
    left = ((universe, [name for name in names if name not in there]) for universe, names in tasks)
    return [(universe, names) for universe, names in left if names]


def _write_samples(data: Data, out: Path, task: tuple[int, list[str]]) -> None:
    universe, names = task
    assert data.simulation is not None
    counts, unit = simulate(data.simulation, universe)
    wanted = {int(name.removesuffix(".tfrecord").rpartition("_")[2]): out / name for name in names}
    for number, sample in enumerate(cut(counts, data.sample_shape[0])):
        if number in wanted:
            tfrecord.write_records(wanted[number], [tfrecord.encode_example(sample, unit)], data.gzip)


def _write_raw(data: Data, out: Path, task: tuple[int, list[str]]) -> None:
    universe, (name,) = task
    assert data.simulation is not None
    write_universe(out / name, *simulate(data.simulation, universe), spread=data.simulation.spread)


def write_universe(
    path: Path, counts: npt.NDArray[np.int16], unit: npt.NDArray[np.float32], spread: float
) -> None:
    """Write a universe as HDF5: ``full`` int16 ``[g, g, g, 4]`` and ``unitPar`` float32 ``[4]``, as in the
    published raw files, and beside them ``physPar`` (the parameters in their units) and ``redshifts``.

    The file appears when it is complete. Raises OSError as the file system does.
    """
    import h5py

    with atomic.writing(path) as fd, open(fd, "r+b", closefd=False) as stream, h5py.File(stream, "w") as file:
        file["full"] = counts
        file["unitPar"] = unit
        file["physPar"] = (np.array(MEAN) * (1 + spread * unit)).astype(np.float32)
        file["redshifts"] = np.array(REDSHIFTS, np.float32)


def _run(
    work: Callable[[tuple[int, list[str]]], None],
    tasks: Sequence[tuple[int, list[str]]],
    workers: int,
    advance: Callable[[int], None],
) -> None:
    """Do ``work`` for every task in ``workers`` processes, in this one if that is enough."""
    workers = min(workers, len(tasks))
    if workers <= 1:
        _keep_memory()
        for task in tasks:
            work(task)
            advance(1)
        return
    # Spawned, not forked: the parent may hold MPI, threads of a framework, locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_keep_memory)
    try:
        # Small chunks for an even end, large enough that handing them out costs nothing.
        for _ in pool.map(work, tasks, chunksize=max(1, min(8, len(tasks) // (4 * workers)))):
            advance(1)
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most likely for want of memory; run it again with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _keep_memory() -> None:
    """Have the C library (glibc; others have no such call) keep the memory that is freed.

    A universe is hundreds of arrays that come and go; fresh pages for each took longer than the arithmetic.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD of <malloc.h>
        mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, at its largest


def _together(world: World, work: Callable[[], None]) -> None:
    """Do ``work`` on every rank and wait for all. An error of any rank is raised on all of them."""
    message = None
    try:
        work()
    except UserError as error:
        message = str(error)
    except OSError as error:
        where = error.filename or "writing the data set"
        message = f"{where}: {error.strerror or error}; check the space and the rights there"
    for rank, other in enumerate(world.gather(message)):
        if other is not None:
            raise UserError(other if world.size == 1 else f"rank {rank}: {other}")
