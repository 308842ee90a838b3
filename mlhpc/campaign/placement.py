"""Placement of a campaign's concurrent runs: nodes and tasks of a Slurm job, or cores and GPUs of this machine."""

import os
from collections.abc import Mapping

from mlhpc.campaign.record import Campaign
from mlhpc.common.host import accelerators
from mlhpc.common.ranks.hostlist import expand_hosts
from mlhpc.errors import UserError
from mlhpc.quantities import count
from mlhpc.run_processes import allocated_tasks


def srun_options(campaign: Campaign, slot: int, env: Mapping[str, str]) -> list[str]:
    """The srun options that assign separate nodes to the instance in ``slot`` (0 to instances - 1) or, with more
    instances than nodes, a separate part of a node."""
    if campaign.instances == 1:
        return [f"--ntasks={campaign.ranks}"] if campaign.ranks else []
    hosts = expand_hosts(env["SLURM_JOB_NODELIST"])
    nodes = max(1, len(hosts) // campaign.instances)
    own = [hosts[(slot * nodes + i) % len(hosts)] for i in range(nodes)]
    tasks = campaign.ranks or max_ranks(campaign, allocated_tasks(env, len(hosts)))
    options = [f"--nodes={nodes}", f"--ntasks={tasks}", f"--nodelist={','.join(own)}", "--exact"]
    if campaign.instances > len(hosts) and env.get("SLURM_GPUS_ON_NODE", "0") not in ("", "0"):
        options.append(f"--gres=gpu:{tasks}")
    return options


def max_ranks(campaign: Campaign, tasks: int) -> int:
    """Maximum ranks per instance if all instances run concurrently in a job of ``tasks`` tasks, spread evenly over
    its nodes; 0 if the job is too small for them."""
    if campaign.instances <= campaign.nodes:
        return tasks * (campaign.nodes // campaign.instances) // campaign.nodes
    instances_per_node = -(-campaign.instances // campaign.nodes)
    return tasks // campaign.nodes // instances_per_node


def check_placement(campaign: Campaign, in_slurm_job: bool, env: Mapping[str, str]) -> None:
    """Raise UserError if the instances cannot all run concurrently, since srun would queue some of them, and the
    score would still count them as concurrent."""
    if in_slurm_job:
        _check_tasks(campaign, env)
    elif campaign.instances > 1 and (gpus := len(_visible_gpus())):
        ranks = max(1, campaign.ranks)
        if gpus < campaign.instances * ranks:
            raise UserError(
                f"{campaign.instances} instances of {count(ranks, 'rank')} need one GPU per rank, but only "
                f"{count(gpus, 'GPU')} found; start fewer instances, or set {_variable()}= to train on the CPU"
            )


def _check_tasks(campaign: Campaign, env: Mapping[str, str]) -> None:
    if campaign.instances < campaign.nodes and campaign.nodes % campaign.instances:
        raise UserError(f"--instances {campaign.instances} must divide the number of nodes, {campaign.nodes}")
    if campaign.instances == 1 and not env.get("SLURM_NTASKS"):
        return  # srun itself refuses more ranks than processors
    tasks = allocated_tasks(env, campaign.nodes)
    limit = max_ranks(campaign, tasks)
    if limit == 0 or campaign.ranks > limit:
        ranks = count(max(1, campaign.ranks), "rank")
        raise UserError(
            f"{campaign.instances} instances of {ranks} exceed this job's {count(tasks, 'task')} "
            f"on {count(campaign.nodes, 'node')}; request more tasks from sbatch, or lower --instances"
        )


def bind_environment(campaign: Campaign, env: Mapping[str, str]) -> dict[str, str]:
    """The environment variable that leaves instances unbound. It is set only if instances share a node and
    MLHPC_BIND lists the cores of the whole node, since every instance would then use the same first lists."""
    listed = env.get("MLHPC_BIND", "") not in ("", "none", "cores")
    return {"MLHPC_BIND": "none"} if listed and campaign.instances > campaign.nodes else {}


def cores_of(campaign: Campaign, slot: int) -> set[int]:
    """The cores for the instance in ``slot`` on this machine; empty for a single instance, or if there are fewer
    cores than instances."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // campaign.instances
    return set(cores[slot * share : (slot + 1) * share]) if campaign.instances > 1 else set()


def gpu_environment(campaign: Campaign, slot: int) -> dict[str, str]:
    """The environment variable that restricts an instance on this machine to its GPUs, one per rank; empty without
    GPUs or with a single instance."""
    if campaign.instances == 1:
        return {}
    gpus, ranks = _visible_gpus(), max(1, campaign.ranks)
    return {_variable(): ",".join(gpus[slot * ranks : (slot + 1) * ranks])} if gpus else {}


def _visible_gpus() -> list[str]:
    if (variable := _variable()) in os.environ:
        return [gpu for gpu in os.environ[variable].split(",") if gpu]
    return [str(i) for i in range(len(accelerators.installed()))]


def _variable() -> str:
    """The vendor's variable that hides GPUs from a process."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return "CUDA_VISIBLE_DEVICES"
    there = accelerators.installed()
    return accelerators.visible_variable(there[0].vendor if there else "nvidia")
