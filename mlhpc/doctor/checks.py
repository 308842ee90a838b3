"""The verdict: one line a check, from the facts of every node. Nothing here looks at a machine."""

import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.launch import Framework as Backend
from mlhpc.errors import count

Status = Literal["pass", "warn", "fail"]
Node = Mapping[str, Any]

GIB = 1 << 30
SHM_WARN = 1 * GIB  # container engines give 64 MiB, which the workers of data loaders and NCCL outgrow
OUT_WARN = 1 * GIB
CLOCK_PASS_S, CLOCK_WARN_S = 0.1, 1.0
"""How far the clocks of two nodes may be apart. Time to train is one clock's; times of different nodes are
compared in the throughput metric alone (the last run_stop minus the first run_start), in minutes."""


@dataclass(frozen=True)
class CheckResult:
    """One check: what was looked at, what was found, and what to do where that is not well."""

    status: Status
    what: str
    found: str
    remedy: str = ""


def check_nodes(
    nodes: Sequence[Node], place: RankInfo, benchmark: str | None, backend: Backend, env: Mapping[str, str]
) -> Iterator[CheckResult]:
    """One line a check, from the facts of every node (``node.examine``); what nodes agree on is said once."""
    checks = [list(_node(node, place, benchmark, backend)) for node in nodes]
    hosts = [str(node["host"]) for node in nodes]
    yield _launcher(place, hosts, env)
    yield from _merged(hosts, checks)
    yield from _alike(nodes)
    yield from _seen_by_all(nodes)


