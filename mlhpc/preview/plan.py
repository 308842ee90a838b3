"""``mlhpc data plan``: the ways to stage a data set to many nodes, side by side."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from mlhpc.common.data.manifest import File
from mlhpc.common.data.partition import Mode
from mlhpc.common.staging.plan import plan
from mlhpc.errors import count
from mlhpc.submission.report.summary import size

_WAYS: tuple[tuple[str, Mode, bool], ...] = (
    ("replicate", "replicate", False),
    ("replicate, read_once", "replicate", True),
    ("shard", "shard", False),
    ("shard, read_once", "shard", True),
)


def show(files: Sequence[File], nodes: int, ranks_per_node: int) -> None:
    """Print what each way of staging ``files`` to ``nodes`` nodes costs."""
    total = sum(file.size for file in files)
    title = f"{count(len(files), 'file')}, {size(total)}, to {count(nodes, 'node')}"
    table = Table(title=title)
    columns = ("staging", "a node\nholds", "source\nreads", "source\nopens", "most ÷\nmean", "node to\nnode")
    for column in columns:
        table.add_column(column, justify="left" if column == "staging" else "right", no_wrap=True)
    for name, mode, read_once in _WAYS:
        way = plan(files, nodes, mode, read_once=read_once, ranks_per_node=ranks_per_node)
        table.add_row(
            name,
            size(int(way.held.max())),
            size(int(way.read.sum())),
            f"{way.opens:,}".replace(",", " "),
            f"{way.imbalance:.4f}",
            size(way.sent),
        )
    console = Console()
    console.print(table)
    console.print(
        "a node holds: the fullest one. source reads, opens: of all nodes together, on the shared file system; "
        "each open comes with one fstat and one close. most ÷ mean: bytes that one node reads there. node to "
        "node: sent over the network.",
        width=min(console.width, 100),
    )
