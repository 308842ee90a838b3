"""What staging moves and where the data then lies, by staging.mode: on every node, in shards, or not staged."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.thread_world import on_ranks

from mlhpc.benchmarks.load import load
from mlhpc.common.data.manifest import File, index
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.plan import plan
from mlhpc.common.staging.stage import stage
from mlhpc.errors import UserError
from mlhpc.perf.machines import machine, parse
from mlhpc.perf.prediction.command import notes_of
from mlhpc.perf.prediction.model import Model, predict

MIXED = ["training.precision=mixed_float16"]
WAYS = {
    "replicate": ["staging.mode=replicate"],
    "replicate, read once": ["staging.mode=replicate", "staging.read_once=true"],
    "shard": ["staging.mode=shard"],
    "shard, read once": ["staging.mode=shard", "staging.read_once=true"],
}
SAMPLE = 32**3 * 4 * 2
TRAIN, WHOLE = 900_000 * SAMPLE, 1_000_000 * SAMPLE
"""236 and 262 GB."""


def cluster(*, nodes=8, per_node=1, memory="64 GB", local="1 TB", network="10 GB/s", shared="0.8 GB/s"):
    figures = {
        "host": {"memory": memory},
        "links": {"host": "16 GB/s"},
        "network": {"bandwidth": network, "latency": "4 us"},
        "storage": {"local": local, "shared_read": shared, "shared_read_node": "0.2 GB/s"},
    }
    lines = []
    for table, of in figures.items():
        lines.append(f"[{table}]")
        lines += [f'{key} = {{ value = "{value}", source = "x" }}' for key, value in of.items() if value]
    tables = "\n".join(lines)
    text = f"""title = "mine"
