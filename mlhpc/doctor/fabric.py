"""Checks the network between the ranks: the speed of all-reduce, and the transport according to NCCL's own log."""

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
    """The transport that NCCL uses between nodes. ``network``: NCCL's name for it; empty if NCCL reported none.
    ``direct``: whether the network adapter reads GPU memory directly (GPUDirect RDMA)."""

    network: str
    direct: bool


def transport_of(log: str) -> Transport:
    """The transport reported by a log that NCCL or RCCL wrote with ``NCCL_DEBUG=INFO``, in lines such as ``Using
    network IB`` and ``via NET/IB/0/GDRDMA``."""
    networks = re.findall(r"NCCL INFO .*Using network (.+)", log)
    network = networks[-1].strip() if networks else ""
    if provider := re.search(r"NET/OFI Selected [Pp]rovider is ([\w;]+)", log):  # libfabric's plugin
        network += f" ({provider[1]})"
    return Transport(network, "/GDRDMA" in log)


def fabric_of_node(root: Path = Path("/")) -> str:
    """The high-speed network of this node; empty if there is none. The kernel lists EFA adapters among InfiniBand
    devices."""
    if any((root / "sys/class/cxi").glob("*")):
        return "Slingshot"
    devices = [path.name for path in (root / "sys/class/infiniband").glob("*")]
    if any(name.startswith(("efa", "rdmap")) for name in devices):
        return "EFA"
    return "InfiniBand or RoCE" if devices else ""


@contextmanager
def logged() -> Iterator[Path]:
    """Context manager that directs the log of NCCL, if NCCL is started in the context, to the yielded file."""
    with tempfile.NamedTemporaryFile(prefix="mlhpc-nccl-") as file:
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=file.name)
        yield Path(file.name)


def check(world: World, log: Path) -> CheckResult:
    """Check the network between the ranks of ``world``, measured with torch.distributed. Called by all ranks."""
    from mlhpc.doctor.gpu_speed import bus_bandwidths

    measured = bus_bandwidths(world.local_rank)
    rates = ", ".join(f"{bytes_text(rate, '/s')} at {bytes_text(size)}" for size, rate in measured.items())
    own = transport_of(log.read_text("utf-8", "replace"))
    return judged(rates, world.gather((own, fabric_of_node())))


def judged(rates: str, ranks: Sequence[tuple[Transport, str]]) -> CheckResult:
    """The result of the network check, from the measured ``rates`` and from the transport and fabric of every
    rank."""
    networks = sorted({transport.network for transport, _ in ranks if transport.network})
    fabrics = {fabric for _, fabric in ranks if fabric}
    over = " and ".join(networks) + ", GPUDirect RDMA" * any(transport.direct for transport, _ in ranks)
    detail = f"bus bandwidth {rates}" + (f", over {over}" if networks else "")
    if fabrics and any("Socket" in name or "(tcp" in name or "(sockets" in name for name in networks):
        fabric = " and ".join(sorted(fabrics))
        remedy = f"the nodes have {fabric}, which NCCL does not use: set NCCL_NET (docs/guide/sites.md)"
        return CheckResult("fail", "fabric", detail, remedy)
    return CheckResult("pass", "fabric", detail)
