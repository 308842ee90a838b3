"""``mlhpc doctor``: a good machine passes; each known problem of clusters is reported with its remedy."""

import json
import resource
import subprocess
import sys

import pytest
from helpers.doctor_nodes import FOLDER, GPU, NODE, SRUN, spoiled

from mlhpc import cli
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.doctor import node
from mlhpc.doctor.checks import check_nodes
from mlhpc.submission.system import description as system_description


def lines(node, rank_info=RankInfo(), backend="horovod", benchmark="cosmoflow", env=()):  # noqa: B008
    return list(check_nodes([node], rank_info, benchmark, backend, dict(env)))


def counted(measured, counters, problem=""):
    return {"measured": measured, "source": "NVML", "counters": counters, "problem": problem}


def test_slurms_counter_is_used_if_it_is_of_whole_nodes():
    details = {
        name: line.detail
        for name in ("ipmi", "rapl")
        for line in lines(spoiled(energy_sampled_by=name))
        if line.name == "energy of whole nodes"
    }
    assert details == {
        "ipmi": "Slurm, ipmi",
        "rapl": "Slurm's energy (rapl) is not used, because it does not cover whole nodes",
    }


def worst(results, what):
    states = {line.status for line in results if line.name == what}
    return next((state for state in ("fail", "warn", "pass") if state in states), None)


@pytest.mark.parametrize("backend", ["horovod", "torch", "none"])
@pytest.mark.parametrize("place", [RankInfo(), SRUN])
def test_a_good_node_passes(backend, place):
    assert {line.status for line in lines(NODE, place, backend)} == {"pass"}


NODE_0, NODE_1 = {"cores": "0-3", "numa_nodes": "0"}, {"cores": "4-7", "numa_nodes": "1"}
BOTH = {"cores": "0-7", "numa_nodes": "0-1"}
ACROSS = {"cores": "2-3,8", "numa_nodes": "0-1"}


