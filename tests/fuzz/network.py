"""Fuzzed readers of what comes from the network or the launcher: messages, greetings, lists of hosts."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz.mutate import damaged_bytes, damaged_value

from mlhpc.common.data.manifest import File
from mlhpc.common.ranks import connection, rendezvous, wire
from mlhpc.common.ranks.connection import Connection, Secret
from mlhpc.common.ranks.hostlist import expand_counts, expand_hosts
from mlhpc.doctor.nodes import _facts_of
from mlhpc.errors import UserError

SECRET = Secret("job 1", b"0123456789abcdef")
PORT, CHALLENGE = 4711, "c"


@cache
def _message() -> bytes:
    return wire.encode(
        {
            "files": [File("train/a", 3, 1), File("train/b", 4, None)],
            "arrays": (np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(0.5), b"bytes"),
            "place": Path("/data"),
            "ranks": {0, 1},
            3: [None, True, 1.5, "text"],
        }
    )


def message_bytes(rng: Random) -> bytes:
    """A damaged message between ranks: its bytes, or the JSON in it with a length that fits."""
    data = _message()
    if rng.random() < 0.3:
        return damaged_bytes(rng, data)
    end = 8 + int.from_bytes(data[:8], "little")
    text = json.dumps(damaged_value(rng, json.loads(data[8:end]))).encode()
    return len(text).to_bytes(8, "little") + text + data[end:]


def read_message(data: bytes, scratch: Path) -> None:
    wire.decode(data)


FITS = 100_000
"""Bytes that the buffers of a pair of sockets hold: nobody reads while they are sent. Readers take fewer."""


@contextmanager
def _connected(data: bytes, max_message: int = connection.MAX_HELLO) -> Iterator[Connection]:
    """A connection whose other end has sent ``data``, and sends no more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.sendall(data[:FITS])
        theirs.shutdown(socket.SHUT_WR)
        yield _Unix(ours, max_message)


class _Unix(Connection):
    """A Connection over a pair of Unix sockets, which have no TCP options and no names."""

    def __init__(self, sock: socket.socket, max_message: int) -> None:
        self._plain = sock
        super().__init__(_WithoutOptions(sock), max_message)  # type: ignore[arg-type]


class _WithoutOptions:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def setsockopt(self, *_: Any) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 0

    getpeername = getsockname

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _lines(rng: Random, messages: list[Any]) -> bytes:
    """Messages, some damaged as JSON or as bytes, a line each."""
    for _ in range(rng.choice((0, 1, 1, 2))):
        index = rng.randrange(len(messages))
        messages[index] = damaged_value(rng, messages[index])
    data = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    return damaged_bytes(rng, data) if rng.random() < 0.2 else data


def greeting_bytes(rng: Random) -> bytes:
    """The answer to a challenge: of a rank, then damaged, or with a valid proof of something damaged."""
    peer = {"rank": 1, "hostname": "n1", "local_rank": 0, "pid": 4711, "port": 0, "address": ""}
    hello: Any = {"size": 2, "peer": peer}
    said = json.dumps(damaged_value(rng, hello) if rng.random() < 0.5 else hello)
    proof = SECRET.prove(connection._words(SECRET, "rank", PORT, CHALLENGE, "n", said))
    answer = {"nonce": "n", "hello": said, "proof": proof}
    return _lines(rng, [answer]) if rng.random() < 0.5 else json.dumps(answer).encode() + b"\n"


def read_greeting(data: bytes, scratch: Path) -> None:
    """Only who knows the secret gets in; a rank has values of the right types."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stranger = connection._Stranger(ours, SECRET.kind)
        stranger.challenge = CHALLENGE
        theirs.sendall(data[:FITS])
        hello = stranger.answer(SECRET, PORT)
    message = json.loads(data.split(b"\n")[0])
    words = connection._words(SECRET, "rank", PORT, CHALLENGE, str(message["nonce"]), str(message["hello"]))
    assert SECRET.proves(str(message["proof"]), words)
    if (peer := rendezvous._peer(hello)) is None:
        raise ValueError("not a rank")
    assert type(hello["size"]) is int and type(peer.rank) is int


def facts_bytes(rng: Random) -> bytes:
    return _lines(rng, [{"facts": {"host": "n1", "cores": 2}}, *([{"time": 1.5}] * 9)])


def read_facts(data: bytes, scratch: Path) -> None:
    """A node that does not report is named; what reports is a node's facts, with how far its clock is ahead."""
    with _connected(data) as connected:
        facts = _facts_of(1, connected, time.monotonic() + 0.5)
    assert isinstance(facts["offset_s"], float)


def hosts_bytes(rng: Random) -> bytes:
    good = rng.choice((b"n[08-10,12],login", b"r[1-2]n[0-1]", b"2(x3),1", b"a,b,c1", b"n[0-3]-ib"))
    return damaged_bytes(rng, good)


def read_hosts(data: bytes, scratch: Path) -> None:
    """Lists of a size that a job can have, or a refusal of each."""
    text = data.decode("utf-8", "surrogateescape")
    refused = 0
    for expand in (expand_hosts, expand_counts):
        try:
            assert len(expand(text)) <= 1_000_000
        except UserError:
            refused += 1
    if refused == 2:
        raise UserError("neither hosts nor counts")


READERS = (
    ("message", message_bytes, read_message, (ValueError,)),
    ("greeting", greeting_bytes, read_greeting, (TimeoutError, EOFError, ValueError, KeyError, TypeError)),
    ("node_facts", facts_bytes, read_facts, (UserError,)),
    ("hosts", hosts_bytes, read_hosts, (UserError,)),
)
