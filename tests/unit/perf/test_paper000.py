"""Figures 5 to 9 of paper 000, on its machine: which of them the model reproduces, and which not.

One configuration for all: nodes with fixed shares of the data (section VI: "statically partition the total
training data among nodes") and next to nothing to evaluate, the GPUs' time of a sample from the paper itself
(table II's traffic at its sustained bandwidth), and epochs after the first. The paper does not say how many epochs
it averaged over; docs/performance_models.md has the other configurations. Of the machine two figures come from
elsewhere: the rate of Lustre from a submission that trained straight from it (paper 001), and the rate at which
the NVMe device writes from its specification.
"""

from dataclasses import replace

import pytest

from mlhpc.benchmarks.load import load
from mlhpc.perf.accelerator.paper000 import STRONG_SCALING, TABLE_II
from mlhpc.perf.machines import machine
from mlhpc.perf.prediction.model import Model
from mlhpc.perf.prediction.sweep import with_batch
from mlhpc.perf.tiers import cached_share

CORI = machine("cori-gpu")
MIXED = ["training.precision=mixed_float16", "division=open", "staging.mode=shard", "data.eval_samples=8"]
RUNS = {
    "cosmoflow": ("v07", ["data.gzip=false", f"data.train_samples={STRONG_SCALING['cosmoflow'].samples}"]),
    "deepcam": ("closed", [f"data.train_samples={STRONG_SCALING['deepcam'].samples}"]),
    "resnet50": ("closed", []),
}


def run_of(benchmark, local, nodes):
    preset, settings = RUNS[benchmark]
    return with_batch(load(benchmark, preset, [*MIXED, *settings]), 8 * local * nodes)


def at_table_ii(benchmark):
    """Cori GPU whose GPUs take as long for a sample as table II says."""
    model = Model(CORI, run_of(benchmark, 1, 1))
    share = model.roofline / TABLE_II[benchmark].seconds_per_sample
    key = f"efficiency.convolution_{model.kind[0]}d"
    return replace(CORI, figures={**CORI.figures, key: share}, sources={**CORI.sources, key: "table II"})


def predicted(cori, benchmark, local, nodes, *, staged):
    return Model(cori, run_of(benchmark, local, nodes), staged=staged, scope="node").at(nodes)


def lustre_over_nvme(benchmark, local, nodes):
    """Time of an epoch after the first, read from Lustre over staged to NVMe."""
    cori = at_table_ii(benchmark)
    unstaged, staged = (predicted(cori, benchmark, local, nodes, staged=s) for s in (False, True))
    return unstaged.train_s[0] / staged.train_s[0]


def test_the_rate_of_lustre_is_what_a_submission_without_staging_read():
    """Paper 001: DeepCAM on 8 nodes of Cori GPU took 139.29 min for 10 epochs of 121 266 samples (table 6), 36.3%
    of it in evaluation (4.1.2). At 3.56 samples/s a GPU the epochs take all the rest: nothing was staged."""
    training = (1 - 0.363) * 139.29 * 60
    assert pytest.approx(training, rel=5e-3) == 10 * 121_266 / (64 * 3.56)
    share = 121_266 * 61e6 / 8
    read = 10 * share * (1 - cached_share(share, 384e9)) / training
    assert CORI.figures["storage.shared_read_node"] == pytest.approx(read, rel=5e-3)


def test_memory_fit_makes_unstaged_scaling_superlinear():
    """Figure 8: an accelerator's time of a sample falls once memory holds a node's part, at four nodes."""
    one, four = (predicted(CORI, "cosmoflow", 8, n, staged=False).samples_per_s[0] for n in (1, 4))
    assert four > 3 * one


def test_figure_9_agrees():
    """DeepCAM from Lustre: "roughly 15%" longer on one node, "negligible" on four."""
    for nodes in (1, 4):
        paper = STRONG_SCALING["deepcam"].unstaged[nodes]
        assert lustre_over_nvme("deepcam", 2, nodes) == pytest.approx(paper, abs=0.07)


@pytest.mark.parametrize("local", [1, 4, 16])
def test_figure_8_disagrees(local):
    """CosmoFlow: "roughly 2x" on one node and "roughly 15%" on four; the model has 1.38 and nothing."""
    assert STRONG_SCALING["cosmoflow"].unstaged == {1: 2.0, 4: 1.15}
    assert lustre_over_nvme("cosmoflow", local, 1) == pytest.approx(1.38, abs=0.02)
    assert lustre_over_nvme("cosmoflow", local, 4) == pytest.approx(1.0, abs=0.01)


