"""The data set of a run, and the loader over this rank's part of it."""

from functools import partial
from pathlib import Path

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.sharding import steps_per_epoch
from mlhpc.common.ranks.world import World
from mlhpc.common.training.dataset import cores_per_rank, open_dataset, require_codec, select
from mlhpc.common.training.epoch import read_earlier_epochs
from mlhpc.cosmoflow.data.codec import TABLES
from mlhpc.cosmoflow.data.loader import Loader
from mlhpc.cosmoflow.data.sample import require_facts


def open_data(run: CosmoFlow, data: Path, world: World) -> Manifest:
    """The part of the data set that the run needs, checked before terabytes of it are copied."""
    dataset = open_dataset(
        data,
        run.benchmark,
        world,
        select=partial(select, data=run.data),
        enforce_rules=lambda facts: rules.enforce(rules.RunContext(run, facts=facts)),
        simulation=run.data.simulation,
    )
    require_facts(dataset)
    if run.loading.decode == "device":
        require_codec(dataset, TABLES, without="TFRecord")
    return dataset


def open_loader(
    run: CosmoFlow,
    dataset: Manifest,
    staged: Path | None,
    local_batch_size: int,
    seed: int,
    world: World,
    *,
    gpu: bool,
    spatial_size: int = 1,
) -> Loader:
    """The loader of this rank's samples, which it shares with the ``spatial_size`` ranks of its group: of
    ``staged``, or of the data set where it is None."""
    samples = assign_samples(
        dataset,
        staged,
        run.staging.mode,
        world,
        train_samples=run.data.train_samples,
        eval_samples=run.data.eval_samples,
        spatial_size=spatial_size,
        has_arrived=Path.exists if run.staging.overlap else None,
    )
    steps = steps_per_epoch(world.gather(samples.train_pool), local_batch_size)
    loader = Loader(
        samples,
        run.loading.resolved(gpu=gpu, cores=cores_per_rank()),
        sample_shape=run.data.sample_shape,
        targets=run.network.targets,
        local_batch_size=local_batch_size,
        eval_batch_size=run.training.eval_batch_size,
        steps=run.study.cut(steps),
        seed=seed,
        augment=run.training.augment,
        codec=dataset.facts.get("codec"),
    )
    # The ranks of a group share the reading, as in the steps that follow.
    read = partial(loader.train_epoch, first=world.rank % spatial_size, every=spatial_size)
    read_earlier_epochs(loader, read, run.study.earlier_epochs, steps, world)
    return loader
