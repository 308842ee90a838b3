"""The cores that ranks may run on: as found, and as requested by ``mlhpc run --bind``.

Cores are Linux's logical CPUs, in Linux's list format (``0-3,8``).
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlhpc.common.ranks.environment import BOUND, identify
from mlhpc.errors import AlreadyReported, UserError
from mlhpc.quantities import count

Cores = frozenset[int]

_MOST_CORES = 1 << 16
"""Upper bound of core numbers in user input (Linux's NR_CPUS is at most 8192)."""


def ranges(cores: Iterable[int]) -> str:
    """``cores`` in Linux's list format, such as ``0-3,8``; empty if there are none."""
    parts: list[list[int]] = []
    for core in sorted(set(cores)):
        if parts and core == parts[-1][1] + 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def parse_ranges(text: str) -> Cores:
    """The numbers listed in ``text`` in Linux's list format. Raises ValueError if it is malformed."""
    numbers: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        if not (match := re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", part)):
            raise ValueError(f"{part.strip()!r} is not a core or a range of cores")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= _MOST_CORES:
            raise ValueError(f"{part.strip()!r} is not a range of cores")
        numbers |= set(range(first, last + 1))
    return frozenset(numbers)


def numa_nodes(root: Path = Path("/")) -> dict[int, Cores]:
    """The cores of each NUMA node that has cores; empty if the kernel does not report them. ``root``: the folder
    that contains ``sys``."""
    nodes = {}
    for folder in root.glob("sys/devices/system/node/node[0-9]*"):
        if cores := _cores_in(folder / "cpulist"):
            nodes[int(folder.name[4:])] = cores
    return dict(sorted(nodes.items()))


def nodes_of(cores: Cores, nodes: Mapping[int, Cores]) -> frozenset[int]:
    """The NUMA nodes that ``cores`` belong to."""
    return frozenset(node for node, own in nodes.items() if own & cores)


def describe_binding(threads: str = "OMP_NUM_THREADS", root: Path = Path("/")) -> dict[str, Any]:
    """The cores of this process, their NUMA nodes, its memory policy and its threads; unknown values are None.

    Call this before libraries start, because with OMP_PROC_BIND some of them bind the calling thread. ``threads``:
    the environment variable that sets the framework's number of compute threads.
    """
    cores = frozenset(os.sched_getaffinity(0))
    number = os.environ.get(threads, "").partition(",")[0]  # the rest is for nested levels
    return {
        "cores": ranges(cores),
        "numa_nodes": ranges(nodes_of(cores, numa_nodes(root))) or None,
        "memory_policy": _memory_policy(root),
        "threads": int(number) if number.isdigit() else None,
    }


def cores_of_ranks(
    bind: str, ranks: int, allowed: Cores | None = None, root: Path = Path("/")
) -> tuple[Cores, ...]:
    """The cores of each of the ``ranks`` ranks on this machine; empty if ``bind`` is ``none``.

    With ``bind`` set to ``cores``, each rank gets an equal share, of whole physical cores if there are enough.
    Ranks are assigned to NUMA nodes in order and do not span them, unless there are fewer ranks than nodes. With
    ``A:B:…``, local rank 0 gets the cores in the list A, local rank 1 those in B, and so on. ``allowed``: the
    available cores (None: those of this process). Raises UserError.
    """
    allowed = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    if bind == "none":
        return ()
    return _shares(ranks, allowed, root) if bind == "cores" else _lists(bind, ranks, allowed)


def asked(option: str | None) -> str:
    """The value of ``--bind`` or, if that is not set, of ``MLHPC_BIND``."""
    return option or os.environ.get("MLHPC_BIND") or "none"


def _named(bind: str) -> str:
    """The option or variable that set ``bind``, and its value, for messages."""
    return f"MLHPC_BIND={bind}" if os.environ.get("MLHPC_BIND") == bind else f"--bind {bind}"


def bind_this_rank(option: str | None) -> None:
    """Bind this process to the cores that ``asked`` returns. A rank started by ``mlhpc run`` is bound already.
    Other launchers assign cores themselves, so their ranks are bound only if ``asked`` returns lists of cores.
    Raises UserError."""
    if (bind := asked(option)) == "none":
        return
    rank = identify(os.environ)
    if rank.launcher == "mlhpc":  # bound when it was started
        return
    if rank.launcher != "none" and bind == "cores":
        if option:
            raise UserError(
                f"--bind cores: {rank.launcher} binds ranks itself (srun --cpu-bind, mpirun --bind-to, "
                "torchrun --numa-binding); pass the cores of each local rank, or omit --bind"
            )
        return
    try:
        cores = cores_of_ranks(bind, rank.local_size)
    except UserError as error:
        # The same on every rank of a node.
        raise (AlreadyReported(str(error)) if rank.local_rank else error) from None
    if cores:
        os.sched_setaffinity(0, cores[rank.local_rank])
        os.environ[BOUND] = "1"


def _lists(bind: str, ranks: int, allowed: Cores) -> tuple[Cores, ...]:
    try:
        given = [parse_ranges(text) for text in bind.split(":")]
    except ValueError as error:
        raise UserError(
            f"{_named(bind)}: {error}; pass cores, none, or the cores of each local rank, such as 0-3:4-7"
        ) from None
    if len(given) < ranks or not all(given):
        raise UserError(
            f"{_named(bind)} must list cores for each of the {count(ranks, 'rank')} on this machine; separate the "
            "lists by ':'"
        )
    for rank, cores in enumerate(given[:ranks]):
        if missing := cores - allowed:
            raise UserError(
                f"{_named(bind)}: local rank {rank} cannot use core {ranges(missing)}; this process may use only "
                f"{ranges(allowed)} (under srun: --cpu-bind=none)"
            )
    return tuple(given[:ranks])


def _shares(ranks: int, allowed: Cores, root: Path) -> tuple[Cores, ...]:
    if ranks > len(allowed):
        raise UserError(
            f"{_named('cores')}: {count(ranks, 'rank')}, but only {count(len(allowed), 'core')} "
            f"({ranges(allowed)}); start fewer ranks"
        )
    own = {node: cores & allowed for node, cores in numa_nodes(root).items()}
    known = _union(own.values())
    nodes = [cores for cores in own.values() if cores] if known == allowed else [allowed]
    if ranks < len(nodes):  # each rank has whole nodes
        groups = [
            nodes[rank * len(nodes) // ranks : (rank + 1) * len(nodes) // ranks] for rank in range(ranks)
        ]
        return tuple(map(_union, groups))
    dealt = [rank * len(nodes) // ranks for rank in range(ranks)]
    # Nodes may be of very different sizes.
    if any(dealt.count(node) > len(cores) for node, cores in enumerate(nodes)):
        nodes, dealt = [allowed], [0] * ranks
    return beside(dealt, dict(enumerate(nodes)), root)


def beside(dealt: Sequence[int], nodes: Mapping[int, Cores], root: Path = Path("/")) -> tuple[Cores, ...]:
    """An equal share of cores for each rank, on the NUMA node that ``dealt`` lists for it: whole physical cores if
    the node has enough of them for its ranks. ``nodes``: the cores of each NUMA node."""
    units = {node: _units(nodes[node], dealt.count(node), root) for node in dealt}
    share = min(len(own) // dealt.count(node) for node, own in units.items())
    bound = []
    for rank, node in enumerate(dealt):
        first = dealt[:rank].count(node) * share
        bound.append(_union(units[node][first : first + share]))
    return tuple(bound)


def _units(cores: Cores, ranks: int, root: Path) -> list[Cores]:
    """The physical cores, each as the set of its hardware threads; if there are fewer cores than ranks, the single
    hardware threads."""
    siblings = {
        core: (_cores_in(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") or {core})
        & cores
        for core in cores
    }
    physical = sorted({frozenset(own | {core}) for core, own in siblings.items()}, key=min)
    return physical if len(physical) >= ranks else [frozenset({core}) for core in sorted(cores)]


def _union(parts: Iterable[Cores]) -> Cores:
    return frozenset(core for part in parts for core in part)


def _cores_in(file: Path) -> Cores:
    try:
        return parse_ranges(file.read_text("ascii"))
    except (OSError, ValueError):
        return frozenset()


def _memory_policy(root: Path) -> str | None:
    """Where Linux places new memory (numa(7), /proc/PID/numa_maps): ``default`` means near the core that first
    touches it, ``bind:0`` only on node 0."""
    try:
        with (root / "proc/self/numa_maps").open(encoding="ascii", errors="replace") as file:
            words = file.readline().split()
    except OSError:
        return None
    return words[1] if len(words) > 1 else None


def first_overlap(bindings: Sequence[str]) -> tuple[int, int, str] | None:
    """Two ranks of one node that may run on the same cores, and the range of these cores; None if there are no
    such ranks. ``bindings``: the cores of each rank, in the format of ``ranges``. The check takes time linear in
    the length of ``bindings``, since they may come from an untrusted file. Raises ValueError."""
    intervals = []
    for rank, text in enumerate(bindings):
        for part in filter(None, text.split(",")):
            ends = part.split("-")
            intervals.append((int(ends[0]), int(ends[-1]), rank))
    reach, of = -1, -1
    for first, last, rank in sorted(intervals):
        if first <= reach and rank != of:
            end = min(last, reach)
            return min(rank, of), max(rank, of), str(first) if first == end else f"{first}-{end}"
        if last > reach:
            reach, of = last, rank
    return None