def test_figure_5_disagrees():
    """Up to 2.16 times by staging, and GPUs that work for 10% of the time; the model has 1.38 and 72%. That 10%
    contradicts table II: 541 ms a sample, when the same node copied and trained several times as fast for MLPerf
    (paper 001, tables 5 and 6)."""
    assert lustre_over_nvme("cosmoflow", 8, 1) == pytest.approx(1.38, abs=0.02)
    step = predicted(at_table_ii("cosmoflow"), "cosmoflow", 8, 1, staged=False).step
    assert step.compute / step.seconds == pytest.approx(0.72, abs=0.01)
    a_sample = TABLE_II["cosmoflow"].seconds_per_sample / 0.10
    assert a_sample == pytest.approx(0.541, rel=1e-2)
    assert 8 * 128**3 * 4 * 2 / a_sample < 0.5 * CORI.figures["storage.local_write"]
    assert 12.07 * a_sample > 6


def test_figure_5_has_no_gain_from_batching_here():
    """The paper's 29% from a batch of one to two is "likely" the host's threads, of which no rate is known."""
    one, two = (Model(CORI, run_of("cosmoflow", b, 1), staged=False).at(1).samples_per_s[0] for b in (1, 2))
    assert two == pytest.approx(one, rel=1e-6)


def test_figure_7_agrees_at_a_batch_of_two_only():
    """ "Up to 20%" at a batch of two, nothing at four; the model has 9 to 10% at both."""
    assert 1.0 < lustre_over_nvme("deepcam", 2, 1) < 1.2
    assert lustre_over_nvme("deepcam", 4, 1) == pytest.approx(1.1, abs=0.01)


def test_doubling_the_batch_from_lustre_stays_within_figure_7s_bound():
    """ "Up to 1.6x" is a bound, which the model keeps: reading costs a sample the same in any batch."""
    cori = at_table_ii("deepcam")
    one, two, four = (predicted(cori, "deepcam", b, 1, staged=False).samples_per_s[0] for b in (1, 2, 4))
    assert 1.0 <= two / one < 1.6 and 1.0 <= four / two < 1.6


def test_figures_8_and_9_agree_with_each_other_if_a_file_costs_time_of_its_own():
    """Section VI's own reason for CosmoFlow's factor: many small files. On one node both factors hold, with table
    II's times of a sample, if Lustre gives the node a file every 6.0 ms and 1.75 GB/s; a submission's DeepCAM read
    as fast as that within 5%. No such figure is published, so the machine file has none."""
    sizes = {"cosmoflow": 128**3 * 4 * 2, "deepcam": 61e6}
    seconds = {}  # of a file, where the factor is the time of reading over that of the GPUs
    for name, size in sizes.items():
        paper = STRONG_SCALING[name]
        read = 1 - cached_share(paper.samples * size, CORI.figures["host.memory"])
        seconds[name] = paper.unstaged[1] * TABLE_II[name].seconds_per_sample / CORI.per_node / read
    bandwidth = (sizes["deepcam"] - sizes["cosmoflow"]) / (seconds["deepcam"] - seconds["cosmoflow"])
    of_a_file = seconds["deepcam"] - sizes["deepcam"] / bandwidth
    assert (bandwidth, of_a_file) == (pytest.approx(1.75e9, rel=0.01), pytest.approx(6.0e-3, rel=0.01))
    assert sizes["deepcam"] / seconds["deepcam"] == pytest.approx(
        CORI.figures["storage.shared_read_node"], rel=0.05
    )


def gains(step):
    """Times by which a sample gets shorter: from a batch of 1 to 2, 1 to 256 and 128 to 256."""
    a_sample = {b: step(b) / b for b in (1, 2, 128, 256)}
    return a_sample[1] / a_sample[2], a_sample[1] / a_sample[256], a_sample[128] / a_sample[256]


def test_figure_6_takes_a_cost_of_a_step_that_the_model_does_not_have():
    """50 times at a batch of 256 means that a step costs what 61 samples cost, whatever its batch; the paper's two
    other figures, an initial 2 times and 20% from 128 to 256, follow from that. The model's launches and
    all-reduce are worth four samples: a gain of 5 in all."""
    fixed = (50 - 1) / (1 - 50 / 256)  # (f + 1) / (f / 256 + 1) = 50
    assert fixed == pytest.approx(61, abs=0.5)
    assert gains(lambda b: fixed + b) == (
        pytest.approx(2, rel=0.02),
        pytest.approx(50),
        pytest.approx(1.2, rel=0.01),
    )
    model = gains(lambda b: Model(CORI, run_of("resnet50", b, 1)).at(1).step.seconds)
    assert model == (pytest.approx(1.67, rel=0.02), pytest.approx(5, rel=0.02), pytest.approx(1.02, abs=0.01))
