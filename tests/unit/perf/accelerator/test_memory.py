"""Memory by batch: what fits, and the figures of Ibrahim et al. 2021 by their counting rules."""

import math

import pytest
from helpers.ibrahim2021_counts import PAPER_ACTIVATIONS_GIB, PAPER_RULES, paper_activations, paper_memory

from mlhpc.benchmarks.load import load
from mlhpc.perf.accelerator.memory import largest_batch, memory_of, power_of_two
from mlhpc.perf.networks import cosmoflow
from mlhpc.perf.networks.registry import network_of

GIB = 2**30


def paper_network(benchmark):
    run = load(benchmark, "closed")
    if benchmark == "cosmoflow":
        return cosmoflow.layers(run.network, run.data.sample_shape, pool_first=False)
    return network_of(run)


# Tolerances: the printed figures have two digits. DeepCAM's rule stays 5% below: its copies with zeros around them
# (0.53 GiB) would lift it 13% above.
@pytest.mark.parametrize(
    ("benchmark", "tolerance"), [("cosmoflow", 0.007), ("deepcam", 0.06), ("resnet50", 0.02)]
)
def test_activation_memory_of_ibrahim_2021_by_its_rule(benchmark, tolerance):
    counted = paper_activations(paper_network(benchmark), PAPER_RULES[benchmark]) / GIB
    assert counted == pytest.approx(PAPER_ACTIVATIONS_GIB[benchmark], rel=tolerance)


@pytest.mark.parametrize("rule", PAPER_RULES)
def test_no_single_rule_gives_all_three(rule):
    counted = {
        name: paper_activations(paper_network(name), PAPER_RULES[rule]) / GIB / PAPER_ACTIVATIONS_GIB[name]
        for name in PAPER_RULES
    }
    assert any(abs(ratio - 1) > 0.15 for ratio in counted.values())


# Ibrahim et al. 2021, section IV and the batch sizes of figures 5 to 8, with sample sizes of Table II.
@pytest.mark.parametrize(
    ("benchmark", "sample_mib", "expected"),
    [("cosmoflow", 16, 16), ("deepcam", 27, 4), ("resnet50", 0.14, 256)],
)
def test_largest_power_of_two_in_16_gb(benchmark, sample_mib, expected):
    network = paper_network(benchmark)
    activations = PAPER_ACTIVATIONS_GIB[benchmark] * GIB

    def needed(batch):
        return paper_memory(network, batch, activations, sample_bytes=sample_mib * 2**20)

    assert power_of_two(largest_batch(needed, 16e9)) == expected


def test_largest_batch_is_the_last_that_fits():
    run = load("deepcam", "mini")
    capacity = 4e9
    batch = largest_batch(lambda n: memory_of(run, n).peak, capacity)
    assert memory_of(run, batch).peak <= capacity < memory_of(run, batch + 1).peak


def test_no_batch_fits_where_a_sample_does_not():
    run = load("deepcam", "closed")
    assert largest_batch(lambda n: memory_of(run, n).peak, 2e9) == 0


@pytest.mark.parametrize(("batch", "expected"), [(1, 1), (2, 2), (3, 2), (63, 32), (64, 64)])
def test_power_of_two(batch, expected):
    assert power_of_two(batch) == expected


@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam", "resnet50"])
def test_16_bits_need_less_than_32_and_every_sample_more(benchmark):
    full = load(benchmark, "closed")
    half = load(benchmark, "closed", ["training.precision=mixed_bfloat16", "division=open"])
    assert memory_of(half, 4).peak < memory_of(full, 4).peak < memory_of(full, 5).peak


def test_cosmoflow_grows_eightfold_with_twice_the_side_and_deepcam_fourfold():
    """Ibrahim et al. 2021, section VII."""
    for benchmark, shape, factor in (("cosmoflow", [256, 256, 256, 4], 8), ("deepcam", [1536, 2304, 16], 4)):
        small = network_of(load(benchmark, "open"))
        large = network_of(load(benchmark, "open", [f"data.sample_shape={shape}"]))
        assert large.saved_bytes("float32") == pytest.approx(factor * small.saved_bytes("float32"), rel=0.01)


@pytest.mark.parametrize("benchmark, bytes_per_number", [("deepcam", 4), ("cosmoflow", 2)])
def test_a_captured_step_keeps_the_batch_that_it_reads_and_the_next(benchmark, bytes_per_number):
    """Two of the evaluation's, which are larger, instead of an eager step's own. They are of the delivered type:
    int16 counts of CosmoFlow, float32 fields of DeepCAM."""
    more = ["training.framework=pytorch"] if benchmark == "cosmoflow" else []
    eager, captured = (
        load(benchmark, "closed", [f"training.cuda_graphs={choice}", *more]) for choice in ("off", "on")
    )
    more = 2 * eager.training.eval_batch_size - 2
    batch = bytes_per_number * more * math.prod(eager.data.sample_shape)
    assert memory_of(captured, 2).peak - memory_of(eager, 2).peak == batch
    assert memory_of(captured, 2, gpu=False) == memory_of(eager, 2, gpu=False)
