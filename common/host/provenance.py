"""The environment of a result: machine, binding, drivers, batch job, commit, packages. Nothing is guessed; unknown
values are None. For variables that may contain a secret or identify a person, only the name is recorded."""

import ctypes
import os
import platform
import re
import socket
import subprocess
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlhpc.common.host.accelerators import accelerators
from mlhpc.common.host.probe import output, text
from mlhpc.common.ranks.environment import BOUND
from mlhpc.errors import EXTRAS

PACKAGES = (
    "mlhpc", "numpy", "tensorflow", "tensorflow-cpu", "keras", "horovod", "torch", "torchvision",
    "nvidia-dali-cuda130", "h5py", "isal", "mlperf-logging",
)  # fmt: skip
PREFIXES = (
    "SLURM_", "PBS_", "LSB_", "FLUX_", "NCCL_", "RCCL_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_",
    "DNNL_", "TF_", "XLA_", "TORCH", "PYTORCH_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "HOROVOD_", "GLOO_",
    "UCX_", "FI_", "ZE_", "ONEAPI_", "CCL_", "OMPI_MCA_", "MPICH_", "I_MPI_", "PMIX_", "MALLOC_", "MIMALLOC_",
    "LD_PRELOAD", "MLHPC_",
)  # fmt: skip
"""Prefixes of the environment variables that can affect a result: those of launchers, of the fabric, and of the
libraries' threads and algorithms."""
RECORDED = frozenset(
    f"{prefix}_{word}"
    for prefix, words in tomllib.loads(Path(__file__).with_name("variables.toml").read_text("utf-8")).items()
    for word in words.split()
)
"""The variables that are recorded with their values; of the others, only the names are recorded."""
HIDDEN = "(set; not recorded)"
COMPILED = {"decoders": "common/data/codecs/_decode", "gradients": "*/cpu/_pooled"}
"""The parts in C (setup.py), which an installation without a compiler omits, as patterns of their paths."""
_ROOT = Path(__file__).resolve().parents[2]
_NVIDIA = Path("/proc/driver/nvidia")
_PLAIN = re.compile(r"[\w.,:;=+^()\[\]{} -]{0,1000}")
"""Matches numbers, names and lists, but no path, mail address or address of a service."""


def describe_environment() -> dict[str, Any]:
    """Facts of this process's machine and software, for ``env.json``."""
    return {
        **commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **machine(),
        "binding": binding(),
        "job": batch_job(os.environ),
        "variables": variables(os.environ),
        "drivers": drivers(),
        "python": platform.python_version(),
        "packages": packages(),
        "compiled": compiled_parts(),
    }


def machine() -> dict[str, Any]:
    """This node: processor, cores this process may use, memory, accelerators, operating system."""
    return {
        "hostname": socket.gethostname(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 3),
        "accelerators": accelerators(),
        "os": f"{_os_name()}, Linux {platform.release()}",
    }


def cpu_model(root: Path = Path("/")) -> str | None:
    """The model of the processors; ``root`` replaces / in the path of /proc. On ARM, /proc contains only numbers,
    which lscpu translates to a model."""
    model = re.search(r"^model name\s*:\s*(.+)$", text(root / "proc/cpuinfo"), re.MULTILINE)
    model = model or re.search(r"^Model name:\s*(.+)$", output("lscpu"), re.MULTILINE)
    return " ".join(model[1].split()) if model else None


def binding() -> dict[str, Any]:
    """The cores and NUMA nodes that this process may use, in Linux's list format (``0-3,8``), and its threads
    per core. Recorded because runs that differ in these must be distinguishable."""
    status = text(Path("/proc/self/status"))
    allowed = {
        key: match[1] if (match := re.search(rf"^{name}:\s*(\S+)$", status, re.MULTILINE)) else None
        for key, name in (("cores", "Cpus_allowed_list"), ("numa_nodes", "Mems_allowed_list"))
    }
    smt = text(Path("/sys/devices/system/cpu/smt/active"))
    return {**allowed, "simultaneous_multithreading": smt == "1" if smt else None}


def batch_job(env: Mapping[str, str]) -> dict[str, str] | None:
    """Identifier, partition, nodes and binding of the batch job; None outside of one."""
    names = {
        "id": ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"),
        "partition": ("SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE"),
        "nodes": ("SLURM_JOB_NODELIST", "LSB_MCPU_HOSTS"),
        "cpu_binding": ("SLURM_CPU_BIND",),
        "gpu_binding": ("SLURM_GPU_BIND", "SLURM_GPUS_ON_NODE"),
    }
    job = {key: env[name] for key, of in names.items() for name in reversed(of) if name in env}
    return job if "id" in job else None


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that begin with one of ``PREFIXES``, sorted by name: those in ``RECORDED`` with
    their values, the others with ``HIDDEN`` as value."""
    return {
        name: value if name in RECORDED and _PLAIN.fullmatch(value) else HIDDEN
        for name, value in sorted(env.items())
        if name.startswith(PREFIXES) and name != BOUND
    }


def drivers() -> dict[str, str | None]:
    """Versions of the layers below the packages: GPU drivers, the newest CUDA that the driver supports, ROCm,
    MPI."""
    nvidia = re.search(r"(\d+\.\d[\d.]*)", text(_NVIDIA / "version"))
    mpi = output("mpirun", "--version").strip()
    return {
        "nvidia": nvidia[1] if nvidia else None,
        "cuda": _cuda_of_driver(),
        "amdgpu": text(Path("/sys/module/amdgpu/version")) or None,
        "intel": text(Path("/sys/module/i915/version")) or text(Path("/sys/module/xe/version")) or None,
        "rocm": text(Path("/opt/rocm/.info/version")) or None,
        "mpi": mpi.splitlines()[0] if mpi else None,
    }


def commit() -> dict[str, Any]:
    """The commit of the checkout that this package runs from; None if it does not run from a checkout."""

    def git(*words: str) -> str | None:
        try:
            completed = subprocess.run(
                ["git", "-C", _ROOT, *words], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return completed.stdout.strip() if completed.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != _ROOT:  # installed inside another project's checkout
        return {"commit": None, "dirty": None}
    head = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": head, "dirty": bool(changed) if changed is not None else None}


def compiled_parts() -> dict[str, bool]:
    """For each part in C, whether it was compiled when the suite was installed: the decoders of encoded data sets,
    and the gradients of convolution and pooling on a CPU. Without these parts, runs are slower, with the same
    results."""
    return {
        name: any(next(_ROOT.glob(f"{path}{suffix}"), None) for suffix in EXTENSION_SUFFIXES)
        for name, path in COMPILED.items()
    }


def extras() -> dict[str, bool]:
    """Return whether the packages of each extra are installed, for the extras that do not belong to a
    benchmark."""
    return {name: all(find_spec(package) for package in needed) for name, needed in EXTRAS.items()}


def packages() -> dict[str, str]:
    """Installed versions of the packages that can change a result, and of all packages by NVIDIA: CUDA, cuDNN,
    NCCL."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        # Names are compared as in PEP 503.
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name in PACKAGES or name.startswith("nvidia-"):
            versions.setdefault(name, distribution.version)  # the first on the path is the one imported
    order = {name: number for number, name in enumerate(PACKAGES)}
    return dict(sorted(versions.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def _cuda_of_driver() -> str | None:
    """The newest CUDA that the driver supports, from cuDriverGetVersion of <cuda.h> (1000 × major + 10 × minor),
    which does not access a GPU."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
