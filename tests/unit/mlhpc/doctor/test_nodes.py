"""``mlhpc doctor`` over several nodes: missing nodes, differences, wrong clocks."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from helpers.doctor_nodes import GPU, NODE, SRUN, spoiled

from mlhpc import cli
from mlhpc.common.ranks.connection import Connection, Secret
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.links import connect
from mlhpc.doctor import nodes
from mlhpc.doctor.checks import check_nodes, clocks
from mlhpc.errors import UserError

SECRET = Secret("job 1", b"s" * 32)
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
    assert results == ["mpirun: 4 ranks; only n0 examined"]


def test_nodes_that_cannot_connect_are_not_described_together(monkeypatch, capsys, tmp_path):
    """The description would say one node of many."""
    for name, value in (MPIRUN | {"OMPI_COMM_WORLD_RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert cli.main(["doctor", "--system", "--out", str(tmp_path / "s.json")]) == 2
    assert "MLHPC_LEADER" in capsys.readouterr().err and not (tmp_path / "s.json").exists()


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


@pytest.mark.parametrize(("offset", "status"), [(0.004, "pass"), (-0.4, "warn"), (5.0, "fail")])
def test_differing_clocks_are_reported_with_their_node(offset, status):
    nodes = [NODE, spoiled(host="n1", offset_s=offset), spoiled(host="n2", offset_s=0.001)]
    [line] = clocks(nodes)
    assert line.status == status and "n1" in line.detail


def test_a_clock_is_never_compared_with_itself():
    [line] = clocks([NODE, spoiled(host="n1", offset_s=0.0)])
    assert line.detail == f"the clock of n1 differs by 0 s from that of {NODE['host']}"


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
    """Strangers on the open port while the nodes are examined: wrong token, no token, no JSON, nothing at all."""
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
            connection = Connection(connect(address, SECRET, 1))
            nodes._send_facts(connection, lambda: {"host": "n1"})

        thread = threading.Thread(target=report)
        thread.start()
        facts = nodes.receive_facts(listener, SECRET, [1], seconds=60)
        thread.join()
    for stranger in strangers:
        stranger.close()
    assert facts[1]["host"] == "n1" and abs(facts[1]["offset_s"]) < 1


def test_a_rank_that_does_not_report_its_node_is_named():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(UserError, match="ranks 3, 5 did not connect within 0 s"),
    ):
        nodes.receive_facts(listener, SECRET, [3, 5], seconds=0)


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
    assert [rank.returncode for rank in ranks] == [1, 0], output  # rank 0 has the verdict: no framework
    assert "mlhpc: 2 ranks" in output[0][0] and "\nnot ready for a run" in output[0][0]
    assert output[1][0] == ""
