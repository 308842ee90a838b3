"""What a result was measured with: machine, commit, packages. Nothing here is guessed; unknown is None."""

import os
import platform
import shutil
import socket
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "mlhpc", "numpy", "tensorflow", "tensorflow-cpu", "keras", "horovod", "torch", "torchvision",
    "nvidia-dali-cuda130", "h5py", "isal", "mlperf-logging",
)  # fmt: skip


def describe_environment() -> dict[str, Any]:
    """Facts of this process's machine and software, for ``env.json``."""
    return {
        **commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **machine(),
        "python": platform.python_version(),
        "packages": packages(),
    }


def machine() -> dict[str, Any]:
    """This node: processor, cores this process may use, memory, accelerators, operating system."""
    return {
        "hostname": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "accelerators": accelerators(),
        "os": f"{_os_name()}, Linux {platform.release()}",
    }


def accelerators() -> list[str]:
    """Names of the GPUs of this node, as nvidia-smi tells them; empty where it is absent."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return (
        [line.strip() for line in answer.stdout.splitlines() if line.strip()]
        if answer.returncode == 0
        else []
    )


def commit() -> dict[str, Any]:
    """The commit of the checkout that this package runs from; None where it is no checkout."""
    here = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", here, *words], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != here:  # installed somewhere inside another project's checkout
        return {"commit": None, "dirty": None}
    head = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": head, "dirty": bool(changed) if changed is not None else None}


def packages() -> dict[str, str]:
    """Installed versions of the packages that can move a result."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
