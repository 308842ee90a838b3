"""Gathers the facts about one node, in JSON types.

Frameworks are loaded in separate processes, since a broken build may crash.
"""

import ctypes
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
from mlhpc.common.energy.accelerators import vendor_here
from mlhpc.common.energy.meter import counters_of_node
from mlhpc.common.energy.slurm import plugin
from mlhpc.common.files.filesystem import SHARED_TYPES, filesystem_of, nearest_existing
from mlhpc.common.host.accelerators import accelerators, driver_version
from mlhpc.common.host.binding import numa_nodes
from mlhpc.common.host.provenance import commit, compiled_parts, extras, packages
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.launch import Framework
from mlhpc.errors import UserError
from mlhpc.quantities import seconds_text

EXAMINE_S = 300.0  # loading a framework from a slow file system takes minutes


@dataclass(frozen=True)
class Folders:
    """The folders of the planned run; None for a folder that was not specified."""

    data: Path | None
    stage: Path | None
    out: Path | None


def examine(
    rank_info: RankInfo, framework: Framework, folders: Folders, env: Mapping[str, str]
) -> dict[str, Any]:
    """The facts about this node. Called by the node's first rank."""
    variables = ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME")
    interfaces = {name: part for name in variables if name in env for part in env[name].split(",")}
    threads = {name: env[name] for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS") if name in env}
    return {
        "host": rank_info.hostname or socket.gethostname(),
        "local_size": rank_info.local_size,
        "cores": len(os.sched_getaffinity(0)),
        "numa_nodes": len(numa_nodes()),
        "python": platform.python_version(),
        "packages": packages(),
        "extras": extras(),
        "compiled": compiled_parts(),
        "commit": commit()["commit"],
        "machine_cores": os.cpu_count(),
        "threads": {name: int(value) for name, value in threads.items() if value.isdigit()},
        "gpus": accelerators(),
        "energy": _energy(),
        "energy_sampled_by": plugin() if rank_info.rank == 0 else "",
        "driver": driver_version(),
        "horovod_built_for": _horovod_built_for(),
        "infiniband": any(Path("/sys/class/infiniband").glob("*")),
        "clock_synchronised": clock_synchronised(),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "no_interface": {k: v for k, v in interfaces.items() if not Path("/sys/class/net", v).exists()},
        "data": _folder(folders.data) | _data_set(folders.data),
        "stage": _folder(folders.stage or Path(env.get("TMPDIR", "/tmp"))),
        "out": _folder(folders.out or Path("results")),
        "shm": _folder(Path("/dev/shm")),
        "environment": _folder(Path(sys.prefix)),
        **_load_frameworks(framework),
    }


def clock_synchronised() -> bool | None:
    """Return whether the kernel's clock is synchronised by NTP or PTP (adjtimex(2): the state is not TIME_ERROR
    and STA_UNSYNC is not set); None if the kernel does not report it."""
    timex = (ctypes.c_int * 64)()  # struct timex has 208 bytes; a first field of zero changes nothing
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    # After modes, padding and the longs offset, freq, maxerror and esterror, the int status is at byte 40.
    return None if state < 0 else state != 5 and not timex[10] & 0x40


def _energy() -> list[dict[str, Any]]:
    """The kinds of energy counters on this node: what each measures, its source, the number of counters, and any
    problem."""
    return [
        {
            "measured": c.measured,
            "source": c.source,
            "counters": len(c.reads),
            "problem": "; ".join(c.problems),
        }
        for c in counters_of_node(vendor_here())
    ]


def _folder(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        filesystem = filesystem_of(path)
    except OSError as error:
        return {"path": str(path), "error": error.strerror}
    parent = nearest_existing(path)
    return {
        "path": str(path),
        "type": filesystem.type,
        "is_ram": filesystem.is_ram,
        "shared": filesystem.type in SHARED_TYPES,
        "free": filesystem.free_bytes,
        "exists": path.exists(),
        "writable": parent.is_dir() and os.access(parent, os.W_OK | os.X_OK),
    }


def _data_set(path: Path | None) -> dict[str, Any]:
    if path is None or not (path / manifest.NAME).is_file():
        return {}
    try:
        dataset = manifest.load(path)
        digest = zlib.crc32((path / manifest.NAME).read_bytes())
    except (UserError, OSError) as error:
        return {"manifest_error": str(error)}
    return {"bytes": dataset.bytes, "files": len(dataset.files), "digest": digest}


def _horovod_built_for() -> str | None:
    """The version of TensorFlow against which the installed Horovod was compiled, from Horovod's ``metadata.json``
    (horovod 0.28, setup.py). Empty if Horovod was built without TensorFlow; None if Horovod or the file is
    missing."""
    try:
        path = Path(str(metadata.distribution("horovod").locate_file("horovod/metadata.json")))
        return str(json.loads(path.read_text()).get("tensorflow", ""))
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None


_TENSORFLOW = """
import json
import tensorflow as tf
gpus = len(tf.config.list_physical_devices("GPU"))
facts = {"version": tf.__version__, "gpus": gpus, "usable": gpus > 0,
         "cuda": tf.sysconfig.get_build_info().get("cuda_version")}
try:
    import horovod.tensorflow as hvd
    facts["horovod"] = {n: bool(getattr(hvd, n + "_built")()) for n in ("gloo", "mpi", "nccl")}
except Exception as error:
    facts["horovod_error"] = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
print(json.dumps(facts))
"""
_TORCH = """
import json
import torch
import torch.distributed as d
from mlhpc.common.pytorch.devices import first_device, without_code, without_graphs
gpus = torch.accelerator.device_count()
kind = torch.accelerator.current_accelerator().type if gpus else None
own = d.get_default_backend_for_device(kind) if gpus and d.is_available() else None
print(json.dumps({"version": torch.__version__, "gpus": gpus, "usable": gpus > 0, "kind": kind,
                  "cuda": torch.version.cuda, "rocm": torch.version.hip,
                  "without_code": without_code(first_device()),
                  "without_graphs": without_graphs(first_device(), 2) if kind == "cuda" else "",
                  "backend": own, "built": bool(own) and d.is_backend_available(own),
                  "gloo": d.is_available() and d.is_gloo_available()}))
"""


def _load_frameworks(framework: Framework) -> dict[str, Any]:
    """Load each framework in a separate process, all concurrently, and return their reports; None for a framework
    that is not installed."""
    installed = packages()
    programs = {}
    if framework != "torch" and {"tensorflow", "tensorflow-cpu"} & set(installed):
        programs["tensorflow"] = _TENSORFLOW
    if framework != "horovod" and "torch" in installed:
        programs["torch"] = _TORCH
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}  # as in a run
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name, code in programs.items()
    }
    loaded = {name: _framework_facts(process) for name, process in processes.items()}
    return {"tensorflow": None, "torch": None} | loaded


def _framework_facts(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        stdout, stderr = process.communicate(timeout=EXAMINE_S / 2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"was not loaded within {seconds_text(EXAMINE_S / 2)}"}
    if process.returncode < 0:
        return {"error": f"crashed while loading ({signal.Signals(-process.returncode).name})"}
    try:
        facts: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
        return facts
    except (IndexError, ValueError):
        last = [line for line in stderr.splitlines() if line.strip()][-1:]
        return {"error": "cannot be loaded: " + (last[0].strip() if last else "no message")}
