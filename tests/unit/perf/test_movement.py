"""Where data is and the cost of moving it: the figures of Ibrahim et al. 2021."""

import random
from collections import OrderedDict
from dataclasses import replace

import pytest

from mlhpc.benchmarks.load import load
from mlhpc.errors import UserError
from mlhpc.perf.machines import machine, parse
from mlhpc.perf.movement import GIB, MIB, costs, gap, read_seconds, required_bandwidth
from mlhpc.perf.samples import SampleBytes, sample_bytes
from mlhpc.perf.staging import staging_seconds
from mlhpc.perf.tiers import cached_share, tier_of, tiers

CORI = machine("cori-gpu")
NVME, _ = tiers(CORI, 1)[1]


def both(size):
    """A sample of as many bytes in its file as on the accelerator."""
    return SampleBytes(stored=size, received=size)


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
    cosmo = costs(
        CORI, NVME, moved=1.44 * GIB, sample=both(16 * MIB), gradients=8_907_556 * 4, local_batch_size=1
    )
    assert cosmo.binding == "samples"
    assert cosmo.sample[1] / cosmo.activations > 10 and cosmo.sample[1] / cosmo.activations < 30
    moves = {"moved": 0.084 * GIB, "sample": both(0.144 * MIB), "gradients": 25_557_032 * 4}
    small, large = (costs(CORI, NVME, **moves, local_batch_size=batch) for batch in (1, 256))
    assert small.binding == "all-reduce"
    assert large.all_reduce < large.activations


def test_samples_of_figure_4_have_their_two_ends():
    """PCIe, here 8 GB/s a GPU as section III-B says, and NVMe."""
    per_step = costs(CORI, NVME, moved=0, sample=both(1.0), gradients=4.0, local_batch_size=2)
    assert per_step.sample == (112.5, 2250)
    assert per_step.all_reduce == 144


def test_a_sample_costs_what_the_place_does_where_the_data_set_lies():
    """Eight GPUs at Lustre's 1.97 GB/s a node, of 8 and of 1000 nodes at 700 GB/s in all, and 7.3 ms for a file,
    also of one in memory; from memory of which the file has no bandwidth, staged, only the link counts. Half of it
    gzipped away: half as many bytes of files."""
    opening = 900e9 * 8 * 7.3e-3
    half = SampleBytes(stored=0.5, received=1.0)

    def cost(tier):
        return costs(CORI, tier, moved=0, sample=half, gradients=0.0, local_batch_size=1).sample

    lustre = tier_of(CORI, 1e15, 8, staged=False, scope="sample")
    assert lustre.name == "shared file system"
    assert cost(lustre) == (112.5, pytest.approx(opening + 0.5 * 900 / (1.97 / 8)))
    thousand = next(tier for tier, _ in tiers(CORI, 1000) if tier.name == "shared file system")
    assert cost(thousand)[1] == pytest.approx(opening + 0.5 * 900 / (0.7 / 8))
    bytes_only = replace(lustre, opening=0)
    assert cost(replace(bytes_only, cached=0.25))[1] == pytest.approx(
        0.75 * cost(replace(bytes_only, cached=0))[1]
    )
    assert cost(tier_of(CORI, 1e9, 1)) == (112.5, None)
    assert cost(tier_of(CORI, 1e9, 1, staged=False)) == (112.5, pytest.approx(opening))


def test_many_samples_in_a_file_open_it_once():
    """ImageNet's TFRecords hold 1 251 images each, so opening them costs next to nothing."""
    images = sample_bytes(load("resnet50", "closed"))
    lustre = tier_of(CORI, 1e15, 8, staged=False, scope="sample")
    assert read_seconds(images, lustre) == pytest.approx(images.stored / 1.97e9 + 7.3e-3 / 1251, rel=1e-3)


@pytest.mark.parametrize(
    ("memory", "nodes"), [(300, 1), (1000, 1), (1900, 1), (300, 4), (1000, 2), (1000, 8), (2000, 4)]
)
def test_memory_serves_what_a_cache_of_the_last_used_still_holds(memory, nodes):
    """Against such a cache of one of the nodes, sample by sample, reshuffled over all nodes every epoch,
    once the cache is full."""
    rng, cache, hits = random.Random(0), OrderedDict(), 0
    samples, epochs, filling = list(range(2000)), 28 * nodes, 8 * nodes
    for epoch in range(epochs):
        rng.shuffle(samples)
        for sample in samples[::nodes]:
            hits += epoch >= filling and sample in cache
            cache[sample] = None
            cache.move_to_end(sample)
            if len(cache) > memory:
                cache.popitem(last=False)
    read = (epochs - filling) * 2000 / nodes
    assert cached_share(2000, memory, nodes) == pytest.approx(hits / read, abs=0.01)


