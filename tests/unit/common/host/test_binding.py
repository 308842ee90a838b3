"""Cores of ranks: read from recorded /sys trees, distributed, and used by processes on this machine."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mlhpc.common.host.binding import (
    beside,
    cores_of_ranks,
    describe_binding,
    first_overlap,
    nodes_of,
    numa_nodes,
    parse_ranges,
    ranges,
)
from mlhpc.common.ranks.environment import BOUND, RankInfo, threads_per_rank
from mlhpc.errors import UserError


def machine(root: Path, nodes: dict[int, str], threads: int = 1, cores: int = 0) -> Path:
    """A /sys with NUMA ``nodes``; with two ``threads`` per core, those of core c are c and c + ``cores``."""
    for node, cpulist in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n")
    for core in range(cores) if threads == 2 else ():
        for thread in (core, core + cores):
            folder = root / f"sys/devices/system/cpu/cpu{thread}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{core},{core + cores}\n")
    return root


def test_ranges_are_written_and_read_as_linux_does() -> None:
    assert ranges([8, 1, 0, 3, 2, 3]) == "0-3,8" and ranges([]) == "" and ranges([5]) == "5"
    assert parse_ranges("0-3,8\n") == {0, 1, 2, 3, 8} and parse_ranges("\n") == frozenset()
    drawn = random.Random(1)
    for _ in range(200):
        cores = frozenset(drawn.sample(range(256), drawn.randrange(40)))
        assert parse_ranges(ranges(cores)) == cores
    for bad in ("a", "3-1", "1,,2", "-1", "0-99999", "1:2", "٣"):
        with pytest.raises(ValueError):
            parse_ranges(bad)


def test_nodes_without_cores_are_left_out(tmp_path: Path) -> None:
    """Such as the memory of an accelerator."""
    root = machine(tmp_path, {0: "0-3", 1: "4-7", 2: ""})
    assert numa_nodes(root) == {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
    assert nodes_of(frozenset({3, 4}), numa_nodes(root)) == {0, 1}
    assert numa_nodes(tmp_path / "nothing") == {}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, ["0-15"]),
        (2, ["0-3,8-11", "4-7,12-15"]),
        (4, ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        (3, ["0-1,8-9", "2-3,10-11", "4-5,12-13"]),  # equal shares, of which none crosses a node
        (
            16,
            [str(n) for n in (0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)],
        ),  # threads, if it must be
    ],
)
def test_each_rank_has_its_own_physical_cores_on_one_node(
    ranks: int, expected: list[str], tmp_path: Path
) -> None:
    root = machine(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}, threads=2, cores=8)
    of_ranks = cores_of_ranks("cores", ranks, frozenset(range(16)), root)
    assert [ranges(cores) for cores in of_ranks] == expected


def test_shares_are_disjoint_equal_and_within_what_is_allowed(tmp_path: Path) -> None:
    drawn = random.Random(7)
    root = machine(tmp_path, {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"})
    nodes = numa_nodes(root)
    for _ in range(300):
        allowed = frozenset(drawn.sample(range(64), drawn.randrange(1, 65)))
        ranks = drawn.randrange(1, len(allowed) + 1)
        of_ranks = cores_of_ranks("cores", ranks, allowed, root)
        assert len(of_ranks) == ranks and all(of_ranks) and frozenset().union(*of_ranks) <= allowed
        assert sum(map(len, of_ranks)) == len(frozenset().union(*of_ranks))
        occupied = [node for node, cores in nodes.items() if cores & allowed]
        if ranks >= len(occupied):
            assert len({len(cores) for cores in of_ranks}) == 1
        enough = all(len(nodes[node] & allowed) >= -(-ranks // len(occupied)) for node in occupied)
        if ranks >= len(occupied) and enough:
            assert all(len(nodes_of(cores, nodes)) == 1 for cores in of_ranks)


def test_no_ranks_share_a_core_and_no_core_is_left_where_they_divide(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-31", 1: "32-63"})
    for ranks in (1, 2, 4, 8, 16, 32, 64):
        of_ranks = cores_of_ranks("cores", ranks, frozenset(range(64)), root)
        assert sorted(core for cores in of_ranks for core in cores) == list(range(64))


def test_ranks_beside_their_gpus(tmp_path: Path) -> None:
    """Where GPUs are in another order than NUMA nodes: GPUs 4, 5, 2, 3 close to cores 0-31 and their second
    threads 64-95, GPUs 6, 7, 0, 1 close to the others (printed by mpibind on an MI250X node; llnl/mpibind
    issue 41)."""
    root = machine(tmp_path, {0: "0-31,64-95", 1: "32-63,96-127"}, threads=2, cores=64)
    of_ranks = beside([1, 1, 0, 0, 0, 0, 1, 1], numa_nodes(root), root)
    assert [ranges(cores) for cores in of_ranks] == [
        "32-39,96-103", "40-47,104-111", "0-7,64-71", "8-15,72-79", "16-23,80-87", "24-31,88-95",
        "48-55,112-119", "56-63,120-127",
    ]  # fmt: skip


def test_lists_are_taken_as_given() -> None:
    allowed = frozenset(range(8))
    assert cores_of_ranks("0-1:6,7", 2, allowed) == (frozenset({0, 1}), frozenset({6, 7}))
    assert cores_of_ranks("0:1:2:3", 2, allowed) == (
        frozenset({0}),
        frozenset({1}),
    )  # a site lists all of a node
    assert cores_of_ranks("none", 2, allowed) == ()


@pytest.mark.parametrize(
    ("bind", "ranks", "named"),
    [
        ("0-1", 2, "must list cores for each of the 2 ranks on"),
        ("0-1:", 2, "must list cores for each of the 2 ranks on"),
        ("0-1:6-9", 2, "local rank 1 cannot use core 8-9; this process may use only 0-7"),
        ("socket", 2, "'socket' is not a core"),
        ("0-1;rm", 1, "is not a core"),
        ("cores", 9, "9 ranks, but only 8 cores (0-7)"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(bind: str, ranks: int, named: str) -> None:
    with pytest.raises(UserError) as refused:
        cores_of_ranks(bind, ranks, frozenset(range(8)))
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_the_first_overlap_is_found() -> None:
    """Against all pairs of sets."""
    assert first_overlap(["0-3", "4-7"]) is None and first_overlap([]) is None
    assert first_overlap(["0-3", "8", "2-5"]) == (0, 2, "2-3")
    drawn = random.Random(3)
    for _ in range(300):
        sets = [frozenset(drawn.sample(range(24), drawn.randrange(1, 6))) for _ in range(4)]
        overlap = first_overlap([ranges(cores) for cores in sets])
        pairs = {(a, b) for a in range(4) for b in range(a + 1, 4) if sets[a] & sets[b]}
        assert bool(overlap) == bool(pairs)
        if overlap:
            one, two, shared = overlap
            assert (one, two) in pairs and parse_ranges(shared) <= sets[one] & sets[two]


def test_a_process_describes_what_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against taskset and numactl's source, /proc/self/numa_maps, in another process."""
    core = max(os.sched_getaffinity(0))
    program = "import json; from mlhpc.common.host.binding import *; print(json.dumps(describe_binding()))"
    words = ["taskset", "-c", str(core), sys.executable, "-c", program]
    env = os.environ | {"OMP_NUM_THREADS": "3,2"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["cores"] == str(core) and facts["threads"] == 3
    policies = Path("/proc/self/numa_maps")
    if policies.exists():
        assert facts["memory_policy"] == policies.read_text().split(maxsplit=2)[1]
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert describe_binding()["threads"] is None


@pytest.mark.parametrize(
    ("launcher", "local_size", "own", "of_launcher", "threads"),
    [
        ("mpirun", 2, 1, 64, 1),  # --bind-to core
        ("mpirun", 8, 32, 64, 8),  # --bind-to package: four ranks on each
        ("mpirun", 4, 16, 64, 16),  # --map-by ppr:4:node:PE=16
        ("torchrun", 4, 32, 64, 16),  # --numa-binding=node
        ("torchrun", 4, 64, 64, 16),
        ("srun", 2, 4, 64, 2),  # slurmd is outside of the job
        ("none", 1, 8, 4, 8),
    ],
)
def test_threads_fill_the_cores_of_a_rank_and_no_more(
    launcher: str, local_size: int, own: int, of_launcher: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(of_launcher if pid else own)))
    info = RankInfo(launcher, size=local_size, local_size=local_size)  # type: ignore[arg-type]
    assert threads_per_rank(info, {}) == threads
    assert threads_per_rank(info, {BOUND: "1"}) == own
