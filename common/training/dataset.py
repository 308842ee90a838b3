"""Opens the data set of a run, and the loader of its samples."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from mlhpc.benchmarks.schema import Data, Run
from mlhpc.common.data import archives
from mlhpc.common.data.codecs import native
from mlhpc.common.data.loader import Loader, Source
from mlhpc.common.data.manifest import Manifest, describe, take
from mlhpc.common.data.partition import shuffle_scope
from mlhpc.common.data.sharding import steps_per_epoch
from mlhpc.common.ranks.collectives import on_each_rank
from mlhpc.common.ranks.environment import identify, threads_per_rank
from mlhpc.common.ranks.world import World
from mlhpc.common.training.epoch import read_earlier_epochs
from mlhpc.errors import UserError, shown


class Simulation(Protocol):
    """How the data set of a preset is generated: settings, and the version of the generator."""

    generator: ClassVar[int]

    def model_dump(self, *, mode: Literal["json"]) -> dict[str, Any]:
        """The settings as JSON types."""


AnyRun = TypeVar("AnyRun", bound=Run)
Batch = TypeVar("Batch")


def select(dataset: Manifest, data: Data) -> Manifest:
    """The first samples of the folders ``train`` and ``validation``. Raises UserError when there are fewer."""
    return take(dataset, train=data.train_samples, validation=data.eval_samples)


def open_dataset(
    run: AnyRun,
    data: Path,
    world: World,
    enforce_rules: Callable[[AnyRun, Mapping[str, Any]], object] = lambda run, facts: None,
    select: Callable[[Manifest, Any], Manifest] = select,
) -> Manifest:
    """The part of the data set in ``data`` that ``run`` needs, as chosen by ``select``, checked before terabytes
    of it are copied. Called by all ranks.

    Raises UserError, the same on all ranks, if the data set belongs to another benchmark or is insufficient,
    or if ``enforce_rules`` finds that its facts violate the rules of the run's division. Rank 0 warns if it was
    generated otherwise than by ``run.data.simulation``, for which the target of the run was set.
    """
    described = describe(data, world, run.benchmark)

    def take() -> Manifest:
        dataset = select(described, run.data)
        enforce_rules(run, dataset.facts)
        return dataset

    dataset = on_each_rank(world, take)  # the error is the same on all ranks, and printed by one
    simulation: Simulation | None = getattr(run.data, "simulation", None)
    if world.rank == 0 and simulation and (other := generated_otherwise(dataset.facts, simulation)):
        sys.stderr.write(
            f"mlhpc: warning: {data}: generated with {other}, for which the target was set; remove it and make it "
            f"again with mlhpc data make {run.benchmark}\n"
        )
    return dataset


def open_loader(
    run: Run,
    dataset: Manifest,
    staged: Path | None,
    source: Source[Batch],
    local_batch_size: int,
    seed: int,
    world: World,
    spatial_size: int = 1,
) -> Loader[Batch]:
    """The loader of this rank's samples of ``staged``, or of ``dataset`` where it is None, which the rank shares
    with the ``spatial_size`` ranks of its group. Called by all ranks, which take the same number of steps of
    ``run.backward_passes`` batches each. The epochs before the measured steps of a study are read here.

    Raises UserError, the same on all ranks, like ``source.assign``, and if a pool cannot fill a step.
    """
    samples = source.assign(
        dataset,
        staged,
        run.staging.mode,
        world,
        train_samples=run.data.train_samples,
        eval_samples=run.data.eval_samples,
        spatial_size=spatial_size,
    )
    if staged and run.staging.overlap:
        samples = samples.arriving(staged, dataset.root)
    passes = run.backward_passes
    steps = steps_per_epoch(world.gather(samples.train_pool), local_batch_size * passes)
    loader = Loader(
        samples,
        source,
        local_batch_size=local_batch_size,
        eval_batch_size=run.training.eval_batch_size,
        steps=run.study.cut(steps) * passes,
        seed=seed,
    )
    # The ranks of a group share the reading, as in the steps that follow.
    read = partial(loader.train_epoch, first=world.rank % spatial_size, every=spatial_size)
    read_earlier_epochs(run, loader, read, steps * passes, world)
    return loader


def generated_otherwise(facts: Mapping[str, Any], simulation: Simulation) -> str:
    """What differs between the generated data set with these manifest ``facts`` and one that ``simulation`` would
    generate now. Empty if nothing does, or if it was not generated."""
    if not facts.keys() & {"generator", "simulation"}:
        return ""
    given = facts.get("simulation")
    made = {"generator": facts.get("generator"), **(given if isinstance(given, dict) else {})}
    expected = {"generator": simulation.generator} | simulation.model_dump(mode="json")
    return ", ".join(
        f"{name} {shown(made.get(name))} instead of {value!r}"
        for name, value in expected.items()
        if made.get(name) != value
    )


def require_codec(dataset: Manifest, codecs: Sequence[str], *, without: str) -> None:
    """Raises UserError unless a device can decode the data set: it is encoded by one of ``codecs``, the
    preferred one first. ``without``: the format of a data set without a codec."""
    if (codec := dataset.facts.get("codec", without)) not in codecs:
        raise UserError(
            f"{dataset.root} is {codec}, and loading.decode=device requires {' or '.join(codecs)}; "
            f"convert it with --codec {codecs[0]}, or set loading.decode=host"
        )


def format_of(run: Run, dataset: Manifest, staged: Path | None, world: World) -> dict[str, Any]:
    """How a data set is stored and shuffled, for the log: its codec and error bound, the decoder of this
    machine, the number of samples per file if they were packed before the run, the version of their generator, and
    the scope of the shuffle, for data ``staged`` or, if None, read in place."""
    how = run.staging
    names = ("codec", "lossy", "max_error", "max_error_of", archives.FACT, "generator")
    return (
        {"codec": None, "lossy": False}
        | {name: dataset.facts[name] for name in names if name in dataset.facts}
        | {"decoder": native.decoder()}
        | {"shuffle_scope": shuffle_scope(how.mode if staged else "replicate", world.nodes, how.exchange)}
    )


def cores_per_rank() -> int:
    """Number of processor cores available to this rank."""
    return threads_per_rank(identify(os.environ))
