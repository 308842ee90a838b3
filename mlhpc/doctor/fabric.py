"""The network between the ranks: how fast they reduce, and over which transport, as NCCL's own log says."""

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mlhpc.common.ranks.world import World
from mlhpc.doctor.check_result import CheckResult
from mlhpc.quantities import bytes_text


class Transport(NamedTuple):
    """What NCCL sends over to other nodes: its name of the network, empty if it reported none, and whether a GPU's
    memory is read by the network adapter itself (GPUDirect RDMA)."""

    network: str
    direct: bool


def transport_of(log: str) -> Transport:
    """From the lines of NCCL or RCCL with ``NCCL_DEBUG=INFO``: ``Using network IB``, ``via NET/IB/0/GDRDMA``."""
    networks = re.findall(r"NCCL INFO .*Using network (.+)", log)
    network = networks[-1].strip() if networks else ""
    if provider := re.search(r"NET/OFI Selected [Pp]rovider is ([\w;]+)", log):  # of the plugin for libfabric
        network += f" ({provider[1]})"
    return Transport(network, "/GDRDMA" in log)


def fabric_of_node(root: Path = Path("/")) -> str:
    """The fast network of this node; empty without one. EFA is among the devices of InfiniBand."""
    if any((root / "sys/class/cxi").glob("*")):
        return "Slingshot"
    devices = [path.name for path in (root / "sys/class/infiniband").glob("*")]
    if any(name.startswith(("efa", "rdmap")) for name in devices):
        return "EFA"
    return "InfiniBand or RoCE" if devices else ""


@contextmanager
def logged() -> Iterator[Path]:
    """NCCL, once started in this block, writes its log to the file that is yielded."""
    with tempfile.NamedTemporaryFile(prefix="mlhpc-nccl-") as file:
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=file.name)
        yield Path(file.name)


def check(world: World, log: Path) -> CheckResult:
    """The result for the ranks of ``world``, over torch.distributed. Called by all ranks."""
    from mlhpc.doctor.gpu_speed import bus_bandwidths

    measured = bus_bandwidths(world.local_rank)
    rates = ", ".join(f"{bytes_text(rate, '/s')} at {bytes_text(size)}" for size, rate in measured.items())
    own = transport_of(log.read_text("utf-8", "replace"))
    return judged(rates, world.gather((own, fabric_of_node())))


def judged(rates: str, ranks: Sequence[tuple[Transport, str]]) -> CheckResult:
    """The result, from the transport and the fabric of every rank."""
    networks = sorted({transport.network for transport, _ in ranks if transport.network})
    fabrics = {fabric for _, fabric in ranks if fabric}
    over = " and ".join(networks) + ", GPUDirect RDMA" * any(transport.direct for transport, _ in ranks)
    detail = f"bus bandwidth {rates}" + (f", over {over}" if networks else "")
    if fabrics and any("Socket" in name or "(tcp" in name or "(sockets" in name for name in networks):
        fabric = " and ".join(sorted(fabrics))
        remedy = f"the nodes have {fabric}, which NCCL does not use: set NCCL_NET (docs/guide/sites.md)"
        return CheckResult("fail", "fabric", detail, remedy)
    return CheckResult("pass", "fabric", detail)
