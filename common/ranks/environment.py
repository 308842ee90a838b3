"""Determines this process's rank from the environment set by its launcher."""

import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mlhpc.common.ranks.hostlist import expand_counts, expand_hosts
from mlhpc.errors import UserError

Launcher = Literal["none", "mlhpc", "torchrun", "horovodrun", "mpirun", "srun"]
BOUND = "MLHPC_BOUND"
"""Variable set for a rank that is bound to cores (common/host/binding.py), whose threads may use all of them."""


@dataclass(frozen=True)
class RankInfo:
    """One rank's position in the run, as the launcher reports it.

    ``node`` and ``nodes`` are None if the launcher does not report them (mpirun). ``hostname``: the launcher's
    name for this node; None if it has none. ``hosts``: the nodes in order; empty if unknown. ``leader``: the node
    of rank 0, and ``ports`` its possible ports; None and empty if the launcher does not report them. ``token``: a
    string that is the same on all ranks of this launch and differs between launches.
    """

    launcher: Launcher = "none"
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int | None = 0
    nodes: int | None = 1
    hostname: str | None = None
    hosts: tuple[str, ...] = ()
    leader: str | None = None
    ports: tuple[int, ...] = ()
    token: str = ""


def identify(env: Mapping[str, str]) -> RankInfo:
    """This process's rank, from the variables of its launcher; a pure function of ``env``.

    The innermost launcher takes precedence, in this order: ``mlhpc --ranks`` (MLHPC_RANK), torchrun
    (TORCHELASTIC_RUN_ID, RANK), horovodrun (HOROVOD_RANK), mpirun (OMPI_COMM_WORLD_RANK of Open MPI;
    PMI_RANK with MPI_LOCALRANKID of MPICH and Intel MPI, with PMI_LOCAL_RANK or PALS_LOCAL_RANKID of Cray), srun
    (SLURM_STEP_ID, SLURM_PROCID), RANK and WORLD_SIZE set by hand. The first four may run inside a job
    step of Slurm, never the reverse. A batch script has SLURM_PROCID too, but is not a job step:
    without srun it starts one rank, as in a plain shell.

    Raises ``UserError`` if variables are missing, are not numbers or contradict each other, and if the launcher is
    not supported, because each of its ranks would then start a run of its own.
    """
    for launcher in (_mlhpc, _torchrun, _horovodrun, _open_mpi, _pmi, _srun, _by_hand):
        if info := launcher(env):
            _check(info)
            return info
    for name, size in _UNSUPPORTED.items():
        if env.get(name) and env.get(size) != "1":
            total = f" of {env[size]}" if env.get(size) and size != name else ""
            raise UserError(
                f"this is rank {env[name]}{total} of a launcher that is not supported ({name}); start with "
                f"torchrun, mpirun or srun, or unset {name} to run as one rank"
            )
    return RankInfo()


_UNSUPPORTED = {
    "FLUX_TASK_RANK": "FLUX_JOB_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": "",
    "PALS_RANKID": "",
    "ALPS_APP_PE": "",
    "LSF_PM_TASKID": "LSB_DJOB_NUMPROC",
    "PBS_TASKNUM": "PBS_TASKNUM",  # 1 is the batch script itself
    "JOB_COMPLETION_INDEX": "",
    "MPIRUN_RANK": "MPIRUN_NPROCS",
    "MP_CHILD": "MP_PROCS",
}
"""Variables with the rank and the number of ranks of other launchers: Flux, PMI without local ranks, PRRTE,
HPE PALS, Cray ALPS, LSF's blaunch, PBS's pbsdsh, Indexed Jobs of Kubernetes, the old mpirun_rsh, IBM POE."""


