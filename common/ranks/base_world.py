"""Shared by the worlds of several ranks, independent of the framework of their collectives."""

import fcntl
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mlhpc.common.ranks import wire
from mlhpc.common.ranks.connection import Proof
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.rendezvous import Peer
from mlhpc.common.ranks.rollcall import RollCall
from mlhpc.common.ranks.world import Loss
from mlhpc.errors import UserError

T = TypeVar("T")

SYMPTOM_S = 20.0
"""Time that a framework's error about another rank waits for the roll call to name the cause."""

_SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True)
class BaseWorld(ABC):
    """The part of a ``World`` that does not depend on the framework: launcher, roll call, serialisation."""

    info: RankInfo
    roll_call: RollCall

    @property
    def rank(self) -> int:
        return self.info.rank

    @property
    def size(self) -> int:
        return self.info.size

    @property
    def local_rank(self) -> int:
        return self.info.local_rank

    @property
    def local_size(self) -> int:
        return self.info.local_size

    @property
    def node(self) -> int:
        return self.info.node or 0

    @property
    def nodes(self) -> int:
        return self.info.nodes or 1

    @property
    def launcher(self) -> str:
        return self.info.launcher

    @property
    def proof(self) -> Proof:
        return self.roll_call.proof

    @property
    def address(self) -> str:
        return self.roll_call.my_address()

    def enter(self, phase: str) -> None:
        self.roll_call.enter(phase)

    def on_loss(self, callback: Callable[[Loss], None]) -> None:
        self.roll_call.on_loss(callback)

    def name_places(self, place: Callable[[int], str]) -> None:
        self.roll_call.name_places(place)

    def before_exit(self, clean_up: Callable[[], object]) -> None:
        self.roll_call.before_exit(clean_up)

    def reported_elsewhere(self) -> bool:
        return self.roll_call.reported_elsewhere()

    def broadcast(self, obj: T) -> T:
        received = self._broadcast_bytes(wire.encode(obj) if self.rank == 0 else b"")
        return obj if self.rank == 0 else wire.decode(received)

    def gather(self, obj: T) -> list[T]:
        return [wire.decode(data) for data in self._gather_bytes(wire.encode(obj))]

    @abstractmethod
    def _broadcast_bytes(self, data: bytes) -> bytes:
        """Rank 0's ``data`` on every rank."""

    @abstractmethod
    def _gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's ``data`` in order of rank, on every rank."""


def this_peer(info: RankInfo, port: int = 0) -> Peer:
    """This rank's entry in the roll call."""
    return Peer(info.rank, info.hostname or socket.gethostname(), info.local_rank, os.getpid(), port)


def with_node_index(info: RankInfo, roll: Sequence[Peer]) -> RankInfo:
    """``info`` with the index of its node: if the launcher does not report it, nodes are numbered in the order of
    their lowest ranks."""
    if info.node is not None:
        return info
    hosts = list(dict.fromkeys(peer.hostname for peer in roll))
    return replace(info, node=hosts.index(roll[info.rank].hostname), nodes=len(hosts), hosts=tuple(hosts))


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address. Raises ``UserError``."""
    if address.startswith("127."):
        address = (
            "127.0.0.1"  # a host may resolve its own name to another loopback address: Debian, 127.0.1.1
        )
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
        "HOROVOD_GLOO_IFACE) to the one to use"
    )
