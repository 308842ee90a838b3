"""What the worlds of several ranks have in common, whatever framework carries their collectives."""

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.rollcall import Peer, RollCall
from mlhpc.common.ranks.world import Loss
from mlhpc.errors import UserError

SYMPTOM_S = 20.0
"""How long a framework's complaint that another rank is gone waits for the roll call to name the cause."""

_SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True)
class BaseWorld:
    """The half of a ``World`` that its launcher and its roll call answer."""

    place: RankInfo
    ranks: RollCall

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def size(self) -> int:
        return self.place.size

    @property
    def local_rank(self) -> int:
        return self.place.local_rank

    @property
    def local_size(self) -> int:
        return self.place.local_size

    @property
    def node(self) -> int:
        return self.place.node or 0

    @property
    def nodes(self) -> int:
        return self.place.nodes or 1

    @property
    def launcher(self) -> str:
        return self.place.launcher

    def enter(self, phase: str) -> None:
        self.ranks.enter(phase)

    def on_loss(self, callback: Callable[[Loss], None]) -> None:
        self.ranks.on_loss(callback)


def myself(place: RankInfo) -> Peer:
    """This rank as it answers the roll call."""
    return Peer(place.rank, place.hostname or socket.gethostname(), place.local_rank, os.getpid())


def with_node_index(place: RankInfo, roll: Sequence[Peer]) -> RankInfo:
    """``place`` with its node known: where the launcher does not tell, nodes count by their lowest rank."""
    if place.node is not None:
        return place
    hosts = list(dict.fromkeys(caller.hostname for caller in roll))
    return replace(place, node=hosts.index(roll[place.rank].hostname), nodes=len(hosts), hosts=tuple(hosts))


def my_address(ranks: RollCall, leader: str) -> str:
    """This rank's IP address towards the other nodes; ``leader`` is rank 0's."""
    on_leader = ranks.me.hostname == ranks.roll[0].hostname
    # A rank beside rank 0 met it over loopback, where the other nodes cannot reach it.
    return leader if on_leader else ranks.my_address()


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address. Raises ``UserError``."""
    if address.startswith("127."):
        address = "127.0.0.1"  # a host may have its own name at another one of loopback: Debian, 127.0.1.1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise UserError(
        f"no network interface has the address {address}; set GLOO_SOCKET_IFNAME (Horovod: "
        "HOROVOD_GLOO_IFACE) to the one to use"
    )