def forgotten_launcher(env: Mapping[str, str]) -> str:
    """Why running this single rank is probably a mistake: its batch job has several tasks (in PBS, nodes), but no
    launcher started it. Empty if it is not a mistake."""
    for name, what, starter in (
        ("SLURM_NTASKS", "tasks", "srun"),
        ("LSB_DJOB_NUMPROC", "tasks", "jsrun or mpirun"),
        ("PBS_NODEFILE", "nodes", "mpiexec"),
    ):
        found = env.get(name, "")
        if name == "PBS_NODEFILE":
            with suppress(OSError, UnicodeError):  # a line for each core or task, with its node
                found = str(len({*Path(found).read_text().split()}))
        if found.isdigit() and int(found) > 1 and identify(env).launcher == "none":
            return f"only one rank in a job of {found} {what} ({name}); start with {starter}"
    return ""


def _mlhpc(env: Mapping[str, str]) -> RankInfo | None:
    if "MLHPC_RANK" not in env:
        return None
    rank, size = number(env, "MLHPC_RANK"), number(env, "MLHPC_SIZE")
    token = f"mlhpc {_text(env, 'MLHPC_TOKEN')}"
    return RankInfo("mlhpc", rank, size, rank, size, leader="127.0.0.1", ports=ports_of(token), token=token)


_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def _read(launcher: Launcher, env: Mapping[str, str], *names: str) -> RankInfo:
    """The position of this rank, read from the variables ``names``: rank and number of ranks in the launch, rank
    and number of ranks on the node, and, if the launcher reports them, node and number of nodes."""
    rank, size, local_rank, local_size, *place = (number(env, name) for name in names)
    node, nodes = place or (None, None)
    return RankInfo(launcher, rank, size, local_rank, local_size, node, nodes)


def _torchrun(env: Mapping[str, str]) -> RankInfo | None:
    """This rank's position from torchrun (https://docs.pytorch.org/docs/stable/elastic/run.html, Environment
    Variables)."""
    return _torch_variables(env) if "TORCHELASTIC_RUN_ID" in env else None


