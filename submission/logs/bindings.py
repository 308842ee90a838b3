"""The cores that the ranks of a run could use, from its env.json: for reports and comparisons."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from mlhpc.common.host.binding import first_overlap, ranges
from mlhpc.common.pages.blocks import Table, number, table
from mlhpc.errors import few
from mlhpc.quantities import count
from mlhpc.submission.logs.fields import MOST_RANKS, Count, Fields, Text

Ranges = Annotated[str, Field(pattern=r"^[0-9,-]*$", max_length=1_000)]
"""Format of Linux's lists of numbers."""


class RankBinding(Fields):
    """Of one rank: the cores it may run on, their NUMA nodes, its memory policy, and its number of compute
    threads."""

    rank: Count
    hostname: Text
    local_rank: Count
    cores: Ranges
    numa_nodes: Ranges | None = None
    memory_policy: Text | None = None
    threads: Count | None = None


class Row(NamedTuple):
    """The same binding of the same local ranks, on ``hosts``."""

    hosts: tuple[str, ...]
    local_ranks: str
    binding: RankBinding

    def __str__(self) -> str:
        own = self.binding
        parts = [f"local ranks {self.local_ranks}: cores {own.cores}"]
        parts += [f"NUMA nodes {own.numa_nodes}"] if own.numa_nodes else []
        parts += [f"memory {own.memory_policy}"] if own.memory_policy not in (None, "default") else []
        parts += [count(own.threads, "thread")] if own.threads is not None else []
        return ", ".join(parts)


def read_bindings(env: Mapping[str, Any]) -> list[RankBinding]:
    """The bindings of all ranks; empty for a run of an earlier version, or if they are invalid."""
    listed = env.get("bindings")
    if not isinstance(listed, list) or len(listed) > MOST_RANKS:
        return []
    try:
        return [RankBinding.model_validate(each) for each in listed]
    except ValidationError:
        return []


def binding_rows(bindings: Sequence[RankBinding]) -> list[Row]:
    """Bindings by node and local rank; identical nodes share their rows."""
    of_host: dict[str, dict[tuple[Any, ...], list[RankBinding]]] = {}
    for each in bindings:
        key = (each.cores, each.numa_nodes, each.memory_policy, each.threads)
        of_host.setdefault(each.hostname, {}).setdefault(key, []).append(each)
    hosts: dict[tuple[str, tuple[Any, ...]], list[str]] = {}
    sample: dict[tuple[str, tuple[Any, ...]], RankBinding] = {}
    for host, groups in of_host.items():
        for key, own in groups.items():
            row = ranges(each.local_rank for each in own), key
            hosts.setdefault(row, []).append(host)
            sample.setdefault(row, own[0])
    return [Row(tuple(names), row[0], sample[row]) for row, names in hosts.items()]


def binding_text(bindings: Sequence[RankBinding]) -> str:
    """All bindings in one line; empty for none."""
    rows = binding_rows(bindings)
    alike = len({row.hosts for row in rows}) == 1
    return "; ".join(f"{row}" if alike else f"{row} on {count(len(row.hosts), 'node')}" for row in rows)


def shared_cores(bindings: Sequence[RankBinding]) -> str:
    """A description of the first ranks that share cores, or of a node whose ranks all do; empty if there are
    none."""
    of_host: dict[str, list[RankBinding]] = {}
    for each in bindings:
        of_host.setdefault(each.hostname, []).append(each)
    for host, own in of_host.items():
        cores = [each.cores for each in own]
        if len(own) > 1 and len(set(cores)) == 1:
            return f"The {len(own)} ranks of {host} share all their cores: they are not bound."
        try:
            overlap = first_overlap(cores)
        except ValueError:
            continue
        if overlap:
            one, two, shared = overlap
            return f"Ranks {own[one].rank} and {own[two].rank} of {host} share cores {shared}."
    return ""


def bindings_table(bindings: Sequence[RankBinding]) -> Table:
    return table(
        "bindings",
        binding_rows(bindings),
        {
            "node": lambda row: few(row.hosts, 3),
            "local ranks": lambda row: row.local_ranks,
            "cores": lambda row: row.binding.cores,
            "NUMA nodes": lambda row: row.binding.numa_nodes or "not known",
            "memory policy": lambda row: row.binding.memory_policy or "not known",
            "threads": lambda row: number(row.binding.threads, str, none="not known"),
        },
        text_columns=5,
    )
