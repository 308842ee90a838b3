"""``mlhpc doctor``: whether this machine, and these ranks, are fit for a run.

The first rank of every node looks at it (:func:`examine`), rank 0 hears them all and judges (:func:`judge`, a
pure function). Frameworks are tried in processes of their own: a broken build may crash, a laptop has none.
"""

import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from mlhpc.common.data import manifest
from mlhpc.common.data.filesystem import filesystem_of
from mlhpc.common.errors import UserError, did_you_mean
from mlhpc.common.evidence import accelerators, commit, packages
from mlhpc.common.ranks import launch
from mlhpc.common.ranks.launch import Framework as Backend
from mlhpc.common.ranks.launch import Place
from mlhpc.common.ranks.rollcall import Line as Wire
from mlhpc.run import BACKENDS
from mlhpc.submission import system

Status = Literal["pass", "warn", "fail"]
Node = Mapping[str, Any]

GIB = 1 << 30
SHM_WARN = 1 * GIB  # container engines give 64 MiB, which the workers of data loaders and NCCL outgrow
OUT_WARN = 1 * GIB
CLOCK_PASS_S, CLOCK_WARN_S = 0.1, 1.0
"""How far the clocks of two nodes may be apart. Time to train is one clock's; times of different nodes are
compared in the throughput metric alone (the last run_stop minus the first run_start), in minutes."""
EXAMINED_S = 300.0  # to load a framework from a slow file system takes minutes


@dataclass(frozen=True)
class Line:
    """One check: what was looked at, what was found, and what to do where that is not well."""

    status: Status
    what: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Folders:
    """Where the run to come would read and write; None: nobody said."""

    data: Path | None
    stage: Path | None
    out: Path | None


def doctor(benchmark: str | None, folders: Folders, console: Console) -> int:
    """Examine, judge and print; with several ranks on rank 0, for all. Then start what ``benchmark`` trains
    with, if there is more than one rank. Returns the exit status: 1 when a line says fail.

    Raises UserError when there is no such benchmark, or a rank does not come.
    """
    if benchmark is not None and benchmark not in BACKENDS:
        raise UserError(f"no benchmark {benchmark!r}; {did_you_mean(benchmark, BACKENDS)}")
    backend: Backend = BACKENDS[benchmark] if benchmark else "none"
    env = os.environ
    try:
        place = _place(env)
    except UserError as error:
        _print([Line("fail", "launcher", str(error), "start all ranks with one launcher")], console)
        return 1
    lines: list[Line] = []
    nodes = _of_all_nodes(place, lambda: examine(place, backend, folders, env), env)
    if place.rank == 0:
        lines = [*judge(nodes, place, benchmark, backend, env), *_clocks(nodes)]
        if place.size > 1 and not place.leader:
            found = f"not examined: {place.launcher} does not say where rank 0 is"
            remedy = "start this with srun or torchrun, or set MLHPC_LEADER to the host of rank 0"
            lines.append(Line("warn", "other nodes", found, remedy))
    _print(lines, console)
    failed = any(line.status == "fail" for line in lines)
    if place.size > 1 and backend != "none":
        failed = _start(place, backend, console) or failed
    if place.rank == 0:
        warned = sum(line.status == "warn" for line in lines)
        verdict = "not fit for a run" if failed else "nothing failed"
        console.print(f"{verdict}; {warned or 'no'} warning{'' if warned == 1 else 's'}", style="bold")
    return 1 if failed else 0


# What a node is ---------------------------------------------------------------------------------------------


def examine(place: Place, backend: Backend, folders: Folders, env: Mapping[str, str]) -> dict[str, Any]:
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
        "shared": on.type in system.SHARED_TYPES,
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


# Several ranks ----------------------------------------------------------------------------------------------


def _place(env: Mapping[str, str]) -> Place:
    """This rank's place, with where to meet rank 0 as far as that can be known (of mpirun from Slurm's
    variables or MLHPC_LEADER, or because all ranks are on this node). Raises UserError as ``identify``."""
    place = launch.identify(env)
    if place.size == 1 or place.leader:
        return place
    try:
        return launch.with_leader(place, env)
    except UserError:
        return place


