"""A node's memory, and the limits of control groups."""

import os
from pathlib import Path

import pytest

from mlhpc.common.host.memory import usable_bytes

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/job/step", {"job/memory.max": "5000000", "job/step/memory.max": "max"}, 5_000_000),
        ("0::/job/step", {"job/memory.max": "5000000", "job/step/memory.max": "4000000"}, 4_000_000),
        ("0::/outside", {"memory.max": "3000000"}, 3_000_000),  # of a container
        ("3:cpuset:/\n2:memory:/slurm", {"memory/slurm/memory.limit_in_bytes": "2000000"}, 2_000_000),
        ("2:memory:/", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, PHYSICAL),  # no limit
        ("0::/", {}, PHYSICAL),
        ("0::/job\udcff/\x85:\v", {"job\udcff/\x85:\v/memory.max": "1000000"}, 1_000_000),
    ],
)
def test_the_smallest_limit_of_the_control_groups_counts(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: int
) -> None:
    files = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(os.fsencode(text + "\n"))
    assert usable_bytes(tmp_path) == expected