nodes = {nodes}
[accelerator]
model = "X"
family = "V100"
per_node = {per_node}
float32 = {{ value = "15.7 TFLOP/s", source = "x" }}
memory = {{ value = "16 GB", source = "x" }}
bandwidth = {{ value = "900 GB/s", source = "x" }}
{tables}"""
    return parse(text, "mine.toml", "mine")


def run_of(*settings, train=900_000, evaluation=100_000, batch=16):
    sizes = [f"data.train_samples={train}", f"data.eval_samples={evaluation}", "data.gzip=false"]
    shape = "data.sample_shape=[32,32,32,4]"
    return load(
        "cosmoflow", "smoke", [*sizes, shape, f"hyperparameters.global_batch_size={batch}", *settings]
    )


REPLICATE, SHARD = run_of(), run_of("staging.mode=shard")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_a_prediction_counts_the_bytes_of_data_plan(way, nodes):
    """Which divides the files one by one, with the functions that staging itself uses."""
    run = run_of(*WAYS[way], train=48, evaluation=16)
    folders = {"train": 48, "validation": 16}
    files = [File(f"{folder}/{i:02}", SAMPLE) for folder, count in folders.items() for i in range(count)]
    planned = plan(files, nodes, run.staging.mode, read_once=run.staging.read_once)
    moved = predict(cluster(), run, nodes).moved
    assert set(planned.held) == {moved.held}
    assert (moved.source, moved.sent) == (planned.read.sum(), planned.sent)


@pytest.mark.parametrize("way", WAYS)
def test_a_prediction_counts_the_bytes_that_two_nodes_really_read(tmp_path, way):
    run = run_of(*WAYS[way], train=6, evaluation=2, batch=2)
    for folder, count in (("train", 6), ("validation", 2)):
        (tmp_path / "source" / folder).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "source" / folder / f"{i}").write_bytes(np.random.default_rng(i).bytes(SAMPLE))
    manifest = index(tmp_path / "source", {}, Solo(), workers=1)

    def work(world):
        target = tmp_path / f"node{world.node}"
        return stage(manifest, target, world, run.staging.mode, read_once=run.staging.read_once)

    report = on_ranks(2, 1, work)[0]
    moved = predict(cluster(), run, 2).moved
    assert moved.source == report.source_bytes
    assert moved.sent == report.bytes - report.source_bytes
    for node in range(2):
        files = [path for path in (tmp_path / f"node{node}").glob("*/*") if path.is_file()]
        assert moved.held == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize(
    ("run", "nodes", "network", "seconds"),
    [
        # 0.8 GB/s of the file system are 0.1 GB/s for each of 8 nodes, which is less than published sets reached.
        (SHARD, 8, "10 GB/s", 262.144 / 8 / 0.1),
        (REPLICATE, 8, "10 GB/s", 262.144 / 0.1),
        (run_of(*WAYS["replicate, read once"]), 8, "10 GB/s", 262.144 / 8 / 0.1),
        (run_of(*WAYS["replicate, read once"]), 8, "0.05 GB/s", 262.144 * 7 / 8 / 0.05),
        # Of two nodes each reads 0.2 GB/s at most, however much the file system has.
        (SHARD, 2, "10 GB/s", 262.144 / 2 / 0.2),
        (REPLICATE, 2, "10 GB/s", 262.144 / 0.2),
        (REPLICATE, 1, "10 GB/s", 262.144 / 0.2),
    ],
)
def test_staging_takes_what_the_slowest_of_file_system_node_and_network_takes(run, nodes, network, seconds):
    """1 000 000 samples of 32³ x 4 numbers of 16 bits are 262.144 GB."""
    prediction = predict(cluster(network=network), run, nodes)
    assert prediction.staging_s[0] == pytest.approx(seconds, rel=1e-9)
    assert prediction.staging_s[1] <= prediction.staging_s[0] <= prediction.staging_s[2]


def test_a_copy_on_every_node_needs_more_staging_with_every_node():
    """Shards need less of it; both are copies of everything on one node."""
    copies, shards = (
        [predict(cluster(), run, nodes).staging_s[0] for nodes in (1, 2, 4, 8)] for run in (REPLICATE, SHARD)
    )
    assert copies[0] == shards[0]
    assert copies == sorted(copies) and shards == sorted(shards, reverse=True)
    assert copies[-1] == pytest.approx(8 * shards[-1])


@pytest.mark.parametrize(
    ("memory", "replicated", "sharded"),
    [
        ("66 GB", ["node-local storage"] * 4, ["node-local storage"] * 2 + ["host memory"] * 2),
        ("64 GB", ["node-local storage"] * 4, ["node-local storage"] * 3 + ["host memory"]),
        ("250 GB", ["node-local storage"] * 4, ["node-local storage"] + ["host memory"] * 3),
        ("263 GB", ["host memory"] * 4, ["host memory"] * 4),
    ],
)
def test_a_copy_fits_memory_on_any_number_of_nodes_or_on_none(memory, replicated, sharded):
    """Of 262 GB with those of the evaluation, 131 and 65.5 GB on 2 and 4 nodes. The training data alone would fit
    64 GB there, and 250 GB on one."""
    for run, expected in ((REPLICATE, replicated), (SHARD, sharded)):
        names = [predict(cluster(memory=memory), run, nodes).tier.name for nodes in (1, 2, 4, 8)]
        assert names == expected


def test_memory_caches_no_more_of_a_copy_than_it_holds_of_it():
    """Every node reads from all of it: 64 of 262 GB, however many nodes; of shards all, on eight nodes."""
    cached = [predict(cluster(), REPLICATE, nodes).tier.cached for nodes in (1, 2, 4, 8)]
    assert 0 < cached[0] < cached[1] < cached[2] < cached[3] <= 64 / 262.144
    assert predict(cluster(), SHARD, 2).tier.cached > cached[1]


def test_a_copy_that_no_node_has_room_for_is_not_staged_and_one_line_says_what_fits():
    small = cluster(local="200 GB")
    for nodes in (1, 2, 8):
        prediction = predict(small, REPLICATE, nodes)
        unstaged = Model(small, REPLICATE, staged=False).at(nodes)
        assert replace(prediction, notes=()) == replace(unstaged, notes=())
        assert prediction.moved is None and prediction.record()["staged_bytes"] is None
        (note,) = (note for note in prediction.notes if "staging.mode" in note)
        assert "262 GB" in note and "staging.mode=shard fits on 2 nodes or more" in note and "\n" not in note
    assert predict(small, SHARD, 1).moved is None
    assert predict(small, SHARD, 2).moved is not None
    assert not any("staging.mode" in note for note in predict(small, SHARD, 2).notes)
    (note,) = (n for n in predict(cluster(local="20 GB", memory="20 GB"), REPLICATE, 1).notes if "fits" in n)
    assert note.endswith("staging.mode=shard does not fit on any number of its nodes either")


def test_a_table_over_nodes_says_on_which_of_them_a_note_holds():
    predictions = [predict(cluster(local="200 GB"), SHARD, nodes) for nodes in (1, 2, 8)]
    of_one = [note for note in notes_of(predictions) if note.startswith("on 1 node: ")]
    assert len(of_one) == 2 and of_one[0].startswith("on 1 node: the data set fits neither")
    assert not any(note.startswith("on ") for note in notes_of(predictions[:1]))


def test_a_copy_that_does_not_fit_the_only_machine_there_is_is_refused():
    """Without a shared file system the data set is on the machine, or nowhere."""
    alone = cluster(nodes=1, shared=None, local="250 GB")
    alone = replace(alone, figures={k: v for k, v in alone.figures.items() if "shared" not in k})
    with pytest.raises(UserError, match=r"262 GB per node on 1 node,.*use a smaller data set"):
        predict(alone, REPLICATE, 1)
    roomy = replace(alone, figures={**alone.figures, "storage.local": 263e9})
    prediction = predict(roomy, REPLICATE, 1)
    assert prediction.tier.name == "node-local storage"
    assert prediction.moved is None and prediction.staging_s == (0, 0, 0)


def test_accelerators_of_one_node_that_share_a_sample_read_it_from_one_copy():
    """16 samples on 8 nodes of 4: two accelerators to a sample, both on one node. On nodes of one accelerator, two
    nodes hold the same shard."""
    assert predict(cluster(per_node=4), SHARD, 8).parts == 2
    assert predict(cluster(per_node=4), SHARD, 8).moved.held == WHOLE / 8
    apart = predict(cluster(per_node=1), run_of("staging.mode=shard", batch=4), 8)
    assert (apart.parts, apart.moved.held, apart.moved.source) == (2, WHOLE / 4, 2 * WHOLE)


def test_the_official_data_set_on_nodes_of_2_tb_is_a_terabyte_and_a_half_for_each():
    """524 288 + 65 536 files of 2 828 486 bytes: 1.668 TB, 64 times off the file system for 64 nodes; once, if
    nodes pass it on."""
    run = load("cosmoflow", "closed-512", MIXED)
    assert run.staging.mode == "replicate"
    prediction = predict(machine("dgx-a100"), run, 64)
    assert prediction.moved.held == pytest.approx(1.6683e12, rel=1e-4)
    assert prediction.moved.source == 64 * prediction.moved.held
    says = prediction.facts["staging"]
    assert says == "replicate: 1.67 TB to each node, 107 TB read from the shared file system"
    once = predict(
        machine("dgx-a100"), load("cosmoflow", "closed-512", ["staging.read_once=true", *MIXED]), 64
    )
    assert (once.moved.source, once.moved.sent) == (prediction.moved.held, 63 * prediction.moved.held)
    assert once.record()["staged_bytes"] == {
        "held": once.moved.held,
        "source": once.moved.source,
        "sent": once.moved.sent,
    }
    assert once.staging_s[0] < prediction.staging_s[0]
    assert any("staging.read_once" in note for note in once.notes)


def test_what_reading_from_the_file_system_rests_on_is_said():
    """Where data was to be staged: a peak of the file, or no figure at all."""
    whole = load("cosmoflow", "closed-512", MIXED)
    for mode, nodes in (("replicate", 128), ("shard", 4)):
        run = load("cosmoflow", "closed-512", [f"staging.mode={mode}", *MIXED])
        assert any("usually its peak" in note for note in predict(machine("perlmutter"), run, nodes).notes)
    assert any("has no bandwidth for it" in note for note in predict(machine("fugaku"), whole, 512).notes)
    unstaged = Model(machine("fugaku"), whole, staged=False).at(512)
    assert not any("file system" in note for note in unstaged.notes)


def test_copies_that_take_longer_than_training_are_said_to_be_copies():
    """DGX A100, 64 nodes: 100 minutes of staging, and 5 of training."""
    says = "every node reads the whole data set from the shared file system"
    for way, expected in {"replicate": True, "replicate, read once": False, "shard": False}.items():
        run = load("cosmoflow", "closed-512", [*WAYS[way], *MIXED])
        notes = predict(machine("dgx-a100"), run, 64).notes
        assert any(note.startswith(says) for note in notes) is expected


def test_what_training_hides_of_staging_is_said_to_be_counted():
    notes = predict(cluster(), run_of("staging.overlap=true"), 2).notes
    assert any(note.startswith("staging.overlap hides part of T_staging") for note in notes)
