"""TCP connections between ranks of one run, authenticated by the run's secret; other connections are rejected.

For data not sent by the framework's collectives; ``Connection`` is for small messages.
"""

import hmac
import os
import resource
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError

_HELLO = struct.Struct("<32sI")  # the secret and the rank
CONNECT_S = 60.0
"""Timeout in seconds for connecting to another rank."""

Place = tuple[str, int]
"""Address and port on which a rank listens."""


@dataclass(frozen=True)
class Port:
    """The listening socket of ``rank``, the addresses ``places`` of all ranks, and their shared ``secret``."""

    rank: int
    listener: socket.socket
    places: Sequence[Place]
    secret: bytes

    def connect(self, rank: int) -> socket.socket:
        """A connection to ``rank``, which accepts it. Raises UserError."""
        return connect(self.places[rank], self.secret, self.rank)

    def accept(self, ranks: list[int]) -> tuple[socket.socket, ...]:
        """The connections of ``ranks``, in their order. Raises UserError."""
        return accept(self.listener, self.secret, ranks)


@contextmanager
def listening(world: World) -> Iterator[Port]:
    """A listening port of each rank for the others. Called by all ranks."""
    secret = world.broadcast(secrets.token_hex(16)).encode()
    homes = world.gather((world.node, world.address))
    # Ranks on rank 0's node may know only its loopback address: then another rank of the node knows a better one.
    address_of = dict(sorted(homes, key=lambda home: not home[1].startswith("127.")))
    local = all(address.startswith("127.") for address in address_of.values())
    with socket.create_server(("127.0.0.1" if local else "", 0), backlog=max(128, world.nodes)) as listener:
        yield Port(
            world.rank, listener, world.gather((address_of[world.node], listener.getsockname()[1])), secret
        )


def connect(place: Place, secret: bytes, rank: int) -> socket.socket:
    """A connection of ``rank`` to the rank that listens at ``place``. Raises UserError."""
    host, port = place
    try:
        connection = socket.create_connection((host, port), timeout=CONNECT_S)
        try:
            _settle(connection)
            connection.sendall(_HELLO.pack(secret, rank))
        except OSError:
            connection.close()
            raise
    except OSError as error:
        raise UserError(
            f"rank {rank} cannot connect to {host} port {port}: {error}; check that the nodes can reach each other"
        ) from error
    return connection


def accept(listener: socket.socket, secret: bytes, ranks: list[int]) -> tuple[socket.socket, ...]:
    """The connections of ``ranks``, in their order; other connections are rejected.

    Raises UserError if one of them does not connect within ``CONNECT_S``.
    """
    connections: dict[int, socket.socket] = {}
    deadline = time.monotonic() + CONNECT_S
    while len(connections) < len(ranks):
        listener.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            lost = [rank for rank in ranks if rank not in connections]
            raise UserError(
                f"ranks {lost} did not connect within {CONNECT_S:.0f} s; see their output"
            ) from None
        except OSError as error:
            raise UserError(
                f"cannot accept connections of other ranks: {error.strerror}; see: ulimit -n"
            ) from error
        try:
            connection.settimeout(3.0)
            token, rank = _HELLO.unpack(receive_exactly(connection, _HELLO.size))
        except (OSError, EOFError):
            connection.close()
            continue
        if not hmac.compare_digest(token, secret) or rank not in ranks or rank in connections:
            connection.close()
            continue
        _settle(connection)
        connections[rank] = connection
    return tuple(connections[rank] for rank in ranks)


def require_descriptors(count: int) -> None:
    """Allow this process to open ``count`` more files and connections, up to its hard limit. Raises UserError if
    that is too low."""
    needed = len(os.listdir("/proc/self/fd")) + count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UserError(
            f"each rank needs {needed} open files and connections, but the limit is {hard}; raise it with "
            f"ulimit -n {needed} on all nodes"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settle(connection: socket.socket) -> None:
    connection.settimeout(None)  # a collective may wait for hours; the roll call detects lost ranks
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def receive_exactly(connection: socket.socket, length: int) -> bytearray:
    """Raises EOFError if the other end is gone."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("a rank closed its connection")
        view = view[count:]
    return data
