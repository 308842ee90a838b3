"""Checks of TensorFlow, Horovod and PyTorch on one node, and of the GPU driver that they require."""

from collections.abc import Iterator, Mapping
from typing import Any

from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.launch import Framework
from mlhpc.doctor.check_result import CheckResult, Node, Status
from mlhpc.errors import install

MIN_DRIVER = {13: 580, 12: 525, 11: 450}
"""The oldest Linux driver branch for a major version of CUDA (NVIDIA, "CUDA Compatibility", table 1:
docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""


def frameworks(node: Node, rank_info: RankInfo, framework: Framework) -> Iterator[CheckResult]:
    """The results of the checks of ``framework``. For ``none``, all frameworks are checked, although a run needs
    only one of them."""
    none_works = all((node[name] or {"error": True}).get("error") for name in ("tensorflow", "torch"))
    any_needed = framework == "none" and none_works
    if framework != "torch":
        needed = framework == "horovod" or any_needed
        missing, other = f"{install('cosmoflow')}, which cosmoflow requires", install("cosmoflow-gpu")
        yield from _framework("TensorFlow", node["tensorflow"], node, needed, missing, other)
        yield from _horovod(node, rank_info, framework == "horovod")
    if framework != "horovod":
        yield from _torch(node, framework == "torch" or any_needed)


def extras(node: Node) -> Iterator[CheckResult]:
    """Report missing extras that runs and reports need in addition to a framework."""
    use = {
        "submission": "run, check, score and pack require",
        "pages": "report and other pages require",
        "samples": "data show requires",
    }
    for name, needed in use.items():
        if not node["extras"][name]:
            bad: Status = "fail" if name == "submission" else "warn"
            yield CheckResult(bad, f"extra {name}", "not installed", f"{install(name)}, which {needed}")


def compiled(node: Node) -> Iterator[CheckResult]:
    """Report C extensions that were not compiled when the suite was installed; no result if all were compiled."""
    use = {
        "decoders": "NumPy decodes encoded data sets",
        "gradients": "PyTorch computes CosmoFlow's gradients on CPUs",
    }
    for name, there in node["compiled"].items():
        if not there:
            detail = f"not compiled: {use[name]} instead, more slowly"
            remedy = "install a C compiler, then reinstall mlhpc"
            yield CheckResult("warn", f"compiled {name}", detail, remedy)


def _torch(node: Node, needed: bool) -> Iterator[CheckResult]:
    facts, name = node["torch"] or {}, "PyTorch"
    if missing := facts.get("without_code"):
        detail, _, remedy = missing.partition(": ")
        yield CheckResult("fail" if needed else "warn", name, detail, remedy)
        return
    if missing := facts.get("without_graphs"):
        yield CheckResult(
            "warn", "graphs", f"unavailable with several ranks: {missing}", "leave training.cuda_graphs off"
        )
    remedy = "install a build for your CUDA, ROCm or XPU (pytorch.org)"
    missing = f"{install('deepcam,resnet50')}, which deepcam and resnet50 require"
    yield from _framework(name, node["torch"], node, needed, missing, remedy)
    if node["gpus"] and facts.get("gpus") and not facts["built"]:
        own = str(facts["backend"]).upper() + (", which is RCCL" if facts.get("rocm") else "")
        remedy = f"gradients would be sent through the host: install a build with {own}"
        yield CheckResult("warn", name, f"built without {own}", remedy)


def _framework(
    name: str, facts: Mapping[str, Any] | None, node: Node, needed: bool, missing: str, other_build: str
) -> Iterator[CheckResult]:
    """Check a framework from its ``facts``; None: it is not installed, and ``missing`` is the remedy."""
    bad: Status = "fail" if needed else "warn"
    gpus = len(node["gpus"])
    if facts is None:
        yield CheckResult(bad, name, "not installed", missing)
        return
    if facts.get("error"):
        yield CheckResult(bad, name, facts["error"], "reinstall it in this environment")
        return
    yield from _driver(name, facts, node, bad)
    if facts["gpus"] < gpus:
        detail = f"{facts['version']} sees {facts['gpus']} of {gpus} GPUs"
        remedy = f"{other_build}; check the container (--nv, --rocm) and CUDA_VISIBLE_DEVICES"
        yield CheckResult(bad, name, detail, remedy)
    else:
        backend = f" over {facts['backend']}" if facts.get("backend") else ""
        yield CheckResult(
            "pass", name, facts["version"] + (f", {facts['gpus']} GPUs{backend}" if gpus else "")
        )


def _driver(name: str, facts: Mapping[str, Any], node: Node, bad: Status) -> Iterator[CheckResult]:
    """Check the driver: a framework built for a newer CUDA version than the driver supports finds no GPU, unless
    CUDA's forward-compatibility package is installed (``usable``)."""
    cuda, driver = facts.get("cuda"), node["driver"]
    if not cuda or not driver:
        return
    minimum = MIN_DRIVER.get(_major(cuda))
    detail = f"{driver}; {name} is built for CUDA {cuda}"
    if minimum is None or _major(driver) >= minimum:
        yield CheckResult("pass", "GPU driver", detail)
    elif facts.get("usable"):
        remedy = f"CUDA {_major(cuda)} requires R{minimum} or later, or the forward-compatibility package"
        yield CheckResult("warn", "GPU driver", detail, remedy)
    else:
        remedy = f"update the driver to R{minimum} or later, or install a build for an older CUDA"
        yield CheckResult(bad, "GPU driver", detail, remedy)


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _horovod(node: Node, rank_info: RankInfo, needed: bool) -> Iterator[CheckResult]:
    tensorflow = node["tensorflow"]
    version = node["packages"].get("horovod")
    bad: Status = "fail" if needed and rank_info.size > 1 else "warn"
    rebuild = "rebuild it for this TensorFlow, with --no-cache-dir (docs/reference/dependencies.md)"
    if not version:
        if rank_info.size > 1:
            yield CheckResult(bad, "Horovod", "not installed, but required with several ranks", rebuild)
        elif needed:
            yield CheckResult("pass", "Horovod", "not installed, and not required with one rank")
        return
    if not tensorflow or tensorflow.get("error"):
        return  # reported above
    built_for = node["horovod_built_for"]
    if built_for is not None and built_for != tensorflow["version"]:
        detail = f"{version} for TensorFlow {built_for or '(none)'}, but {tensorflow['version']} is installed"
        yield CheckResult(bad, "Horovod", detail, rebuild)
        return
    if error := tensorflow.get("horovod_error"):
        yield CheckResult(bad, "Horovod", f"{version} cannot be loaded: {error}", rebuild)
        return
    built = tensorflow["horovod"]
    parts = ", ".join(part for part in ("gloo", "mpi", "nccl") if built[part]) or "no controller"
    detail = f"{version}, built with {parts}"
    if rank_info.launcher == "mpirun" and not built["mpi"]:
        remedy = "mpirun requires a build with HOROVOD_WITH_MPI=1; alternatively, use srun"
        yield CheckResult(bad, "Horovod", detail, remedy)
    elif rank_info.launcher != "mpirun" and not built["gloo"]:
        remedy = f"{rank_info.launcher} requires a build with HOROVOD_WITH_GLOO=1"
        yield CheckResult(bad, "Horovod", detail, remedy)
    elif node["gpus"] and not built["nccl"]:
        remedy = "gradients are sent through the host: build with HOROVOD_GPU_OPERATIONS=NCCL"
        yield CheckResult("warn", "Horovod", detail, remedy)
    else:
        yield CheckResult("pass", "Horovod", detail)
