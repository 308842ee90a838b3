"""From the data set that a user names to the files that a run trains on."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mlhpc.common.data import archives
from mlhpc.common.data.codecs import native
from mlhpc.common.data.manifest import Manifest, describe, take
from mlhpc.common.data.partition import shuffle_scope
from mlhpc.common.ranks.collectives import on_each_rank
from mlhpc.common.ranks.environment import identify, threads_per_rank
from mlhpc.common.ranks.world import World
from mlhpc.common.training.staging import How
from mlhpc.errors import UserError


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
) -> Manifest:
    """The part of the data set in ``data`` that the run needs, as chosen by ``select``. Called by all ranks.

    Raises UserError, the same on all ranks, when the data set is of another benchmark or lacks what the run needs,
    and when ``enforce_rules`` finds that the facts in its manifest violate the rules of the run's division.
    """
    described = describe(data, world, benchmark)

    def take() -> Manifest:
        dataset = select(described)
        enforce_rules(dataset.facts)
        return dataset

    return on_each_rank(world, take)  # what is wrong is the same on all, and printed by one


def require_codec(dataset: Manifest, codecs: Sequence[str], *, without: str) -> None:
    """Raises UserError unless a device can decode the data set: it is encoded by one of ``codecs``, the usual one
    first. ``without``: what a data set without a codec is."""
    if (codec := dataset.facts.get("codec", without)) not in codecs:
        raise UserError(
            f"{dataset.root}: loading.decode=device decodes {', '.join(codecs)}, and this data set is {codec}; "
            f"convert it with --codec {codecs[0]}, or set loading.decode=host"
        )


def format_of(dataset: Manifest, staged: Path | None, how: How, world: World) -> dict[str, Any]:
    """How a data set is stored and shuffled, for the log: by which codec, whether that is lossy and by how much,
    what decodes it on this machine, how many samples a file has if they were packed before the run, and among what
    they are shuffled, ``staged`` (``how``) or, for None, read in place."""
    names = ("codec", "lossy", "max_error", "max_error_of", archives.FACT)
    return (
        {"codec": None, "lossy": False}
        | {name: dataset.facts[name] for name in names if name in dataset.facts}
        | {"decoder": native.decoder()}
        | {"shuffle_scope": shuffle_scope(how.mode if staged else "replicate", world.nodes, how.exchange)}
    )


def cores_per_rank() -> int:
    """Number of processor cores that this rank has to itself."""
    return threads_per_rank(identify(os.environ))
