"""Whole predictions: parts that add up, papers' trends, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mlhpc.benchmarks.load import load
from mlhpc.common.pages.blocks import Table
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.memory import memory_of
from mlhpc.perf.machines import machine
from mlhpc.perf.parts import parts
from mlhpc.perf.prediction.model import Model, best, enlarged, predict, with_batch
from mlhpc.perf.prediction.page import time_to_train
from mlhpc.perf.published import published
from mlhpc.perf.scaling import Estimate
from mlhpc.perf.spatial import divide

MIXED = ["training.precision=mixed_float16"]
SMALL = ["data.train_samples=4096", "hyperparameters.global_batch_size=64"]


def test_the_parts_add_up_to_the_time_to_train():
    p = predict(machine("perlmutter"), load("cosmoflow", "closed-512", MIXED), 128)
    assert sum(p.step.named.values()) == pytest.approx(p.step_s.value)
    steps = 524_288 // 512
    assert p.train_s[0] == pytest.approx(steps * p.step_s.value)
    assert p.total_s[0] == pytest.approx(p.staging_s[0] + p.epoch_s[0] * p.epochs.value + p.extra_s[0])
    assert p.total_s[1] < p.total_s[0] < p.total_s[2]
    assert p.samples_per_s[0] == pytest.approx(1 / p.step_s.value)


@pytest.mark.parametrize(
    ("benchmark", "settings", "evaluations"),
    [
        ("resnet50", ["training.epochs_between_evals=8", "division=open"], 1 / 8),
        # 121 266 // 2048 = 59 steps
        ("deepcam", ["training.eval_steps=25", "hyperparameters.global_batch_size=2048", "division=open"], 3),
        ("cosmoflow", ["division=open"], 1),
    ],
)
def test_an_epoch_has_the_evaluations_that_the_settings_ask_for(benchmark, settings, evaluations):
    """The seconds of one are those of its samples, at the cost per sample of the published sets."""
    p = predict(machine("perlmutter"), load(benchmark, "closed", settings), 64)
    data = p.run.data
    one = p.train_s[0] * parts().evaluation[0] * data.eval_samples / data.train_samples
    assert p.eval_s[0] == pytest.approx(evaluations * one)
    assert p.epoch_s[0] == pytest.approx(p.train_s[0] + evaluations * one)


PLAIN = ["data.gzip=false", "division=open", *MIXED]
SHARDS = ["staging.mode=shard", *PLAIN]
EXCHANGED = ["staging.exchange=true", *SHARDS]


def test_an_exchange_of_shards_is_what_a_network_card_carries_between_epochs():
    """524 288 = 2^19 samples of 2^24 bytes are 64 GiB on each of 128 nodes, of which 1/128, 0.5 GiB, stays: 63.5
    GiB at 25 GB/s of one card are 2.7273 s, before every epoch but the first."""
    perlmutter = machine("perlmutter")
    stays, moves = (predict(perlmutter, load("cosmoflow", "closed-512", s), 128) for s in (SHARDS, EXCHANGED))
    more = 2.7273 * (moves.epochs.value - 1)
    assert moves.extra_s[0] - stays.extra_s[0] == pytest.approx(more, rel=1e-4)
    assert moves.total_s[0] - stays.total_s[0] == pytest.approx(more, rel=1e-4)
    (note,) = (note for note in moves.notes if note.startswith("nodes exchange their shards: "))
    assert note.startswith("nodes exchange their shards: 8.73 TB before an epoch, ")
    alone = predict(perlmutter, load("cosmoflow", "closed-512", [*EXCHANGED, *SMALL]), 1)
    assert not any("exchange their shards" in note for note in alone.notes)


def test_more_epochs_are_more_exchanges_at_both_ends_of_the_interval():
    models = [Model(machine("perlmutter"), load("cosmoflow", "closed-512", s)) for s in (SHARDS, EXCHANGED)]
    for model in models:
        model.epochs = Estimate(11, 6, 31, "by hand")
    stays, moves = (model.at(128).extra_s for model in models)
    middle, low, high = np.subtract(moves, stays)
    assert middle == pytest.approx(27.273, rel=1e-4)
    assert 0 < low < middle < high


def test_nothing_is_exchanged_where_nothing_is_staged():
    """8 nodes of Fugaku have no room for the data set, which is read from the shared file system."""
    runs = [load("cosmoflow", "closed-512", s) for s in (SHARDS, EXCHANGED)]
    stays, moves = (predict(machine("fugaku"), run, 8) for run in runs)
    assert moves.tier.name == "shared file system" and moves.staging_s == (0.0, 0.0, 0.0)
    assert (moves.extra_s, moves.notes) == (stays.extra_s, stays.notes)
    unstaged = Model(machine("perlmutter"), runs[1], staged=False).at(128)
    assert not any("exchange their shards" in note for note in unstaged.notes)


def test_data_that_is_not_staged_is_shuffled_over_all_nodes_unless_they_have_fixed_shares():
    """836 GB on four nodes of 384 GB: each could hold its quarter, but reads other samples in every epoch."""
    cori, run = machine("cori-gpu"), load("cosmoflow", "v07", IBRAHIM_2021)
    assert Model(cori, run, staged=False).at(4).tier.name == "shared file system"
    assert Model(cori, run, staged=False, scope="node").at(4).tier.name == "host memory"


@pytest.mark.parametrize("shared", [10e9, 120e9, 10e12])
def test_reading_in_without_staging_is_in_the_time_to_train_once(shared):
    """Memory holds the set of 524 288 files of 2 828 486 bytes after the first epoch, which a slow file system
    makes longer. Of published runs, that is in what they spend beside their epochs, T_extra."""
    perlmutter = machine("perlmutter")
    run = load("cosmoflow", "closed-512", MIXED)

    def unstaged(rate):
        figures = {**perlmutter.figures, "host.memory": 4e12, "storage.shared_read": rate}
        return Model(replace(perlmutter, figures=figures), run, staged=False).at(128)

    p, rest = unstaged(shared), unstaged(10e12).extra_s[0]
    longer = max(0.0, 524_288 * 2_828_486 / shared - p.train_s[0])
    assert p.staging_s[0] == pytest.approx(longer)
    assert p.total_s[0] == pytest.approx(p.epoch_s[0] * p.epochs.value + max(longer, rest))
    assert (longer > rest > 0) is (shared == 10e9) and (longer == 0) is (shared == 10e12)


def test_perlmutter_reached_a_rate_and_a_time_within_the_interval():
    """MLPerf HPC 1.0, LBNL: 512 A100 an instance, 53.4 samples/s per accelerator, about 14.7 min (fitted to).
    Each node had its share of the data in memory."""
    run = load("cosmoflow", "closed-512", ["staging.mode=shard", *MIXED])
    p = Model(machine("perlmutter"), run, generation="MXNet NGC 2021").at(128)
    assert p.samples_per_s[1] < 53.394 < p.samples_per_s[2]
    assert p.samples_per_s[0] == pytest.approx(53.394, rel=0.15)
    assert p.total_s[1] < 14.7 * 60 < p.total_s[2]


def test_spatial_parallelism_of_fugaku():
    """Farrell et al. 2021, section 4.2.1: 2.62 times the throughput on 16 times the nodes (4x4, not fitted
    to), 1.98 on 4 (4x1, fitted to), both within 20%."""
    fugaku = machine("fugaku")
    closed = Model(
        fugaku,
        load("cosmoflow", "v07", ["staging.mode=shard", "hyperparameters.global_batch_size=512"]),
        generation="TensorFlow Mesh 2020",
    )
    one, sixteen = closed.at(512), closed.at(8192)
    assert sixteen.parts == 16
    assert one.step_s.value / sixteen.step_s.value == pytest.approx(2.62, rel=0.2)
    opened = Model(
        fugaku,
        load("cosmoflow", "v07", ["staging.mode=shard", "hyperparameters.global_batch_size=4096"]),
        generation="TensorFlow Mesh 2020",
    )
    assert opened.at(4096).step_s.value / opened.at(16384).step_s.value == pytest.approx(1.98, rel=0.2)
    assert sixteen.step.halo < 0.1 * sixteen.step_s.value  # latency-bound and small, as the facts say


def test_memory_on_processors_is_that_of_the_cpu_kernels():
    """A quarter of the plain network's, which they keep where they do not compute: compiled, and on slabs."""
    chosen = ["training.framework=pytorch", "hyperparameters.global_batch_size=64"]
    own, plain = (
        predict(machine("fugaku"), load("cosmoflow", "closed", [*chosen, *changed]), 64)
        for changed in ([], ["training.cpu_kernels=false"])
    )
    on_gpus = memory_of(load("cosmoflow", "closed", chosen), 1).peak  # which have their own kernels too
    assert own.memory < 0.6 * plain.memory and on_gpus < 0.7 * plain.memory
    compiled = load("cosmoflow", "closed", [*chosen, "training.compile=true"])
    assert predict(machine("fugaku"), compiled, 64).memory == plain.memory
    divided = [load("cosmoflow", "closed", [*chosen, "training.spatial=[8,1,1]", f"training.cpu_kernels={used}"])
               for used in ("true", "false")]  # fmt: skip
    own, plain = (predict(machine("fugaku"), run, 512) for run in divided)
    assert own.memory == plain.memory
    assert own.spatial.saved_bytes < plain.spatial.saved_bytes  # of the blocks after the slabs are gathered
    assert own.spatial.halo_bytes == plain.spatial.halo_bytes


