"""``mlhpc doctor``: a machine that is well passes; each thing that goes wrong on clusters is found, with what
to do about it; and nothing of it needs a framework."""

import copy
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time

import pytest

from mlhpc import cli
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.rollcall import Connection as Wire
from mlhpc.doctor import node
from mlhpc.doctor import nodes as of_nodes
from mlhpc.doctor.checks import GIB, check_nodes, clocks

FOLDER = {"path": "/scratch", "type": "xfs", "is_ram": False, "shared": False, "free": 900 * GIB,
          "exists": True, "writable": True}  # fmt: skip
NODE = {
    "host": "n0", "local_size": 1, "cores": 8, "python": "3.11.7", "machine_cores": 8, "gpus": [],
    "packages": {"mlhpc": "0.1.0", "tensorflow": "2.18.1", "horovod": "0.28.1", "torch": "2.12.1"},
    "commit": "abc", "horovod_built_for": "2.18.1", "infiniband": False, "memlock": 8 << 20,
    "no_interface": {}, "shm": FOLDER | {"path": "/dev/shm", "type": "tmpfs", "is_ram": True},
    "data": FOLDER | {"path": "/lustre/d", "type": "lustre", "shared": True, "bytes": 100 * GIB, "files": 9,
                      "digest": 1},
    "stage": FOLDER, "out": FOLDER | {"path": "/lustre/r", "type": "lustre", "shared": True},
    "tensorflow": {"version": "2.18.1", "gpus": 0, "horovod": {"gloo": True, "mpi": False, "nccl": False}},
    "torch": {"version": "2.12.1", "gpus": 0, "gloo": True, "nccl": True}, "offset_s": 0.0,
}  # fmt: skip
SRUN = RankInfo("srun", 0, 2, 0, 1, 0, 2)


def spoiled(**changes):
    """The good node with ``a__b=value`` set at ["a"]["b"]."""
    node = copy.deepcopy(NODE)
    for name, value in changes.items():
        *above, last = name.split("__")
        place = node
        for key in above:
            place = place[key]
        place[last] = value
    return node


def lines(node, place=RankInfo(), backend="horovod", benchmark="cosmoflow", env=()):  # noqa: B008
    return list(check_nodes([node], place, benchmark, backend, dict(env)))


def worst(found, what):
    states = {line.status for line in found if line.what == what}
    return next((state for state in ("fail", "warn", "pass") if state in states), None)


MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("env", "leader"),
    [
        ({}, None),
        ({"MLHPC_LEADER": "n7"}, "n7"),
        ({"SLURM_JOB_NODELIST": "n[3-4]", "SLURM_JOB_ID": "1"}, "n3"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "127.0.0.1"),
    ],
)
def test_under_mpirun_the_nodes_meet_wherever_rank_0_can_be_known(env, leader):
    assert of_nodes.place_of(MPIRUN | env).leader == leader


def test_the_nodes_that_were_looked_at_are_named():
    nodes = [spoiled(host="n0"), spoiled(host="n1")]
    place = RankInfo("srun", 0, 2, 0, 1, 0, 2, leader="n0")
    found = [line.found for line in check_nodes(nodes, place, None, "none", {}) if line.what == "launcher"]
    assert found == ["srun: 2 ranks on 2 nodes: n0, n1"]
    alone = RankInfo("mpirun", 0, 4, 0, 1, None, None)
    found = [
        line.found for line in check_nodes(nodes[:1], alone, None, "none", {}) if line.what == "launcher"
    ]
    assert found == ["mpirun: 4 ranks, examined on n0 alone"]


