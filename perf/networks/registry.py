"""The network of a run."""

from typing import cast

from mlhpc.benchmarks import cosmoflow as cosmoflow_run
from mlhpc.benchmarks import deepcam as deepcam_run
from mlhpc.benchmarks import resnet50 as resnet50_run
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.perf.networks import cosmoflow, deepcam, resnet50
from mlhpc.perf.networks.layer import Network

KNOWN = ("cosmoflow", "deepcam", "resnet50")


def network_of(run: Run, *, cpu_kernels_from: int | None = None) -> Network:
    """The layers of ``run``'s network for its samples. ``cpu_kernels_from``, on a CPU: the first block that
    CosmoFlow's CPU kernels compute if ``run`` uses them in PyTorch. Raises UserError for a benchmark of another
    package, whose network is unknown."""
    shape = run.data.sample_shape
    if run.benchmark == "cosmoflow":
        network = cast(cosmoflow_run.Network, run.network)
        training = cast(cosmoflow_run.Training, run.training)
        if training.framework != "pytorch":
            return cosmoflow.layers(network, shape, keeps="output")
        if not training.cpu_kernels or training.compile or not training.channels_last:
            cpu_kernels_from = None
        return cosmoflow.layers(network, shape, keeps="indices", cpu_kernels_from=cpu_kernels_from)
    if run.benchmark == "deepcam":
        return deepcam.layers(cast(deepcam_run.Network, run.network), shape)
    if run.benchmark == "resnet50":
        return resnet50.layers(cast(resnet50_run.Network, run.network), shape)
    raise UserError(f"{run.benchmark!r} has no performance model; choose from {', '.join(KNOWN)}")
