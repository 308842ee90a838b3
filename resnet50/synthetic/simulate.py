"""Generates data sets for ResNet-50: synthetic images (``drawing``) in the folder layout of ImageNet-1k,
``train/<class>/*.JPEG`` and ``validation/<class>/*.JPEG``.
"""

from functools import partial
from pathlib import Path

from mlhpc.benchmarks.resnet50 import Data, Simulation
from mlhpc.common.data import generate, manifest
from mlhpc.common.files import atomic
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError
from mlhpc.quantities import count
from mlhpc.resnet50.synthetic.drawing import draw


def make(data: Data, out: Path, world: World, workers: int) -> None:
    """Generate the data set of a preset under ``out``, with its manifest. Called by all ranks.

    Image n belongs to class n modulo the number of classes, so that class sizes differ by at most one. The first
    images are in ``train/``, the next ones in ``validation/``.

    The ranks divide the images among them, and each uses ``workers`` processes. Files appear complete or not at
    all; existing files are kept, so that the same call resumes an interrupted one. The files do not depend on the
    numbers of ranks and workers.

    Raises UserError, the same on all ranks, for inconsistent settings, a folder created with other settings, a
    full disk, or a killed worker.
    """
    simulation = _checked(data)
    counts = {"train": data.train_samples, "validation": data.eval_samples}
    folders = [folder for folder, images in counts.items() for _ in range(images)]
    tasks = [(image, [_name(folder, simulation, image)]) for image, folder in enumerate(folders)]
    settings = {"generator": Simulation.generator, **counts, "simulation": simulation.model_dump(mode="json")}
    write = partial(_write, simulation, out)
    made = generate.write_missing(out, settings, tasks, write, "images", world, workers)
    if made or not (out / manifest.NAME).exists():
        facts = {
            "benchmark": "resnet50",
            "format": "jpeg",
            "classes": [_class(number) for number in range(simulation.classes)],
            "simulation": simulation.model_dump(),
            "generator": Simulation.generator,
            "made_by": "mlhpc data make resnet50",
            "samples": counts,
        }
        generate.write_manifest(out, facts, len(tasks), world, workers)
    if world.rank == 0:
        print(f"{out}: {count(made, 'image')} made, {len(tasks) - made} kept")


def _checked(data: Data) -> Simulation:
    if data.simulation is None:
        raise UserError("ImageNet cannot be generated; see docs/reference/data_resnet50.md")
    if data.simulation.classes > min(data.train_samples, data.eval_samples):
        raise UserError(
            f"data.simulation.classes {data.simulation.classes} exceeds the number of images in a split"
        )
    return data.simulation


def _class(number: int) -> str:
    return f"class{number:04d}"


def _name(folder: str, simulation: Simulation, sample: int) -> str:
    name = _class(sample % simulation.classes)
    return f"{folder}/{name}/{name}_{sample:07d}.JPEG"


def _write(simulation: Simulation, out: Path, task: tuple[int, list[str]]) -> None:
    sample, (name,) = task
    number = sample % simulation.classes
    data = draw(simulation.seed, number, sample, simulation.side)
    atomic.write_bytes(out / name, data)