def test_nodes_that_cannot_meet_are_not_described_as_one(monkeypatch, capsys, tmp_path):
    """The description would say one node of many."""
    for name, value in (MPIRUN | {"OMPI_COMM_WORLD_RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert cli.main(["doctor", "--system", "--out", str(tmp_path / "s.json")]) == 2
    assert "MLHPC_LEADER" in capsys.readouterr().err and not (tmp_path / "s.json").exists()


@pytest.mark.parametrize("backend", ["horovod", "torch", "none"])
@pytest.mark.parametrize("place", [RankInfo(), SRUN])
def test_a_good_node_passes(backend, place):
    assert {line.status for line in lines(NODE, place, backend)} == {"pass"}


GPU = {"gpus": ["NVIDIA A100, 40960 MiB"] * 4, "local_size": 4, "cores": 2}


@pytest.mark.parametrize(
    ("what", "status", "changes", "options"),
    [
        ("Python", "fail", {"python": "3.10.4"}, {}),
        ("Python", "fail", {"python": "3.13.0"}, {}),
        ("TensorFlow", "fail", {"tensorflow": None}, {}),
        ("TensorFlow", "warn", {"tensorflow": None}, {"backend": "none", "benchmark": None}),
        ("TensorFlow", None, {"tensorflow": None}, {"backend": "torch", "benchmark": "deepcam"}),
        ("TensorFlow", "fail", {"tensorflow": {"error": "crashed (SIGSEGV)"}}, {}),
        ("TensorFlow", "fail", GPU, {}),  # the build for CPUs sees no GPU
        ("PyTorch", "fail", {"torch": None}, {"backend": "torch", "benchmark": "deepcam"}),
        ("PyTorch", "warn", GPU | {"torch__gpus": 4, "torch__nccl": False}, {"backend": "torch"}),
        # Horovod: a wheel from pip's cache for another TensorFlow; builds that lack what a launcher needs.
        ("Horovod", "fail", {"horovod_built_for": "2.15.1"}, {"place": SRUN}),
        ("Horovod", "warn", {"horovod_built_for": "2.15.1"}, {}),
        ("Horovod", "fail", {"horovod_built_for": ""}, {"place": SRUN}),
        ("Horovod", "fail", {"tensorflow__horovod_error": "undefined symbol: _ZN10"}, {"place": SRUN}),
        ("Horovod", "fail", {"tensorflow__horovod__gloo": False}, {"place": SRUN}),
        ("Horovod", "fail", {}, {"place": RankInfo("mpirun", 0, 2, 0, 2, None, None)}),
        ("Horovod", "fail", {"packages": {}}, {"place": SRUN}),
        ("Horovod", "pass", {"packages": {}}, {}),  # one rank needs none
        ("Horovod", "warn", GPU | {"tensorflow__gpus": 4}, {}),  # gradients would go over the host
        ("GPUs", "warn", {"gpus": ["A100"] * 4}, {}),
        ("GPUs", "warn", {"gpus": ["A100"], "local_size": 2, "cores": 4}, {}),
        ("GPUs", "warn", {"gpus": ["A100"], "local_size": 2, "cores": 4}, {"backend": "torch"}),  # may be bound
        ("GPUs", "fail", {"gpus": ["A100"] * 2, "local_size": 3, "cores": 4}, {"backend": "torch"}),
        ("cores", "warn", {"local_size": 16}, {}),
        ("cores", "warn", {"cores": 1}, {}),  # srun without --cpus-per-task
        ("cores", "pass", {"cores": 2, "local_size": 4}, {}),
        ("data set", "fail", {"data__exists": False}, {}),
        ("data set", "fail", {"data__manifest_error": "no JSON"}, {}),
        ("data set", "warn", {"data": FOLDER}, {}),  # without a manifest
        ("data set", "warn", {"data__is_ram": True}, {}),
        ("data set", None, {"data": {}}, {}),  # nobody said where it is
        ("staging", "fail", {"stage__free": 99 * GIB}, {}),  # the data set has 100
        ("staging", "fail", {"stage__writable": False}, {}),
        ("staging", "warn", {"stage__is_ram": True}, {}),
        ("staging", "warn", {"stage__shared": True}, {}),
        ("staging", "fail", {"stage": {"path": "/x", "error": "Stale file handle"}}, {}),
        ("results", "fail", {"out__writable": False}, {}),
        ("results", "warn", {"out__is_ram": True}, {}),
        ("results", "warn", {"out__free": GIB // 2}, {}),
        ("/dev/shm", "warn", {"shm__free": 64 << 20}, {}),  # what container engines give
        ("network", "fail", {"no_interface": {"HOROVOD_GLOO_IFACE": "ib9"}}, {}),
        ("memory locks", "warn", {"infiniband": True}, {}),
        ("memory locks", None, {"infiniband": True, "memlock": resource.RLIM_INFINITY}, {}),
        ("launcher", "warn", {}, {"env": {"SLURM_NTASKS": "8"}}),  # sbatch without srun
        ("launcher", "pass", {}, {"env": {"SLURM_NTASKS": "1"}}),
    ],
)  # fmt: skip
def test_what_is_not_well_is_found(what, status, changes, options):
    found = lines(spoiled(**changes), **options)
    assert worst(found, what) == status, found
    assert all(line.remedy for line in found if line.status != "pass")


def test_nodes_that_differ_are_named():
    other = spoiled(
        host="n1", packages__tensorflow="2.15.1", data__digest=2, stage__type="tmpfs", stage__is_ram=True
    )
    found = list(check_nodes([NODE, other], SRUN, "cosmoflow", "horovod", {}))
    said = {(line.status, line.what): line.found for line in found}
    assert "2.15.1 on n1" in said["fail", "versions"] and "tensorflow" in said["fail", "versions"]
    assert ("warn", "staging on n1") in said and ("pass", "staging on n0") in said
    assert ("fail", "data set") in said
    assert not any("n1" in line.what for line in found if line.what.startswith("Python"))


def test_one_node_with_fewer_gpus_is_named():
    nodes = [spoiled(host=f"n{i}", **GPU | {"tensorflow__gpus": 4}) for i in range(3)]
    nodes[2]["gpus"] = nodes[2]["gpus"][:3]
    found = list(check_nodes(nodes, SRUN, "cosmoflow", "horovod", {}))
    assert any(line.status == "warn" and "n2 is unlike n0" in line.found for line in found)


def test_results_on_a_disk_of_one_node_are_suspected():
    nodes = [spoiled(out__shared=False, out__type="ext4"), spoiled(host="n1", out__shared=False)]
    assert worst(check_nodes(nodes, SRUN, "cosmoflow", "horovod", {}), "results") == "warn"


@pytest.mark.parametrize(("offset", "status"), [(0.004, "pass"), (-0.4, "warn"), (5.0, "fail")])
def test_clocks_that_are_apart_are_found_with_their_node(offset, status):
    nodes = [NODE, spoiled(host="n1", offset_s=offset), spoiled(host="n2", offset_s=0.001)]
    [line] = clocks(nodes)
    assert line.status == status and "n1" in line.found


def test_a_clock_is_never_compared_with_itself():
    [line] = clocks([NODE, spoiled(host="n1", offset_s=0.0)])
    assert line.found == f"n1 is 0.0 ms from {NODE['host']}"


def test_a_clock_that_is_ahead_is_measured():
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = Wire(socket.create_connection(door.getsockname()))
        theirs = Wire(door.accept()[0])
    ahead = 2.5

    def answer():
        while "ping" in theirs.answer(10):
            time.sleep(0.002)
            theirs.send(time=time.time() + ahead)
            time.sleep(0.002)

    thread = threading.Thread(target=answer)
    thread.start()
    measured = of_nodes._offset(ours)
    ours.send(done=True)
    thread.join()
    ours.close(), theirs.close()
    assert measured == pytest.approx(ahead, abs=0.05)


def test_a_broken_framework_is_told_and_does_not_take_us_along(monkeypatch):
    monkeypatch.setattr(node, "packages", lambda: {"tensorflow": "2.18.1", "torch": "2.12.1"})
    monkeypatch.setattr(node, "_TENSORFLOW", "import os; os.abort()")
    monkeypatch.setattr(node, "_TORCH", "import no_such_library")
    told = node._try_frameworks("none")
    assert "SIGABRT" in told["tensorflow"]["error"]
    assert "no_such_library" in told["torch"]["error"]


@pytest.fixture
def bare(monkeypatch):
    """A machine where no framework is installed."""
    monkeypatch.setattr(node, "packages", lambda: {"mlhpc": "0.1.0"})
    monkeypatch.setattr(node, "_horovod_built_for", lambda: None)
    for name in ("SLURM_NTASKS", "HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


def test_a_laptop_without_frameworks_is_fit_for_one_rank(bare, tmp_path, capsys):
    argv = ["doctor", "--stage", str(tmp_path / "stage"), "--out", str(tmp_path / "out")]
    assert cli.main(argv) == 0
    said = capsys.readouterr().out
    assert "TensorFlow" in said and "not installed" in said and "nothing failed; " in said
    assert list(tmp_path.iterdir()) == [], "it only looks"


def test_exit_status_1_says_what_is_not_well(bare, tmp_path, capsys):
    assert cli.main(["doctor", "cosmoflow", "--data", str(tmp_path / "nowhere")]) == 1
    said = capsys.readouterr().out
    assert "nowhere is not there" in said and "not fit for a run" in said


def test_the_size_of_the_data_set_is_its_manifests(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").write_bytes(b"x" * 5000)
    assert cli.main(["data", "index", str(tmp_path)]) == 0
    facts = node._data_set(tmp_path)
    assert (facts["bytes"], facts["files"]) == (5000, 1)


def test_two_ranks_meet_and_the_first_speaks_for_both(tmp_path):
    """The real thing, on this machine: roll call, facts over the wire, one report."""
    code = (
        "import sys; from mlhpc import cli; from mlhpc.doctor import node; node.packages = lambda: {}; "
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    argv = ["doctor", "--stage", str(tmp_path), "--out", str(tmp_path)]
    env = {"MLHPC_SIZE": "2", "MLHPC_TOKEN": os.urandom(8).hex()}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, *argv], env=os.environ | env | {"MLHPC_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert "mlhpc: 2 ranks" in said[0][0] and "nothing failed" in said[0][0]
    assert said[1][0] == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["doctor", "cosmoflw"], "cosmoflow"),
        (["doctor", "--ranks", "-1"], "--ranks -1"),
        (["doctor", "--set", "cooling=Air"], "--system"),
        (["doctor", "--system", "--set", "coling=Air"], "did you mean 'cooling'"),
        (["doctor", "--system", "--set", "cooling"], "field=value"),
        (["doctor", "--system", "--set", "division=half"], "closed or open"),
    ],
)
def test_a_mistake_is_one_line(argv, said, capsys):
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error


def test_contradicting_launchers_are_a_failed_line(bare, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert cli.main(["doctor"]) == 1
    assert "WORLD_SIZE" in capsys.readouterr().out


def test_the_facts_of_a_node_can_be_sent(bare):
    facts = node.examine(RankInfo(), "none", node.Folders(None, None, None), {})
    assert json.loads(json.dumps(facts)) == facts


def test_looking_imports_no_framework():
    code = (
        "import sys; from mlhpc.doctor import command, node; from mlhpc.common.ranks.environment import RankInfo\n"
        "node.packages = dict; node.examine(RankInfo(), 'none', node.Folders(None, None, None), {})\n"
        "print({'tensorflow', 'torch', 'horovod'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
