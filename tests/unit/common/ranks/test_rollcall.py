"""Who is present and who is lost: with threads for successful cases, with processes if a rank dies."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mlhpc.common.ranks import connection as connection_module
from mlhpc.common.ranks import rendezvous as rendezvous_module
from mlhpc.common.ranks import rollcall
from mlhpc.common.ranks.connection import Secret
from mlhpc.common.ranks.environment import identify
from mlhpc.common.ranks.rendezvous import Peer, Rendezvous, listen
from mlhpc.common.ranks.rollcall import RollCall
from mlhpc.errors import AlreadyReported, UserError

PROGRAM = Path(__file__).parents[3] / "ranks" / "roll.py"


@pytest.fixture
def rendezvous():
    """Where nothing else listens: the ports of a new token, as launch derives them."""
    token = os.urandom(8).hex()
    ports = identify({"MLHPC_RANK": "0", "MLHPC_SIZE": "2", "MLHPC_TOKEN": token}).ports
    return Rendezvous(("127.0.0.1",), ports, Secret("job 1", token.encode()), 2)


def call(rendezvous, ranks, size, timeout_s=20.0, hosts=()):
    """The roll call on each of ``ranks`` concurrently: its ``RollCall``, or its exception."""

    def one(rank):
        me = Peer(rank, f"n{rank}", 0, os.getpid())
        try:
            return RollCall.call(me, replace(rendezvous, size=size, nodes=tuple(hosts), timeout_s=timeout_s))
        except UserError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


def close(calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(RollCall.close, calls))


def test_all_ranks_see_the_same_roll_and_rank_0s_facts(rendezvous):
    calls = call(rendezvous, range(4), 4)
    assert [c.hostname for c in calls[0].roll] == ["n0", "n1", "n2", "n3"]
    assert all(c.roll == calls[0].roll for c in calls)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda c: c.broadcast({"port": c.me.rank}), calls)) == [{"port": 0}] * 4
    close(calls)


def test_ranks_meet_over_ipv6(rendezvous):
    calls = call(replace(rendezvous, hosts=("::1",)), range(3), 3)
    assert [c.hostname for c in calls[2].roll] == ["n0", "n1", "n2"]
    close(calls)


def test_facts_sent_right_after_the_roll_are_not_lost(rendezvous):
    """They may come in the same packet as the roll."""
    with ThreadPoolExecutor(2) as pool:
        facts = [
            pool.submit(lambda rank=rank: call(rendezvous, [rank], 2)[0].broadcast({"x": "y" * 1000}))
            for rank in range(2)
        ]
        assert [f.result(timeout=20) for f in facts] == [{"x": "y" * 1000}] * 2


def test_a_missing_rank_is_named_on_every_connected_rank(rendezvous):
    errors = call(rendezvous, [0, 2], 4, timeout_s=1.0, hosts=["n0", "n1", "n2", "n3"])
    assert [type(e) for e in errors] == [UserError, AlreadyReported]  # one line per run
    assert str(errors[0]) == str(errors[1])
    assert "ranks 1, 3 of 4 did not connect within 1 s" in str(errors[0])
    assert "no rank on n1, n3 connected" in str(errors[0])


def test_without_rank_0_the_others_report_the_addresses_they_tried(rendezvous):
    (error,) = call(rendezvous, [1], 2, timeout_s=1.0)
    assert "rank 1 on n1 could not find rank 0 on 127.0.0.1" in str(error)
    assert str(rendezvous.ports[0]) in str(error) and "refused" in str(error)


def test_duplicate_ranks_are_refused(rendezvous):
    errors = call(rendezvous, [0, 1, 1], 3)
    assert any("two processes were launched as rank 1" in str(error) for error in errors)
    assert all(isinstance(error, UserError) for error in errors)


def test_ranks_with_different_world_sizes_are_refused(rendezvous):
    with ThreadPoolExecutor(2) as pool:
        zero, one = pool.submit(call, rendezvous, [0], 2), pool.submit(call, rendezvous, [1], 16)
        assert "rank 1 on n1 was launched with world size 16, rank 0 on n0 with 2" in str(zero.result()[0])
        assert str(one.result()[0]) == str(zero.result()[0])


def test_two_jobs_on_one_node_with_the_same_ports_do_not_mix(rendezvous):
    other = replace(rendezvous, proof=replace(rendezvous.proof, launch="another job"))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(call, where, range(2), 2) for where in (rendezvous, other)]
        for calls in (future.result() for future in both):
            assert [len(c.roll) for c in calls] == [2, 2]
            close(calls)


def test_a_silent_program_on_the_first_port_is_skipped(rendezvous):
    with listen(rendezvous):
        calls = call(rendezvous, range(2), 2)
        assert len(calls[1].roll) == 2
        close(calls)


STRANGERS = {
    "http": b"GET / HTTP/1.0\r\n\r\n",
    "a list": b"[]\n",
    "another proof": b'{"nonce": "1", "hello": "{}", "proof": "wrong"}\n',
    "no proof": b'{"nonce": "1", "hello": "{}"}\n',
    "an invalid hello": b'{"nonce": 1, "hello": 2, "proof": 3}\n',
    "more than an answer": b'{"nonce": "1", "hello": "{}", "proof": "wrong"}\nmore',
    "nothing": b"",
    "deep JSON": b"[" * 4000 + b"\n",
    "a line without end": b"x" * 100_000,
}


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS)
def test_unauthenticated_peers_are_disconnected_and_the_ranks_connect(rendezvous, words):
    with ThreadPoolExecutor(2) as pool:
        zero = pool.submit(call, rendezvous, [0], 2)
        stranger = knock(rendezvous.ports[0])
        stranger.sendall(words)
        stranger.settimeout(30)
        if words:
            with suppress(ConnectionResetError):
                assert b"proof" not in b"".join(iter(lambda: stranger.recv(4096), b"")), "it was answered"
        stranger.close()
        (one,) = pool.submit(call, rendezvous, [1], 2).result()
        calls = [zero.result()[0], one]
    assert [[peer.rank for peer in c.roll] for c in calls] == [[0, 1], [0, 1]]
    close(calls)


def test_idle_and_slow_connections_do_not_delay_ranks(rendezvous, monkeypatch):
    """They used to be served one after the other, for seconds: a few made a rank count as lost."""
    monkeypatch.setattr(connection_module, "GREETING_S", 60.0)  # longer than the test
    done = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        zero = pool.submit(call, rendezvous, [0], 2, 30.0)
        strangers = [knock(rendezvous.ports[0]) for _ in range(40)]
        strangers[-1].sendall(b"x")  # now, so that it is served before the rank
        pool.submit(drip, strangers[-1], done)
        (one,) = call(rendezvous, [1], 2, timeout_s=30.0)
        assert len(one.roll) == 2
        close([zero.result()[0], one])
        done.set()
    for stranger in strangers:
        stranger.close()


def test_a_slow_connection_does_not_extend_the_roll_calls_timeout(rendezvous, monkeypatch):
    monkeypatch.setattr(connection_module, "GREETING_S", 0.5)
    done = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        zero = pool.submit(call, rendezvous, [0], 2, 1.0)
        pool.submit(drip, knock(rendezvous.ports[0]), done)
        (error,) = zero.result(timeout=30)
        done.set()
    assert "rank 1 of 2 did not connect within 1 s" in str(error)


def test_a_stranger_that_says_nothing_is_disconnected_while_ranks_are_missing(rendezvous, monkeypatch):
    monkeypatch.setattr(connection_module, "GREETING_S", 1.0)
    with ThreadPoolExecutor(1) as pool:
        zero = pool.submit(call, rendezvous, [0], 2, 120.0)
        stranger = knock(rendezvous.ports[0])
        stranger.settimeout(30)
        assert b"challenge" in stranger.recv(4096)
        assert stranger.recv(1) == b"" and not zero.done()
        (one,) = call(rendezvous, [1], 2, timeout_s=60.0)
        close([zero.result()[0], one])


def test_a_stranger_that_sends_without_end_is_disconnected_at_once(rendezvous, monkeypatch):
    """Long before the time limit: what it sends is kept until a line is complete."""
    monkeypatch.setattr(connection_module, "GREETING_S", 60.0)
    with ThreadPoolExecutor(1) as pool:
        zero = pool.submit(call, rendezvous, [0], 2, 120.0)
        stranger = knock(rendezvous.ports[0])
        stranger.settimeout(30)
        with suppress(ConnectionError):
            stranger.sendall(b"x" * 100_000)
            assert b"proof" not in b"".join(iter(lambda: stranger.recv(4096), b""))
        (one,) = call(rendezvous, [1], 2, timeout_s=60.0)
        close([zero.result()[0], one])


def drip(stranger, done):
    with suppress(OSError):
        while not done.wait(0.02):
            stranger.sendall(b"x")


def test_the_ranks_of_one_machine_are_not_reachable_from_outside(rendezvous):
    with listen(rendezvous) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    with listen(replace(rendezvous, hosts=("n0",))) as listener:
        assert listener.getsockname()[0] in ("0.0.0.0", "::")


def knock(port):
    for _ in range(3000):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise AssertionError(f"nothing listens on port {port}")


@pytest.mark.parametrize(
    ("reasons", "same"),
    [
        (("a", "a"), True),
        (("a", "b"), False),
        (("a; resume it", "a"), True),
        (("/d/1.h5 cannot be read: eof 96; get it", "/d/20.h5 cannot be read: eof 4"), True),
        (("/d/1.h5 cannot be read", "/d/1.h5 is damaged"), False),
    ],
)
def test_a_failure_shared_with_rank_0_is_recognised(rendezvous, reasons, same):
    calls = call(rendezvous, range(2), 2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(RollCall.fail, calls, reasons))
        assert list(pool.map(RollCall.reported_elsewhere, calls)) == [False, same]
    close(calls)


def join(calls):
    """Until their threads have ended, so that what these raise is not charged to the next test."""
    for one in calls:
        one._thread.join(20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit
@pytest.mark.parametrize("failing", [[0], [1], [2], [1, 2]])
def test_why_a_rank_fails_is_one_line_of_another_rank(rendezvous, monkeypatch, capfd, failing):
    """On four nodes, each of which would report a rank 0 that had vanished."""
    ended = threading.Semaphore(0)
    monkeypatch.setattr(rollcall, "PRINTED_S", 0)
    monkeypatch.setattr(rollcall.os, "_exit", lambda status: ended.release() or sys.exit(status))
    calls = call(rendezvous, range(4), 4)
    with ThreadPoolExecutor(4) as pool:
        for rank in failing:
            calls[rank].fail("/data/7.npz: damaged")
        told = [pool.submit(calls[rank].reported_elsewhere) for rank in failing]
        assert all(each.result(timeout=20) for each in told)
    for _ in range(4 - len(failing)):
        assert ended.acquire(timeout=20)
    join(calls[rank] for rank in range(4) if rank not in failing)
    (line,) = capfd.readouterr().err.splitlines()
    named = f"rank {failing[0]} on n{failing[0]}"
    assert line == f"mlhpc: {named} was lost in phase 'start': /data/7.npz: damaged"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit
def test_when_rank_0_is_lost_some_of_many_nodes_say_so(rendezvous, monkeypatch, capfd):
    ended = threading.Semaphore(0)
    monkeypatch.setattr(rollcall, "PRINTED_S", 0)
    monkeypatch.setattr(rollcall.os, "_exit", lambda status: ended.release() or sys.exit(status))
    zero, *others = call(rendezvous, range(40), 40)
    zero._leaving.set()
    for connection in list(zero._connections.values()):
        connection.sock.shutdown(socket.SHUT_RDWR)  # as of a killed process
    assert all(ended.acquire(timeout=20) for _ in others)
    join(others)
    lines = capfd.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 9 and len(set(lines)) == 1
    assert lines[0].startswith("mlhpc: rank 0 on n0 was lost in phase 'start': killed or crashed")


def test_a_rank_that_fails_when_rank_0_is_gone_reports_it_itself(rendezvous, monkeypatch):
    monkeypatch.setattr(rollcall, "ANSWER_S", 1e6)
    zero, one = call(rendezvous, range(2), 2)
    zero._leaving.set()  # it answers nothing
    one.fail("/data/7.npz: damaged")
    zero._connections[1].sock.shutdown(socket.SHUT_RDWR)  # as of a killed process
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(one.reported_elsewhere).result(timeout=20) is False


def test_a_rank_that_said_goodbye_is_not_reported_lost(rendezvous):
    calls = call(rendezvous, range(3), 3)
    calls[2].close()
    calls[0].enter("later")
    assert calls[0].broadcast({"still": "here"}) == calls[1].broadcast({}) == {"still": "here"}
    close(calls[:2])
    assert not [t for t in threading.enumerate() if t.name == "roll call" and t in [c._thread for c in calls]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit
def test_every_surviving_rank_cleans_up_and_one_reports(rendezvous, monkeypatch):
    """Files of a run on a node can only be removed from there."""
    ended, cleaned, reported = threading.Semaphore(0), [], []
    monkeypatch.setattr(rollcall, "PRINTED_S", 0)
    monkeypatch.setattr(rollcall.os, "_exit", lambda status: ended.release() or sys.exit(status))
    calls = call(rendezvous, range(3), 3)
    for c in calls[:2]:
        c.before_exit = lambda rank=c.me.rank: cleaned.append(rank)
        c.on_loss = lambda loss, rank=c.me.rank: reported.append((rank, str(loss)))
        c.place_of = lambda rank: f"group {rank // 2}"
    calls[2]._leaving.set()
    calls[2]._connections[0].sock.shutdown(socket.SHUT_RDWR)  # as of a killed process
    assert ended.acquire(timeout=30) and ended.acquire(timeout=30)
    join(calls[:2])
    assert sorted(cleaned) == [0, 1] and [rank for rank, _ in reported] == [0]
    assert reported[0][1].startswith("rank 2 (group 1) on ")


# --- a rank is lost; the beat of rank processes is in seconds


def test_a_goodbye_is_delivered_after_unread_messages(rendezvous, monkeypatch):
    """Rank 0 leaves while others still report their phases: closing a socket with unread bytes resets it."""
    lost = []
    monkeypatch.setattr(RollCall, "_end", lambda self, loss: lost.append(loss) or sys.exit())
    for _ in range(20):
        calls = call(rendezvous, range(3), 3)

        def leave(ranks):
            for step in range(200 if ranks.me.rank else 20):
                ranks.enter(f"phase {step}")
            ranks.close()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(leave, calls))
    assert not lost


def start(tmp_path, beat_s, *how, size=3):
    token = os.urandom(8).hex()
    return [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(beat_s), *how],
            env=os.environ
            | {"MLHPC_RANK": str(r), "MLHPC_SIZE": str(size), "MLHPC_TOKEN": token, "SIGNS": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(size)
    ]


def outcome(processes):
    """(status, standard output, standard error) of each."""
    try:
        said = [p.communicate(timeout=60) for p in processes]
        return [(p.returncode, *words) for p, words in zip(processes, said, strict=True)]
    finally:
        for p in processes:
            p.kill()


def test_a_killed_rank_is_named_with_its_phase_and_rank_0_records_it(tmp_path):
    zero, one, two = outcome(start(tmp_path, 5, "kill"))
    said = f"mlhpc: rank 1 on {socket.gethostname()} was lost in phase 'work of 1': killed or crashed"
    assert zero[0] == two[0] == 1 and one[0] == -signal.SIGKILL
    assert zero[2].count("\n") == 1 and zero[2].startswith(said)
    assert zero[1] == "callback of 0: killed or crashed (connection closed)\n"
    assert two[1:] == ("", "")


def test_when_rank_0_is_killed_rank_1_names_it(tmp_path):
    zero, one, two = outcome(start(tmp_path, 5, "kill", "0"))
    assert zero[0] == -signal.SIGKILL and one[0] == two[0] == 1
    assert "rank 0 on" in one[2] and "'work of 0'" in one[2]
    assert one[1].startswith("callback of 1") and two[1] == ""


def test_a_rank_whose_messages_nobody_reads_still_tells_the_others_of_a_lost_one(tmp_path):
    processes = start(tmp_path, 5, "kill")
    processes[0].stderr.close()
    processes[0].stderr = None
    zero, one, two = outcome(processes)
    assert (zero[0], one[0], two[0]) == (1, -signal.SIGKILL, 1)
    assert zero[1] == "callback of 0: killed or crashed (connection closed)\n"


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_raises_is_named_with_its_reason(tmp_path, who):
    ended = outcome(start(tmp_path, 5, "fail", str(who)))
    assert [status for status, _, _ in ended] == [1, 1, 1]
    _, out, error = ended[1 - who]
    assert f"rank {who} on" in error and f"'work of {who}': ValueError: no such voxel" in error
    assert out == f"callback of {1 - who}: ValueError: no such voxel\n"


def test_a_stopped_rank_is_named(tmp_path):
    processes = start(tmp_path, 0.5, "stop")
    try:
        status, _, error = outcome([processes[0], processes[2]])[0]
    finally:
        processes[1].kill()
        processes[1].communicate()
    assert status == 1 and "rank 1 on" in error and "silent for" in error


def test_a_suspended_and_resumed_job_has_lost_no_rank(rendezvous, monkeypatch):
    """Slurm suspends a job for another one; the silence is longer than a lost rank's, but common to all ranks."""
    lost, suspended_s = [], [0.0]
    clock = time.monotonic
    monkeypatch.setattr(rollcall.time, "monotonic", lambda: clock() + suspended_s[0])
    monkeypatch.setattr(rollcall, "BEAT_S", 1000.0)
    monkeypatch.setattr(RollCall, "_end", lambda self, loss: lost.append(loss) or sys.exit())
    calls = call(rendezvous, range(3), 3)
    for c in calls:
        c.start_beating()
    for day in range(5):
        suspended_s[0] += 100_000.0
        for c in calls:
            c.enter(f"day {day}")  # wakes the thread that watches
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(RollCall.broadcast, calls, [{"day": day}] * 3)) == [{"day": day}] * 3
    close(calls)
    assert not lost


