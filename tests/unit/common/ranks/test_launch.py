"""A rank's place, from the variables of every launcher."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlhpc.common.ranks import launch
from mlhpc.common.ranks.environment import RankInfo, forgotten_launcher, identify, threads_per_rank
from mlhpc.common.ranks.hostlist import expand_counts, expand_hosts
from mlhpc.common.ranks.local import run_local
from mlhpc.common.ranks.rendezvous import Peer
from mlhpc.common.ranks.socket_world import interface_of, with_node_index
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import AlreadyReported, UserError

# What Slurm 22.05 gives a task of srun -N3 -n5, and what of it the batch script of the job sees.
JOB = {
    "SLURM_JOB_ID": "77", "SLURM_NTASKS": "5", "SLURM_NNODES": "3", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n[08-10]", "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURMD_NODENAME": "n08", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.99",
}  # fmt: skip
STEP = JOB | {
    "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "n[08-10]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURMD_NODENAME": "n09",
}  # fmt: skip
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n08", "MASTER_PORT": "29500",
}  # fmt: skip
HOROVODRUN = {
    "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1",
    "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2", "HOROVOD_HOSTNAME": "n09",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "0", "PMIX_RANK": "2",
}  # fmt: skip
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
CRAY = {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "2"}
MLHPC = {"MLHPC_RANK": "1", "MLHPC_SIZE": "2", "MLHPC_TOKEN": "ab"}
LAST_NODE = {"SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "5", "PMI_LOCAL_RANK": "1", "PMIX_RANK": "3"}  # srun --mpi may set these


@pytest.mark.parametrize(
    ("env", "launcher", "ranks", "nodes"),
    [
        ({}, "none", (0, 1, 0, 1), (0, 1)),
        (JOB, "none", (0, 1, 0, 1), (0, 1)),  # the batch script itself, and a shell of salloc
        (STEP, "srun", (3, 5, 1, 2), (1, 3)),
        (STEP | LAST_NODE, "srun", (4, 5, 0, 1), (2, 3)),
        (STEP | PMI, "srun", (3, 5, 1, 2), (1, 3)),
        (STEP | {"WORLD_SIZE": "5", "MASTER_ADDR": "n08"}, "srun", (3, 5, 1, 2), (1, 3)),  # exported before
        (TORCHRUN, "torchrun", (3, 4, 1, 2), (1, 2)),
        (STEP | TORCHRUN, "torchrun", (3, 4, 1, 2), (1, 2)),
        ({k: v for k, v in TORCHRUN.items() if k != "TORCHELASTIC_RUN_ID"}, "torchrun", (3, 4, 1, 2), (1, 2)),
        (HOROVODRUN, "horovodrun", (1, 2, 0, 1), (1, 2)),
        (JOB | HOROVODRUN, "horovodrun", (1, 2, 0, 1), (1, 2)),
        (OPEN_MPI, "mpirun", (2, 4, 0, 2), (None, None)),
        (STEP | OPEN_MPI, "mpirun", (2, 4, 0, 2), (None, None)),  # mpirun starts its daemons with srun
        (STEP | HYDRA, "mpirun", (2, 4, 0, 2), (None, None)),
        (CRAY, "mpirun", (2, 4, 0, 2), (None, None)),
        (MLHPC, "mlhpc", (1, 2, 1, 2), (0, 1)),
    ],
)  # fmt: skip
def test_every_launcher_is_recognised(env, launcher, ranks, nodes):
    info = identify(env)
    assert info.launcher == launcher
    assert (info.rank, info.size, info.local_rank, info.local_size) == ranks
    assert (info.node, info.nodes) == nodes


RECORDED = tomllib.loads(Path("tests/data/launchers/environments.toml").read_text())


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_environments_are_read_or_refused(name):
    env = {key: value for key, value in RECORDED[name].items() if key not in ("source", "reads", "refuses")}
    if said := RECORDED[name].get("refuses"):
        with pytest.raises(UserError) as raised:
            identify(env)
        assert said in str(raised.value)
    else:
        info = identify(env)
        assert [info.rank, info.size, info.local_rank, info.local_size] == RECORDED[name]["reads"]


def test_a_script_of_pbs_on_several_nodes_is_recognised(tmp_path):
    """A line for each core or task."""
    nodes = tmp_path / "nodes"
    env = {"PBS_TASKNUM": "1", "PBS_NODEFILE": str(nodes)}
    assert forgotten_launcher(env) == "", "the file is on another node"
    nodes.write_text("n1\nn1\n")
    assert forgotten_launcher(env) == ""
    nodes.write_text("n1\nn1\nn2\nn2\n")
    assert forgotten_launcher(env) == "only one rank in a job of 2 nodes (PBS_NODEFILE); start with mpiexec"
    assert forgotten_launcher(env | HYDRA) == ""


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (JOB, "only one rank in a job of 5 tasks (SLURM_NTASKS); start with srun"),
        (
            {"LSB_DJOB_NUMPROC": "8"},
            "only one rank in a job of 8 tasks (LSB_DJOB_NUMPROC); start with jsrun",
        ),
        (STEP, ""),
        (JOB | OPEN_MPI, ""),
        (JOB | {"SLURM_NTASKS": "1"}, ""),
        ({}, ""),
    ],
)
def test_a_batch_script_without_its_launcher_is_recognised(env, said):
    assert forgotten_launcher(env).startswith(said) and bool(forgotten_launcher(env)) == bool(said)


def test_a_single_task_of_an_unsupported_launcher_is_one_rank() -> None:
    env = {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1", "PMI_RANK": "0", "PMI_SIZE": "1"}
    assert identify(env) == RankInfo()


def test_the_leader_of_a_job_step_is_its_first_node_not_the_submit_host():
    info = identify(STEP)
    assert info.leader == "n08" and info.hosts == ("n08", "n09", "n10") and info.hostname == "n09"


def test_steps_of_one_job_and_restarts_use_different_ports_and_tokens():
    infos = [identify(STEP | more) for more in ({}, {"SLURM_STEP_ID": "2"}, {"SLURM_RESTART_COUNT": "1"})]
    assert len({info.token for info in infos}) == len({info.ports for info in infos}) == 3
    assert all(20000 <= port < 32000 for info in infos for port in info.ports)
    assert all(len(set(info.ports)) == 8 for info in infos)


def test_all_ranks_of_a_step_agree_on_leader_ports_and_token():
    other = STEP | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n08"}
    one, two = identify(STEP), identify(other)
    assert (one.leader, one.ports, one.token) == (two.leader, two.ports, two.token)


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"RANK": "1"}, "has RANK but not WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "has WORLD_SIZE but not RANK"),
        (TORCHRUN | {"LOCAL_RANK": "one"}, "LOCAL_RANK='one'"),
        (TORCHRUN | {"RANK": "4"}, "rank 4 of 4"),
        (TORCHRUN | {"GROUP_RANK": "2"}, "node"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "6"}, "SLURM_STEP_NUM_TASKS"),
        (STEP | {"SLURM_HET_SIZE": "2", "SLURM_STEP_NUM_TASKS": "9"}, "heterogeneous job are not supported"),
        (STEP | {"SLURM_HET_SIZE": "2", "SLURM_PROCID": "7"}, "heterogeneous job are not supported"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "rank 0 of 2 of a launcher that is not supported"),
        ({"JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "6"}, "lacks JSM_NAMESPACE_LOCAL_RANK"),
        ({k: v for k, v in STEP.items() if k != "SLURM_STEP_NUM_TASKS"}, "but not SLURM_STEP_NUM_TASKS"),
        ({k: v for k, v in STEP.items() if k != "SLURM_STEP_ID"}, "but not SLURM_STEP_ID"),
        ({k: v for k, v in STEP.items() if "STEP" not in k}, "has SLURM_PROCID but not SLURM_STEP_ID and"),
        ({"MPIRUN_RANK": "3", "MPIRUN_NPROCS": "6"}, "rank 3 of 6"),
        ({"MP_CHILD": "3", "MP_PROCS": "6"}, "rank 3 of 6"),
        (STEP | {"SLURM_STEP_NODELIST": "n[08-09]"}, "SLURM_STEP_NODELIST"),
        (STEP | {"SLURM_STEP_NODELIST": "n[08-"}, "n[08-"),
        (STEP | {"SLURM_LOCALID": "2"}, "local rank 2 of 2"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE"),
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE"),
        (MLHPC | {"MLHPC_SIZE": "1"}, "rank 1 of 1"),
    ],
)
def test_missing_or_contradicting_variables_are_named(env, named):
    with pytest.raises(UserError) as caught:
        identify(env)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("short", "hosts"),
    [
        ("n0", ["n0"]),
        ("n[0-2]", ["n0", "n1", "n2"]),
        ("n[08-10,12],login-a", ["n08", "n09", "n10", "n12", "login-a"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("a[9-11]-ib", ["a9-ib", "a10-ib", "a11-ib"]),
        ("x[001,3]", ["x001", "x3"]),
    ],
)
def test_host_lists_are_expanded(short, hosts):
    assert expand_hosts(short) == hosts


@pytest.mark.parametrize("short", ["", "n[", "n[a]", "n[1-]", "n0,,n1", "n]0["])
def test_an_invalid_host_list_is_refused(short):
    with pytest.raises(UserError):
        expand_hosts(short)


def test_tasks_per_node_are_expanded():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(UserError):
        expand_counts("2(3)")


def test_without_help_of_the_launcher_the_roll_call_numbers_the_nodes():
    roll = [Peer(rank, host, 0, 1) for rank, host in enumerate("abab")]
    info = replace(identify(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "3"}))
    assert (with_node_index(info, roll).node, with_node_index(info, roll).nodes) == (1, 2)
    complete = identify(TORCHRUN)
    assert with_node_index(complete, roll) == complete


def test_nodes_of_the_same_name_are_told_apart_by_their_addresses():
    info = RankInfo("mpirun", 3, 4, 1, 2, node=None, nodes=None)
    roll = [Peer(rank, "node", rank % 2, 1, 0, f"10.0.0.{rank // 2}") for rank in range(4)]
    assert (with_node_index(info, roll).node, with_node_index(info, roll).nodes) == (1, 2)
    # Containers of one node have addresses of their own.
    roll = [Peer(rank, "node", rank, 1, 0, f"10.0.0.{rank}") for rank in range(4)]
    assert (with_node_index(info, roll).node, with_node_index(info, roll).nodes) == (0, 1)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1"])
def test_the_interface_of_an_address_is_known(address):
    assert interface_of(address) == "lo"


def test_ranks_of_a_node_share_its_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert threads_per_rank(RankInfo(), {}) == 8
    assert threads_per_rank(RankInfo("mlhpc", size=3, local_size=3), {}) == 2
    assert threads_per_rank(RankInfo("srun", size=2, local_size=2), {"SLURM_CPUS_PER_TASK": "3"}) == 3
    assert threads_per_rank(RankInfo("srun", size=2, local_size=2), {"SLURM_CPUS_PER_TASK": "64"}) == 8
    assert threads_per_rank(RankInfo("mpirun", size=16, local_size=16), {}) == 1


def test_ranks_that_srun_bound_by_masks_use_all_of_their_cores(monkeypatch):
    """SLURM_CPU_BIND=mask_cpu:… without --cpus-per-task: 16 of the 64 cores of a step for each of 4 ranks."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    four = RankInfo("srun", size=4, local_size=4)
    assert threads_per_rank(four, {"SLURM_CPUS_ON_NODE": "64"}) == 16
    assert threads_per_rank(four, {}) == 4  # not known: they may share these cores