def _by_hand(env: Mapping[str, str]) -> RankInfo | None:
    """This rank's position from RANK and WORLD_SIZE. If a user sets either variable, there are several ranks, so
    running as a single rank would be wrong. Raises UserError if other variables are missing."""
    present = [name for name in ("RANK", "WORLD_SIZE") if name in env]
    missing = [name for name in (*_TORCH, "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if present and missing:
        raise UserError(
            f"the environment has {' and '.join(present)} but not {', '.join(missing)}: start with "
            f"torchrun, which sets all of them, or unset {' and '.join(present)} to run as one rank"
        )
    return _torch_variables(env) if present else None


def _torch_variables(env: Mapping[str, str]) -> RankInfo:
    leader = _text(env, "MASTER_ADDR")
    start = [_text(env, "MASTER_PORT"), env.get("TORCHELASTIC_RUN_ID"), env.get("TORCHELASTIC_RESTART_COUNT")]
    token = f"torchrun {leader} {start}"
    return replace(_read("torchrun", env, *_TORCH), leader=leader, ports=ports_of(token), token=token)


def _horovodrun(env: Mapping[str, str]) -> RankInfo | None:
    """This rank's position from horovodrun with Gloo. With MPI, horovodrun calls mpirun, and the ranks see
    mpirun's variables."""
    names = (
        f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    )
    return _read("horovodrun", env, *names) if "HOROVOD_RANK" in env else None


def _open_mpi(env: Mapping[str, str]) -> RankInfo | None:
    """This rank's position from Open MPI (https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html).
    MVAPICH2 and IBM's jsrun set similar variables."""
    for prefix in ("OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "JSM_NAMESPACE_"):
        if f"{prefix}RANK" in env:
            return _mpirun(env, prefix, f"{prefix}LOCAL_RANK", f"{prefix}LOCAL_SIZE")
    return None


def _pmi(env: Mapping[str, str]) -> RankInfo | None:
    """This rank's position from PMI. MPICH and Intel MPI always set MPI_LOCALRANKID. Cray's PMI_LOCAL_RANK and
    PALS_LOCAL_RANKID may also come from srun (by its plugin mpi/cray_shasta), which then counts the ranks."""
    if "PMI_RANK" in env and "MPI_LOCALRANKID" in env:
        return _mpirun(env, "PMI_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    if "PMI_RANK" in env and "PMI_LOCAL_RANK" in env and "SLURM_STEP_ID" not in env:
        return _mpirun(env, "PMI_", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
    if "PMI_SIZE" in env and "PALS_LOCAL_RANKID" in env and "SLURM_STEP_ID" not in env:
        return _mpirun(env, "PMI_", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
    return None


def _mpirun(env: Mapping[str, str], prefix: str, local_rank: str, local_size: str) -> RankInfo:
    return _read("mpirun", env, f"{prefix}RANK", f"{prefix}SIZE", local_rank, local_size)


def _srun(env: Mapping[str, str]) -> RankInfo | None:
    """This rank's position from srun (https://slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT VARIABLES).

    SLURM_STEP_* describe this job step, whereas SLURM_NTASKS may describe the job. SLURM_LAUNCH_NODE_IPADDR is
    not used because it is the host on which srun was called, which may be a login node.
    """
    step = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS")
    if missing := [name for name in step if name not in env]:
        # A batch script has none of these variables, and is task 0.
        if len(missing) < len(step) or env.get("SLURM_PROCID", "0") != "0":
            seen = "SLURM_PROCID" if len(missing) == len(step) else next(iter({*step} - {*missing}))
            raise UserError(
                f"the environment has {seen} but not {' and '.join(missing)}: a container or ssh may have dropped "
                f"variables of Slurm; pass all of them on, or unset {seen} to run as one rank"
            )
        return None
    size, node = number(env, "SLURM_STEP_NUM_TASKS"), number(env, "SLURM_NODEID")
    hosts = expand_hosts(_text(env, "SLURM_STEP_NODELIST"))
    tasks = expand_counts(_text(env, "SLURM_STEP_TASKS_PER_NODE"))
    fits = len(hosts) == len(tasks) and sum(tasks) == size and 0 <= node < len(hosts)
    if env.get("SLURM_HET_SIZE", "1") != "1" and not (fits and number(env, "SLURM_PROCID") < size):
        raise UserError(
            "job steps across components of a heterogeneous job are not supported; start this in one component "
            "(srun --het-group=0)"
        )
    if not fits:
        raise UserError(
            f"Slurm's variables contradict each other: SLURM_STEP_NUM_TASKS {size}, "
            f"SLURM_STEP_TASKS_PER_NODE {env['SLURM_STEP_TASKS_PER_NODE']}, "
            f"SLURM_STEP_NODELIST {env['SLURM_STEP_NODELIST']}, SLURM_NODEID {node}; start "
            "this with srun from a clean environment"
        )
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    token = " ".join(["slurm", _text(env, "SLURM_JOB_ID"), *(env.get(name, "") for name in names)])
    return RankInfo(
        "srun",
        rank=number(env, "SLURM_PROCID"),
        size=size,
        local_rank=number(env, "SLURM_LOCALID"),
        local_size=tasks[node],
        node=node,
        nodes=len(hosts),
        hostname=env.get("SLURMD_NODENAME", hosts[node]),
        hosts=tuple(hosts),
        leader=hosts[0],
        ports=ports_of(token),
        token=token,
    )


def ports_of(token: str) -> tuple[int, ...]:
    """Possible ports of a rank to which others connect: eight ports that depend on the job, so that jobs sharing a
    node rarely try the same ones. They are below 32768, where Linux's ephemeral ports start."""
    first = zlib.crc32(token.encode())
    return tuple(20000 + (first + 1499 * i) % 12000 for i in range(8))


def _text(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise UserError(
            f"the environment lacks {name}, which the launcher sets; start all ranks with the same launcher"
        )
    return env[name]


def number(env: Mapping[str, str], name: str) -> int:
    """The value of the variable ``name``. Raises ``UserError`` if it is missing or not a number."""
    try:
        return int(_text(env, name))
    except ValueError:
        raise UserError(f"the environment has {name}={env[name]!r}: not a number") from None


def _check(info: RankInfo) -> None:
    node, nodes = info.node or 0, info.nodes or 1
    if not (
        0 <= info.rank < info.size
        and 0 <= info.local_rank < info.local_size <= info.size
        and 0 <= node < nodes <= info.size
        and info.local_rank <= info.rank
    ):
        raise UserError(
            f"the variables of {info.launcher} contradict each other: this is rank {info.rank} of {info.size}, "
            f"local rank {info.local_rank} of {info.local_size} on node {node} of {nodes}; unset "
            f"variables left over from another launcher"
        )


def threads_per_rank(info: RankInfo, env: Mapping[str, str] = os.environ) -> int:
    """Number of compute threads per rank with which the ranks of a node do not share cores.

    With srun and SLURM_CPUS_PER_TASK: the number of cores per task, but at most the cores that this process may
    run on. For a rank that mlhpc bound, or the only rank of a node: the number of cores that this process may run
    on. Otherwise: this rank's share of the cores that its launcher may run on, again at most its own cores, since
    the launcher may have bound the rank to more (mpirun --bind-to package) or fewer. The result is at least one.
    """
    cores = len(os.sched_getaffinity(0))
    if info.launcher == "srun" and "SLURM_CPUS_PER_TASK" in env:
        return min(cores, number(env, "SLURM_CPUS_PER_TASK"))
    if BOUND in env or info.local_size == 1:
        return cores
    return max(1, min(cores, _cores_of_launcher(info, env) // info.local_size))


def _cores_of_launcher(info: RankInfo, env: Mapping[str, str]) -> int:
    """Number of cores that the process which started this rank may run on. In Slurm, where that process is a
    daemon outside the job, it is the job step's cores on this node (srun(1), SLURM_CPUS_ON_NODE), or else this
    rank's cores."""
    if info.launcher == "srun" and "SLURM_CPUS_ON_NODE" in env:
        return number(env, "SLURM_CPUS_ON_NODE")
    try:
        return len(os.sched_getaffinity(0 if info.launcher == "srun" else os.getppid()))
    except OSError:
        return len(os.sched_getaffinity(0))


def set_variables(settings: Mapping[str, str] | None = None) -> None:
    """Set environment variables for the frameworks: ``settings``, and defaults for variables that the user has not
    set. Called before a framework is imported and before ranks connect."""
    os.environ |= settings or {}
    # TensorFlow's notes about its build, and those of PyTorch's profiler, would hide our messages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # On older CPUs, where TensorFlow does not use oneDNN by default, its 3-D pooling sends the gradient
    # to every voxel within 1e-5 of the largest.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    threads = str(threads_per_rank(identify(os.environ)))
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ.setdefault(name, threads)


def with_leader(info: RankInfo, env: Mapping[str, str]) -> RankInfo:
    """``info`` with the node of rank 0, for launchers that do not report it: this node if there is only one;
    otherwise MLHPC_LEADER, or the first node of the Slurm job. Raises ``UserError``."""
    if info.launcher == "horovodrun":
        raise UserError("horovodrun supports only Horovod; use torchrun, srun, mpirun or --ranks")
    job = env.get("PMIX_NAMESPACE") or env.get("SLURM_JOB_ID") or f"{os.getuid()} {os.getppid()}"
    if info.local_size == info.size:
        leader = "127.0.0.1"
    elif "MLHPC_LEADER" in env:
        leader = env["MLHPC_LEADER"]
        job = env.get("PMIX_NAMESPACE") or env.get("SLURM_JOB_ID") or leader
    elif "SLURM_JOB_NODELIST" in env:
        leader = expand_hosts(env["SLURM_JOB_NODELIST"])[0]
    else:
        raise UserError(
            f"{info.launcher} does not report where rank 0 is: set MLHPC_LEADER to its node "
            "(mpirun -x MLHPC_LEADER=...), or start with torchrun or srun"
        )
    token = f"{info.launcher} {job} {info.size}"
    return replace(info, leader=leader, ports=ports_of(token), token=token)