def _merged(hosts: Sequence[str], checks: Sequence[Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """Lines that all nodes have stand as they are; the others say on which nodes."""
    where: dict[CheckResult, list[str]] = {}
    for host, lines in zip(hosts, checks, strict=True):
        for line in lines:
            where.setdefault(line, []).append(host)
    for line, there in where.items():
        some = "" if len(there) == len(hosts) else f" on {', '.join(there[:8])}{', …' * (len(there) > 8)}"
        yield CheckResult(line.status, line.what + some, line.found, line.remedy)


def _launcher(place: RankInfo, hosts: Sequence[str], env: Mapping[str, str]) -> CheckResult:
    """Who started this, and the nodes that were looked at."""
    tasks = env.get("SLURM_NTASKS", "1")
    if place.launcher == "none" and tasks.isdigit() and int(tasks) > 1:
        found = f"one process, in a Slurm job of {tasks} tasks"
        return CheckResult("warn", "launcher", found, "start it with srun, or it runs as one rank")
    nodes = f"{len(hosts)} nodes: " if len(hosts) > 1 else ""
    seen = f"{nodes}{', '.join(hosts[:8])}{', …' * (len(hosts) > 8)}"
    ranks = f"{place.size} rank{'s' * (place.size > 1)}"
    if place.size > 1 and not place.leader:
        return CheckResult("pass", "launcher", f"{place.launcher}: {ranks}, examined on {seen} alone")
    return CheckResult("pass", "launcher", f"{place.launcher}: {ranks} on {seen}")


def _node(node: Node, place: RankInfo, benchmark: str | None, backend: Backend) -> Iterator[CheckResult]:
    python = tuple(int(part) for part in node["python"].split(".")[:2])
    good = (3, 11) <= python <= (3, 12)
    yield CheckResult(
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
        yield CheckResult("fail", "network", f"{name}={interface}: no such interface", "see: ip -br link")
    if node["infiniband"] and node["memlock"] != resource.RLIM_INFINITY:
        found = f"InfiniBand, and only {node['memlock'] / GIB:.2g} GiB may be locked"
        yield CheckResult(
            "warn", "memory locks", found, "ask for an unlimited memlock (ulimit -l) on the compute nodes"
        )


def _cores(node: Node) -> Iterator[CheckResult]:
    mine, machine, ranks = node["cores"], node["machine_cores"], node["local_size"]
    found = f"{mine} of {machine} for a rank, {ranks} rank{'s' * (ranks > 1)} on the node"
    if mine == machine and ranks > machine:
        yield CheckResult(
            "warn", "cores", found, "start no more ranks than cores: they would wait for one another"
        )
    elif mine * ranks < machine / 2:
        yield CheckResult(
            "warn", "cores", found, "give each rank its share of the cores (srun --cpus-per-task)"
        )
    else:
        yield CheckResult("pass", "cores", found)


def _gpus(node: Node, backend: Backend) -> Iterator[CheckResult]:
    gpus, ranks = node["gpus"], node["local_size"]
    if not gpus:
        yield CheckResult("pass", "GPUs", "none")
        return
    found = f"{len(gpus)} ({gpus[0]}), {ranks} rank{'s' * (ranks > 1)} on the node"
    if ranks > len(gpus) == 1:
        remedy = (
            "well if each rank has a GPU of its own; if they share it: one rank a GPU, srun --gpu-bind=none"
        )
        yield CheckResult("warn", "GPUs", f"{found}, which see one", remedy)
    elif ranks > len(gpus):
        status: Status = "fail" if backend == "torch" else "warn"
        yield CheckResult(
            status,
            "GPUs",
            found,
            "start one rank a GPU, and let each see all of its node (srun --gpu-bind=none)",
        )
    elif ranks < len(gpus):
        yield CheckResult("warn", "GPUs", found, f"{len(gpus) - ranks} would be idle: start one rank a GPU")
    else:
        yield CheckResult("pass", "GPUs", found)


def _tensorflow(node: Node, needed: bool) -> Iterator[CheckResult]:
    told, name = node["tensorflow"], "TensorFlow"
    if told is None:
        remedy = "pip install 'mlhpc[cosmoflow]', which cosmoflow needs"
        yield CheckResult("fail" if needed else "warn", name, "not installed", remedy)
    else:
        yield from _framework(name, told, len(node["gpus"]), needed, "pip install 'mlhpc[cosmoflow-gpu]'")


def _torch(node: Node, needed: bool) -> Iterator[CheckResult]:
    told, name = node["torch"], "PyTorch"
    if told is None:
        remedy = "pip install torch, which deepcam and resnet50 need"
        yield CheckResult("fail" if needed else "warn", name, "not installed", remedy)
        return
    gpus = len(node["gpus"])
    yield from _framework(name, told, gpus, needed, "install a build for your CUDA (pytorch.org)")
    if gpus and not told.get("error") and not told["nccl"]:
        yield CheckResult(
            "warn", name, "built without NCCL", "install a build with it: gradients go over the host"
        )


def _framework(
    name: str, told: Mapping[str, Any], gpus: int, needed: bool, for_gpus: str
) -> Iterator[CheckResult]:
    bad: Status = "fail" if needed else "warn"
    if told.get("error"):
        yield CheckResult(bad, name, told["error"], "install it again in this environment")
    elif told["gpus"] < gpus:
        found = f"{told['version']} sees {told['gpus']} of {gpus} GPUs"
        yield CheckResult(bad, name, found, f"{for_gpus}; in a container: --nv; look at CUDA_VISIBLE_DEVICES")
    else:
        yield CheckResult("pass", name, told["version"] + (f", {told['gpus']} GPUs" if gpus else ""))


def _horovod(node: Node, place: RankInfo, needed: bool) -> Iterator[CheckResult]:
    tensorflow = node["tensorflow"]
    version = node["packages"].get("horovod")
    bad: Status = "fail" if needed and place.size > 1 else "warn"
    again = "build it again for this TensorFlow, with --no-cache-dir (docs/dependencies.md)"
    if not version:
        if place.size > 1:
            yield CheckResult(bad, "Horovod", "not installed, and there are several ranks", again)
        elif needed:
            yield CheckResult("pass", "Horovod", "not installed; one rank needs none")
        return
    if not tensorflow or tensorflow.get("error"):
        return  # the line before says it
    built_for = node["horovod_built_for"]
    if built_for is not None and built_for != tensorflow["version"]:
        found = f"{version} built for TensorFlow {built_for or '(none)'}, here is {tensorflow['version']}"
        yield CheckResult(bad, "Horovod", found, again)
        return
    if error := tensorflow.get("horovod_error"):
        yield CheckResult(bad, "Horovod", f"{version} does not load: {error}", again)
        return
    built = tensorflow["horovod"]
    has = ", ".join(name for name in ("gloo", "mpi", "nccl") if built[name]) or "no controller"
    found = f"{version}, built with {has}"
    if place.launcher == "mpirun" and not built["mpi"]:
        yield CheckResult(
            bad, "Horovod", found, "mpirun needs HOROVOD_WITH_MPI=1 in its build; or start with srun"
        )
    elif place.launcher != "mpirun" and not built["gloo"]:
        yield CheckResult(bad, "Horovod", found, f"{place.launcher} needs HOROVOD_WITH_GLOO=1 in its build")
    elif node["gpus"] and not built["nccl"]:
        yield CheckResult(
            "warn", "Horovod", found, "gradients go over the host: build with HOROVOD_GPU_OPERATIONS=NCCL"
        )
    else:
        yield CheckResult("pass", "Horovod", found)


def _data(folder: Mapping[str, Any], benchmark: str | None) -> Iterator[CheckResult]:
    if not folder:
        return
    found = _described(folder)
    if not folder.get("exists"):
        what = f"mlhpc data make {benchmark or 'BENCHMARK'}"
        yield CheckResult(
            "fail", "data set", f"{folder['path']} is not there", f"give --data, or make one: {what}"
        )
    elif "manifest_error" in folder:
        yield CheckResult(
            "fail", "data set", folder["manifest_error"], "mlhpc data index DIR makes the manifest anew"
        )
    elif "bytes" not in folder:
        remedy = "mlhpc data index DIR writes one; without, staging cannot verify what it copies"
        yield CheckResult("warn", "data set", f"{found}, without a manifest", remedy)
    else:
        size = f"{count(folder['files'], 'file')}, {folder['bytes'] / GIB:.3g} GiB"
        remedy = "a copy in memory is no data set on storage: the run would measure memory"
        yield CheckResult(
            "warn" if folder["is_ram"] else "pass", "data set", f"{found}, {size}", remedy * folder["is_ram"]
        )


def _stage(folder: Mapping[str, Any], needed: int | None) -> Iterator[CheckResult]:
    found = _described(folder)
    if folder.get("error") or not folder["writable"]:
        yield CheckResult("fail", "staging", f"{found}, cannot be written", "give --stage a folder that can")
    elif needed and needed > folder["free"]:
        remedy = "choose another --stage, or --set staging.mode=shard, which gives a node its part alone"
        yield CheckResult("fail", "staging", f"{found}; the data set has {needed / GIB:.3g} GiB", remedy)
    elif folder["is_ram"]:
        yield CheckResult(
            "warn", "staging", found, "files there are memory: leave enough of it for the training"
        )
    elif folder["shared"]:
        remedy = "staging to a shared file system gains nothing: give --stage storage of the node"
        yield CheckResult("warn", "staging", found, remedy)
    else:
        yield CheckResult("pass", "staging", found)


def _out(folder: Mapping[str, Any]) -> Iterator[CheckResult]:
    found = _described(folder)
    if folder.get("error") or not folder["writable"]:
        yield CheckResult("fail", "results", f"{found}, cannot be written", "give --out a folder that can")
    elif folder["is_ram"]:
        yield CheckResult("warn", "results", found, "they would be gone with the node: give --out a disk")
    elif folder["free"] < OUT_WARN:
        yield CheckResult("warn", "results", found, "make room: logs and checkpoints go there")
    else:
        yield CheckResult("pass", "results", found)


def _shm(folder: Mapping[str, Any]) -> Iterator[CheckResult]:
    if folder.get("error") or not folder["exists"]:
        yield CheckResult(
            "warn", "/dev/shm", "is not there", "mount it (tmpfs): data loaders and NCCL use it"
        )
    elif folder["free"] < SHM_WARN:
        remedy = "data loaders and NCCL use it: in a container, --shm-size=8g or --ipc=host"
        yield CheckResult("warn", "/dev/shm", f"{folder['free'] / (1 << 20):.0f} MiB free", remedy)
    else:
        yield CheckResult("pass", "/dev/shm", f"{folder['free'] / GIB:.1f} GiB free")


def _described(folder: Mapping[str, Any]) -> str:
    if folder.get("error"):
        return f"{folder['path']}: {folder['error']}"
    kind = folder["type"] + (", memory" if folder["is_ram"] else ", shared" if folder["shared"] else "")
    return f"{folder['path']} ({kind}), {folder['free'] / GIB:.1f} GiB free"


def _alike(nodes: Sequence[Node]) -> Iterator[CheckResult]:
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
        yield CheckResult("fail", "versions", f"{name} differs: {found}", "give all nodes one environment")
    if not differ:
        yield CheckResult("pass", "versions", f"the same on {len(nodes)} nodes")
    gpus = {len(n["gpus"]) for n in nodes}
    if len(gpus) > 1:
        odd = next(n["host"] for n in nodes if len(n["gpus"]) != len(first["gpus"]))
        found = f"{' and '.join(map(str, sorted(gpus)))} on a node ({odd} is unlike {first['host']})"
        yield CheckResult("warn", "GPUs", found, "drain the node, or leave it out (--exclude)")


def _seen_by_all(nodes: Sequence[Node]) -> Iterator[CheckResult]:
    """The data set and the results are on what all nodes share."""
    if len({n["host"] for n in nodes}) < 2:
        return
    digests = {n["data"].get("digest") for n in nodes}
    if len(digests) > 1:
        remedy = "put it on a file system that all nodes share, and index it there"
        yield CheckResult("fail", "data set", "not the same on all nodes (their manifests differ)", remedy)
    out = nodes[0]["out"]
    if not out.get("error") and not out["shared"]:
        remedy = "give --out a folder on a file system that all nodes share, if this one is not"
        yield CheckResult(
            "warn", "results", f"{out['path']} is on {out['type']}: perhaps of this node alone", remedy
        )


def clocks(nodes: Sequence[Node]) -> Iterator[CheckResult]:
    """``offset_s`` of every node against rank 0's."""
    if len(nodes) < 2:
        return
    worst = max(nodes[1:], key=lambda node: abs(node["offset_s"]))
    off = abs(worst["offset_s"])
    found = f"{worst['host']} is {off * 1e3:.1f} ms from {nodes[0]['host']}"
    found += ", the others are nearer" * (len(nodes) > 2)
    remedy = (
        f"set the clock of {worst['host']} (chronyc tracking): the throughput metric compares nodes' clocks"
    )
    status: Status = "pass" if off <= CLOCK_PASS_S else "warn" if off <= CLOCK_WARN_S else "fail"
    yield CheckResult(status, "clocks", found, "" if status == "pass" else remedy)