@pytest.mark.parametrize(("nodes", "share"), [(1, 0.13), (2, 0.25), (4, 0.38), (8, 0.42)])
def test_a_data_set_shuffled_as_a_whole_is_in_memory_only_if_all_of_it_fits(nodes, share):
    """836 GB and nodes of 384 GB: four of them hold it together, but none holds what it reads next."""
    unstaged = tier_of(CORI, 836e9, nodes, staged=False, scope="sample")
    assert (unstaged.name, unstaged.cached) == ("shared file system", pytest.approx(share, abs=0.01))
    assert tier_of(CORI, 380e9, nodes, staged=False, scope="sample").name == "host memory"
    assert tier_of(CORI, 836e9, nodes, scope="sample").name == "node-local storage"
    assert tier_of(CORI, 1e12, nodes, scope="sample").name == "shared file system"


def test_what_fits_memory_is_cached_whole():
    assert cached_share(5, 10) == cached_share(10, 10) == 1
    half = tier_of(CORI, 768e9, 1)
    assert (half.name, half.cached) == ("node-local storage", pytest.approx(0.153, abs=1e-3))


def test_staging_is_within_what_a_submission_took():
    """Cori GPU, 8 nodes: 16.49 min (Farrell et al. 2021, table 5) of CosmoFlow's 4.4 TB, or 5.5 TB with the
    samples of the evaluation. Its NVMe devices write 0.6 GB/s, memory may hold a part that is not written
    yet."""
    for samples in (262_144, 262_144 + 65_536):
        size, tier = samples * 128**3 * 4 * 2 / 8, tier_of(CORI, samples * 128**3 * 4 * 2, 8)
        assert tier.name == "node-local storage"
        value, low, high = staging_seconds(CORI, size, 8, tier)
        assert low < 16.49 * 60 < high and low < value < high
        assert value >= size / 0.6e9


def test_staging_is_at_best_done_when_memory_holds_the_rest():
    """900 GB to a device of 0.1 GB/s: 64 GB may still be dirty pages when the copying ends. A bound: by default
    Linux keeps 20% of memory dirty (vm.dirty_ratio)."""
    text = f"""{WORKSTATION.replace("nodes = 1", "nodes = 8")}[host]
memory = {{ value = "64 GB", source = "x" }}

[storage]
local = {{ value = "1 TB", source = "x" }}
local_write = {{ value = "0.1 GB/s", source = "x" }}
shared_read = {{ value = "100 GB/s", source = "x" }}
"""
    slow = parse(text, "mine.toml", "mine")
    value, low, high = staging_seconds(slow, 900e9, 1, tier_of(slow, 900e9, 1))
    assert (value, low) == (pytest.approx(9000), pytest.approx(8360))
    assert high > value


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


def test_a_shared_file_system_holds_the_data_set_once_for_all_nodes():
    """1 TB: 0.9 TB fit and 1.1 TB are refused, on any number of nodes whose memory holds neither."""
    text = f"""{WORKSTATION.replace("nodes = 1", "nodes = 8")}[host]
memory = {{ value = "64 GB", source = "x" }}

[storage]
shared = {{ value = "1 TB", source = "x" }}
"""
    cluster = parse(text, "mine.toml", "mine")
    for nodes in (1, 4, 8):
        assert tier_of(cluster, 0.9e12, nodes).name == "shared file system"
        with pytest.raises(UserError, match=r"mine.toml, line 16: .*larger than every tier of mine.*smaller"):
            tier_of(cluster, 1.1e12, nodes)


def test_a_machine_without_any_tier_is_refused_with_a_line():
    text = f"""{WORKSTATION}[links]
host = {{ value = "16 GB/s", source = "x" }}
"""
    with pytest.raises(UserError, match=r"mine.toml, line 13: no storage to read from; add host"):
        tier_of(parse(text, "mine.toml", "mine"), 1e9, 1)


def test_sizes_of_samples():
    """Ibrahim et al. 2021, table II: 16, 27 and 0.144 MiB as 16-bit and 8-bit values."""
    for name, width, expected in (("cosmoflow", 2, 16), ("deepcam", 2, 27), ("resnet50", 1, 0.144)):
        values = 1
        for size in load(name, "closed").data.sample_shape:
            values *= size
        assert values * width / MIB == pytest.approx(expected, rel=5e-3)
