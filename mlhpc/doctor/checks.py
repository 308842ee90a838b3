"""All checks: one line per check, from the facts of every node. This module does not examine machines."""

import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mlhpc.common.energy.counters import NAMES
from mlhpc.common.energy.slurm import counts_nodes
from mlhpc.common.host.binding import first_overlap, parse_ranges
from mlhpc.common.ranks.environment import RankInfo, forgotten_launcher
from mlhpc.common.ranks.launch import Framework
from mlhpc.doctor import folder_checks
from mlhpc.doctor.check_result import CheckResult, Node, Status
from mlhpc.doctor.framework_checks import compiled, extras, frameworks
from mlhpc.errors import few
from mlhpc.quantities import bytes_text, count, seconds_text

CLOCK_PASS_S, CLOCK_WARN_S = 0.1, 1.0
"""Limits in seconds for the difference between two nodes' clocks: a smaller difference passes, a larger one is a
warning or, above the second limit, a failure. Time to train uses a single clock; only the throughput metric
compares clocks of different nodes (last run_stop minus first run_start), and in minutes."""


def check_nodes(
    nodes: Sequence[Node],
    rank_info: RankInfo,
    benchmark: str | None,
    framework: Framework,
    env: Mapping[str, str],
) -> Iterator[CheckResult]:
    """The results of all checks on all nodes; a result common to all nodes is reported once."""
    results = [list(_check_node(node, rank_info, benchmark, framework)) for node in nodes]
    hosts = [str(node["host"]) for node in nodes]
    yield _launcher(rank_info, hosts, env)
    yield from _merge(hosts, results)
    yield from _slurms_energy(nodes[0])
    yield from _check_alike(nodes)
    yield from _check_shared(nodes)


