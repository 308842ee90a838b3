"""Two ranks over Horovod and over torch.distributed, from every launcher that needs no cluster, and how they end
when one is lost."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.warm import run_warm
from ranks.need import need
from smoke.conftest import PYTORCH, TENSORFLOW

PROGRAM = Path(__file__).parents[2] / "ranks" / "program.py"
LOCAL = """import sys
from mlhpc.common.ranks.local import run_local
sys.exit(run_local(2, [sys.executable, *sys.argv[1:]]))
"""
LOADED = {"horovod": TENSORFLOW, "torch": PYTORCH}
FRAMEWORKS = pytest.mark.parametrize("framework", ["horovod", "torch"])


def environment(framework, **more):
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "ROLL_CALL_S": "30", "FRAMEWORK": framework}
    bin_first = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return os.environ | quiet | bin_first | more


def run(launcher, *how, framework="horovod", **env):
    """The program under ``launcher``, limited to a minute and a half."""
    return subprocess.run(
        [*launcher, sys.executable, PROGRAM, *how],
        env=environment(framework, **env),
        capture_output=True,
        text=True,
        timeout=90,
    )


def run_locally(*how, framework="horovod", **env):
    """The program on two ranks without a launcher, as ``mlhpc run --ranks`` starts them."""
    return run_warm(LOADED[framework], ["-c", LOCAL, PROGRAM, *how], 90, environment(framework, **env))


@FRAMEWORKS
def test_collectives_of_two_local_ranks(framework):
    done = run_locally("well", framework=framework)
    assert done.returncode == 0, done.stderr
    assert "rank 0/2 node 0/1 by mlhpc is done" in done.stdout
    assert "[rank 1] rank 1/2 node 0/1 by mlhpc is done" in done.stderr


@FRAMEWORKS
def test_gradients_variables_and_groups_are_those_of_all_ranks(framework):
    done = run_locally("gradients", framework=framework)
    assert done.returncode == 0, done.stderr


@FRAMEWORKS
@pytest.mark.parametrize(
    ("how", "who", "reason"),
    [
        ("kill", "0", "killed or crashed"),
        ("kill", "1", "killed or crashed"),
        ("midway", "0", "killed or crashed"),
        ("midway", "1", "killed or crashed"),
        ("raise", "1", "ValueError: sample 7 is not finite"),
        ("leave", "1", "killed or crashed"),  # exits cleanly but without notifying the others
    ],
)
def test_a_lost_rank_ends_the_other_and_is_named(framework, how, who, reason):
    done = run_locally(how, who, framework=framework)
    assert done.returncode != 0
    output = done.stdout + done.stderr
    line = f"rank {who} on {os.uname().nodename} was lost in phase 'epoch 2': {reason}"
    assert output.count(f"mlhpc: {line}") == 1, output
    assert output.count(f"callback: {line}") == 1, output


@FRAMEWORKS
@pytest.mark.parametrize("who", ["0", "1"])
def test_a_rank_lost_before_it_has_loaded_its_framework_is_named(framework, who):
    done = run_locally("loading", who, framework=framework)
    assert f"rank {who} on {os.uname().nodename} was lost in phase 'start': killed" in done.stderr
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr


def test_a_missing_rank_is_named():
    done = run_locally("absent", ROLL_CALL_S="3")
    assert done.returncode == 2 and "rank 1 of 2 did not connect within 3 s" in done.stderr


def test_horovod_does_not_run_as_one_rank_if_it_does_not_recognise_the_launcher():
    """What a process sees in a container whose MPI is not the launcher's: Intel MPI's variables here."""
    alone = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    done = run([], "well", **alone, OMPI_ALLOW_RUN_AS_ROOT="1")
    assert done.returncode == 2, done.stderr
    assert "rank 0 of 1" in done.stderr or "built with MPI" in done.stderr


# In test_a_lost_rank_… the ranks notice for themselves; that their launchers end too is for `make test-slow`.
HOW = pytest.mark.parametrize(
    ("how", "status"), [("well", 0), pytest.param("kill", 1, marks=pytest.mark.slow)]
)


@HOW
def test_horovodrun(how, status):
    done = run([Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", "2"], how)
    assert bool(done.returncode) == bool(status), done.stderr
    expected = "by horovodrun is done" if how == "well" else "was lost in phase 'epoch 2'"
    assert expected in done.stdout + done.stderr


@HOW
def test_torchrun(how, status, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*torchrun, "--log-dir", tmp_path, "--no-python"], how, framework="torch")
    assert bool(done.returncode) == bool(status), done.stderr
    expected = "rank 1/2 node 0/1 by torchrun is done" if how == "well" else "was lost in phase 'epoch 2'"
    assert expected in done.stdout + done.stderr


@pytest.mark.system
@HOW
@pytest.mark.parametrize("framework", ["torch", "sockets"])
def test_collectives_by_mpi(framework, how, status):
    need("mpirun")
    mpirun = ["mpirun", "-np", "3", "--allow-run-as-root", "--oversubscribe"]
    done = run(mpirun, how, framework=framework, MLHPC_COLLECTIVES="mpi")
    assert bool(done.returncode) == bool(status), done.stderr
    expected = (
        "rank 2/3 node 0/1 by mpirun is done" if how == "well" else "rank 1 on .* was lost in phase 'epoch 2'"
    )
    assert re.search(expected, done.stdout + done.stderr)


def test_collectives_by_mpi_need_ranks_of_mpi():
    """Each of these ranks would be alone in MPI."""
    done = run_locally("well", framework="torch", MLHPC_COLLECTIVES="mpi")
    assert done.returncode == 2
    assert "of 2, but MPI reports rank 0 of 1: mpi4py and the launcher use different MPIs" in done.stderr


def test_an_unknown_engine_of_collectives_is_refused():
    done = run_locally("well", framework="torch", MLHPC_COLLECTIVES="nccl")
    assert done.returncode == 2 and "MLHPC_COLLECTIVES=nccl is not supported; set it to mpi" in done.stderr


@FRAMEWORKS
@pytest.mark.system
@HOW
def test_mpirun(framework, how, status):
    need("mpirun")
    done = run(["mpirun", "-np", "2", "--allow-run-as-root", "--oversubscribe"], how, framework=framework)
    assert bool(done.returncode) == bool(status), done.stderr
    expected = "rank 1/2 node 0/1 by mpirun is done" if how == "well" else "was lost in phase 'epoch 2'"
    assert expected in done.stdout + done.stderr
