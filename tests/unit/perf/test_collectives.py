"""All-reduce, parameter servers and halos, against what papers measured and slow obvious counts."""

import numpy as np
import pytest

from mlhpc.benchmarks.load import load
from mlhpc.errors import UserError
from mlhpc.perf.collectives import all_reduce, parameter_servers, ring, tree
from mlhpc.perf.machines import machine
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.spatial import halo, splits_of

RESNET50_BYTES = 25_557_032 * 4


def test_a_ring_moves_two_gradients_less_what_a_rank_keeps():
    """2·M·(N−1)/(N·B), by counting the messages of a ring: N−1 to reduce, N−1 to gather, M/N bytes each."""
    for ranks in (2, 3, 8, 512):
        steps = [1e9 / ranks / 1e10 for _ in range(ranks - 1)] * 2
        assert ring(1e9, ranks, 1e10) == pytest.approx(sum(steps))


def test_parameter_servers_of_han_2019_saturate_near_four():
    """Figure 9: 16 workers over 12.5 GB/s; 2·M·W/(P·B) = 261 ms with one server (binary or decimal), and hardly
    any gain beyond 4: the ring needs 15 ms, compute hides the rest."""
    one = parameter_servers(RESNET50_BYTES, 16, 1, 12.5e9)
    assert one == pytest.approx(0.2617, rel=1e-3)
    four = parameter_servers(RESNET50_BYTES, 16, 4, 12.5e9)
    assert one / four == pytest.approx(4)
    assert parameter_servers(RESNET50_BYTES, 16, 1000, 12.5e9) == pytest.approx(2 * RESNET50_BYTES / 12.5e9)
    assert ring(RESNET50_BYTES, 16, 12.5e9) == pytest.approx(2 * RESNET50_BYTES * 15 / 16 / 12.5e9)


def test_one_rank_and_one_node_need_no_network():
    assert all_reduce(machine("dell-xe8545"), 1e8, 1, 1).seconds == 0
    assert all_reduce(machine("dell-xe8545"), 1e8, 1, 4).seconds > 0
    with pytest.raises(UserError, match=r"dell-xe8545.toml, line \d+: network.bandwidth is missing"):
        all_reduce(machine("dell-xe8545"), 1e8, 2, 4)


def test_the_fastest_algorithm_is_taken_and_rings_do_not_scale_for_ever():
    large = all_reduce(machine("dgx-a100"), 22.4e6, 12_500, 8)
    assert large.seconds == min(large.by_algorithm.values())
    assert large.by_algorithm["ring"] > 100 * large.by_algorithm["tree"]
    assert tree(1e6, 1024, 1e9, 1e-6) == pytest.approx(2 * (10 * 1e-6 + 1e-3))


@pytest.mark.parametrize(
    ("name", "ranks", "size", "rate"), [("abci", 512, 19.97e6, 3.41e9), ("fugaku", 512, 21.71e6, 0.75e9)]
)
def test_measured_rates_of_farrell_2021_table_8_are_lower_than_the_links(name, ranks, size, rate):
    named = machine(name)
    reduced = all_reduce(named, size, ranks // named.per_node, named.per_node)
    assert reduced.bound == "measured rate"
    assert size / reduced.seconds == pytest.approx(rate)


@pytest.mark.parametrize(("splits", "megabytes"), [((4,), 1.25), ((4, 4), 0.69)])
def test_halos_of_cosmoflow(splits, megabytes):
    """Forward halo of a rank and sample in 16 bits: 1.25 MB for 4 slabs, 0.69 MB for 4x4."""
    network = network_of(load("cosmoflow", "closed"))
    assert halo(network, splits, 3).elements * 2 / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_a_halo_is_what_a_padded_part_has_beyond_the_part():
    """Slow count on arrays: an inner part of 4x2 with one plane around it, less the part itself."""
    network = network_of(
        load("cosmoflow", "closed", ["data.sample_shape=[32,32,32,4]", "network.conv_layers=2"])
    )
    counted = 0
    for layer in [layer for layer in network if layer.kind == "convolution"]:
        *space, channels = layer.inputs[0]
        part = np.zeros((space[0] // 4, space[1] // 2, space[2], channels))
        counted += np.pad(part, ((1, 1), (1, 1), (0, 0), (0, 0))).size - part.size
    assert halo(network, (4, 2), 3).elements == counted


def test_how_a_sample_is_divided():
    assert [splits_of(parts, 3) for parts in (1, 2, 4, 8, 16)] == [(1,), (2,), (4,), (4, 2), (4, 4)]