def torch_of(cuda, driver, usable):
    """A PyTorch built for ``cuda`` on ``driver``, which can use the GPUs or not."""
    return {"driver": driver, "torch__cuda": cuda, "torch__usable": usable, "torch__gpus": 4 * usable,
            "torch__backend": "nccl", "torch__built": True}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "status", "changes", "options"),
    [
        ("Python", "fail", {"python": "3.10.4"}, {}),
        ("Python", "fail", {"python": "3.14.0"}, {}),
        ("Python", "fail", {"python": "3.13.0"}, {"rank_info": SRUN}),  # of Horovod
        ("Python", "pass", {"python": "3.13.0"}, {}),
        ("Python", "pass", {"python": "3.13.0"}, {"rank_info": SRUN, "backend": "torch", "benchmark": "deepcam"}),
        ("TensorFlow", "fail", {"tensorflow": None}, {}),
        ("TensorFlow", "warn", {"tensorflow": None}, {"backend": "none", "benchmark": None}),
        ("TensorFlow", None, {"tensorflow": None}, {"backend": "torch", "benchmark": "deepcam"}),
        ("TensorFlow", "fail", {"tensorflow": {"error": "crashed (SIGSEGV)"}}, {}),
        ("TensorFlow", "fail", GPU, {}),  # the build for CPUs sees no GPU
        ("PyTorch", "fail", {"torch": None}, {"backend": "torch", "benchmark": "deepcam"}),
        ("PyTorch", "warn", GPU | {"torch__gpus": 4, "torch__backend": "nccl"}, {"backend": "torch"}),
        ("PyTorch", "warn", GPU | {"torch__gpus": 4, "torch__backend": "xccl"}, {"backend": "torch"}),
        ("PyTorch", "pass", GPU | {"torch__gpus": 4, "torch__backend": "xccl", "torch__built": True},
         {"backend": "torch"}),
        ("graphs", "warn", {"torch__without_graphs": "it needs NCCL 2.9.6, not 2.8.4"}, {"backend": "torch"}),
        ("graphs", None, {"torch__without_graphs": ""}, {"backend": "torch"}),
        ("energy of accelerators", "warn", {"energy": [counted("accelerators", 0, "NVML is not installed")]}, {}),
        ("energy of accelerators", "pass", {"energy": [counted("accelerators", 4)]}, {}),
        ("energy of accelerators", None, {}, {}),
        ("energy of processors", "warn", {"energy": [counted("processors", 0, "readable only by root")]}, {}),
        ("energy of whole nodes", "pass", {"energy": [counted("node", 1)]}, {}),
        ("energy of whole nodes", "pass", {"energy_sampled_by": "ipmi"}, {}),
        # Horovod: a wheel from pip's cache for another TensorFlow; builds that lack what a launcher needs.
        ("Horovod", "fail", {"horovod_built_for": "2.15.1"}, {"rank_info": SRUN}),
        ("Horovod", "warn", {"horovod_built_for": "2.15.1"}, {}),
        ("Horovod", "fail", {"horovod_built_for": ""}, {"rank_info": SRUN}),
        ("Horovod", "fail", {"tensorflow__horovod_error": "undefined symbol: _ZN10"}, {"rank_info": SRUN}),
        ("Horovod", "fail", {"tensorflow__horovod__gloo": False}, {"rank_info": SRUN}),
        ("Horovod", "fail", {}, {"rank_info": RankInfo("mpirun", 0, 2, 0, 2, None, None)}),
        ("Horovod", "fail", {"packages": {}}, {"rank_info": SRUN}),
        ("Horovod", "pass", {"packages": {}}, {}),  # one rank needs none
        ("Horovod", "warn", GPU | {"tensorflow__gpus": 4}, {}),  # gradients would go over the host
        ("GPUs", "warn", {"gpus": ["A100"] * 4}, {}),
        ("GPUs", "warn", {"gpus": ["A100"], "local_size": 2, "cores": 4}, {}),
        ("GPUs", "warn", {"gpus": ["A100"], "local_size": 2, "cores": 4}, {"backend": "torch"}),  # may be bound
        ("GPUs", "fail", {"gpus": ["A100"] * 2, "local_size": 3, "cores": 4}, {"backend": "torch"}),
        ("cores", "warn", {"local_size": 16}, {}),
        ("cores", "warn", {"cores": 1}, {}),  # srun without --cpus-per-task
        ("cores", "pass", {"cores": 2, "local_size": 4}, {}),
        # Threads that the environment fixes: 4 ranks x 4 threads on 8 cores.
        ("binding", None, {}, {}),
        ("binding", "pass", {"local_size": 2, "bindings": [NODE_0, NODE_0]}, {}),  # one NUMA node
        ("binding", "warn", {"local_size": 2, "bindings": [BOTH, BOTH], "numa_nodes": 2}, {}),
        ("binding", "warn", {"local_size": 2, "bindings": [NODE_0, BOTH], "numa_nodes": 2}, {}),
        ("binding", "warn", {"local_size": 2, "bindings": [ACROSS, NODE_1], "numa_nodes": 2}, {}),
        ("binding", "pass", {"local_size": 2, "bindings": [NODE_0, NODE_1], "numa_nodes": 2}, {}),
        ("binding", None, {"bindings": [BOTH], "numa_nodes": 2}, {}),  # one rank has them all
        ("binding", None, {"local_size": 2, "bindings": [BOTH], "numa_nodes": 2}, {}),  # of mpirun's
        ("threads", "warn", {"cores": 8, "local_size": 4, "threads": {"OMP_NUM_THREADS": 4}}, {}),
        ("threads", "warn", {"cores": 2, "local_size": 1, "threads": {"OMP_NUM_THREADS": 4}}, {}),
        ("threads", None, {"cores": 2, "local_size": 4, "threads": {"OMP_NUM_THREADS": 2}}, {}),
        ("threads", None, {"local_size": 4}, {}),  # a run divides the cores
        # CUDA 13 needs a driver of R580 or later; CUDA 12 of R525.
        ("GPU driver", "fail", GPU | torch_of("13.0", "570.86.15", False), {"backend": "torch"}),
        ("GPU driver", "warn", GPU | torch_of("13.0", "570.86.15", False), {"backend": "none"}),
        ("GPU driver", "warn", GPU | torch_of("13.0", "570.86.15", True), {"backend": "torch"}),  # cuda-compat
        ("GPU driver", "pass", GPU | torch_of("13.0", "580.65.06", True), {"backend": "torch"}),
        ("GPU driver", "pass", GPU | torch_of("12.8", "535.104.05", True), {"backend": "torch"}),
        ("GPU driver", None, GPU | torch_of(None, "535.104.05", False), {"backend": "torch"}),  # for CPUs
        ("data set", "fail", {"data__exists": False}, {}),
        ("data set", "fail", {"data__manifest_error": "no JSON"}, {}),
        ("data set", "warn", {"data": FOLDER}, {}),  # without a manifest
        ("data set", "warn", {"data__is_ram": True}, {}),
        ("data set", None, {"data": {}}, {}),  # not given
        ("staging", "fail", {"stage__free": 99 << 30}, {}),  # the data set has 100
        ("staging", "fail", {"stage__writable": False}, {}),
        ("staging", "warn", {"stage__is_ram": True}, {}),
        ("staging", "warn", {"stage__shared": True}, {}),
        ("staging", "fail", {"stage": {"path": "/x", "error": "Stale file handle"}}, {}),
        ("results", "fail", {"out__writable": False}, {}),
        ("results", "warn", {"out__is_ram": True}, {}),
        ("results", "warn", {"out__free": 1 << 29}, {}),
        ("/dev/shm", "warn", {"shm__free": 64 << 20}, {}),  # what container engines give
        ("environment", None, {"environment__shared": True}, {}),
        ("environment", "warn", {"environment__shared": True}, {"rank_info": RankInfo("srun", 0, 65)}),
        ("environment", None, {}, {"rank_info": RankInfo("srun", 0, 65)}),
        ("network", "fail", {"no_interface": {"HOROVOD_GLOO_IFACE": "ib9"}}, {}),
        ("compiled gradients", "warn", {"compiled__gradients": False}, {}),
        ("compiled gradients", None, {}, {}),
        ("clock", "warn", {"clock_synchronised": False}, {}),
        ("clock", None, {"clock_synchronised": None}, {}),
        ("memory locks", "warn", {"infiniband": True}, {}),
        ("memory locks", None, {"infiniband": True, "memlock": resource.RLIM_INFINITY}, {}),
        ("launcher", "warn", {}, {"env": {"SLURM_NTASKS": "8"}}),  # sbatch without srun
        ("launcher", "pass", {}, {"env": {"SLURM_NTASKS": "1"}}),
    ],
)  # fmt: skip
def test_every_problem_is_reported_with_a_remedy(what, status, changes, options):
    results = lines(spoiled(**changes), **options)
    assert worst(results, what) == status, results
    assert all(result.remedy for result in results if result.status != "pass")


