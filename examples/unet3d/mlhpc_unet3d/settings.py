"""The settings of a run; ``unet3d.toml`` gives the values."""

from typing import ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from mlhpc.benchmarks import schema
from mlhpc.common.data.slabs import SlabPlan, plan_slabs
from mlhpc.errors import UserError


class Simulation(schema.FrozenModel):
    generator: ClassVar[int] = 1  # incremented whenever a seed gives other volumes
    noise: float = Field(ge=0, description="standard deviation of the noise; fractals are 1, empty space 0")
    clutter: float = Field(ge=0, lt=1, description="fraction of the voxels that are 1 but not of a fractal")
    seed: NonNegativeInt


class Data(schema.Data):
    simulation: Simulation


class Network(schema.Network):
    filters: PositiveInt = Field(description="of the first level; doubled from level to level")
    levels: PositiveInt = Field(description="how many times the volume is halved")


class Hyperparameters(schema.Hyperparameters):
    opt_base_learning_rate: float = Field(gt=0, description="of Adam; falls linearly from epoch to epoch")


class UNet3D(schema.Run):
    data: Data
    network: Network
    hyperparameters: Hyperparameters
    training: schema.SpatialTraining


def slab_plan(run: UNet3D) -> SlabPlan:
    """The slabs of the ranks of a group, on all levels. Raises UserError if volumes cannot be divided so."""
    sides, parts, levels = run.data.sample_shape, run.training.spatial, run.network.levels
    if len(sides) != 3 or any(side % (n << levels) for side, n in zip(sides, parts, strict=True)):
        raise UserError(f"data.sample_shape={list(sides)}: not multiples of {2**levels} · training.spatial")
    return plan_slabs(sides, parts, levels, kernel=3)
