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


def network_of(run: Run) -> Network:
    """The layers of ``run``'s network for its samples. Raises UserError for a benchmark of another package,
    whose network is unknown."""
    shape = run.data.sample_shape
    if run.benchmark == "cosmoflow":
        keeps = "indices" if run.training.framework == "pytorch" else "output"
        return cosmoflow.layers(cast(cosmoflow_run.Network, run.network), shape, keeps=keeps)
    if run.benchmark == "deepcam":
        return deepcam.layers(cast(deepcam_run.Network, run.network), shape)
    if run.benchmark == "resnet50":
        return resnet50.layers(cast(resnet50_run.Network, run.network), shape)
    raise UserError(f"there is no performance model for {run.benchmark!r}, only for {', '.join(KNOWN)}")