def test_results_on_a_node_local_disk_are_a_warning():
    nodes = [spoiled(out__shared=False, out__type="ext4"), spoiled(host="n1", out__shared=False)]
    assert worst(check_nodes(nodes, SRUN, "cosmoflow", "horovod", {}), "results") == "warn"


def test_a_broken_framework_is_reported_and_does_not_end_the_doctor(monkeypatch):
    monkeypatch.setattr(node, "packages", lambda: {"tensorflow": "2.18.1", "torch": "2.12.1"})
    monkeypatch.setattr(node, "_TENSORFLOW", "import os; os.abort()")
    monkeypatch.setattr(node, "_TORCH", "import no_such_library")
    facts = node._load_frameworks("none")
    assert "SIGABRT" in facts["tensorflow"]["error"]
    assert "no_such_library" in facts["torch"]["error"]


@pytest.fixture
def bare(monkeypatch):
    """A machine where no framework is installed."""
    monkeypatch.setattr(node, "packages", lambda: {"mlhpc": "0.1.0"})
    monkeypatch.setattr(node, "_horovod_built_for", lambda: None)
    for name in ("SLURM_NTASKS", "HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("installed", "ready"), [({}, False), ({"torch": "2.12"}, True), ({"torch": "error"}, False)]
)
def test_without_a_framework_that_works_no_run_can_start(
    bare, tmp_path, capsys, monkeypatch, installed, ready
):
    facts = {"version": "2.12", "gpus": 0, "usable": False, "backend": None, "built": False, "cuda": None}
    torch = ({"error": "crashed"} if installed["torch"] == "error" else facts) if installed else None
    monkeypatch.setattr(node, "_load_frameworks", lambda framework: {"tensorflow": None, "torch": torch})
    argv = ["doctor", "--stage", str(tmp_path / "stage"), "--out", str(tmp_path / "out")]
    assert cli.main(argv) == (0 if ready else 1)
    output = capsys.readouterr().out
    words = "ready for a run; " if ready else "not ready for a run; "
    assert "TensorFlow" in output and "not installed" in output and f"\n{words}" in output
    assert f"\n{'warn' if ready else 'fail'}  TensorFlow" in output
    assert list(tmp_path.iterdir()) == [], "it only looks"