IBRAHIM_2021 = [
    "data.eval_samples=8",
    "staging.mode=shard",
    "data.train_samples=49152",
    "data.gzip=false",
    "hyperparameters.global_batch_size=64",
]


def cosmoflow_of_ibrahim_2021():
    return load("cosmoflow", "v07", IBRAHIM_2021)


def test_strong_scaling_is_never_faster_than_its_parts_allow_and_weak_keeps_the_step():
    run = load("deepcam", "closed-1024", MIXED)
    strong = [p for p in Model(machine("dgx-a100"), run).over_nodes() if p.parts == 1]
    assert len(strong) >= 4
    for a, b in pairwise(strong):
        assert 0.9 < a.step_s.value / b.step_s.value <= 2.0
    steps = [p.step_s.value for p in Model(machine("dgx-a100"), run).weak(2, (1, 16, 256))]
    assert len(steps) == 3 and max(steps) / min(steps) < 1.1


def test_a_slow_shared_file_system_binds_in_words():
    p = Model(machine("cori-gpu"), cosmoflow_of_ibrahim_2021(), staged=False).at(1)
    assert p.bound == "waiting for input"
    assert "the input path limits" in p.binding and "shared file system" in p.binding


def test_a_hundred_thousand_accelerators():
    p = predict(machine("dgx-h100"), with_batch(load("deepcam", "closed-2048", MIXED), 100_000), 12_500)
    assert p.accelerators == 100_000
    assert p.step.reduce.algorithm != "ring"


