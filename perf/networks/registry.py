"""The network of a run."""

from typing import cast

from mlhpc.benchmarks import cosmoflow as cosmoflow_run
from mlhpc.benchmarks import deepcam as deepcam_run
from mlhpc.benchmarks import resnet50 as resnet50_run
from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.perf.networks import cosmoflow, deepcam, resnet50
from mlhpc.perf.networks.layer import PRECISIONS, Network

KNOWN = ("cosmoflow", "deepcam", "resnet50")
LAUNCHES = {
    "cosmoflow": (67, 79, 87),
    "deepcam": (872, 886, 1216),
    "resnet50": (453, 462, 470),
}
"""GPU kernel launches in a step of each closed preset in PyTorch, for each of ``PRECISIONS``, as counted by
``mlhpc profile --device-model``."""


def launches_of(run: Run) -> int | None:
    """The number of kernel launches in a step of ``run``; None for a network whose launches were not counted."""
    counted = run.benchmark in LAUNCHES and run.training.framework == "pytorch"
    if not counted or run.network != load(run.benchmark, "closed").network:
        return None
    return run.backward_passes * LAUNCHES[run.benchmark][PRECISIONS.index(run.training.precision)]


def network_of(run: Run, *, gpu: bool = False, cpu_kernels_from: int | None = None) -> Network:
    """The layers of ``run``'s network for its samples. ``gpu``: as computed by PyTorch and the suite's kernels on
    a GPU; ``cpu_kernels_from``: on a CPU, the first block that CosmoFlow's CPU kernels compute if ``run`` uses
    them. Raises UserError for a benchmark of another package, whose network is unknown."""
    shape = run.data.sample_shape
    fused = (
        gpu and getattr(run.training, "channels_last", False) and not getattr(run.training, "compile", False)
    )
    if run.benchmark == "cosmoflow":
        network = cast(cosmoflow_run.Network, run.network)
        training = cast(cosmoflow_run.Training, run.training)
        if training.framework != "pytorch":
            return cosmoflow.layers(network, shape, keeps="output")
        if not training.cpu_kernels or training.compile or not training.channels_last:
            cpu_kernels_from = None
        keeps = "places" if fused else "indices"
        return cosmoflow.layers(network, shape, keeps=keeps, cpu_kernels_from=cpu_kernels_from)
    if run.benchmark == "deepcam":
        return deepcam.layers(cast(deepcam_run.Network, run.network), shape, fused=fused)
    if run.benchmark == "resnet50":
        return resnet50.layers(cast(resnet50_run.Network, run.network), shape, fused=fused)
    raise UserError(f"{run.benchmark!r} has no performance model; choose from {', '.join(KNOWN)}")