# --- the first rank of each node connects the others of its node


def nodes(rendezvous, *names):
    """A rank for each name, which is its node's, and where it finds the others. Below the ephemeral ports."""
    ports = {name: 32_000 + (rendezvous.ports[0] + 8 * i) % 700 for i, name in enumerate(sorted(set(names)))}
    return [
        (
            Peer(rank, name, names[:rank].count(name), os.getpid()),
            replace(rendezvous, node_ports=(ports[name],)),
        )
        for rank, name in enumerate(names)
    ]


def call_on(ranks, size, timeout_s=20.0):
    def one(rank):
        me, where = rank
        try:
            return RollCall.call(me, replace(where, size=size, timeout_s=timeout_s))
        except UserError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


@pytest.mark.parametrize("names", ["aaabbbcc", "abcabcab", "abbb"])
def test_ranks_connect_to_the_first_of_their_node(rendezvous, names):
    calls = call_on(nodes(rendezvous, *names), len(names))
    assert [[peer.hostname for peer in c.roll] for c in calls] == [list(names)] * len(names)
    assert all(c.roll == calls[0].roll for c in calls)
    first = {name: names.index(name) for name in names}
    for rank, name in enumerate(names):
        below = {other for other, its in enumerate(names) if its == name and other != rank}
        if rank == 0:
            expected = (below | set(first.values())) - {0}
        else:
            expected = below | {0} if rank == first[name] else {first[name]}
        assert calls[rank]._connections.keys() == expected
    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(lambda c: c.broadcast({"from": c.me.rank}), calls)) == [{"from": 0}] * len(names)
    close(calls)


