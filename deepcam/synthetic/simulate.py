"""Generates data sets for DeepCAM: simulated weather and its masks, in files with the published layout.

The published data set is CAM5 output labelled by TECA (Kurth et al. 2018; Farrell et al. 2021, section 2.2).
This module generates samples of the same kind at any size: ``weather`` generates the channels, and ``label`` the
masks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlhpc.benchmarks.deepcam import Data, Simulation
from mlhpc.common.data import generate, manifest
from mlhpc.common.files import atomic
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_all_ranks
from mlhpc.common.ranks.world import World
from mlhpc.deepcam.data import hdf5
from mlhpc.deepcam.data.hdf5 import CHANNELS
from mlhpc.deepcam.synthetic.label import CLASSES, label
from mlhpc.deepcam.synthetic.sphere import Field
from mlhpc.deepcam.synthetic.weather import weather
from mlhpc.errors import UserError
from mlhpc.quantities import count

STATISTICS = "stats.h5"


def simulate(
    simulation: Simulation, rows: int, columns: int, sample: int
) -> tuple[Field, npt.NDArray[np.uint8]]:
    """The channels ``[rows, columns, 16]`` of a sample, in physical units, and its mask ``[rows, columns]``.

    The random numbers depend only on ``(simulation.seed, sample)``, so a sample is the same on any rank.
    """
    channels = weather(simulation, rows, columns, sample)
    return channels, label(channels, simulation.storm_size)


def make(data: Data, out: Path, world: World, workers: int) -> None:
    """Generate the data set of a preset under ``out``, with its statistics and its manifest. Called by all ranks.

    Sample n is ``data-<n>.h5``; the first samples are in ``train/``, the next ones in ``validation/``, and the
    last ones in ``test/``. ``stats.h5`` has the smallest and largest value of each channel over ``train/``.

    The ranks divide the samples among them, and each uses ``workers`` processes. Files appear complete or not at
    all; existing files are kept, so that the same call resumes an interrupted one. The files do not depend on the
    numbers of ranks and workers.

    Raises UserError, the same on all ranks, for inconsistent settings, a folder created with other settings, a
    full disk, or a killed worker.
    """
    simulation = _checked(data)
    rows, columns, _ = data.sample_shape
    counts = {"train": data.train_samples, "validation": data.eval_samples, "test": simulation.test_samples}
    folders = [folder for folder, samples in counts.items() for _ in range(samples)]
    tasks = [(sample, [f"{folder}/data-{sample:06d}.h5"]) for sample, folder in enumerate(folders)]
    settings = {"generator": Simulation.generator, **data.model_dump(mode="json")}
    write = partial(_write, simulation, rows, columns, out)
    made = generate.write_missing(out, settings, tasks, write, "samples", world, workers)
    if made or not (out / STATISTICS).exists():
        train = [name for _, (name,) in tasks[: data.train_samples]]
        with progress(len(train), "statistics", "files", show=world.rank == 0) as advance:
            write_statistics(out, train, world, workers, lambda done: advance(done * world.size))
    if made or not (out / manifest.NAME).exists():
        facts = {
            "benchmark": "deepcam",
            "sample_shape": list(data.sample_shape),
            "channels": list(CHANNELS),
            "classes": list(CLASSES),
            "simulation": simulation.model_dump(),
            "generator": Simulation.generator,
            "made_by": "mlhpc data make deepcam",
            "samples": counts,
        }
        generate.write_manifest(out, facts, len(tasks), world, workers)
    if world.rank == 0:
        print(f"{out}: {count(made, 'sample')} made, {len(tasks) - made} kept")


def _checked(data: Data) -> Simulation:
    if data.simulation is None:
        raise UserError("the official data set cannot be generated; see docs/reference/data_deepcam.md")
    if data.sample_shape[2] != len(CHANNELS):
        raise UserError(f"data.sample_shape {list(data.sample_shape)} must have {len(CHANNELS)} channels")
    return data.simulation


def _write(simulation: Simulation, rows: int, columns: int, out: Path, task: tuple[int, list[str]]) -> None:
    sample, (name,) = task
    write_sample(out / name, *simulate(simulation, rows, columns, sample))


def write_sample(path: Path, channels: Field, mask: npt.NDArray[np.uint8]) -> None:
    """Write a sample as published: ``climate/data``, float32 ``[rows, columns, 16]``, and ``climate/labels_0``,
    int64 ``[rows, columns]``, each contiguously.

    The file appears when it is complete. Raises the file system's OSError.
    """
    import h5py

    with atomic.writing(path) as fd, open(fd, "r+b", closefd=False) as stream, h5py.File(stream, "w") as file:
        file[hdf5.DATA] = channels
        file[hdf5.LABELS] = mask.astype(np.int64)


def write_statistics(
    root: Path, names: Sequence[str], world: World, workers: int, advance: Callable[[int], None]
) -> None:
    """Write ``root/stats.h5``: ``climate/minval`` and ``climate/maxval``, float32 ``[16]``, over the samples
    ``names``. Called by all ranks; ``advance`` is called for each of this rank's files.

    Raises UserError, the same on all ranks, if a sample cannot be read or the file cannot be written.
    """
    own_names = names[world.rank :: world.size]
    parts = on_all_ranks(
        world, lambda: generate.in_processes(partial(_extremes, root), own_names, workers, advance)
    )
    low, high = zip(*(extremes for part in parts for extremes in part), strict=True)
    statistics = hdf5.Statistics(np.min(low, axis=0), np.max(high, axis=0))
    generate.write_on_all_ranks(
        world, root, lambda: hdf5.write_statistics(root / STATISTICS, statistics) if world.rank == 0 else None
    )


def _extremes(root: Path, name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    channels, _ = hdf5.read(root / name)
    # The first axis first: NumPy reduces it in long rows, but the second axis in short, slow ones.
    return channels.min(axis=0).min(axis=0), channels.max(axis=0).max(axis=0)