def _of_all_nodes(
    place: Place, look: Callable[[], dict[str, Any]], env: Mapping[str, str]
) -> list[dict[str, Any]]:
    """On rank 0 what ``look`` finds on every node, by its first rank, and ``offset_s``: how far that node's
    clock is ahead of rank 0's. Of this node alone where the ranks cannot meet (``_place``). An empty
    list on other ranks. Raises UserError on every rank when one does not come, and names it."""
    if place.size == 1 or not place.leader:
        return [look() | {"offset_s": 0.0}] if place.rank == 0 else []
    ranks = launch.call_roll(place, env)
    ranks.enter("doctor")
    heard = []
    if place.rank == 0:
        with socket.create_server(("", 0), backlog=1024) as door:
            ranks.share({"host": ranks.my_address(), "port": door.getsockname()[1]})
            heard = [
                (0, look() | {"offset_s": 0.0}),
                *_hear(door, sum(c.local_rank == 0 for c in ranks.roll) - 1),
            ]
    else:
        where = ranks.share({})
        if place.local_rank == 0:
            _tell(
                Wire(socket.create_connection((where["host"], where["port"]), timeout=60)), place.rank, look()
            )
    ranks.close()
    return [facts for _, facts in sorted(heard, key=lambda one: one[0])]


def _tell(wire: Wire, rank: int, facts: dict[str, Any]) -> None:
    wire.send(rank=rank, facts=facts)
    while "ping" in wire.answer(EXAMINED_S):
        wire.send(time=time.time())
    wire.close()


