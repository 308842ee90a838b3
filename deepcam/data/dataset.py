"""The data set of a run, and the loader over this rank's part of it."""

from functools import partial
from pathlib import Path

from mlhpc.benchmarks import rules
from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.sharding import steps_per_epoch
from mlhpc.common.ranks.collectives import on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.training.dataset import cores_per_rank, open_dataset, require_codec, select
from mlhpc.common.training.epoch import read_earlier_epochs
from mlhpc.deepcam.data.codec import LINES
from mlhpc.deepcam.data.hdf5 import Statistics, read_statistics
from mlhpc.deepcam.data.loader import Loader
from mlhpc.deepcam.data.sample import is_sample, require_layout


def open_data(run: DeepCam, data: Path, world: World) -> tuple[Manifest, Statistics]:
    """The part of the data set that the run needs, and its statistics, checked before terabytes are copied."""
    dataset = open_dataset(
        data,
        run.benchmark,
        world,
        select=partial(select, data=run.data),
        enforce_rules=lambda facts: rules.enforce(rules.RunContext(run, facts=facts)),
        simulation=run.data.simulation,
    )
    require_layout(dataset)
    if run.loading.decode == "device":
        require_codec(dataset, LINES, without="hdf5")
    return dataset, on_rank0(world, lambda: read_statistics(data, run.data.sample_shape[-1]))


def open_loader(
    run: DeepCam,
    dataset: Manifest,
    statistics: Statistics,
    staged: Path | None,
    local_batch_size: int,
    seed: int,
    world: World,
    device: str,
) -> Loader:
    """The loader of this rank's samples: of ``staged``, or of the data set where it is None. ``device`` is the
    type of the rank's device."""
    samples = assign_samples(
        dataset,
        staged,
        run.staging.mode,
        world,
        train_samples=run.data.train_samples,
        eval_samples=run.data.eval_samples,
        is_sample=is_sample,
    )
    accumulate = run.hyperparameters.gradient_accumulation_frequency
    epoch_steps = steps_per_epoch(world.gather(samples.train_pool), local_batch_size * accumulate)
    loader = Loader(
        samples,
        run.loading.resolved(gpu=device != "cpu", cores=cores_per_rank()),
        sample_shape=run.data.sample_shape,
        statistics=statistics,
        local_batch_size=local_batch_size,
        eval_batch_size=run.training.eval_batch_size,
        steps=run.study.cut(epoch_steps) * accumulate,
        seed=seed,
        ranks_on_node=world.local_size,
        device=device,
        codec=dataset.facts.get("codec"),
    )
    read_earlier_epochs(loader, loader.train_epoch, run.study.earlier_epochs, epoch_steps * accumulate, world)
    return loader
