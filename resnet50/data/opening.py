"""The data set of a run, and the loader over this rank's part of it."""

from functools import partial
from pathlib import Path

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.resnet50 import ResNet50
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.sharding import steps_per_epoch
from mlhpc.common.ranks.world import World
from mlhpc.common.training.dataset import cores_per_rank, open_dataset
from mlhpc.common.training.epoch import read_earlier_epochs
from mlhpc.resnet50.data.dataset import assign_samples, select
from mlhpc.resnet50.data.loader import Loader


def open_data(run: ResNet50, data: Path, world: World) -> Manifest:
    """The part of the data set that the run needs, checked before terabytes of it are copied."""
    return open_dataset(
        data,
        run.benchmark,
        world,
        select=partial(select, data=run.data),
        enforce_rules=lambda facts: rules.enforce(rules.RunContext(run, facts=facts)),
        simulation=run.data.simulation,
    )


def open_loader(
    run: ResNet50,
    dataset: Manifest,
    staged: Path | None,
    local_batch_size: int,
    seed: int,
    world: World,
    device: str,
) -> Loader:
    """The loader of this rank's images: from ``staged``, or from the data set if it is None. ``device`` is
    the type of the rank's device."""
    samples = assign_samples(
        dataset,
        staged,
        run.staging.mode,
        world,
        classes=run.network.classes,
        train_samples=run.data.train_samples,
        eval_samples=run.data.eval_samples,
    )
    accumulate = run.hyperparameters.gradient_accumulation_steps
    updates = steps_per_epoch(world.gather(samples.train_pool), local_batch_size * accumulate)
    loader = Loader(
        samples,
        run.loading.resolved(gpu=device != "cpu", cores=cores_per_rank()),
        sample_shape=run.data.sample_shape,
        local_batch_size=local_batch_size,
        eval_batch_size=run.training.eval_batch_size,
        steps=run.study.cut(updates) * accumulate,
        seed=seed,
        preprocessing=run.training.preprocessing,
        ranks_on_node=world.local_size,
        device=device,
    )
    read_earlier_epochs(loader, loader.train_epoch, run.study.earlier_epochs, updates * accumulate, world)
    return loader
