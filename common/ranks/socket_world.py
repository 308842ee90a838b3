"""The ranks of a run without a framework: collectives over separate TCP connections.

For programs that do not train (I/O emulation): a barrier, and small messages. Ranks form a binary tree under
rank 0, so a barrier takes two messages for each of log2(ranks) levels. Messages are in ``wire`` format,
preceded by their length.
"""

import socket
import struct
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from mlhpc.common.ranks import wire
from mlhpc.common.ranks.base_world import SYMPTOM_S, BaseWorld, with_node_index
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.links import accept, connect, receive_exactly
from mlhpc.common.ranks.rendezvous import LOOPBACK
from mlhpc.common.ranks.rollcall import RollCall

_LENGTH = struct.Struct("<Q")
LONGEST = 1 << 40
"""Maximum bytes of a message; longer ones are invalid."""


@dataclass(frozen=True)
class SocketWorld(BaseWorld):
    """A ``World`` whose collectives go over a tree of connections: ``parent`` None on rank 0."""

    parent: socket.socket | None
    children: tuple[socket.socket, ...]

    @classmethod
    def start(cls, info: RankInfo, roll_call: RollCall, listener: socket.socket) -> Self:
        """Connect to this rank's neighbours in the tree, over ``listener``, whose port is in the roll. Called by
        all ranks that answered the roll call.

        Connections without the launch's proof are rejected. Raises ``UserError``.
        """
        roll, proof = roll_call.roll, roll_call.proof
        with listener:
            parent = None
            if info.rank:
                above = roll[(info.rank - 1) // 2]
                parent = connect((above.address, above.port), proof, info.rank)
            below = [rank for rank in (2 * info.rank + 1, 2 * info.rank + 2) if rank < info.size]
            children = accept(listener, proof, below)
        world = cls(with_node_index(info, roll_call.roll), roll_call, parent, children)
        world.barrier()
        roll_call.start_beating()
        return world

    def barrier(self) -> None:
        """Return when every rank has called it: a byte goes up the tree of ranks, and one down."""
        for child in self.children:
            receive_exactly(child, 1)
        if self.parent is not None:
            self.parent.sendall(b"\0")
            receive_exactly(self.parent, 1)
        for child in self.children:
            child.sendall(b"\0")

    def sum(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """As of ``World``, of the shape of ``values``."""
        own_values = np.asarray(values, dtype=np.float64)
        # In order of rank, so that the result depends on nothing but the values.
        return np.asarray(np.sum(self.gather(own_values), axis=0), dtype=np.float64)

    def max(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """As of ``World``, of the shape of ``values``."""
        return np.asarray(np.max(self.gather(np.asarray(values, dtype=np.float64)), axis=0))

    def _broadcast_bytes(self, data: bytes) -> bytes:
        if self.parent is not None:
            data = _receive(self.parent)
        for child in self.children:
            _send(child, data)
        return data

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        subtree: dict[int, bytes] = {self.rank: data}
        for child in self.children:
            subtree |= wire.decode(_receive(child))
        if self.parent is not None:
            _send(self.parent, wire.encode(subtree))
        everything: dict[int, bytes] = wire.decode(
            self._broadcast_bytes(wire.encode(subtree) if self.rank == 0 else b"")
        )
        return [everything[rank] for rank in range(self.size)]

    def fail(self, reason: str) -> None:
        """As of ``World``; a broken connection may be a symptom of a lost rank, which is waited for."""
        if reason.startswith(("ConnectionResetError", "BrokenPipeError", "EOFError")):
            self.roll_call.wait_for_loss(SYMPTOM_S)  # a symptom: the roll call identifies the lost rank
        self.roll_call.fail(reason)

    def close(self) -> None:
        """As of ``World``; waits for all ranks."""
        self.barrier()  # no rank leaves while another still needs it
        self.roll_call.close()
        for connection in (self.parent, *self.children):
            if connection is not None:
                connection.close()


def open_listener(info: RankInfo) -> socket.socket:
    """Where the ranks below this one connect to it. Called before the roll call, which tells its port."""
    return socket.create_server((LOOPBACK if info.local_size == info.size else "", 0), backlog=1024)


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    if length > LONGEST:
        raise EOFError(f"a message of {length} bytes")
    return bytes(receive_exactly(connection, length))
