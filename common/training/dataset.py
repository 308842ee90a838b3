"""Opens and stages the data set of a run."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from mlhpc.common.data import archives
from mlhpc.common.data.codecs import native
from mlhpc.common.data.manifest import Manifest, describe, take
from mlhpc.common.data.partition import shuffle_scope
from mlhpc.common.ranks.collectives import on_each_rank
from mlhpc.common.ranks.environment import identify, threads_per_rank
from mlhpc.common.ranks.world import World
from mlhpc.common.training.staging import How
from mlhpc.errors import UserError, shown


class Simulation(Protocol):
    """How the data set of a preset is generated: settings, and the version of the generator."""

    generator: ClassVar[int]

    def model_dump(self, *, mode: Literal["json"]) -> dict[str, Any]: ...


class Samples(Protocol):
    """How many samples a run has."""

    @property
    def train_samples(self) -> int: ...
    @property
    def eval_samples(self) -> int: ...


def select(dataset: Manifest, data: Samples) -> Manifest:
    """The first samples of the folders ``train`` and ``validation``. Raises UserError when there are fewer."""
    return take(dataset, train=data.train_samples, validation=data.eval_samples)


def open_dataset(
    data: Path,
    benchmark: str,
    world: World,
    *,
    select: Callable[[Manifest], Manifest],
    enforce_rules: Callable[[Mapping[str, Any]], object],
    simulation: Simulation | None = None,
) -> Manifest:
    """The part of the data set in ``data`` that the run needs, as chosen by ``select``. Called by all ranks.

    Raises UserError, the same on all ranks, if the data set belongs to another benchmark or is insufficient,
    or if ``enforce_rules`` finds that its facts violate the rules of the run's division. Rank 0 warns if it was
    generated otherwise than by ``simulation``, for which the target of the run was set.
    """
    described = describe(data, world, benchmark)

    def take() -> Manifest:
        dataset = select(described)
        enforce_rules(dataset.facts)
        return dataset

    dataset = on_each_rank(world, take)  # the error is the same on all ranks, and printed by one
    if world.rank == 0 and simulation and (other := generated_otherwise(dataset.facts, simulation)):
        sys.stderr.write(
            f"mlhpc: warning: {data}: generated with {other}, for which the target was set; remove it and make it "
            f"again with mlhpc data make {benchmark}\n"
        )
    return dataset


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
            f"{dataset.root}: loading.decode=device decodes {', '.join(codecs)}, but this data set is "
            f"{codec}; convert it with --codec {codecs[0]}, or set loading.decode=host"
        )


def format_of(dataset: Manifest, staged: Path | None, how: How, world: World) -> dict[str, Any]:
    """How a data set is stored and shuffled, for the log: its codec and error bound, the decoder of this
    machine, the number of samples per file if they were packed before the run, and the scope of the shuffle,
    for data ``staged`` (``how``) or, if None, read in place."""
    names = ("codec", "lossy", "max_error", "max_error_of", archives.FACT)
    return (
        {"codec": None, "lossy": False}
        | {name: dataset.facts[name] for name in names if name in dataset.facts}
        | {"decoder": native.decoder()}
        | {"shuffle_scope": shuffle_scope(how.mode if staged else "replicate", world.nodes, how.exchange)}
    )


def cores_per_rank() -> int:
    """Number of processor cores available to this rank."""
    return threads_per_rank(identify(os.environ))
