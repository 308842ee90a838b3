"""TCP connections between ranks of one run, opened by whoever knows the run's secret; strangers are turned away.

For data that the framework's collectives do not carry. ``Connection`` carries small messages instead.
"""

import hmac
import socket
import struct
import time

from mlhpc.errors import UserError

_HELLO = struct.Struct("<32sI")  # the secret and the rank
CONNECT_S = 60.0
"""Seconds that a rank may take to connect to another."""

Place = tuple[str, int]
"""Where a rank listens: address and port."""


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
    """The connections of ``ranks``, in their order; strangers are turned away.

    Raises UserError when one of them does not connect within ``CONNECT_S``.
    """
    found: dict[int, socket.socket] = {}
    deadline = time.monotonic() + CONNECT_S
    while len(found) < len(ranks):
        listener.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            lost = [rank for rank in ranks if rank not in found]
            raise UserError(
                f"ranks {lost} did not connect within {CONNECT_S:.0f} s; see their output"
            ) from None
        try:
            connection.settimeout(3.0)
            token, rank = _HELLO.unpack(receive_exactly(connection, _HELLO.size))
        except (OSError, EOFError):
            connection.close()
            continue
        if not hmac.compare_digest(token, secret) or rank not in ranks or rank in found:
            connection.close()
            continue
        _settle(connection)
        found[rank] = connection
    return tuple(found[rank] for rank in ranks)


def _settle(connection: socket.socket) -> None:
    connection.settimeout(None)  # a collective may wait for hours; the roll call detects lost ranks
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def receive_exactly(connection: socket.socket, length: int) -> bytearray:
    """Raises EOFError when the other end is gone."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("a rank closed its connection")
        view = view[count:]
    return data
