"""``mlhpc doctor``: a good machine passes; each thing that goes wrong on clusters is found, with a remedy; and
nothing of it needs a framework."""

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
from mlhpc.common.ranks.rollcall import Connection
from mlhpc.doctor import node, nodes
from mlhpc.doctor.check_result import GIB
from mlhpc.doctor.checks import check_nodes, clocks
from mlhpc.errors import UserError
from mlhpc.submission.system import description as system_description

FOLDER = {"path": "/scratch", "type": "xfs", "is_ram": False, "shared": False, "free": 900 * GIB,
          "exists": True, "writable": True}  # fmt: skip
NODE = {
    "host": "n0", "local_size": 1, "cores": 8, "python": "3.11.7", "machine_cores": 8, "gpus": [],
    "energy": {"source": "", "counters": 0, "problem": ""},
    "threads": {}, "driver": None,
    "packages": {"mlhpc": "0.1.0", "tensorflow": "2.18.1", "horovod": "0.28.1", "torch": "2.12.1"},
    "commit": "abc", "horovod_built_for": "2.18.1", "infiniband": False, "memlock": 8 << 20,
    "clock_synchronised": True,
    "no_interface": {}, "shm": FOLDER | {"path": "/dev/shm", "type": "tmpfs", "is_ram": True},
    "data": FOLDER | {"path": "/lustre/d", "type": "lustre", "shared": True, "bytes": 100 * GIB, "files": 9,
                      "digest": 1},
    "stage": FOLDER, "out": FOLDER | {"path": "/lustre/r", "type": "lustre", "shared": True},
    "tensorflow": {"version": "2.18.1", "gpus": 0, "horovod": {"gloo": True, "mpi": False, "nccl": False}},
    "torch": {"version": "2.12.1", "gpus": 0, "gloo": True, "backend": None, "built": False}, "offset_s": 0.0,
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


def lines(node, rank_info=RankInfo(), backend="horovod", benchmark="cosmoflow", env=()):  # noqa: B008
    return list(check_nodes([node], rank_info, benchmark, backend, dict(env)))


def worst(results, what):
    states = {line.status for line in results if line.name == what}
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
def test_under_mpirun_nodes_connect_if_the_host_of_rank_0_is_known(env, leader):
    assert nodes.find_rank_info(MPIRUN | env).leader == leader


def test_the_examined_nodes_are_named():
    two = [spoiled(host="n0"), spoiled(host="n1")]
    place = RankInfo("srun", 0, 2, 0, 1, 0, 2, leader="n0")
    results = [line.detail for line in check_nodes(two, place, None, "none", {}) if line.name == "launcher"]
    assert results == ["srun: 2 ranks on 2 nodes: n0, n1"]
    mpirun = RankInfo("mpirun", 0, 4, 0, 1, None, None)
    results = [
        line.detail for line in check_nodes(two[:1], mpirun, None, "none", {}) if line.name == "launcher"
    ]
    assert results == ["mpirun: 4 ranks, only n0 examined"]


def test_nodes_that_cannot_connect_are_not_described_together(monkeypatch, capsys, tmp_path):
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


def torch_of(cuda, driver, usable):
    """A PyTorch built for ``cuda`` on ``driver``, which can use the GPUs or not."""
    return {"driver": driver, "torch__cuda": cuda, "torch__usable": usable, "torch__gpus": 4 * usable,
            "torch__backend": "nccl", "torch__built": True}  # fmt: skip


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
        ("PyTorch", "warn", GPU | {"torch__gpus": 4, "torch__backend": "nccl"}, {"backend": "torch"}),
        ("PyTorch", "warn", GPU | {"torch__gpus": 4, "torch__backend": "xccl"}, {"backend": "torch"}),
        ("PyTorch", "pass", GPU | {"torch__gpus": 4, "torch__backend": "xccl", "torch__built": True},
         {"backend": "torch"}),
        ("energy", "warn", GPU | {"energy__problem": "NVML is not installed: pip install x"}, {}),
        ("energy", "pass", GPU | {"energy__source": "NVML", "energy__counters": 4}, {}),
        ("energy", None, {}, {}),
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


def test_nodes_that_differ_are_named():
    other = spoiled(
        host="n1", packages__tensorflow="2.15.1", data__digest=2, stage__type="tmpfs", stage__is_ram=True
    )
    results = list(check_nodes([NODE, other], SRUN, "cosmoflow", "horovod", {}))
    details = {(line.status, line.name): line.detail for line in results}
    assert "2.15.1 on n1" in details["fail", "versions"] and "tensorflow" in details["fail", "versions"]
    assert ("warn", "staging on n1") in details and ("pass", "staging on n0") in details
    assert ("fail", "data set") in details
    assert not any("n1" in line.name for line in results if line.name.startswith("Python"))


def test_one_node_with_fewer_gpus_is_named():
    nodes = [spoiled(host=f"n{i}", **GPU | {"tensorflow__gpus": 4}) for i in range(3)]
    nodes[2]["gpus"] = nodes[2]["gpus"][:3]
    results = list(check_nodes(nodes, SRUN, "cosmoflow", "horovod", {}))
    assert any(line.status == "warn" and "n2 differs from n0" in line.detail for line in results)


def test_results_on_a_node_local_disk_are_a_warning():
    nodes = [spoiled(out__shared=False, out__type="ext4"), spoiled(host="n1", out__shared=False)]
    assert worst(check_nodes(nodes, SRUN, "cosmoflow", "horovod", {}), "results") == "warn"


@pytest.mark.parametrize(("offset", "status"), [(0.004, "pass"), (-0.4, "warn"), (5.0, "fail")])
def test_differing_clocks_are_reported_with_their_node(offset, status):
    nodes = [NODE, spoiled(host="n1", offset_s=offset), spoiled(host="n2", offset_s=0.001)]
    [line] = clocks(nodes)
    assert line.status == status and "n1" in line.detail


def test_a_clock_is_never_compared_with_itself():
    [line] = clocks([NODE, spoiled(host="n1", offset_s=0.0)])
    assert line.detail == f"n1 is 0.0 ms from {NODE['host']}"


def test_a_clock_that_is_ahead_is_measured():
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = Connection(socket.create_connection(door.getsockname()))
        theirs = Connection(door.accept()[0])
    ahead = 2.5

    def answer():
        while "ping" in theirs.answer(10):
            time.sleep(0.002)
            theirs.send(time=time.time() + ahead)
            time.sleep(0.002)

    thread = threading.Thread(target=answer)
    thread.start()
    measured = nodes._offset(ours)
    ours.send(done=True)
    thread.join()
    ours.close(), theirs.close()
    assert measured == pytest.approx(ahead, abs=0.05)


def test_an_unauthenticated_peer_is_not_a_node():
    """Whoever finds the open port while the nodes are examined: wrong token, no token, no JSON, nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        strangers = [socket.create_connection(address) for _ in range(4)]
        forged = {"token": "guessed", "rank": 1, "facts": {"host": "forged"}}
        for stranger, message in zip(strangers, (forged, {"rank": 1}, "{", None), strict=True):
            if message is not None:
                text = message if isinstance(message, str) else json.dumps(message)
                stranger.sendall(text.encode() + b"\n")
        strangers[3].close()

        def report():
            connection = Connection(socket.create_connection(address))
            nodes._send_facts(connection, "secret", 1, lambda: {"host": "n1"})

        thread = threading.Thread(target=report)
        thread.start()
        facts = nodes.receive_facts(listener, "secret", [1], seconds=60)
        thread.join()
    for stranger in strangers:
        stranger.close()
    assert facts[1]["host"] == "n1" and abs(facts[1]["offset_s"]) < 1


def test_a_rank_that_does_not_report_its_node_is_named():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(UserError, match="rank 3, 5 connected"),
    ):
        nodes.receive_facts(listener, "secret", [3, 5], seconds=0)


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


def test_a_laptop_without_frameworks_is_ready_for_one_rank(bare, tmp_path, capsys):
    argv = ["doctor", "--stage", str(tmp_path / "stage"), "--out", str(tmp_path / "out")]
    assert cli.main(argv) == 0
    output = capsys.readouterr().out
    assert "TensorFlow" in output and "not installed" in output and "ready for a run; " in output
    assert list(tmp_path.iterdir()) == [], "it only looks"


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


def test_two_ranks_connect_and_rank_0_reports_for_both(tmp_path):
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
    output = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], output
    assert "mlhpc: 2 ranks" in output[0][0] and "\nready for a run" in output[0][0]
    assert output[1][0] == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["doctor", "cosmoflw"], "cosmoflow"),
        (["doctor", "--ranks", "-1"], "--ranks -1"),
        (["doctor", "--set", "cooling=Air"], "--system"),
        (["doctor", "--data", ""], "--data: is empty"),
        (["doctor", "--site", "../mine"], "--site '../mine'"),
        (["doctor", "--system", "--set", "coling=Air"], "did you mean 'cooling'"),
        (["doctor", "--system", "--set", "cooling"], "field=value"),
        (["doctor", "--system", "--set", "division=half"], "closed or open"),
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


REQUIRED = {name: "x" for name in system_description.REQUIRED} | {"division": "closed"}


def test_an_incomplete_system_description_is_not_written_and_the_repeat_with_set_is(tmp_path, capsys):
    """The file of a first call without --set once blocked the second with it."""
    out = tmp_path / "system.json"
    assert cli.main(["doctor", "--system", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert "required: --set submitter=" in error and f"{out} not written" in error
    assert not out.exists()
    settings = [word for name, value in REQUIRED.items() for word in ("--set", f"{name}={value}")]
    assert cli.main(["doctor", "--system", "--out", str(out), *settings]) == 0
    assert json.loads(out.read_text())["submitter"] == "x"
    assert cli.main(["doctor", "--system", "--out", str(out), *settings]) == 2
    assert "exists; choose another --out" in capsys.readouterr().err