def test_unbound_ranks_of_srun_share_the_cores_of_their_step(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    four = RankInfo("srun", size=4, local_size=4)
    assert threads_per_rank(four, {"SLURM_CPUS_ON_NODE": "64"}) == 16
    assert threads_per_rank(four, {"SLURM_CPUS_ON_NODE": "32"}) == 8  # half of a node


def test_a_single_rank_needs_no_connection():
    assert launch.connect("horovod", {}) == Solo("none")
    alone = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"), "1")
    first = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0")
    assert launch.connect("horovod", TORCHRUN | alone | first) == Solo("torchrun")


def test_horovodrun_cannot_start_torch():
    with pytest.raises(UserError, match="horovodrun supports only Horovod"):
        launch.connect("torch", HOROVODRUN)


def test_several_ranks_of_a_single_rank_command_are_refused():
    with pytest.raises(UserError, match="mlhpc started 2"):
        launch.connect("none", MLHPC)


# --- mlhpc run --ranks N


def python(program: str) -> list[str]:
    return [sys.executable, "-c", "import os, sys, time; rank = int(os.environ['MLHPC_RANK'])\n" + program]


def test_output_of_other_ranks_is_prefixed_with_their_number(capfd):
    assert run_local(3, python("print(f'I am {rank}', flush=True)")) == 0
    out, err = capfd.readouterr()
    assert out == "I am 0\n"
    assert sorted(err.splitlines()) == ["[rank 1] I am 1", "[rank 2] I am 2"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("mlhpc.common.ranks.local.GRACE_S", 1.0)


def test_when_a_rank_is_killed_the_others_are_terminated_and_it_is_named(impatient, capfd):
    killed = "os.kill(os.getpid(), 9) if rank == 1 else time.sleep(600)"
    assert run_local(2, python(killed), lambda: ": it needs 3 GB") == 128 + signal.SIGKILL
    err = capfd.readouterr().err
    assert "mlhpc: rank 1 was killed by signal 9 (SIGKILL), by the kernel's out-of-memory killer" in err
    assert err.count(": it needs 3 GB\n") == 1


def test_ranks_that_ignore_termination_are_killed(impatient, capfd):
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); sys.exit(7) if rank == 1 else time.sleep(600)"
    assert run_local(2, python(deaf)) == 7
    assert "mlhpc: rank 1 exited with status 7" in capfd.readouterr().err


def test_the_local_launcher_adds_nothing_to_a_user_error(capfd):
    assert run_local(2, python("print('mlhpc: no such file', file=sys.stderr); sys.exit(2)")) == 2
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == ["[rank 1] mlhpc: no such file", "mlhpc: no such file"]


def wait_until(condition, process):
    """Until ``condition()``, which ``process`` brings about within a minute or is killed."""
    for _ in range(6000):
        if condition():
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"ended with status {process.wait(timeout=0.01)}")
    process.kill()
    pytest.fail("nothing happened within a minute")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_ctrl_c_and_sigterm_end_every_rank(number, tmp_path):
    sleeps = python(f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(str(os.getpid())); time.sleep(600)")
    program = (
        "import signal; signal.signal(2, signal.default_int_handler); "  # a background job ignores Ctrl-C
        f"from mlhpc.common.ranks.local import run_local; import sys; sys.exit(run_local(2, {sleeps!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    wait_until(lambda: len([p for p in tmp_path.iterdir() if p.read_text()]) == 2, parent)
    parent.send_signal(number)
    assert parent.wait(timeout=60) == 128 + number
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


def test_ranks_inside_another_launcher_are_refused(monkeypatch):
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="--ranks 2 cannot be used under"):
        run_local(2, python(""))


def test_a_rank_lost_while_others_leave_is_reported_by_the_roll_call(monkeypatch):
    """The roll call ends the process with one line; otherwise the error of the collective is a traceback."""

    class Leaving(Solo):
        def close(self):
            raise RuntimeError("[gloo] Connection closed by peer")

        def fail(self, reason):
            reasons.append(reason)

    reasons = []
    monkeypatch.setattr(launch, "connect", lambda framework: Leaving())
    with pytest.raises(RuntimeError), launch.joined("torch"):
        pass
    assert reasons == ["RuntimeError: [gloo] Connection closed by peer"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("other", ["the same", "another"])
def test_an_error_raised_by_all_ranks_is_reported_by_rank_0_only(monkeypatch, rank, other):
    """The command line prints a UserError, but not AlreadyReported."""

    class Failing(Solo):
        def reported_elsewhere(self):
            return rank > 0 and other == "the same"

    monkeypatch.setattr(launch, "connect", lambda framework: Failing(rank=rank, size=2))
    monkeypatch.setattr(launch, "end_with", lambda status: None)
    with pytest.raises(UserError, match="a batch of 7") as raised, launch.joined("torch"):
        raise UserError("a batch of 7")
    assert isinstance(raised.value, AlreadyReported) == (rank > 0 and other == "the same")


def test_a_rank_that_ends_without_exit_handlers_leaves_no_temporary_folder(tmp_path):
    program = "forkserver.ensure_running(); launch.end_with(3)"
    imports = "from multiprocessing import forkserver; from mlhpc.common.ranks import launch; "
    env = os.environ | {"TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", imports + program], env=env, timeout=60).returncode == 3
    assert not list(tmp_path.iterdir())


ONE_NODE = TORCHRUN | {"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0"}


@pytest.mark.parametrize("env", [ONE_NODE, MLHPC])
def test_the_ranks_of_one_node_connect_over_loopback(monkeypatch, env):
    """Whatever name the launcher uses for the node: they must not be reachable from outside."""
    met = []
    monkeypatch.setattr(launch.RollCall, "call", lambda me, rendezvous: met.append(rendezvous))
    launch.call_roll(identify(env), {})
    assert met[0].hosts == ("127.0.0.1",)


@pytest.mark.parametrize(
    ("env", "ranks", "seconds"), [({}, 2, 60), ({}, 16_384, 163), ({launch.START_S: "5"}, 9, 5)]
)
def test_the_time_limit_of_the_start_grows_with_the_ranks_and_is_a_setting(env, ranks, seconds):
    assert launch.start_timeout(env, ranks) == seconds


@pytest.mark.parametrize("value", ["0", "-1", "soon"])
def test_an_invalid_time_limit_is_refused(value):
    with pytest.raises(UserError, match="MLHPC_START_TIMEOUT"):
        launch.start_timeout({launch.START_S: value}, 2)


def test_too_few_descriptors_are_refused_before_anything_connects(monkeypatch):
    """Once per node: by its first rank."""
    met = []
    monkeypatch.setattr(launch, "call_roll", lambda *words: met.append(words))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    step = STEP | {
        "SLURM_STEP_NUM_TASKS": "1024", "SLURM_STEP_NODELIST": "n[0-127]", "SLURM_STEP_TASKS_PER_NODE": "8(x128)"
    }  # fmt: skip
    for local_rank, kind in ((0, UserError), (1, AlreadyReported)):
        own = {"SLURM_PROCID": str(8 + local_rank), "SLURM_LOCALID": str(local_rank)}
        with pytest.raises(UserError, match=r"needs \d+ open files .* but the limit is 1024") as raised:
            launch.connect("torch", step | own)
        assert type(raised.value) is kind
    assert not met


def test_another_network_of_rank_0s_node_is_a_setting():
    assert launch._addresses("n08", {"MLHPC_LEADER": "{}-ib0"}) == ("n08-ib0",)
    assert launch._addresses("n08", {"MLHPC_LEADER": "10.0.0.1"}) == ("10.0.0.1",)


MEETS = "mlhpc: 5 ranks meet at 10.1.2.3 (ib0)\n"


@pytest.mark.parametrize(("address", "said"), [("10.1.2.3", MEETS), ("127.0.0.1", "")])
def test_the_interface_over_which_nodes_meet_is_printed(monkeypatch, capfd, address, said):
    met = SimpleNamespace(address=address)
    monkeypatch.setattr(launch.RollCall, "call", lambda *words, **more: met)
    monkeypatch.setattr(launch, "interface_of", lambda address: "ib0")
    first = STEP | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "MLHPC_TOKEN": "t"}
    launch.call_roll(identify(first), first)
    assert capfd.readouterr().err == said
