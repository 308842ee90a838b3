"""How much memory a process may still allocate, from the files of control groups of both versions."""

from pathlib import Path

import pytest

from mlhpc.common.files.filesystem import _memory_left

GB = 10**9
STATISTICS = {"active_file": GB, "inactive_file": GB, "anon": 5 * GB}


def group(folder: Path, limit: str, used: int, names: tuple[str, str], statistics: dict[str, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text("".join(f"{key} {value}\n" for key, value in statistics.items()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 200000000 kB\nMemAvailable: 100000000 kB\n")
    return tmp_path


@pytest.mark.parametrize("inner", ["step_0/task_1", "not/visible"])
def test_version_2(root: Path, inner: str) -> None:
    """A job's limit holds for its steps, whose own groups have none or are not visible in a container."""
    (root / "proc/self/cgroup").write_text(f"0::/slurm/job_7/{inner}\n")
    names = ("memory.max", "memory.current")
    group(root / "sys/fs/cgroup/slurm/job_7", str(10 * GB), 7 * GB, names, STATISTICS)
    group(root / "sys/fs/cgroup/slurm/job_7/step_0", "max", 7 * GB, names, STATISTICS)
    assert min(_memory_left(root)) == 5 * GB, "without the page cache, 5 of 10 GB are taken"


@pytest.mark.parametrize("controllers", ["memory", "cpuset,memory", "memory,hugetlb"])
def test_version_1(root: Path, controllers: str) -> None:
    """Slurm on RHEL 8: the page cache of inner groups counts as that of the job."""
    lines = ("11:pids:/x", f"4:{controllers}:/slurm/uid_1/job_7/step_0", "1:name=memory-like:/y", "0::/")
    (root / "proc/self/cgroup").write_text("\n".join(lines) + "\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    own = {"active_file": 0, "inactive_file": 0}
    total = {f"total_{key}": value for key, value in STATISTICS.items()}
    group(root / "sys/fs/cgroup/memory/slurm/uid_1/job_7", str(10 * GB), 7 * GB, names, own | total)
    group(root / "sys/fs/cgroup/memory", "9223372036854771712", 90 * GB, names, own)
    assert min(_memory_left(root)) == 5 * GB


def test_without_a_limit_the_machine_decides(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/\n")
    assert _memory_left(root) == [102_400_000_000]