def test_the_best_is_the_shortest_of_all():
    runs = [load("deepcam", name, MIXED) for name in ("closed-256", "closed-1024")]
    models = [Model(machine("perlmutter"), run) for run in runs]
    shortest = best(models)
    every = [p for model in models for p in model.over_nodes() if p.parts == 1]
    assert shortest.total_s[0] == min(p.total_s[0] for p in every)


@pytest.mark.parametrize(
    ("benchmark", "preset", "settings", "nodes", "says"),
    [
        ("cosmoflow", "closed-512", [], 3, "must be a multiple of"),
        ("cosmoflow", "closed-64", [], 512, "at most 16, can share"),
        ("deepcam", "closed-2048", [], 1, r"perlmutter.toml, line \d+: a local batch of 512 needs"),
        ("cosmoflow", "closed-512", [], 4096, r"line \d+: 4096 nodes requested, but"),
    ],
)
def test_what_cannot_be_is_one_line(benchmark, preset, settings, nodes, says):
    with pytest.raises(UserError, match=says) as refused:
        predict(machine("perlmutter"), load(benchmark, preset, settings), nodes)
    assert "\n" not in str(refused.value)


def test_the_largest_batch_that_is_named_fits():
    with pytest.raises(UserError, match=r"the largest that fits is (\d+)") as refused:
        predict(machine("perlmutter"), load("deepcam", "closed-2048"), 1)
    largest = int(str(refused.value).partition("fits is ")[2].partition(";")[0])
    run = with_batch(load("deepcam", "closed-2048"), 4 * largest)
    assert predict(machine("perlmutter"), run, 1).local_batch_size == largest
    with pytest.raises(UserError):
        predict(machine("perlmutter"), with_batch(run, 4 * (largest + 1)), 1)