def _hear(door: socket.socket, nodes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    door.settimeout(EXAMINED_S)
    for _ in range(nodes):
        try:
            wire = Wire(door.accept()[0])
            told = wire.answer(EXAMINED_S)
            yield told["rank"], told["facts"] | {"offset_s": _offset(wire)}
        except (TimeoutError, EOFError, ValueError, KeyError) as error:
            why = str(error) or "time is up"
            raise UserError(f"a rank that had come did not say what it found ({why})") from None
        wire.send(done=True)
        wire.close()


def _offset(wire: Wire, rounds: int = 9) -> float:
    """Seconds by which the clock at the other end is ahead: its reading against the middle of the round trip
    (Cristian 1989), from the quickest of the ``rounds``."""
    trips = []
    for _ in range(rounds):
        sent = time.time()
        wire.send(ping=True)
        theirs = float(wire.answer(10.0)["time"])
        back = time.time()
        trips.append((back - sent, theirs - (sent + back) / 2))
    return min(trips)[1]


def _start(place: Place, backend: Backend, console: Console) -> bool:
    """Start the backend with all ranks, and say on rank 0 whether it counts them as the launcher does;
    whether that failed. A rank that is lost meanwhile ends this process, and is named."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes on its build would bury ours
    began = time.monotonic()
    try:
        with launch.joined(backend) as world:
            total = int(world.sum(1.0))
            hosts = len(set(world.gather(place.hostname or socket.gethostname())))
    except Exception as error:  # a backend that does not work may raise anything
        if place.rank == 0:
            why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            _print([Line("fail", "backend", why, "see the lines above, and docs/sites.md")], console)
        return True
    good = total == place.size
    if place.rank == 0:
        where = f"{hosts} node{'s' * (hosts > 1)}"
        found = (
            f"{backend} counts {total} ranks on {where}; it took {time.monotonic() - began:.1f} s to start"
        )
        remedy = "" if good else f"{place.launcher} started {place.size}: see docs/sites.md"
        _print([Line("pass" if good else "fail", "backend", found, remedy)], console)
    return not good


# The verdict ------------------------------------------------------------------------------------------------


def judge(
    nodes: Sequence[Node], place: Place, benchmark: str | None, backend: Backend, env: Mapping[str, str]
) -> Iterator[Line]:
    """One line a check, from the facts of every node (:func:`examine`); what nodes agree on is said once."""
    checks = [list(_node(node, place, benchmark, backend)) for node in nodes]
    hosts = [str(node["host"]) for node in nodes]
    yield _launcher(place, hosts, env)
    yield from _merged(hosts, checks)
    yield from _alike(nodes)
    yield from _seen_by_all(nodes)


def _merged(hosts: Sequence[str], checks: Sequence[Iterable[Line]]) -> Iterator[Line]:
    """Lines that all nodes have stand as they are; the others say on which nodes."""
    where: dict[Line, list[str]] = {}
    for host, lines in zip(hosts, checks, strict=True):
        for line in lines:
            where.setdefault(line, []).append(host)
    for line, there in where.items():
        some = "" if len(there) == len(hosts) else f" on {', '.join(there[:8])}{', …' * (len(there) > 8)}"
        yield Line(line.status, line.what + some, line.found, line.remedy)


def _launcher(place: Place, hosts: Sequence[str], env: Mapping[str, str]) -> Line:
    """Who started this, and the nodes that were looked at."""
    tasks = env.get("SLURM_NTASKS", "1")
    if place.launcher == "none" and tasks.isdigit() and int(tasks) > 1:
        found = f"one process, in a Slurm job of {tasks} tasks"
        return Line("warn", "launcher", found, "start it with srun, or it runs as one rank")
    nodes = f"{len(hosts)} nodes: " if len(hosts) > 1 else ""
    seen = f"{nodes}{', '.join(hosts[:8])}{', …' * (len(hosts) > 8)}"
    ranks = f"{place.size} rank{'s' * (place.size > 1)}"
    if place.size > 1 and not place.leader:
        return Line("pass", "launcher", f"{place.launcher}: {ranks}, examined on {seen} alone")
    return Line("pass", "launcher", f"{place.launcher}: {ranks} on {seen}")


def _node(node: Node, place: Place, benchmark: str | None, backend: Backend) -> Iterator[Line]:
    python = tuple(int(part) for part in node["python"].split(".")[:2])
    good = (3, 11) <= python <= (3, 12)
    yield Line(
        "pass" if good else "fail", "Python", node["python"], "" if good else "use Python 3.11 or 3.12"
    )
    yield from _cores(node)
    yield from _gpus(node, backend)
    if backend != "torch":
        yield from _tensorflow(node, backend == "horovod")
        yield from _horovod(node, place, backend == "horovod")
    if backend != "horovod":
        yield from _torch(node, backend == "torch")
    yield from _data(node["data"], benchmark)
    yield from _stage(node["stage"], node["data"].get("bytes"))
    yield from _out(node["out"])
    yield from _shm(node["shm"])
    for name, interface in node["no_interface"].items():
        yield Line("fail", "network", f"{name}={interface}: no such interface", "see: ip -br link")
    if node["infiniband"] and node["memlock"] != resource.RLIM_INFINITY:
        found = f"InfiniBand, and only {node['memlock'] / GIB:.2g} GiB may be locked"
        yield Line(
            "warn", "memory locks", found, "ask for an unlimited memlock (ulimit -l) on the compute nodes"
        )


def _cores(node: Node) -> Iterator[Line]:
    mine, machine, ranks = node["cores"], node["machine_cores"], node["local_size"]
    found = f"{mine} of {machine} for a rank, {ranks} rank{'s' * (ranks > 1)} on the node"
    if mine == machine and ranks > machine:
        yield Line("warn", "cores", found, "start no more ranks than cores: they would wait for one another")
    elif mine * ranks < machine / 2:
        yield Line("warn", "cores", found, "give each rank its share of the cores (srun --cpus-per-task)")
    else:
        yield Line("pass", "cores", found)


def _gpus(node: Node, backend: Backend) -> Iterator[Line]:
    gpus, ranks = node["gpus"], node["local_size"]
    if not gpus:
        yield Line("pass", "GPUs", "none")
        return
    found = f"{len(gpus)} ({gpus[0]}), {ranks} rank{'s' * (ranks > 1)} on the node"
    if ranks > len(gpus):
        status: Status = "fail" if backend == "torch" else "warn"
        yield Line(
            status,
            "GPUs",
            found,
            "start one rank a GPU, and let each see all of its node (srun --gpu-bind=none)",
        )
    elif ranks < len(gpus):
        yield Line("warn", "GPUs", found, f"{len(gpus) - ranks} would be idle: start one rank a GPU")
    else:
        yield Line("pass", "GPUs", found)


def _tensorflow(node: Node, needed: bool) -> Iterator[Line]:
    told, name = node["tensorflow"], "TensorFlow"
    if told is None:
        remedy = "pip install 'mlhpc[cosmoflow]', which cosmoflow needs"
        yield Line("fail" if needed else "warn", name, "not installed", remedy)
    else:
        yield from _framework(name, told, len(node["gpus"]), needed, "pip install 'mlhpc[cosmoflow-gpu]'")


def _torch(node: Node, needed: bool) -> Iterator[Line]:
    told, name = node["torch"], "PyTorch"
    if told is None:
        remedy = "pip install torch, which deepcam and resnet50 need"
        yield Line("fail" if needed else "warn", name, "not installed", remedy)
        return
    gpus = len(node["gpus"])
    yield from _framework(name, told, gpus, needed, "install a build for your CUDA (pytorch.org)")
    if gpus and not told.get("error") and not told["nccl"]:
        yield Line("warn", name, "built without NCCL", "install a build with it: gradients go over the host")


def _framework(name: str, told: Mapping[str, Any], gpus: int, needed: bool, for_gpus: str) -> Iterator[Line]:
    bad: Status = "fail" if needed else "warn"
    if told.get("error"):
        yield Line(bad, name, told["error"], "install it again in this environment")
    elif told["gpus"] < gpus:
        found = f"{told['version']} sees {told['gpus']} of {gpus} GPUs"
        yield Line(bad, name, found, f"{for_gpus}; in a container: --nv; look at CUDA_VISIBLE_DEVICES")
    else:
        yield Line("pass", name, told["version"] + (f", {told['gpus']} GPUs" if gpus else ""))


def _horovod(node: Node, place: Place, needed: bool) -> Iterator[Line]:
    tensorflow = node["tensorflow"]
    version = node["packages"].get("horovod")
    bad: Status = "fail" if needed and place.size > 1 else "warn"
    again = "build it again for this TensorFlow, with --no-cache-dir (docs/dependencies.md)"
    if not version:
        if place.size > 1:
            yield Line(bad, "Horovod", "not installed, and there are several ranks", again)
        elif needed:
            yield Line("pass", "Horovod", "not installed; one rank needs none")
        return
    if not tensorflow or tensorflow.get("error"):
        return  # the line before says it
    built_for = node["horovod_built_for"]
    if built_for is not None and built_for != tensorflow["version"]:
        found = f"{version} built for TensorFlow {built_for or '(none)'}, here is {tensorflow['version']}"
        yield Line(bad, "Horovod", found, again)
        return
    if error := tensorflow.get("horovod_error"):
        yield Line(bad, "Horovod", f"{version} does not load: {error}", again)
        return
    built = tensorflow["horovod"]
    has = ", ".join(name for name in ("gloo", "mpi", "nccl") if built[name]) or "no controller"
    found = f"{version}, built with {has}"
    if place.launcher == "mpirun" and not built["mpi"]:
        yield Line(bad, "Horovod", found, "mpirun needs HOROVOD_WITH_MPI=1 in its build; or start with srun")
    elif place.launcher != "mpirun" and not built["gloo"]:
        yield Line(bad, "Horovod", found, f"{place.launcher} needs HOROVOD_WITH_GLOO=1 in its build")
    elif node["gpus"] and not built["nccl"]:
        yield Line(
            "warn", "Horovod", found, "gradients go over the host: build with HOROVOD_GPU_OPERATIONS=NCCL"
        )
    else:
        yield Line("pass", "Horovod", found)


def _data(folder: Mapping[str, Any], benchmark: str | None) -> Iterator[Line]:
    if not folder:
        return
    found = _described(folder)
    if not folder.get("exists"):
        what = f"mlhpc data make {benchmark or 'BENCHMARK'}"
        yield Line("fail", "data set", f"{folder['path']} is not there", f"give --data, or make one: {what}")
    elif "manifest_error" in folder:
        yield Line(
            "fail", "data set", folder["manifest_error"], "mlhpc data index DIR makes the manifest anew"
        )
    elif "bytes" not in folder:
        remedy = "mlhpc data index DIR writes one; without, staging cannot verify what it copies"
        yield Line("warn", "data set", f"{found}, without a manifest", remedy)
    else:
        size = f"{folder['files']} files, {folder['bytes'] / GIB:.3g} GiB"
        remedy = "a copy in memory is no data set on storage: the run would measure memory"
        yield Line(
            "warn" if folder["is_ram"] else "pass", "data set", f"{found}, {size}", remedy * folder["is_ram"]
        )


def _stage(folder: Mapping[str, Any], needed: int | None) -> Iterator[Line]:
    found = _described(folder)
    if folder.get("error") or not folder["writable"]:
        yield Line("fail", "staging", f"{found}, cannot be written", "give --stage a folder that can")
    elif needed and needed > folder["free"]:
        remedy = "choose another --stage, or --set staging.mode=shard, which gives a node its part alone"
        yield Line("fail", "staging", f"{found}; the data set has {needed / GIB:.3g} GiB", remedy)
    elif folder["is_ram"]:
        yield Line("warn", "staging", found, "files there are memory: leave enough of it for the training")
    elif folder["shared"]:
        remedy = "staging to a shared file system gains nothing: give --stage storage of the node"
        yield Line("warn", "staging", found, remedy)
    else:
        yield Line("pass", "staging", found)


def _out(folder: Mapping[str, Any]) -> Iterator[Line]:
    found = _described(folder)
    if folder.get("error") or not folder["writable"]:
        yield Line("fail", "results", f"{found}, cannot be written", "give --out a folder that can")
    elif folder["is_ram"]:
        yield Line("warn", "results", found, "they would be gone with the node: give --out a disk")
    elif folder["free"] < OUT_WARN:
        yield Line("warn", "results", found, "make room: logs and checkpoints go there")
    else:
        yield Line("pass", "results", found)


def _shm(folder: Mapping[str, Any]) -> Iterator[Line]:
    if folder.get("error") or not folder["exists"]:
        yield Line("warn", "/dev/shm", "is not there", "mount it (tmpfs): data loaders and NCCL use it")
    elif folder["free"] < SHM_WARN:
        remedy = "data loaders and NCCL use it: in a container, --shm-size=8g or --ipc=host"
        yield Line("warn", "/dev/shm", f"{folder['free'] / (1 << 20):.0f} MiB free", remedy)
    else:
        yield Line("pass", "/dev/shm", f"{folder['free'] / GIB:.1f} GiB free")


def _described(folder: Mapping[str, Any]) -> str:
    if folder.get("error"):
        return f"{folder['path']}: {folder['error']}"
    kind = folder["type"] + (", memory" if folder["is_ram"] else ", shared" if folder["shared"] else "")
    return f"{folder['path']} ({kind}), {folder['free'] / GIB:.1f} GiB free"


def _alike(nodes: Sequence[Node]) -> Iterator[Line]:
    """Ranks of one run have one version of everything."""
    if len(nodes) == 1:
        return
    first = nodes[0]
    versions = [{**n["packages"], "Python": n["python"], "mlhpc commit": n["commit"]} for n in nodes]
    differ = sorted(
        name
        for name in {key for version in versions for key in version}
        if len({version.get(name) for version in versions}) > 1
    )
    for name in differ:
        others = {str(v.get(name)): n["host"] for v, n in zip(versions, nodes, strict=True)}
        found = ", ".join(f"{version} on {host}" for version, host in sorted(others.items())[:4])
        yield Line("fail", "versions", f"{name} differs: {found}", "give all nodes one environment")
    if not differ:
        yield Line("pass", "versions", f"the same on {len(nodes)} nodes")
    gpus = {len(n["gpus"]) for n in nodes}
    if len(gpus) > 1:
        odd = next(n["host"] for n in nodes if len(n["gpus"]) != len(first["gpus"]))
        found = f"{' and '.join(map(str, sorted(gpus)))} on a node ({odd} is unlike {first['host']})"
        yield Line("warn", "GPUs", found, "drain the node, or leave it out (--exclude)")


def _seen_by_all(nodes: Sequence[Node]) -> Iterator[Line]:
    """The data set and the results are on what all nodes share."""
    if len({n["host"] for n in nodes}) < 2:
        return
    digests = {n["data"].get("digest") for n in nodes}
    if len(digests) > 1:
        remedy = "put it on a file system that all nodes share, and index it there"
        yield Line("fail", "data set", "not the same on all nodes (their manifests differ)", remedy)
    out = nodes[0]["out"]
    if not out.get("error") and not out["shared"]:
        remedy = "give --out a folder on a file system that all nodes share, if this one is not"
        yield Line(
            "warn", "results", f"{out['path']} is on {out['type']}: perhaps of this node alone", remedy
        )


def _clocks(nodes: Sequence[Node]) -> Iterator[Line]:
    """``offset_s`` of every node against rank 0's."""
    if len(nodes) < 2:
        return
    worst = max(nodes, key=lambda node: abs(node["offset_s"]))
    off = abs(worst["offset_s"])
    found = f"{worst['host']} is {off * 1e3:.1f} ms from {nodes[0]['host']}"
    found += ", the others are nearer" * (len(nodes) > 2)
    remedy = (
        f"set the clock of {worst['host']} (chronyc tracking): the throughput metric compares nodes' clocks"
    )
    status: Status = "pass" if off <= CLOCK_PASS_S else "warn" if off <= CLOCK_WARN_S else "fail"
    yield Line(status, "clocks", found, "" if status == "pass" else remedy)


_STYLES: dict[Status, str] = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def _print(lines: Iterable[Line], console: Console) -> None:
    for line in lines:
        text = Text.assemble((line.status, _STYLES[line.status]), f"  {line.what:<12}  {line.found}")
        console.print(text, soft_wrap=True)
        if line.remedy:
            console.print(Text(f"      → {line.remedy}"), soft_wrap=True)


# The description of the system ------------------------------------------------------------------------------


def describe_system(settings: Sequence[str], out: Path | None, console: Console) -> int:
    """``mlhpc doctor --system``: the official JSON of this machine, or of the nodes that a launcher started
    this on, to ``out`` or standard output. Returns 1 when an answer that the rules need is missing."""
    given = system.given_fields(settings)
    if out and out.exists():
        raise UserError(f"{out} is there already; choose another --out, or move it away")
    place = _place(os.environ)
    if place.size > 1 and not place.leader:
        raise UserError(
            f"{place.launcher} does not say where rank 0 is, so the nodes cannot be described together; start "
            "this with srun or torchrun, or set MLHPC_LEADER to the host of rank 0"
        )
    nodes = _of_all_nodes(place, system.node_facts, os.environ)
    if place.rank:
        return 0
    description = system.describe(nodes, given)
    if out:
        system.write(description, out)
    else:
        print(description.to_json(), end="")
    for key, hint in description.missing.items():
        console.print(f"fill in: --set {key}=…{f'  ({hint})' if hint else ''}", soft_wrap=True, markup=False)
    if description.open:
        console.print(f"may be filled in: {', '.join(description.open)}", soft_wrap=True, markup=False)
    return 1 if description.missing else 0