def test_a_login_node_is_examined_although_it_lacks_the_cores_of_a_sites_lists(bare, monkeypatch, capsys):
    monkeypatch.setenv("MLHPC_BIND", "60000:60001")
    assert cli.main(["doctor"]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "fail binding MLHPC_BIND=60000:60001: local rank 0 cannot use core 60000" in output
    assert "Python" in output and "not ready for a run" in output


def test_ranks_that_cannot_be_bound_are_examined_too(bare, monkeypatch, capsys):
    """As mlhpc doctor --ranks 1 starts them: not bound."""
    monkeypatch.setenv("MLHPC_BIND", "60000:60001")
    for name, value in {"MLHPC_RANK": "0", "MLHPC_SIZE": "1", "MLHPC_TOKEN": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLHPC_BOUND", raising=False)
    assert cli.main(["doctor"]) == 1
    assert "local rank 0 cannot use core 60000" in capsys.readouterr().out
    monkeypatch.setenv("MLHPC_BOUND", "1")
    cli.main(["doctor"])
    assert "60000" not in capsys.readouterr().out


def test_a_failed_check_gives_exit_status_1_and_the_reason(bare, tmp_path, capsys):
    assert cli.main(["doctor", "cosmoflow", "--data", str(tmp_path / "nowhere")]) == 1
    output = capsys.readouterr().out
    assert "nowhere does not exist" in output and "not ready for a run" in output


def test_the_size_of_the_data_set_comes_from_its_manifest(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").write_bytes(b"x" * 5000)
    assert cli.main(["data", "index", str(tmp_path)]) == 0
    facts = node._data_set(tmp_path)
    assert (facts["bytes"], facts["files"]) == (5000, 1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["doctor", "cosmoflw"], "cosmoflow"),
        (["doctor", "--ranks", "-1"], "--ranks: -1 is not"),
        (["doctor", "--set", "cooling=Air"], "--system"),
        (["doctor", "--data", ""], "--data: it is empty"),
        (["doctor", "--site", "../mine"], "--site '../mine'"),
        (["doctor", "--system", "--set", "coling=Air"], "did you mean 'cooling'"),
        (["doctor", "--system", "--set", "cooling"], "FIELD=VALUE"),
        (["doctor", "--system", "--set", "division=half"], "choose from: closed, open"),
        (["doctor", "--system", "--set", "status=On-premise"], "did you mean 'Available on-premise'"),
        (["doctor", "--system", "--set", "status=shipping"], "choose from: Available cloud, "),
    ],
)
def test_a_mistake_is_a_one_line_error(argv, message, capsys):
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error


def test_contradicting_launchers_fail(bare, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert cli.main(["doctor"]) == 1
    assert "WORLD_SIZE" in capsys.readouterr().out


def test_the_facts_of_a_node_are_json(bare):
    facts = node.examine(RankInfo(), "none", node.Folders(None, None, None), {})
    assert json.loads(json.dumps(facts)) == facts


def test_examining_imports_no_framework():
    code = (
        "import sys; from mlhpc.doctor import command, node; from mlhpc.common.ranks.environment import RankInfo\n"
        "node.packages = dict; node.examine(RankInfo(), 'none', node.Folders(None, None, None), {})\n"
        "print({'tensorflow', 'torch', 'horovod'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


REQUIRED = {name: "x" for name in system_description.REQUIRED} | {"division": "closed", "status": "Preview"}


def test_an_incomplete_system_description_is_not_written_and_the_repeat_with_set_is(tmp_path, capsys):
    """The file of a first call without --set once blocked the second with it."""
    out = tmp_path / "system.json"
    assert cli.main(["doctor", "--system", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert "required: --set submitter=" in error and f"{out} was not written" in error
    assert not out.exists()
    settings = [word for name, value in REQUIRED.items() for word in ("--set", f"{name}={value}")]
    assert cli.main(["doctor", "--system", "--out", str(out), *settings]) == 0
    assert json.loads(out.read_text())["submitter"] == "x"
    assert cli.main(["doctor", "--system", "--out", str(out), *settings]) == 2
    assert "exists; choose another --out" in capsys.readouterr().err