def test_a_preset_without_convergence_has_no_time_to_train():
    p = predict(machine("dgx-a100"), load("cosmoflow", "smoke"), 1)
    assert p.total_s is None and p.epochs is None and p.step_s.value > 0


@pytest.mark.parametrize(
    ("benchmark", "setting"),
    [
        ("resnet50", "network.name=lenet"),
        ("deepcam", "network.width=0.5"),
        ("cosmoflow", "data.train_samples=65536"),
        ("cosmoflow", "data.sample_shape=[64,64,64,4]"),
        ("resnet50", "target.value=0.7"),
    ],
)
def test_another_network_target_or_less_data_has_no_published_epochs(benchmark, setting):
    """The reference convergence points are of the benchmark's own network, data and target."""
    node = machine("dgx-a100")
    assert predict(node, load(benchmark, "closed"), 4).total_s is not None
    p = predict(node, load(benchmark, "closed", [setting]), 4)
    assert (p.epochs, p.total_s) == (None, None) and p.epoch_s[0] > 0


def test_other_precision_than_the_published_is_said_to_be_extrapolated():
    a100 = machine("perlmutter")
    slow, fast = (predict(a100, load("cosmoflow", "closed-512", s), 128) for s in ([], MIXED))
    assert any("extrapolated" in note for note in slow.notes)
    assert not any("extrapolated" in note for note in fast.notes)
    assert slow.step_s.low <= fast.step_s.value <= slow.step_s.high


def test_published_sets_are_named_and_compared_with_the_interval_of_their_size():
    """On Perlmutter's page: each set of the family by name, and whether it is inside."""
    run = load("cosmoflow", "closed-512")
    predictions = list(Model(machine("perlmutter"), run).over_nodes())
    section = time_to_train(predictions)
    (shown,) = [block for block in section.blocks if isinstance(block, Table)]
    expected = {}
    for row in published():
        if row.benchmark == "cosmoflow" and row.total_s and row.machine.family == "A100":
            (p,) = [p for p in predictions if p.accelerators == row.accelerators] or [None]
            _, low, high = p.total_s if p else (0, 0, 0)
            place = "above it" if row.total_s > high else "below it" if row.total_s < low else "inside"
            expected[row.name] = place if p else "not predicted at this size"
    assert {cells[0].text: cells[4].text for cells in shown.rows} == expected
    places = list(expected.values())
    assert (
        f"{places.count('inside')} are inside the interval, {places.count('above it')} above" in section.about
    )


def test_an_efficiency_of_other_sets_says_of_which_layers_there_are_none():
    """A64FX has sets of 3-D convolutions, none of 2-D; V100 has both, none of them of MXNet."""
    prediction = predict(machine("fugaku"), load("resnet50", "closed"), 64)
    assert any("no published result of 2-D convolutions on A64FX" in note for note in prediction.notes)
    other = Model(machine("cori-gpu"), load("cosmoflow", "closed-512"), generation="MXNet 2021").at(8)
    assert any(
        "the software is of a different round than the published sets on V100" in note for note in other.notes
    )


