"""Where data lies and what moving it costs: the figures of paper 000."""

import pytest

from mlhpc.benchmarks.load import load
from mlhpc.errors import UserError
from mlhpc.perf.machines import machine, parse
from mlhpc.perf.movement import GIB, MIB, costs, gap, required_bandwidth, tier_of

CORI = machine("cori-gpu")
WORKSTATION = """title = "a workstation"
nodes = 1

[accelerator]
model = "X"
family = "V100"
per_node = 1
float32 = { value = "15.7 TFLOP/s", source = "x" }
memory = { value = "16 GB", source = "x" }
bandwidth = { value = "900 GB/s", source = "x" }

"""


@pytest.mark.parametrize(("bandwidth", "expected"), [(3.2e9 / 8, 2250), (16e9, 56.25), (12.5e9, 72)])
def test_gaps_of_figure_4(bandwidth, expected):
    assert gap(CORI, bandwidth) == expected


@pytest.mark.parametrize(("bandwidth", "expected"), [(900e9, 138.9), (16e9, 7812.5)])
def test_machine_balance(bandwidth, expected):
    """Section III-B: FLOP of the tensor cores per byte of HBM and of PCIe."""
    assert 125e12 / bandwidth == pytest.approx(expected, rel=1e-3)
    assert CORI.figures["accelerator.float16"] == 125e12


@pytest.mark.parametrize(("gflop", "mebibytes", "intensity", "demand"),
                         [(247, 16, 15_400, 65), (2887, 27, 107_000, 9.35), (31, 0.14, 221_000, 4.5)])  # fmt: skip
def test_bandwidth_that_a_petaflop_node_demands(gflop, mebibytes, intensity, demand):
    """Section VII. The paper divides binary GiF by MiB as if both were decimal."""
    assert 1000 * gflop / mebibytes == pytest.approx(intensity, rel=5e-3)
    assert required_bandwidth(gflop * 1e9, mebibytes * 1e6, 1e15) / 1e9 == pytest.approx(demand, abs=0.5)


@pytest.mark.parametrize(
    ("nodes", "part", "tier"),
    [(1, 836e9, "node-local storage"), (2, 418e9, "node-local storage"), (4, 209e9, "host memory")],
)
def test_where_49152_samples_lie(nodes, part, tier):
    """Section VI, figure 8: 17 MB each; at four nodes a node's part fits the 384 GB of DDR4."""
    size = 49_152 * 17e6
    assert size / nodes == pytest.approx(part, rel=1e-3)
    assert tier_of(CORI, size, nodes).name == tier
    unstaged = tier_of(CORI, size, nodes, staged=False)
    assert unstaged.name == ("host memory" if nodes == 4 else "shared file system")


def test_what_binds_in_figure_4():
    """CosmoFlow by samples from NVMe, ResNet-50 by all-reduce at a small batch and by memory at a large one."""
    cosmo = costs(CORI, moved=1.44 * GIB, sample=16 * MIB, gradients=8_907_556 * 4, local_batch_size=1)
    assert cosmo.binding == "samples"
    assert cosmo.sample[1] / cosmo.activations > 10 and cosmo.sample[1] / cosmo.activations < 30
    moves = {"moved": 0.084 * GIB, "sample": 0.144 * MIB, "gradients": 25_557_032 * 4}
    small, large = (costs(CORI, **moves, local_batch_size=batch) for batch in (1, 256))
    assert small.binding == "all-reduce"
    assert large.all_reduce < large.activations


def test_samples_of_figure_4_have_their_two_ends():
    """PCIe, here 8 GB/s a GPU as section III-B says, and NVMe."""
    found = costs(CORI, moved=0, sample=1.0, gradients=4.0, local_batch_size=2)
    assert found.sample == (112.5, 2250)
    assert found.all_reduce == 144


def test_a_data_set_larger_than_every_tier_is_refused_with_the_line():
    text = f"""{WORKSTATION}[host]
memory = {{ value = "64 GB", source = "x" }}

[storage]
local = {{ value = "1 TB", source = "x" }}
"""
    small = parse(text, "mine.toml", "mine")
    assert tier_of(small, 900e9, 1).name == "node-local storage"
    with pytest.raises(UserError, match=r"mine.toml, line 16: .*larger than every tier of mine"):
        tier_of(small, 5e12, 1)


def test_a_machine_without_any_tier_is_refused_with_a_line():
    text = f"""{WORKSTATION}[links]
host = {{ value = "16 GB/s", source = "x" }}
"""
    with pytest.raises(UserError, match=r"mine.toml, line 13: nowhere to keep the data set"):
        tier_of(parse(text, "mine.toml", "mine"), 1e9, 1)


def test_sizes_of_samples():
    """Paper 000, table II: 16, 27 and 0.144 MiB as 16-bit and 8-bit values."""
    for name, width, expected in (("cosmoflow", 2, 16), ("deepcam", 2, 27), ("resnet50", 1, 0.144)):
        values = 1
        for size in load(name, "closed").data.sample_shape:
            values *= size
        assert values * width / MIB == pytest.approx(expected, rel=5e-3)