def test_a_rank_that_cannot_reach_the_first_of_its_node_connects_to_rank_0(rendezvous, monkeypatch):
    """As in containers with networks of their own: here on another port."""
    monkeypatch.setattr(rendezvous_module, "NODE_SHARE", 0.001)
    ranks = nodes(rendezvous, *"aabbb")
    apart = replace(ranks[3][1], node_ports=(1,))
    calls = call_on([*ranks[:3], (ranks[3][0], apart), ranks[4]], 5)
    assert calls[0]._connections.keys() == {1, 2, 3} or calls[0]._connections.keys() == {1, 2, 3, 4}
    assert calls[3]._connections.keys() == {0}
    close(calls)


@pytest.mark.parametrize(
    ("missing", "named"), [({4}, "rank 4 of 6"), ({3}, "rank 3 of 6"), ({3, 5}, "ranks 3, 5 of 6")]
)
def test_missing_ranks_are_named_whether_they_connect_others_or_not(rendezvous, missing, named):
    ranks = [rank for rank in nodes(rendezvous, *"aaabbb") if rank[0].rank not in missing]
    errors = call_on(ranks, 6, timeout_s=3.0)
    assert [type(e) for e in errors] == [UserError] + [AlreadyReported] * (5 - len(missing))
    assert {str(e) for e in errors} == {str(errors[0])}
    assert f"{named} did not connect within 3 s" in str(errors[0])