def test_accumulated_gradients_need_the_memory_of_a_pass_and_launch_every_layer_in_each():
    """Four backward passes of 128 images fit where one of 512 does not; exchange and update stay once."""
    one, four = (
        load("resnet50", "closed", [f"hyperparameters.gradient_accumulation_steps={passes}", "division=open",
                                    "hyperparameters.global_batch_size=4096"])
        for passes in (1, 4)
    )  # fmt: skip
    node = machine("cori-gpu")
    with pytest.raises(UserError, match="a local batch of 512 needs"):
        predict(node, one, 1)
    p, whole = predict(node, four, 1), Model(node, one)
    whole.fits.require = lambda local, together: None
    q = whole.at(1)
    assert p.local_batch_size == 512
    assert (p.step.compute, p.step.reduce) == (q.step.compute, q.step.reduce)
    assert p.step.launch == pytest.approx(4 * q.step.launch)
    # A pass has 513 launches of 4 us, and two copies of 5 us.
    assert predict(machine("dgx-a100"), four, 1).step.host[0] == pytest.approx(4 * (453 * 4e-6 + 2 * 5e-6))
    with pytest.raises(UserError, match="the local batch of 2 must be a multiple of the 4 backward passes"):
        predict(machine("perlmutter"), with_batch(four, 2048), 256)


def test_how_a_batch_is_divided():
    assert divide(512, 128) == (1, 4)
    assert divide(512, 512) == (1, 1)
    assert divide(512, 8192) == (16, 1)


def preparing(rate):
    """Cori GPU, 40 cores, with a rate of preparation a core in bytes/s of samples as delivered."""
    cori = machine("cori-gpu")
    return replace(cori, figures={**cori.figures, "preparation.cosmoflow": rate})


def test_preparing_samples_on_the_host_binds_in_words():
    """Ibrahim et al. 2021, section V-D: CosmoFlow's steps wait for preprocessing on the host, staged or not.
    A sample is 128³ x 4 numbers in int16, 64 of them a step, on 40 cores; its four targets are 16 bytes
    more."""
    slow = predict(preparing(20e6), cosmoflow_of_ibrahim_2021(), 1)
    assert slow.step.seconds == pytest.approx(64 * 128**3 * 4 * 2 / (40 * 20e6), rel=1e-5)
    assert slow.bound == "waiting for input"
    assert slow.binding.endswith("samples/s, prepared on the host")
    twice = predict(preparing(40e6), cosmoflow_of_ibrahim_2021(), 1)
    assert slow.step.seconds / twice.step.seconds == pytest.approx(2)
    floats = load("cosmoflow", "v07", ["loading.sample_dtype=float32", *IBRAHIM_2021])
    assert predict(preparing(20e6), floats, 1).step.seconds / slow.step.seconds == pytest.approx(2, rel=1e-5)


def test_fast_preparation_and_none_declared_change_nothing():
    fast = predict(preparing(100e9), cosmoflow_of_ibrahim_2021(), 1)
    assert fast.step.seconds == predict(machine("cori-gpu"), cosmoflow_of_ibrahim_2021(), 1).step.seconds


@pytest.mark.parametrize("name", ["perlmutter", "horeka", "fugaku"])
def test_what_to_enlarge_is_what_a_machine_file_with_that_figure_gives(name):
    """Half of the latency and twice of everything else; more capacity may make staging possible where it does not
    pay, and then stays unused."""
    model = Model(machine(name), load("deepcam", "closed", MIXED))
    before = model.at(16).total_s[0]
    rows = enlarged(model, 16)
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)
    assert all(row.seconds <= before * (1 + 1e-9) for row in rows)
    assert dict(rows)["nodes"] == model.at(32).total_s[0] < before
    for key in ("accelerator.bandwidth", "network.bandwidth", "network.latency"):
        figures = model.machine.figures
        changed = replace(
            model.machine, figures={**figures, key: figures[key] * (0.5 if "latency" in key else 2)}
        )
        assert dict(rows)[key] == predict(changed, model.run, 16).total_s[0]
