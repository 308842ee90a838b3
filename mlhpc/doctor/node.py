"""What a node is: facts that JSON can carry.

Frameworks are tried in processes of their own: a broken build may crash, a laptop has none.
"""

import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mlhpc.common.data import manifest
from mlhpc.common.files.filesystem import SHARED_TYPES, filesystem_of
from mlhpc.common.host.provenance import accelerators, commit, packages
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.launch import Framework as Backend
from mlhpc.errors import UserError

EXAMINED_S = 300.0  # to load a framework from a slow file system takes minutes


@dataclass(frozen=True)
class Folders:
    """Where the run to come would read and write; None: nobody said."""

    data: Path | None
    stage: Path | None
    out: Path | None


def examine(place: RankInfo, backend: Backend, folders: Folders, env: Mapping[str, str]) -> dict[str, Any]:
    """The facts of this node, by its first rank. JSON can carry them."""
    named = ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME")
    interfaces = {name: part for name in named if name in env for part in env[name].split(",")}
    return {
        "host": place.hostname or socket.gethostname(),
        "local_size": place.local_size,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": packages(),
        "commit": commit()["commit"],
        "machine_cores": os.cpu_count(),
        "gpus": accelerators(),
        "horovod_built_for": _horovod_built_for(),
        "infiniband": any(Path("/sys/class/infiniband").glob("*")),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "no_interface": {k: v for k, v in interfaces.items() if not Path("/sys/class/net", v).exists()},
        "data": _folder(folders.data) | _data_set(folders.data),
        "stage": _folder(folders.stage or Path(env.get("TMPDIR", "/tmp"))),
        "out": _folder(folders.out or Path("results")),
        "shm": _folder(Path("/dev/shm")),
        **_try_frameworks(backend),
    }


def _folder(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        on = filesystem_of(path)
    except OSError as error:
        return {"path": str(path), "error": error.strerror}
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return {
        "path": str(path),
        "type": on.type,
        "is_ram": on.is_ram,
        "shared": on.type in SHARED_TYPES,
        "free": on.free_bytes,
        "exists": path.exists(),
        "writable": there.is_dir() and os.access(there, os.W_OK | os.X_OK),
    }


def _data_set(path: Path | None) -> dict[str, Any]:
    if path is None or not (path / manifest.NAME).is_file():
        return {}
    try:
        found = manifest.load(path)
        digest = zlib.crc32((path / manifest.NAME).read_bytes())
    except (UserError, OSError) as error:
        return {"manifest_error": str(error)}
    return {"bytes": found.bytes, "files": len(found.files), "digest": digest}


def _horovod_built_for() -> str | None:
    """The TensorFlow that the installed Horovod was compiled against: its build leaves ``metadata.json``
    (horovod 0.28, setup.py). Empty when it was built without; None when there is no Horovod, or no such
    file."""
    try:
        files = metadata.distribution("horovod")
        return str(
            json.loads(Path(str(files.locate_file("horovod/metadata.json"))).read_text()).get(
                "tensorflow", ""
            )
        )
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None


_TENSORFLOW = """
import json
import tensorflow as tf
told = {"version": tf.__version__, "gpus": len(tf.config.list_physical_devices("GPU"))}
try:
    import horovod.tensorflow as hvd
    told["horovod"] = {n: bool(getattr(hvd, n + "_built")()) for n in ("gloo", "mpi", "nccl")}
except Exception as error:
    told["horovod_error"] = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
print(json.dumps(told))
"""
_TORCH = """
import json
import torch
import torch.distributed as d
print(json.dumps({"version": torch.__version__, "gpus": torch.cuda.device_count(),
                  "gloo": d.is_available() and d.is_gloo_available(),
                  "nccl": d.is_available() and d.is_nccl_available()}))
"""


def _try_frameworks(backend: Backend) -> dict[str, Any]:
    """What the frameworks say of themselves, each in a process of its own, side by side. Absent: None."""
    installed = packages()
    programs = {}
    if backend != "torch" and {"tensorflow", "tensorflow-cpu"} & set(installed):
        programs["tensorflow"] = _TENSORFLOW
    if backend != "horovod" and "torch" in installed:
        programs["torch"] = _TORCH
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", code], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name, code in programs.items()
    }
    return {"tensorflow": None, "torch": None} | {name: _told(process) for name, process in started.items()}


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        said, complained = process.communicate(timeout=EXAMINED_S / 2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"did not load within {EXAMINED_S / 2:.0f} s"}
    if process.returncode < 0:
        return {"error": f"crashed when it was loaded ({signal.Signals(-process.returncode).name})"}
    try:
        told: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
        return told
    except (IndexError, ValueError):
        last = [line for line in complained.splitlines() if line.strip()][-1:]
        return {"error": "does not load: " + (last[0].strip() if last else "it said nothing")}
