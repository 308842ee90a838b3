"""TCP connections between ranks that prove that they belong to the same run; other connections are rejected.

These connections are for data that is not sent by the framework's collectives; ``Connection`` is for small
messages.
"""

import os
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import chain

from mlhpc.common.ranks.collectives import on_each_rank
from mlhpc.common.ranks.connection import Admission, Proof, greet, listen_on
from mlhpc.common.ranks.world import World
from mlhpc.errors import UserError, few
from mlhpc.quantities import seconds_text

CONNECT_S = 60.0
"""Timeout in seconds for connecting to another rank."""

Place = tuple[str, int]
"""Address and port on which a rank listens."""


@contextmanager
def linked(
    world: World, to: Sequence[int], by: Sequence[int]
) -> Iterator[tuple[Sequence[socket.socket], Sequence[socket.socket]]]:
    """Context manager that connects this rank to the ranks ``to``, while the ranks ``by`` connect to it. Yields
    the connections to both, each in the order given. Called by all ranks. Raises UserError, the same on all
    ranks."""
    homes = world.gather((world.node, world.address))
    # Ranks on rank 0's node may know only its loopback address; then another rank of that node knows a better one.
    address_of = dict(sorted(homes, key=lambda home: not home[1].startswith("127.")))
    local = all(address.startswith("127.") for address in address_of.values())
    with ExitStack() as opened, listen_on(0, local, max(128, world.nodes)) as listener:
        places = world.gather((address_of[world.node], listener.getsockname()[1]))

        def meet() -> tuple[Sequence[socket.socket], Sequence[socket.socket]]:
            # At the same time: each end waits for the other's proof, so a ring of ranks would otherwise block.
            with ThreadPoolExecutor(1) as pool:
                accepted = pool.submit(accept, listener, world.proof, by)
                return [connect(places[rank], world.proof, world.rank) for rank in to], accepted.result()

        links = on_each_rank(world, meet)
        for link in chain(*links):
            opened.enter_context(link)
        yield links


def connect(place: Place, proof: Proof, rank: int, seconds: float = CONNECT_S) -> socket.socket:
    """A connection from ``rank`` to the rank that listens at ``place``, once that rank accepts it. Raises
    UserError."""
    host, port = place
    try:
        connection = greet(host, port, proof, {"rank": rank}, seconds)
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise UserError(
            f"rank {rank} cannot connect to port {port} of {host}: {error}; check that nodes can reach each other"
        ) from error
    _settle(connection)
    return connection


def accept(
    listener: socket.socket, proof: Proof, ranks: Sequence[int], seconds: float = CONNECT_S
) -> tuple[socket.socket, ...]:
    """The connections from ``ranks``, in the order of ``ranks``; other connections are rejected.

    Raises UserError if one of ``ranks`` does not connect within ``seconds``.
    """
    missing, connections = set(ranks), dict[int, socket.socket]()
    deadline = time.monotonic() + seconds
    with closing(Admission((listener,), proof, len(missing))) as admission:
        while missing and time.monotonic() < deadline:
            for connection, hello in admission.wait(deadline):
                rank = (hello or {}).get("rank")
                if type(rank) is not int or rank not in missing:
                    connection.close()
                    continue
                _settle(connection)
                connections[rank] = connection
                missing.remove(rank)
    if missing:
        for connection in connections.values():
            connection.close()
        numbers = few([*map(str, sorted(missing))], 8)
        raise UserError(f"ranks {numbers} did not connect within {seconds_text(seconds)}; see their output")
    return tuple(connections[rank] for rank in ranks)


def require_descriptors(count: int) -> None:
    """Raise this process's limit on open files so that it can open ``count`` more files and connections. Raises
    UserError if the hard limit is too low."""
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
    """The next ``length`` bytes. Raises EOFError if the other end is gone."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("a rank closed its connection")
        view = view[count:]
    return data
