"""Volumes with fractals of three classes: how they are generated, stored and read."""

from functools import partial
from pathlib import Path

import numpy as np

from mlhpc.common.data import generate
from mlhpc.common.data.loader import Source, by_threads
from mlhpc.common.formats import npy
from mlhpc.common.ranks.world import World
from mlhpc.common.training.dataset import cores_per_rank
from mlhpc.errors import UserError
from mlhpc_unet3d.settings import Data, Simulation, UNet3D

CORNERS = np.array([(i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)])
SYSTEMS = (
    (1 / 2, CORNERS[CORNERS.sum(1) % 2 == 0]),  # Sierpinski's tetrahedron: every second corner of a cube
    (1 / 3, np.vstack([CORNERS, [[0.5] * 3]])),  # dust: all corners and the centre
    (1 / 4, np.array([(i, j, k / 3) for i in (0, 1) for j in (0, 1) for k in range(4)])),  # a bundle of lines
)
"""Iterated function systems of classes 1, 2 and 3: ratio r and fixed points p of the maps x → p + r (x - p). Their
similarity dimension is 2 (Hutchinson 1981), so that density tells the classes apart as little as intensity."""
CLASSES = 1 + len(SYSTEMS)
VOXEL = np.dtype([("x", "<f2"), ("y", "u1")])  # intensity and class


def volume(simulation: Simulation, shape: tuple[int, ...], number: int) -> np.ndarray:
    """Volume ``number`` of a data set, ``VOXEL [d, h, w]``: in each octant a fractal of a random class, direction,
    size and position, or none; clutter, single voxels as bright as fractals; and noise."""
    random = np.random.default_rng([simulation.seed, number])
    octant, made = np.array(shape) // 2, np.zeros(shape, VOXEL)
    for corner, label in zip(CORNERS, random.integers(CLASSES, size=len(CORNERS)), strict=True):
        if label:
            points = fractal(*SYSTEMS[label - 1], random) * random.uniform(0.75, 1) * octant.min()
            points += random.uniform(size=3) * (octant - points.max(0))
            made["y"][tuple((np.minimum(points.astype(int), octant - 1) + corner * octant).T)] = label
    bright = (made["y"] > 0) | (random.random(shape) < simulation.clutter)
    made["x"] = bright + simulation.noise * random.standard_normal(shape)
    return made


def fractal(ratio: float, fixed: np.ndarray, random: np.random.Generator, points: int = 4096) -> np.ndarray:
    """Points ``[points, 3]`` of an attractor (chaos game), turned at random: from 0, on one axis to 1."""
    x = random.random((points, 3))
    for _ in range(12):  # after which a point is within 2^-12 of the attractor
        x = ratio * x + (1 - ratio) * fixed[random.integers(len(fixed), size=points)]
    turned = x @ np.linalg.qr(random.normal(size=(3, 3)))[0]
    turned -= turned.min(0)
    return turned / turned.max()


def make(data: Data, out: Path, world: World, workers: int) -> None:
    """Write ``train/`` and ``validation/``, one file per volume, and the manifest. Called by all ranks."""
    folders = ["train"] * data.train_samples + ["validation"] * data.eval_samples
    tasks = [(number, [f"{folder}/{number:06}.npy"]) for number, folder in enumerate(folders)]
    made = {"generator": Simulation.generator, "simulation": data.simulation.model_dump(mode="json")}
    facts = {"benchmark": "unet3d", "sample_shape": list(data.sample_shape), **made}
    generate.write_missing(out, facts, tasks, partial(_write, data, out), "volumes", world, workers)
    generate.write_manifest(out, {**facts, "made_by": "mlhpc data make unet3d"}, len(tasks), world, workers)


def _write(data: Data, out: Path, task: tuple[int, list[str]]) -> None:
    number, (name,) = task
    npy.write(out / name, volume(data.simulation, data.sample_shape, number))


class Volumes(Source):
    """Batches of intensities float32 and classes uint8, ``[b, d, h, w]`` each."""

    def __init__(self, run: UNet3D, *, gpu: bool):
        self.feed = by_threads(run.loading.resolved(gpu=gpu, cores=cores_per_rank()))
        self.parts = (run.data.sample_shape, "float32"), (run.data.sample_shape, "uint8")

    def read(self, path: Path, x: np.ndarray, y: np.ndarray) -> int:
        try:
            sample = np.load(path)
            x[:], y[:] = sample["x"], sample["y"]
        except (OSError, ValueError, IndexError) as error:
            raise UserError(f"{path} is not a volume of {list(x.shape)} ({error}); make it again") from error
        return sample.nbytes