def _merge(hosts: Sequence[str], results: Sequence[Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """Merge the results of all nodes; results that differ between nodes name the nodes."""
    hosts_of: dict[CheckResult, list[str]] = {}
    for host, own in zip(hosts, results, strict=True):
        for result in own:
            hosts_of.setdefault(result, []).append(host)
    for result, some in hosts_of.items():
        where = "" if len(some) == len(hosts) else f" on {_some(some)}"
        yield CheckResult(result.status, result.name + where, result.detail, result.remedy)


def _some(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:8]) + ", …" * (len(hosts) > 8)


def _launcher(rank_info: RankInfo, hosts: Sequence[str], env: Mapping[str, str]) -> CheckResult:
    """The result that names the launcher and the nodes that were examined."""
    if forgotten := forgotten_launcher(env):
        return CheckResult("warn", "launcher", *forgotten.split("; "))
    nodes = f"{len(hosts)} nodes: " if len(hosts) > 1 else ""
    ranks = count(rank_info.size, "rank")
    if rank_info.size > 1 and not rank_info.leader:
        return CheckResult("pass", "launcher", f"{rank_info.launcher}: {ranks}; only {_some(hosts)} examined")
    return CheckResult("pass", "launcher", f"{rank_info.launcher}: {ranks} on {nodes}{_some(hosts)}")


def _check_node(
    node: Node, rank_info: RankInfo, benchmark: str | None, framework: Framework
) -> Iterator[CheckResult]:
    version = tuple(int(part) for part in node["python"].split(".")[:2])
    horovod = framework == "horovod" and rank_info.size > 1
    newest = (3, 12) if horovod else (3, 13)
    supported = (3, 11) <= version <= newest
    remedy = "" if supported else f"use Python 3.11 to 3.{newest[1]}" + ", for Horovod" * horovod
    yield CheckResult("pass" if supported else "fail", "Python", node["python"], remedy)
    yield from _cores(node)
    if unbound := node.get("unbound"):
        yield CheckResult("fail", "binding", unbound, "on a login node, start this on a compute node instead")
    else:
        yield from _binding(node)
    yield from _threads(node)
    yield from _gpus(node, framework)
    yield from _energy(node)
    yield from frameworks(node, rank_info, framework)
    yield from extras(node)
    yield from compiled(node)
    yield from folder_checks.dataset(node["data"], benchmark)
    yield from folder_checks.stage(node["stage"], node["data"].get("bytes"))
    yield from folder_checks.out(node["out"])
    yield from folder_checks.shm(node["shm"])
    yield from folder_checks.environment(node["environment"], rank_info.size)
    if node["clock_synchronised"] is False:
        remedy = "start chronyd, ntpd or systemd-timesyncd, to compare logs of several nodes"
        yield CheckResult("warn", "clock", "not synchronised by NTP or PTP", remedy)
    for name, interface in node["no_interface"].items():
        yield CheckResult("fail", "network", f"{name}={interface}: no such interface", "see: ip -br link")
    if node["infiniband"] and node["memlock"] != resource.RLIM_INFINITY:
        detail = f"only {bytes_text(node['memlock'])} may be locked, too little for InfiniBand"
        remedy = "request an unlimited memlock (ulimit -l) on the compute nodes"
        yield CheckResult("warn", "memory locks", detail, remedy)


def _cores(node: Node) -> Iterator[CheckResult]:
    own, machine, ranks = node["cores"], node["machine_cores"], node["local_size"]
    detail = f"{own} of {machine} per rank, {count(ranks, 'rank')} on the node"
    if own == machine and ranks > machine:
        yield CheckResult("warn", "cores", detail, "start fewer ranks: there are more than cores")
    elif own * ranks < machine / 2:
        remedy = "give each rank its share of the cores (srun --cpus-per-task)"
        yield CheckResult("warn", "cores", detail, remedy)
    else:
        yield CheckResult("pass", "cores", detail)


def _binding(node: Node) -> Iterator[CheckResult]:
    """Check that each rank has separate cores, on one NUMA node if there are enough ranks."""
    cores = [binding["cores"] for binding in node["bindings"]]
    if len(cores) < node["local_size"]:  # not all ranks were examined
        return
    remedy = "bind ranks: SLURM_CPU_BIND=cores in the site, or mlhpc run --bind cores (docs/guide/sites.md)"
    if len(cores) > 1 and len(set(cores)) == 1:
        on = f", over {node['numa_nodes']} NUMA nodes" if node["numa_nodes"] > 1 else ""
        detail = f"none: {count(len(cores), 'rank')} share cores {cores[0]}{on}"
        yield CheckResult("warn" if on else "pass", "binding", detail, remedy if on else "")
    elif shared := first_overlap(cores):
        one, two, both = shared
        yield CheckResult("warn", "binding", f"local ranks {one} and {two} share cores {both}", remedy)
    else:
        spanning = [
            (rank, binding["numa_nodes"])
            for rank, binding in enumerate(node["bindings"])
            if len(parse_ranges(binding["numa_nodes"] or "")) > 1
        ]
        if spanning and len(cores) >= node["numa_nodes"]:
            rank, over = spanning[0]
            detail = f"local rank {rank} has cores {cores[rank]}, on NUMA nodes {over}"
            yield CheckResult("warn", "binding", detail, remedy)
        elif len(cores) > 1:
            yield CheckResult("pass", "binding", "each rank has its own cores: " + few(cores, 8, " : "))


def _threads(node: Node) -> Iterator[CheckResult]:
    """Check the number of threads per rank that the environment sets. If it sets none, a run starts no more
    threads than cores."""
    ranks = node["local_size"]
    for variable, threads in node["threads"].items():
        if threads > node["cores"] or threads * ranks > node["machine_cores"]:
            detail = f"{count(ranks, 'rank')} x {variable}={threads} on {node['machine_cores']} cores"
            remedy = f"unset {variable}; a run then uses one thread per core"
            yield CheckResult("warn", "threads", detail, remedy)


def _gpus(node: Node, framework: Framework) -> Iterator[CheckResult]:
    gpus, ranks = node["gpus"], node["local_size"]
    if not gpus:
        yield CheckResult("pass", "GPUs", "none")
        return
    detail = f"{len(gpus)} ({gpus[0]}), {count(ranks, 'rank')} on the node"
    if ranks > len(gpus) == 1:
        remedy = (
            "correct if each rank has its own GPU; otherwise start one rank per GPU with srun --gpu-bind=none"
        )
        yield CheckResult("warn", "GPUs", f"{detail}; each rank sees one GPU", remedy)
    elif ranks > len(gpus):
        status: Status = "fail" if framework == "torch" else "warn"
        remedy = "start one rank per GPU, with all GPUs of the node visible to each (srun --gpu-bind=none)"
        yield CheckResult(status, "GPUs", detail, remedy)
    elif ranks < len(gpus):
        remedy = f"start one rank per GPU: {len(gpus) - ranks} would be idle"
        yield CheckResult("warn", "GPUs", detail, remedy)
    else:
        yield CheckResult("pass", "GPUs", detail)


def _energy(node: Node) -> Iterator[CheckResult]:
    """Check which kinds of energy a run can record on this node."""
    for kind in node["energy"]:
        name, counters = f"energy of {NAMES[kind['measured']]}", kind["counters"]
        if kind["problem"]:
            remedy = f"runs then have {'only the energy of the others' if counters else 'no such figure'}"
            yield CheckResult("warn", name, kind["problem"], remedy)
        else:
            yield CheckResult("pass", name, f"{kind['source']}, {count(counters, 'counter')}")


def _slurms_energy(node: Node) -> Iterator[CheckResult]:
    """Check whether runs can record the energy that Slurm samples. One rank queries it for all nodes."""
    sampled_by = node["energy_sampled_by"]
    if counts_nodes(sampled_by):
        yield CheckResult("pass", f"energy of {NAMES['node']}", f"Slurm, {sampled_by}")
    elif sampled_by:
        detail = f"Slurm's energy ({sampled_by}) is not used, because it does not cover whole nodes"
        yield CheckResult("pass", f"energy of {NAMES['node']}", detail)


def _compiled(node: Node) -> dict[str, str]:
    return {f"compiled {name}": "there" if there else "missing" for name, there in node["compiled"].items()}


def _check_alike(nodes: Sequence[Node]) -> Iterator[CheckResult]:
    """Check that all ranks have the same versions, and all nodes the same number of GPUs."""
    if len(nodes) == 1:
        return
    versions = [
        {**n["packages"], **_compiled(n), "Python": n["python"], "mlhpc commit": n["commit"]} for n in nodes
    ]
    differ = sorted(
        name
        for name in {key for version in versions for key in version}
        if len({version.get(name) for version in versions}) > 1
    )
    for name in differ:
        host_of = {str(v.get(name)): n["host"] for v, n in zip(versions, nodes, strict=True)}
        detail = ", ".join(f"{version} on {host}" for version, host in sorted(host_of.items())[:4])
        remedy = "use the same environment on all nodes"
        yield CheckResult("fail", "versions", f"{name} differs: {detail}", remedy)
    if not differ:
        yield CheckResult("pass", "versions", f"identical on {len(nodes)} nodes")
    numbers = {len(n["gpus"]) for n in nodes}
    if len(numbers) > 1:
        first = nodes[0]
        odd = next(n["host"] for n in nodes if len(n["gpus"]) != len(first["gpus"]))
        detail = f"{' and '.join(map(str, sorted(numbers)))} per node ({odd} differs from {first['host']})"
        yield CheckResult("warn", "GPUs", detail, "drain the node, or exclude it (--exclude)")


def _check_shared(nodes: Sequence[Node]) -> Iterator[CheckResult]:
    """Check that the data set and the results are on storage that all nodes share."""
    if len({n["host"] for n in nodes}) < 2:
        return
    if len({n["data"].get("digest") for n in nodes}) > 1:
        remedy = "put the data set on a shared file system and index it there"
        yield CheckResult("fail", "data set", "the manifest differs between nodes", remedy)
    out = nodes[0]["out"]
    if not out.get("error") and not out["shared"]:
        detail = f"{out['path']} is on {out['type']}, which may be node-local"
        remedy = "unless it is shared, choose an --out folder on a shared file system"
        yield CheckResult("warn", "results", detail, remedy)


def clocks(nodes: Sequence[Node]) -> Iterator[CheckResult]:
    """Check the ``offset_s`` of every node's clock relative to rank 0's."""
    if len(nodes) < 2:
        return
    worst = max(nodes[1:], key=lambda node: abs(node["offset_s"]))
    offset = abs(worst["offset_s"])
    detail = f"the clock of {worst['host']} differs by {seconds_text(offset)} from that of {nodes[0]['host']}"
    detail += ", others by less" * (len(nodes) > 2)
    status: Status = "pass" if offset <= CLOCK_PASS_S else "warn" if offset <= CLOCK_WARN_S else "fail"
    remedy = f"set the clock of {worst['host']} (chronyc tracking): throughput relies on synchronised clocks"
    yield CheckResult(status, "clocks", detail, "" if status == "pass" else remedy)
