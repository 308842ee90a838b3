"""Connections between ranks: strangers, secrets, and file descriptors that run out."""

import ctypes
import errno
import os
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from mlhpc.common.ranks import connection, links
from mlhpc.common.ranks.connection import Munge, Secret, SecretFile, introduce
from mlhpc.common.ranks.links import accept, connect, require_descriptors
from mlhpc.errors import UserError


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(1024, 4096, [(4096, 4096)]), (4096, 4096, []), (1024, -1, [(-1, -1)]), (-1, -1, [])],
)
def test_the_limit_of_open_files_is_raised_where_connections_need_it(monkeypatch, soft, hard, raised):
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: limits.append(both))
    require_descriptors(2000)
    assert limits == raised


def test_too_low_a_limit_is_refused_with_what_is_needed(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    monkeypatch.setattr(links.os, "listdir", lambda folder: ["0"] * 30)
    with pytest.raises(UserError, match=r"needs 1130 open .* limit is 1024; .* ulimit -n 1130 "):
        require_descriptors(1100)


SECRET = Secret("job 1", b"s" * 32)


def test_running_out_of_descriptors_is_one_line(monkeypatch):
    def full(self):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        monkeypatch.setattr(socket.socket, "accept", full)
        with pytest.raises(
            UserError, match=r"cannot accept a connection from another rank: Too many open files; .*ulimit -n"
        ):
            accept(listener, SECRET, [1])


@pytest.mark.parametrize("kind", ["idle", "drip", "other job", "noise"])
def test_strangers_do_not_delay_a_rank(monkeypatch, kind):
    """They were served one after the other: one that sent a byte every 2.5 s held a rank up for 88 s."""
    monkeypatch.setattr(connection, "GREETING_S", 600.0)  # the strangers are there for the whole test
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ExitStack() as stack,
        ThreadPoolExecutor(2) as pool,
    ):
        place = listener.getsockname()
        strangers = [stack.enter_context(socket.create_connection(place)) for _ in range(20)]
        accepted = pool.submit(accept, listener, SECRET, [1], 60.0)
        for stranger in strangers:
            if kind == "drip":
                stranger.sendall(b'{"nonce": ')
            if kind == "noise":
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        if kind == "other job":
            with pytest.raises(UserError, match=r"another program or to another job|closed"):
                connect(place, replace(SECRET, key=b"w" * 32), 1)
        with connect(place, SECRET, 1) as mine, accepted.result()[0] as theirs:
            theirs.sendall(b"welcome")
            assert mine.recv(7) == b"welcome"


def test_a_stranger_between_the_ranks_cannot_relay_their_proofs():
    """It listens on another port of the node, and passes every byte on."""
    with (
        socket.create_server(("127.0.0.1", 0)) as true,
        socket.create_server(("127.0.0.1", 0)) as false,
        ThreadPoolExecutor(4) as pool,
    ):

        def relay():
            victim, target = false.accept()[0], socket.create_connection(true.getsockname())
            with victim, target:
                one, other = pool.submit(pump, victim, target), pool.submit(pump, target, victim)
                one.result(), other.result()

        def pump(source, sink):
            with suppress(OSError):
                while data := source.recv(4096):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        accepted = pool.submit(accept, true, SECRET, [1], 1.0)
        pool.submit(relay)
        with pytest.raises(UserError, match="cannot connect"):
            connect(false.getsockname(), SECRET, 1)
        with pytest.raises(UserError, match="ranks 1 did not connect"):
            accepted.result()


def test_what_goes_over_the_wire_neither_contains_the_secret_nor_can_be_repeated():
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        place, sent = listener.getsockname(), []

        class Recorded(socket.socket):
            def sendall(self, data):
                sent.append(data)
                super().sendall(data)

        accepted = pool.submit(accept, listener, SECRET, [1], 60.0)
        with Recorded() as sock:
            sock.connect(place)
            introduce(sock, SECRET, {"rank": 1}, 30.0)
            accepted.result()[0].close()
        assert sent and not any(SECRET.key in data for data in sent)
        again = pool.submit(accept, listener, SECRET, [1], 60.0)
        with socket.create_connection(place) as stranger:
            stranger.settimeout(30)
            stranger.sendall(b"".join(sent))
            with suppress(ConnectionResetError):
                assert b"proof" not in b"".join(iter(lambda: stranger.recv(4096), b""))
        assert not again.done()
        with connect(place, SECRET, 1):
            again.result()[0].close()


def test_a_secret_file_is_read_only_if_it_is_this_users_alone(tmp_path):
    file = SecretFile("job 1", tmp_path / "secret")
    made = file.create()
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600 and file.fresh() == made
    assert file.create() != made and [p.name for p in tmp_path.iterdir()] == ["secret"]
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(ValueError, match="does not belong to this user alone"):
        file.fresh()
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(OSError):
        SecretFile("job 1", tmp_path / "link").fresh()


class Daemon:
    """libmunge, with a credential that says who made it in clear."""

    def __init__(self, uid):
        self.uid, self.kept = uid, []

    def munge_encode(self, credential, context, words, length):
        self.kept.append(libc.strdup(b"%d:" % self.uid + words.hex().encode()))
        credential._obj.value = self.kept[-1]
        return 0

    def munge_decode(self, text, context, payload, length, uid, gid):
        who, _, words = text.partition(b":")
        words = bytes.fromhex(words.decode())
        payload._obj.value = libc.malloc(len(words) + 1)
        ctypes.memmove(payload._obj.value, words, len(words))
        length._obj.value, uid._obj.value = len(words), int(who)
        return 0


libc = ctypes.CDLL(None)
libc.strdup.restype = libc.malloc.restype = ctypes.c_void_p


def test_munge_admits_this_user_only():
    me, other = (Munge("job 1", Daemon(uid)) for uid in (os.geteuid(), os.geteuid() + 1))
    assert me.proves(me.prove(b"words"), b"words") and not me.proves(me.prove(b"words"), b"others")
    assert not me.proves(other.prove(b"words"), b"words")
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept, listener, me, [1], 60.0)
        with pytest.raises(UserError, match="cannot connect"):
            connect(listener.getsockname(), other, 1)
        with connect(listener.getsockname(), me, 1):
            accepted.result()[0].close()
