"""Checks a run's settings, independently of its machine and framework."""

from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.data.slabs import SlabPlan, plan_slabs
from mlhpc.cosmoflow.network import require_divisible
from mlhpc.cosmoflow.weights import require_weights


def check(run: CosmoFlow) -> None:
    """Raise UserError if the shape of samples does not suit the network or cannot be divided as
    ``training.spatial`` requires, or if ``training.weights`` does not contain weights of this network."""
    require_divisible(run.network, run.data.sample_shape)
    slab_plan(run)
    require_weights(run)


def slab_plan(run: CosmoFlow) -> SlabPlan:
    """Return how the ranks of a group divide a sample into slabs. Raises UserError if the slabs are too thin."""
    depth, height, width, _channels = run.data.sample_shape
    network = run.network
    return plan_slabs((depth, height, width), run.training.spatial, network.conv_layers, network.conv_kernel)
