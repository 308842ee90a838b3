"""Who is here and who is lost: with threads where all goes well, with processes where a rank dies."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mlhpc.common.ranks.environment import identify
from mlhpc.common.ranks.rollcall import Peer, Rendezvous, RollCall, listen
from mlhpc.errors import UserError

PROGRAM = Path(__file__).parents[3] / "ranks" / "roll.py"


@pytest.fixture
def meeting():
    """A place to meet where nobody else is: the ports of a new token, as launch has it."""
    token = os.urandom(8).hex()
    ports = identify({"MLHPC_RANK": "0", "MLHPC_SIZE": "2", "MLHPC_TOKEN": token}).ports
    return Rendezvous(("127.0.0.1",), ports, token)


def call(meeting, ranks, size, timeout_s=20.0, hosts=()):
    """The roll call on each of ``ranks`` at once: its ``RollCall``, or what it raised."""

    def one(rank):
        me = Peer(rank, f"n{rank}", 0, os.getpid())
        try:
            return RollCall.call(me, size, meeting, hosts=hosts, timeout_s=timeout_s)
        except UserError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


def close(calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(RollCall.close, calls))


def test_all_ranks_see_the_same_roll_and_rank_0s_facts(meeting):
    calls = call(meeting, range(4), 4)
    assert [c.hostname for c in calls[0].roll] == ["n0", "n1", "n2", "n3"]
    assert all(c.roll == calls[0].roll for c in calls)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda c: c.share({"port": c.me.rank}), calls)) == [{"port": 0}] * 4
    close(calls)


def test_facts_sent_right_after_the_roll_are_not_lost(meeting):
    """They may come in the same packet as the roll."""
    with ThreadPoolExecutor(2) as pool:
        facts = [
            pool.submit(lambda rank=rank: call(meeting, [rank], 2)[0].share({"x": "y" * 1000}))
            for rank in range(2)
        ]
        assert [f.result(timeout=20) for f in facts] == [{"x": "y" * 1000}] * 2


def test_a_missing_rank_is_named_to_every_rank_that_came(meeting):
    errors = call(meeting, [0, 2], 4, timeout_s=1.0, hosts=["n0", "n1", "n2", "n3"])
    assert [type(e) for e in errors] == [UserError, UserError]
    assert str(errors[0]) == str(errors[1])
    assert "ranks 1, 3 of 4 did not come within 1 s" in str(errors[0])
    assert "nobody came from n1, n3" in str(errors[0])


def test_without_rank_0_the_others_say_where_they_looked(meeting):
    (error,) = call(meeting, [1], 2, timeout_s=1.0)
    assert "rank 1 on n1 found no rank 0 on 127.0.0.1" in str(error)
    assert str(meeting.ports[0]) in str(error) and "refused" in str(error)


def test_two_ranks_of_one_number_are_refused(meeting):
    errors = call(meeting, [0, 1, 1], 3)
    assert any("two processes say they are rank 1" in str(error) for error in errors)
    assert all(isinstance(error, UserError) for error in errors)


def test_ranks_that_count_differently_are_refused(meeting):
    with ThreadPoolExecutor(2) as pool:
        zero, one = pool.submit(call, meeting, [0], 2), pool.submit(call, meeting, [1], 16)
        assert "rank 1 on n1 believes in 16 ranks, rank 0 on n0 in 2" in str(zero.result()[0])
        assert str(one.result()[0]) == str(zero.result()[0])


def test_two_jobs_on_one_node_that_try_the_same_ports_do_not_mix(meeting):
    other = replace(meeting, token="another job")
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(call, where, range(2), 2) for where in (meeting, other)]
        for calls in (future.result() for future in both):
            assert [len(c.roll) for c in calls] == [2, 2]
            close(calls)


def test_a_program_that_holds_the_first_port_and_says_nothing(meeting):
    with listen(meeting):
        calls = call(meeting, range(2), 2)
        assert len(calls[1].roll) == 2
        close(calls)


def test_a_stranger_at_the_door_is_sent_away(meeting):
    with ThreadPoolExecutor(1) as pool:
        zero = pool.submit(call, meeting, [0], 2)
        for words in (
            b"GET / HTTP/1.0\r\n\r\n",
            b"[]\n",
            b'{"token": "wrong"}\n',
            b'{"token": 1, "caller": 2}\n',
            b"",
        ):
            stranger = knock(meeting.ports[0])
            stranger.sendall(words)
            stranger.close()
        (one,) = call(meeting, [1], 2)
        close([zero.result()[0], one])


def knock(port):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)


def test_a_rank_that_has_left_in_good_order_is_not_missed(meeting):
    calls = call(meeting, range(3), 3)
    calls[2].close()
    calls[0].enter("later")
    assert calls[0].share({"still": "here"}) == calls[1].share({}) == {"still": "here"}
    close(calls[:2])
    assert not [t for t in threading.enumerate() if t.name == "roll call" and t in [c._thread for c in calls]]


# --- a rank is lost; the beat of rank processes is in seconds


def test_a_goodbye_is_not_lost_behind_what_is_still_on_its_way(meeting, monkeypatch):
    """Rank 0 leaves while others still tell it their phases: a socket closed over unread bytes is reset."""
    lost = []
    monkeypatch.setattr(RollCall, "_end", lambda self, loss: lost.append(loss) or sys.exit())
    for _ in range(20):
        calls = call(meeting, range(3), 3)

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


def test_a_killed_rank_is_named_with_its_phase_and_rank_0_writes_it_down(tmp_path):
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


def test_a_job_that_is_suspended_and_goes_on_has_lost_nobody(tmp_path):
    """Slurm does so for another job; the silence is longer than a lost rank's, and everybody's."""
    beat_s = 0.5
    processes = start(tmp_path, beat_s, "finish")
    while len([p for p in tmp_path.iterdir() if p.read_text()]) < 3:
        time.sleep(0.05)
    time.sleep(4 * beat_s)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            process.send_signal(number)
        time.sleep(12 * beat_s if number == signal.SIGSTOP else 2 * beat_s)
    (tmp_path / "finish").touch()
    assert outcome(processes) == [(0, "", "")] * 3
