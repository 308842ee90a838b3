"""The ranks of a run, with host collectives over the suite's own tree of TCP connections.

The tree is for barriers, and for small messages in ``wire`` format, each preceded by its length. A rank heads a
range of ranks, and its two children head the halves of the rest of that range. So a message passes log2(ranks)
levels, every rank has at most three connections, and, since ranks are numbered by node, messages rarely leave a
node. The frameworks' own collectives (``torch_world``, ``horovod_world``) are for tensors.
"""

import fcntl
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mlhpc.common.ranks import wire
from mlhpc.common.ranks.connection import listen_on
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.links import accept, connect, receive_exactly
from mlhpc.common.ranks.rendezvous import Peer
from mlhpc.common.ranks.rollcall import RollCall
from mlhpc.common.ranks.world import Loss, World
from mlhpc.errors import UserError

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

SYMPTOM_S = 20.0
"""Seconds that a rank with an error about another rank waits for the roll call to name the cause."""
LONGEST = 1 << 40
"""Maximum bytes of a message; longer ones are invalid."""
COLLECTIVES = "MLHPC_COLLECTIVES"
"""Variable that selects the host collectives; ``mpi``: MPI instead of the tree."""
_LENGTH = struct.Struct("<Q")
_SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True)
class Tree:
    """The connections of a rank to the rank above it (None on rank 0) and to the ranks below it, in order of
    rank."""

    parent: socket.socket | None
    children: tuple[socket.socket, ...]

    @classmethod
    def grow(cls, rank: int, roll_call: RollCall, listener: socket.socket) -> Self:
        """Connect the tree; ``listener``: this rank's listening socket, whose port is in the roll. Called by all
        ranks that answered the roll call.

        Connections without the launch's proof are rejected. Raises ``UserError``.
        """
        roll, proof = roll_call.roll, roll_call.proof
        above, below = neighbours(rank, len(roll))
        with listener:
            parent = None if above is None else connect((roll[above].address, roll[above].port), proof, rank)
            return cls(parent, accept(listener, proof, below))

    def barrier(self) -> None:
        """Return once every rank has called ``barrier``: one byte goes up the tree of ranks, and one down."""
        for child in self.children:
            receive_exactly(child, 1)
        if self.parent is not None:
            self.parent.sendall(b"\0")
            receive_exactly(self.parent, 1)
        for child in self.children:
            child.sendall(b"\0")

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's ``data`` on every rank."""
        if self.parent is not None:
            data = _receive(self.parent)
        for child in self.children:
            _send(child, data)
        return data

    def reduce(self, combine: Callable[..., Floats], values: npt.ArrayLike) -> Floats:
        """The ``values`` of all ranks, combined in an order that depends only on the number of ranks."""
        own = np.array(values, dtype=np.float64)
        for child in self.children:
            own = combine(own, np.frombuffer(_receive(child)).reshape(own.shape))
        if self.parent is not None:
            _send(self.parent, own.tobytes())
        return np.frombuffer(self.broadcast(own.tobytes())).reshape(own.shape).copy()

    def gather(self, data: bytes) -> list[memoryview]:
        """Every rank's ``data`` in order of rank, on every rank."""
        lengths, parts = [struct.pack("<q", len(data))], [data]
        for child in self.children:  # each child's ranks are consecutive
            lengths.append(_receive(child))
            parts.append(_receive(child))
        up = b"".join(lengths), b"".join(parts)
        if self.parent is not None:
            _send(self.parent, up[0])
            _send(self.parent, up[1])
        ends = np.cumsum(np.frombuffer(self.broadcast(up[0]), np.int64)).tolist()
        everything = memoryview(self.broadcast(up[1]))
        return [everything[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def close(self) -> None:
        """Close the connections."""
        for connection in (self.parent, *self.children):
            if connection is not None:
                connection.close()


@dataclass(frozen=True)
class Mpi(Tree):
    """The collectives of ``Tree``, carried out by MPI if MPI started the ranks. ``mpi``: the module of mpi4py. The
    collectives sleep while waiting, since the processors may be busy reading or computing; MPI itself would wait
    in a busy loop."""

    mpi: Any

    @classmethod
    def start(cls, info: RankInfo, served: list[str]) -> Self:
        """Initialise MPI on the ranks that MPI started. ``served``: modules for the fork server of worker
        processes, which is started first because MPI's libraries may not survive a fork. Called by all ranks.
        Raises ``UserError``."""
        multiprocessing.set_forkserver_preload(served)
        forkserver.ensure_running()
        mpi = load_mpi(f"{COLLECTIVES}=mpi")
        comm = mpi.COMM_WORLD
        if (comm.rank, comm.size) != (info.rank, info.size):
            raise UserError(
                f"{info.launcher} started this as rank {info.rank} of {info.size}, but MPI reports rank "
                f"{comm.rank} of {comm.size}: mpi4py and the launcher use different MPIs; unset {COLLECTIVES}"
            )
        return cls(None, (), mpi)

    def barrier(self) -> None:
        """As in ``Tree``."""
        _finish(self.mpi.COMM_WORLD.Ibarrier())

    def broadcast(self, data: bytes) -> bytes:
        """As in ``Tree``."""
        comm, length = self.mpi.COMM_WORLD, np.array(len(data))
        _finish(comm.Ibcast(length))
        message = np.frombuffer(data, np.uint8) if comm.rank == 0 else np.empty(length, np.uint8)
        _finish(comm.Ibcast(message))
        return message.tobytes()

    def reduce(self, combine: Callable[..., Floats], values: npt.ArrayLike) -> Floats:
        """As in ``Tree``, in MPI's order."""
        own = np.array(values, dtype=np.float64)
        operation = self.mpi.SUM if combine is np.add else self.mpi.MAX
        _finish(self.mpi.COMM_WORLD.Iallreduce(self.mpi.IN_PLACE, own, operation))
        return own

    def gather(self, data: bytes) -> list[memoryview]:
        """As in ``Tree``."""
        comm = self.mpi.COMM_WORLD
        lengths = np.empty(comm.size, np.int64)
        _finish(comm.Iallgather(np.array(len(data)), lengths))
        ends = np.cumsum(lengths).tolist()
        everything = np.empty(ends[-1], np.uint8)
        _finish(comm.Iallgatherv(np.frombuffer(data, np.uint8), [everything, lengths]))
        return [everything[start:end].data for start, end in zip([0, *ends], ends, strict=False)]

    def close(self) -> None:
        """Finalise MPI."""
        self.mpi.Finalize()


def load_mpi(user: str) -> Any:
    """mpi4py's module ``MPI``, initialised. ``user``: the setting that requires it, for messages. Raises
    ``UserError``."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{user} requires mpi4py and its MPI library: {reason}") from None
    return MPI


def _finish(request: Any) -> None:
    pause_s = 0.0
    while not request.Test():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s + 1e-5, 1e-3)


def neighbours(rank: int, size: int) -> tuple[int | None, list[int]]:
    """The rank above ``rank`` in a tree of ``size`` ranks (None for rank 0), and the ranks directly below it."""
    above, head, end = None, 0, size
    while True:
        middle = (head + end + 2) // 2  # where the ranks after the head are divided
        if rank == head:
            return above, [below for below in dict.fromkeys((head + 1, middle)) if below < end]
        above = head
        head, end = (head + 1, middle) if rank < middle else (middle, end)


@dataclass(frozen=True, kw_only=True)
class SocketWorld(World):
    """A ``World`` without a framework, and the base class of the worlds of frameworks."""

    roll_call: RollCall
    tree: Tree

    SYMPTOMS: ClassVar[tuple[str, ...]] = ()
    """Parts of the messages of errors that a framework raises on the other ranks after a loss."""

    @classmethod
    def of(cls, info: RankInfo, roll_call: RollCall, tree: Tree) -> Self:
        """The world of ranks that answered the roll call and are connected in a tree. Called by all of these
        ranks."""
        info = with_node_index(info, roll_call.roll)
        world = cls(
            launcher=info.launcher,
            rank=info.rank,
            size=info.size,
            local_rank=info.local_rank,
            local_size=info.local_size,
            node=info.node or 0,
            nodes=info.nodes or 1,
            address=roll_call.address,
            proof=roll_call.proof,
            roll_call=roll_call,
            tree=tree,
        )
        world.barrier()
        roll_call.start_beating()
        return world

    def enter(self, phase: str) -> None:
        self.roll_call.enter(phase)

    def on_loss(self, callback: Callable[[Loss], None]) -> None:
        self.roll_call.on_loss = callback

    def name_places(self, place: Callable[[int], str]) -> None:
        self.roll_call.place_of = place

    def before_exit(self, clean_up: Callable[[], object]) -> None:
        self.roll_call.before_exit = clean_up

    def reported_elsewhere(self) -> bool:
        return self.roll_call.reported_elsewhere()

    def barrier(self) -> None:
        """As in ``World``."""
        self.tree.barrier()

    def sum(self, values: npt.ArrayLike) -> Floats:
        """As in ``World``; the result has the same shape as ``values``."""
        return self.tree.reduce(np.add, values)

    def max(self, values: npt.ArrayLike) -> Floats:
        """As in ``World``; the result has the same shape as ``values``."""
        return self.tree.reduce(np.maximum, values)

    def broadcast(self, obj: T) -> T:
        """As in ``World``."""
        received = self.tree.broadcast(wire.encode(obj) if self.rank == 0 else b"")
        return obj if self.rank == 0 else wire.decode(received)

    def gather(self, obj: T) -> list[T]:
        """As in ``World``."""
        return wire.decode_all(self.tree.gather(wire.encode(obj)))

    def fail(self, reason: str) -> None:
        """As in ``World``. An error of a connection or of the framework may be a symptom of a lost rank; in that
        case, wait for the roll call to report that rank."""
        broken = reason.startswith(("ConnectionResetError", "BrokenPipeError", "EOFError"))
        if broken or any(symptom in reason for symptom in self.SYMPTOMS):
            self.roll_call.wait_for_loss(SYMPTOM_S)  # the roll call identifies the lost rank
        self.roll_call.fail(reason)

    def close(self) -> None:
        """As in ``World``; waits for all ranks."""
        self.barrier()  # no rank leaves while another still needs it
        self.roll_call.close()
        self.tree.close()


def open_listener(info: RankInfo) -> socket.socket:
    """The socket on which ranks below this one connect to it. Called before the roll call, which announces its
    port."""
    return listen_on(0, info.local_size == info.size)


def this_peer(info: RankInfo, port: int = 0) -> Peer:
    """This rank's entry in the roll call."""
    return Peer(info.rank, info.hostname or socket.gethostname(), info.local_rank, os.getpid(), port)


def with_node_index(info: RankInfo, roll: Sequence[Peer]) -> RankInfo:
    """``info`` with the index of its node. If the launcher does not report it, nodes are numbered in the order of
    their lowest ranks. Nodes with the same name (which have the same local ranks) are distinguished by address."""
    if info.node is not None:
        return info
    differ = len({(peer.hostname, peer.local_rank) for peer in roll}) == len(roll)
    of_rank = [(peer.hostname, "" if differ else peer.address) for peer in roll]
    nodes = list(dict.fromkeys(of_rank))
    hosts = tuple(hostname for hostname, _ in nodes)
    return replace(info, node=nodes.index(of_rank[info.rank]), nodes=len(nodes), hosts=hosts)


def interface_of(address: str) -> str:
    """The network interface that has ``address``. Raises ``UserError``."""
    if ":" in address:
        digits = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        if name := next((line.split()[-1] for line in lines if line.startswith(digits)), None):
            return name
    if address.startswith("127."):
        # A host may resolve its name to another loopback address, such as Debian's 127.0.1.1.
        address = "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise UserError(
        f"no network interface has the address {address}; set GLOO_SOCKET_IFNAME (Horovod: "
        "HOROVOD_GLOO_IFACE) to the interface to use"
    )


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    if length > LONGEST:
        raise EOFError(f"a message of {length} bytes")
    return bytes(receive_exactly(connection, length))
