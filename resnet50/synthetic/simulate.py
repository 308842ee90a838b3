"""Data sets for ResNet-50: drawn pictures in the folders that ImageNet is kept in.

``drawing`` says what is in them. The folders are those of ImageNet-1k as its users lay it out:
``train/<class>/*.JPEG`` and ``validation/<class>/*.JPEG``.
"""

from functools import partial
from pathlib import Path

from mlhpc.benchmarks.resnet50 import Data, Simulation
from mlhpc.common.data import generate, manifest
from mlhpc.common.files import atomic
from mlhpc.common.host.progress import progress
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError, count
from mlhpc.resnet50.synthetic.drawing import draw

GENERATOR = 2
"""Version of the drawn images: it rises whenever a seed gives other images."""


def make(data: Data, out: Path, world: World, workers: int) -> None:
    """Make the data set of a preset under ``out``, and its manifest. Called by all ranks.

    Image n is of class n modulo the number of classes, so that classes are of equal size, but for one: the
    first images are ``train/``, the next ``validation/``.

    The ranks share the images, each with ``workers`` processes. Files appear complete or not at all; existing
    ones are kept, so the same call resumes an interrupted one. The bytes do not depend on ranks or workers.

    Raises UserError, the same on all ranks: settings that do not fit, a directory made with other settings, a
    full disk, a worker that was killed.
    """
    simulation = _checked(data)
    counts = {"train": data.train_samples, "validation": data.eval_samples}
    names, first_sample = [], 0
    for folder, images in counts.items():
        names += [_name(folder, simulation, sample) for sample in range(first_sample, first_sample + images)]
        first_sample += images

    def prepare() -> list[str]:
        settings = {"generator": GENERATOR, **counts, "simulation": simulation.model_dump(mode="json")}
        generate.claim_folder(out, settings)
        for folder in counts:
            (out / folder).mkdir(exist_ok=True)
        return generate.missing(out, names)

    # Rank 0 lists the existing files before any rank writes: another rank might already see new ones.
    missing = on_rank0(world, prepare)
    todo = missing[world.rank :: world.size]

    def make_mine() -> None:
        with progress(len(todo), "images", "images", show=world.rank == 0) as advance:
            generate.in_processes(partial(_write, simulation, out), todo, workers, advance)

    generate.write_on_all_ranks(world, out, make_mine)
    if missing or not (out / manifest.NAME).exists():
        facts = {
            "benchmark": "resnet50",
            "format": "jpeg",
            "classes": [_class(number) for number in range(simulation.classes)],
            "simulation": simulation.model_dump(),
            "generator": GENERATOR,
            "made_by": "mlhpc data make resnet50",
            "samples": counts,
        }
        with progress(len(names), "checksums", "files", show=world.rank == 0) as advance:
            manifest.index(out, facts, world, workers, lambda size: advance(world.size))
    if world.rank == 0:
        print(f"{out}: {count(len(missing), 'image')} made, {len(names) - len(missing)} kept")


def _checked(data: Data) -> Simulation:
    if data.simulation is None:
        raise UserError("this preset needs ImageNet, which cannot be made here; see docs/data_resnet50.md")
    if data.simulation.classes > min(data.train_samples, data.eval_samples):
        raise UserError(
            f"data.simulation.classes is {data.simulation.classes}, and {data.train_samples} training and "
            f"{data.eval_samples} evaluation images cannot show one of each"
        )
    return data.simulation


def _class(number: int) -> str:
    return f"class{number:04d}"


def _name(folder: str, simulation: Simulation, sample: int) -> str:
    name = _class(sample % simulation.classes)
    return f"{folder}/{name}/{name}_{sample:07d}.JPEG"


def _write(simulation: Simulation, out: Path, name: str) -> None:
    sample = int(name.removesuffix(".JPEG").rpartition("_")[2])
    number = sample % simulation.classes
    data = draw(simulation.seed, simulation.classes, number, sample, simulation.side)
    atomic.write_bytes(out / name, data)