def test_two_processes_as_one_rank_are_named_across_a_first_rank(rendezvous):
    ranks = nodes(rendezvous, *"abb")
    errors = call_on([*ranks, ranks[2]], 4)
    assert any("two processes were launched as rank 2" in str(error) for error in errors)
    assert all(isinstance(error, UserError) for error in errors)


def rank_0_after(rendezvous, act):
    """What rank 0 of three says when a peer introduces itself as rank 1 and then does ``act`` with its socket."""
    with ThreadPoolExecutor(1) as pool:
        zero = pool.submit(call, rendezvous, [0], 3)
        sock = knock(rendezvous.ports[0])
        hello = {"size": 3, "peer": vars(Peer(1, "n1", 0, 7))}
        connection_module.introduce(sock, rendezvous.proof, hello, 20.0)
        act(sock)
        (error,) = zero.result(timeout=30)
        sock.close()
    assert isinstance(error, UserError)
    return str(error)


def test_a_first_rank_that_dies_during_the_roll_call_is_named(rendezvous):
    """Here: a peer that introduces itself and disconnects."""
    error = rank_0_after(rendezvous, lambda sock: sock.close())
    assert error == "rank 1 on n1 was lost in phase 'start': killed or crashed (connection closed)"


def test_a_report_that_is_none_ends_the_roll_call(rendezvous):
    report = b'{"joined": [{"size": 3, "peer": {"rank": "two"}}]}\n'
    error = rank_0_after(rendezvous, lambda sock: sock.sendall(report))
    assert "rank 1 on n1 was lost" in error


