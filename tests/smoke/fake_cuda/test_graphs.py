"""Steps replayed from CUDA graphs on a device that computes nothing: what is launched, by which ranks, and what is
said. Numbers say nothing here, so a trial may find a difference: ``on`` makes none."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from fake_cuda.library import devices
from smoke.conftest import wait_for
from smoke.fake_cuda.conftest import on_device, run

from mlhpc.common.pytorch.devices import ARENAS

SCRIPT = Path(__file__).parents[2] / "perf" / "host_step.py"
TWO = {"devices": 2}
STEPS = {"deepcam": 3, "cosmoflow": 3, "resnet50": 3}  # of an epoch, on one rank
EVALUATIONS = {
    "deepcam": 3,
    "cosmoflow": 4,
    "resnet50": 4,
}  # of an epoch, with the short last one, which is filled up
ON = "training.cuda_graphs=on"


def decided(done, rank=0):
    """What the log says of the decision."""
    events = map(json.loads, (done.out / f"events.rank{rank}.jsonl").read_text().splitlines())
    (note,) = [event for event in events if event.get("name") == "graphs"]
    return note["replayed"], note["reason"]


@pytest.fixture(scope="module")
def replayed(sets, tmp_path_factory):
    """The run of a benchmark in a precision whose steps are replayed, made once."""

    @cache
    def run(benchmark, precision):
        folder = tmp_path_factory.mktemp("replayed")
        return on_device(folder, sets[benchmark], benchmark, ON, f"training.precision={precision}")

    return run


@pytest.mark.parametrize("benchmark", STEPS)
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_captures_before_the_start_and_replays_every_batch(replayed, benchmark, precision):
    """One launch a step, with optimizer and loss scale in it, and one for the network in an evaluation."""
    done = replayed(benchmark, precision)
    assert len(done.result()["epochs"]) == 2 and decided(done) == (True, ""), done.said
    counted = done.counted()
    assert counted["graphs"] == {"launched": 2 * (STEPS[benchmark] + EVALUATIONS[benchmark])}
    assert done.first_used() == {}
    assert "host to device, pageable" not in counted["copies"], counted["copies"]


def test_a_step_has_a_few_launches_and_no_wait(replayed, sets, tmp_path):
    """Twice as many steps have a few more launches each, for rate and loss, and no more waits."""
    few = replayed("deepcam", "float32")
    many = on_device(tmp_path, sets["deepcam"], "deepcam", ON, "hyperparameters.global_batch_size=2")
    more = 2 * (13 // 2 - 13 // 4)  # steps
    launches = [sum(done.counted()["kernels"].values()) for done in (few, many)]
    assert launches[1] - launches[0] <= 4 * more
    assert few.counted()["synchronisations"] == many.counted()["synchronisations"]


@pytest.mark.parametrize("chosen", [[], ["hyperparameters.batchnorm_group_size=2"]], ids=["", "grouped"])
def test_two_ranks_replay_their_exchange_too(sets, tmp_path, chosen):
    done = on_device(tmp_path, sets["deepcam"], "deepcam", ON, *chosen, words=("--ranks", 2), changes=TWO)
    assert done.result()["ranks"] == 2, done.said
    for rank in (0, 1):
        assert decided(done, rank) == (True, "")
        assert done.counted(rank)["graphs"]["launched"] >= 2 * STEPS["deepcam"]
        assert "ncclAllReduce" not in done.counted(rank)["kernels"]  # only in the graph
        assert done.first_used(rank) == {}


def test_weights_that_are_frozen_are_captured_anew(sets, tmp_path):
    chosen = (ON, "training.freeze_below=1e30", "hyperparameters.global_batch_size=1")
    done = on_device(tmp_path, sets["deepcam"], "deepcam", *chosen)
    assert len(done.result()["epochs"]) == 2, done.said
    # 13 steps and 3 evaluations, then 11 eager steps, 2 replayed ones and eager evaluations.
    assert done.counted()["graphs"] == {"captured": 1, "instantiated": 1, "launched": 13 + 3 + 2}


@pytest.mark.parametrize("benchmark, batch, ranks", [("deepcam", 2, 1), ("cosmoflow", 4, 2)])
def test_graphs_reserve_little_more_memory_than_eager_steps(benchmark, batch, ranks):
    """Where training and evaluation alternate, and evaluations take longer than the host needs to begin the next.
    No batch of training keeps memory besides the evaluation's, and no bucket of gradients a piece of an
    activation's."""
    words = ("--benchmark", benchmark, "--batch", batch, "--precision", "mixed_bfloat16", "--ranks", ranks)
    env = devices(changes=TWO | {"moved_bytes": 1 << 16, "kernel_us": 20, "kernel_us ArgMax": 1e6})
    done = run([SCRIPT, *words, "--steps", 1, "--json"], env)
    assert done.returncode == 0, done.stderr
    eager, graph = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert (eager["mode"], graph["mode"]) == ("eager", "graph")
    assert graph["reserved_gb"] <= 1.03 * eager["reserved_gb"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_auto_trains_either_way_as_the_log_says(sets, tmp_path, ranks):
    words = ("--ranks", ranks) if ranks > 1 else ()
    auto = "training.cuda_graphs=auto"
    done = on_device(tmp_path, sets["deepcam"], "deepcam", auto, words=words, changes=TWO)
    assert len(done.result()["epochs"]) == 2, done.said
    replayed, why = decided(done)
    for rank in range(ranks):
        assert decided(done, rank) == (replayed, why) and (why == "") == replayed
        assert bool(done.counted(rank).get("graphs")) == replayed
        assert done.total(rank)["graphs"]["captured"] == 2 * (2 + len(ARENAS))  # the steps, and those tried
    assert (f"training.cuda_graphs=auto: steps run eagerly, because {why}" in done.said) == (not replayed)


def test_accumulated_gradients_run_eagerly_and_say_why(sets, tmp_path):
    chosen = ("training.cuda_graphs=auto", "hyperparameters.gradient_accumulation_frequency=2")
    done = on_device(tmp_path, sets["deepcam"], "deepcam", *chosen)
    assert (
        "graphs" not in done.total() and "steps run eagerly, because gradients are accumulated" in done.said
    )


def test_a_rank_that_is_killed_while_ranks_replay_is_named(sets, tmp_path):
    """A replayed collective is not watched by NCCL's own thread, which would end the process."""
    changes = TWO | {"kernel_us nll_loss2d_forward": 2e5}

    def kill():
        events = tmp_path / "out" / "events.rank1.jsonl"
        wait_for(lambda: events.exists() and '"name": "epoch"' in events.read_text())
        pid = next(int(fd.parts[2]) for fd in Path("/proc").glob("[0-9]*/fd/*") if leads_to(fd, events))
        os.kill(pid, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill)
        chosen = (ON, "training.max_epochs=99")
        done = on_device(tmp_path, sets["deepcam"], "deepcam", *chosen, words=("--ranks", 2), changes=changes)
        killed.result()
    assert done.status not in (0, 3)
    (line,) = [
        line for line in done.said.splitlines() if line.startswith("mlhpc: rank") and "was lost" in line
    ]
    assert line.startswith("mlhpc: rank 1 on ")


def leads_to(link, path):
    with suppress(OSError):
        return os.readlink(link) == str(path)
