"""Reads recorded by strace, against offsets and sizes chosen by the test."""

import json
import os
import shutil
import sys

import pytest

from mlhpc.errors import UserError
from mlhpc.iobench.report.observe import observe, parse, read_observation

LOG = """\
12 100.000000 openat(AT_FDCWD</w>, "/data/a"..., O_RDONLY|O_CLOEXEC) = 3</data/a> <0.000010>
12 100.100000 read(3</data/a>, ""..., 4096) = 4096 <0.100000>
12 100.300000 read(3</data/a>, ""..., 4096) = 4096 <0.100000>
13 100.350000 pread64(4</data/b>,  <unfinished ...>
12 100.400000 lseek(3</data/a>, 0, SEEK_SET) = 0 <0.000002>
12 100.450000 read(3</data/a>, ""..., 100) = 100 <0.050000>
13 100.550000 <... pread64 resumed>""..., 1000, 5000) = 1000 <0.200000>
13 100.600000 preadv(4</data/b>, [{iov_base=""..., iov_len=2000}], 1, 7000) = 2000 <0.100000>
13 100.700000 read(5</etc/passwd>, ""..., 4096) = 4096 <0.100000>
13 100.800000 read(3</data/a>, ""..., 4096) = 0 <0.100000>
13 100.900000 pread64(4</data/b>, 0x7f, 10, 0) = -1 EBADF (Bad file descriptor) <0.100000>
12 101.000000 +++ exited with 0 +++
"""


def test_a_log_is_read_as_it_happened():
    reads = parse(LOG.splitlines(), "/data")
    assert reads.sizes == [4096, 4096, 100, 1000, 2000]
    # a: 0, 4096 (consecutive), back to 0; b: 5000, then 7000, which is behind 6000.
    assert (reads.follow_ups, reads.sequential, reads.consecutive) == (3, 2, 1)
    assert reads.files == {"/data/a", "/data/b"}
    factors = reads.factors()
    # 100.1-100.2, 100.3-100.55 (with b's), 100.6-100.7
    assert factors["io_time"] == pytest.approx(0.1 + 0.25 + 0.1)
    assert (factors["transfer_median"], factors["transfer_mean"]) == (2000, pytest.approx(11292 / 5))


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
    program = f"import os; fd = os.open({path!r}, 0); [os.pread(fd, 1000, 2000 * n) for n in range(25)]"
    assert observe([sys.executable, "-c", program], data, tmp_path / "out") == 0
    record = json.loads((tmp_path / "out/observation.json").read_text())
    assert (record["reads"], record["bytes"]) == (25, 25_000)
    factors = read_observation(tmp_path / "out")
    assert (factors["files"], factors["sequential"], factors["consecutive"]) == (1, 1, 0)
    assert factors["transfer_median"] == 1000
    with pytest.raises(UserError, match="read nothing below"):
        observe([sys.executable, "-c", "pass"], data, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_is_no_observation_is_a_line(tmp_path):
    with pytest.raises(UserError, match="no observation"):
        read_observation(tmp_path)
