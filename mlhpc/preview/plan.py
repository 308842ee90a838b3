"""``mlhpc data plan``: compares the staging modes for any number of nodes."""

from itertools import product

from rich.console import Console

from mlhpc.common.data.manifest import Files
from mlhpc.common.data.partition import Mode
from mlhpc.common.pages.blocks import table
from mlhpc.common.pages.terminal import print_table
from mlhpc.common.staging.plan import exchanged_bytes, plan
from mlhpc.quantities import bytes_text, count, whole

_MODES: tuple[Mode, ...] = ("replicate", "shard")


def show(files: Files, nodes: int, ranks_per_node: int) -> None:
    """Print the load that staging ``files`` to ``nodes`` nodes would cause in each mode."""
    total = files.size
    plans = [
        plan(files, nodes, mode, read_once=read_once, ranks_per_node=ranks_per_node)
        for mode, read_once in product(_MODES, (False, True))
    ]
    costs = table(
        "plan",
        plans,
        {
            "staging": lambda row: row.mode + ", read_once" * row.read_once,
            "per node": lambda row: bytes_text(int(row.held.max())),
            "source reads": lambda row: bytes_text(int(row.read.sum())),
            "source opens": lambda row: whole(row.opens),
            "per rank": lambda row: whole(-(-int(row.files.max()) // ranks_per_node)),
            "max ÷ mean": lambda row: f"{row.imbalance:.4f}",
            "node to node": lambda row: bytes_text(row.sent),
        },
    )
    console = Console()
    console.print(f"{count(len(files), 'file')}, {bytes_text(total)}, to {count(nodes, 'node')}")
    print_table(costs, console)
    console.print(
        "per node: the most bytes on any node. source reads, source opens: totals on the shared file system; each "
        "open includes an fstat and a close. per rank: the most opens by any rank, doubled by --evict. "
        "max ÷ mean: largest source reads of a node over the mean. node to node: bytes sent over the network.",
        width=min(console.width, 100),
    )
    if nodes > 1 and (sent := exchanged_bytes(files, nodes)):
        console.print(
            f"With shards and staging.exchange, nodes also exchange about {bytes_text(sent)} before every "
            f"epoch but the first, {bytes_text(sent / nodes)} each.",
            width=min(console.width, 100),
        )
