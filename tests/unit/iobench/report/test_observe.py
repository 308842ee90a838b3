"""Reads recorded by strace, against offsets and sizes chosen by the test."""

import json
import os
import shutil
import sys

import pytest

from mlhpc.errors import UserError
from mlhpc.iobench.report.observe import observe, parse, read_observation

LOG = """\
12 99.900000 clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD, exit_signal=0} <unfinished ...>
12 99.900010 <... clone3 resumed> => {parent_tid=[13]}, 88) = 13 <0.000010>
12 100.000000 openat(AT_FDCWD</w>, "/data/a"..., O_RDONLY|O_CLOEXEC) = 3</data/a> <0.000010>
12 100.100000 read(3</data/a>, ""..., 4096) = 4096 <0.100000>
12 100.300000 read(3</data/a>, ""..., 4096) = 4096 <0.100000>
13 100.350000 pread64(4</data/b>,  <unfinished ...>
12 100.400000 lseek(3</data/a>, 0, SEEK_SET) = 0 <0.000002>
12 100.450000 read(3</data/a>, ""..., 100) = 100 <0.050000>
13 100.550000 <... pread64 resumed>""..., 1000, 5000) = 1000 <0.200000>
13 100.600000 preadv(4</data/b>, [{iov_base=""..., iov_len=2000}], 1, 7000) = 2000 <0.100000>
13 100.700000 read(5</etc/passwd>, ""..., 4096) = 4096 <0.100000>
13 100.750000 pread64(3</data/a>, ""..., 50, 100) = 50 <0.040000>
13 100.800000 read(3</data/a>, ""..., 4096) = 0 <0.100000>
13 100.900000 pread64(4</data/b>, 0x7f, 10, 0) = -1 EBADF (Bad file descriptor) <0.100000>
12 101.000000 +++ exited with 0 +++
"""


def test_a_log_is_read_as_it_happened():
    reads = parse(LOG.splitlines(), "/data")
    assert reads.sizes == [4096, 4096, 100, 1000, 2000, 50]
    # a: 0, 4096 (consecutive), back to 0, and thread 13 of the same process goes on from there (consecutive); b:
    # 5000, then 7000, which is behind 6000.
    assert (reads.follow_ups, reads.sequential, reads.consecutive) == (4, 3, 2)
    assert reads.files == {"/data/a", "/data/b"}
    factors = reads.factors()
    # 100.1-100.2, 100.3-100.55 (with b's), 100.6-100.7, 100.75-100.79
    assert factors["io_time"] == pytest.approx(0.1 + 0.25 + 0.1 + 0.04)
    assert (factors["transfer_median"], factors["transfer_mean"]) == (1500, pytest.approx(11342 / 6))


def test_processes_with_the_same_descriptor_number_read_independently():
    """Two processes take turns reading a file in order, each through its own descriptor 5: after the first, the
    three other reads of each are consecutive."""
    reads = parse(
        (
            f'{process} {n + process / 100:.6f} pread64(5</data/a>, ""..., 1000, {n * 1000}) = 1000 <0.001000>'
            for n in range(4)
            for process in (12, 13)
        ),
        "/data",
    )
    assert (reads.follow_ups, reads.sequential, reads.consecutive) == (6, 6, 6)


@pytest.mark.system
def test_a_real_program_is_observed(tmp_path):
    if not shutil.which("strace"):
        if os.environ.get("CI"):
            raise AssertionError("CI has no strace")
        pytest.skip("strace is not installed")
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_bytes(bytes(100_000))
    path = str(data / "x")
    program = f"import os; fd = os.open({path!r}, 0); [os.pread(fd, 1000, 2000 * n) for n in range(24)]; "
    program += "import threading; threading.Thread(target=os.pread, args=(fd, 1000, 0)).start()"
    assert observe([sys.executable, "-c", program], data, tmp_path / "out") == 0
    record = json.loads((tmp_path / "out/observation.json").read_text())
    assert (record["reads"], record["bytes"]) == (25, 25_000)
    factors = read_observation(tmp_path / "out")
    assert (factors["files"], factors["sequential"], factors["consecutive"]) == (
        1,
        23 / 24,
        0,
    )  # the thread reads from 0
    assert factors["transfer_median"] == 1000
    with pytest.raises(UserError, match="read nothing below"):
        observe([sys.executable, "-c", "pass"], data, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_is_no_observation_is_a_line(tmp_path):
    with pytest.raises(UserError, match="no observation"):
        read_observation(tmp_path)