def start_on_nodes(tmp_path, beat_s, *how):
    """Two nodes of three ranks with the same host name: this machine's."""
    token = os.urandom(8).hex()

    def env(rank):
        return {
            "TORCHELASTIC_RUN_ID": token, "RANK": str(rank), "WORLD_SIZE": "6", "LOCAL_RANK": str(rank % 3),
            "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": str(rank // 3), "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "MLHPC_TOKEN": token, "SIGNS": str(tmp_path),
        }  # fmt: skip

    return [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(beat_s), *how],
            env=os.environ | env(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(6)
    ]


@pytest.mark.parametrize("who", [3, 4], ids=["the first of its node", "another"])
@pytest.mark.parametrize(
    ("how", "why", "status"),
    [
        ("kill", "killed or crashed (connection closed)", -signal.SIGKILL),
        ("fail", "ValueError: no such voxel", 1),
    ],
)
def test_a_rank_lost_on_another_node_is_one_line_of_rank_0(tmp_path, who, how, why, status):
    ended = outcome(start_on_nodes(tmp_path, 5, how, str(who)))
    assert [one[0] for one in ended] == [status if rank == who else 1 for rank in range(6)]
    name = socket.gethostname()
    assert ended[0][2] == f"mlhpc: rank {who} on {name} was lost in phase 'work of {who}': {why}\n"
    assert ended[0][1] == f"callback of 0: {why}\n"
    assert all(one[1:] == ("", "") for rank, one in enumerate(ended) if rank not in (0, who))


@pytest.mark.parametrize("who", [3, 4], ids=["the first of its node", "another"])
def test_a_rank_that_is_silent_on_another_node_is_named(tmp_path, who):
    processes = start_on_nodes(tmp_path, 0.5, "stop", str(who))
    try:
        ended = outcome([process for rank, process in enumerate(processes) if rank != who])
    finally:
        processes[who].kill()
        processes[who].communicate()
    assert f"rank {who} on" in ended[0][2] and "silent for" in ended[0][2]
    assert f"'work of {who}'" in ended[0][2] and [one[0] for one in ended] == [1] * 5


def test_when_rank_0_is_lost_rank_1_and_each_other_node_say_so(tmp_path):
    ended = outcome(start_on_nodes(tmp_path, 5, "kill", "0"))
    assert [one[0] for one in ended] == [-signal.SIGKILL, 1, 1, 1, 1, 1]
    said = f"mlhpc: rank 0 on {socket.gethostname()} was lost in phase 'work of 0': killed or crashed"
    assert [one[2].startswith(said) for one in ended] == [False, True, False, True, False, False]
    assert ended[1][1].startswith("callback of 1") and all(one[1] == "" for one in ended[2:])


def test_when_rank_0_fails_rank_1_says_so(tmp_path):
    ended = outcome(start_on_nodes(tmp_path, 5, "fail", "0"))
    assert [one[0] for one in ended] == [1] * 6
    assert "rank 0 on" in ended[1][2] and "'work of 0': ValueError: no such voxel" in ended[1][2]
    assert all(one[1:] == ("", "") for one in ended[2:])
