"""The software of a node for the system description: the framework, and the entries of other_software_stack."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path

from mlhpc.common.host.accelerators import driver_version
from mlhpc.common.host.probe import output, text
from mlhpc.common.host.provenance import commit, packages

SOFTWARE = {
    "Horovod": "horovod", "Keras": "keras", "NumPy": "numpy", "h5py": "h5py",
    "DALI": r"nvidia-dali-cuda\d+", "mlperf-logging": "mlperf-logging",
}  # fmt: skip
"""Entries of other_software_stack, each with a pattern for the name of the package whose version is stated."""
CUDA_SOFTWARE = {
    "CUDA runtime": r"nvidia-cuda-runtime(-cu\d+)?", "cuBLAS": r"nvidia-cublas(-cu\d+)?",
    "cuDNN": r"nvidia-cudnn-cu\d+", "NCCL": r"nvidia-nccl-cu\d+",
}  # fmt: skip
"""Entries that are listed only if there is a GPU driver, since frameworks install these packages also on machines
without a GPU."""


def frameworks() -> list[str]:
    """The installed frameworks with their versions, as text."""
    installed = packages()
    known = {"tensorflow": "TensorFlow", "tensorflow-cpu": "TensorFlow", "torch": "PyTorch"}
    versions = {name: installed[package] for package, name in known.items() if package in installed}
    return [f"{name} {version}" for name, version in versions.items()]


def stack(env: Mapping[str, str], root: Path) -> dict[str, str]:
    """Versions of installed packages and of the machine's tools, by name. ``root``: the folder used as / for
    /proc.
    """
    installed = packages()
    versions = {"Python": platform.python_version()}
    wanted = SOFTWARE
    if driver := driver_version():
        versions["CUDA driver"] = driver
        wanted = SOFTWARE | CUDA_SOFTWARE
    for name, package in wanted.items():
        if matches := [v for n, v in sorted(installed.items()) if re.fullmatch(package, n)]:
            versions[name] = matches[0]
    if head := commit()["commit"]:
        versions["mlhpc"] = f"{installed.get('mlhpc', '')} ({head})".strip()
    elif "mlhpc" in installed:
        versions["mlhpc"] = installed["mlhpc"]
    if mpi := re.search(
        r"\(Open MPI\) ([\w.]+)|(?:HYDRA|Intel\(R\) MPI)[^\n]*?(\d+\.[\d.]+)", output("mpirun", "--version")
    ):
        versions["Open MPI" if mpi[1] else "MPI"] = mpi[1] or mpi[2]
    if slurm := re.match(r"slurm\S* (\S+)", output("sinfo", "--version")):
        versions["Slurm"] = slurm[1]
    for name in ("APPTAINER_NAME", "SINGULARITY_NAME"):
        if name in env:
            versions["Container"] = env[name]
    if kernel := text(root / "proc/sys/kernel/osrelease"):
        versions["Kernel"] = kernel
    return versions
