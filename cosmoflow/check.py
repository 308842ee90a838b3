"""What a run's settings need, whatever its machine and framework."""

from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.common.data.slabs import SlabPlan, plan_slabs
from mlhpc.cosmoflow.network import require_divisible
from mlhpc.cosmoflow.weights import require_weights


def check(run: CosmoFlow) -> None:
    """Raise UserError if samples do not suit the network or cannot be divided as ``training.spatial`` says, or if
    ``training.weights`` does not contain weights of this network."""
    require_divisible(run.network, run.data.sample_shape)
    slab_plan(run)
    require_weights(run)


def slab_plan(run: CosmoFlow) -> SlabPlan:
    """The parts of a sample that the ranks of a group have. Raises UserError if they are too thin."""
    depth, height, width, _channels = run.data.sample_shape
    network = run.network
    return plan_slabs((depth, height, width), run.training.spatial, network.conv_layers, network.conv_kernel)
