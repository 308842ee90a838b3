"""Whole runs of ResNet-50 on a tiny data set: the record, the ranks, staging, resuming, bad input."""

import io
import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from helpers.warm import run_warm
from safetensors.torch import load_file
from smoke.conftest import (
    NO_FRAMEWORK,
    mlhpc,
    mllog,
    rank_process,
    result,
    resumed_after_a_kill,
    start_mlhpc,
    trace,
    wait_for,
)
from torchvision.models.resnet import Bottleneck, ResNet

TINY = [
    "data.train_samples=26",
    "data.eval_samples=7",
    "data.sample_shape=[32,32,3]",
    "data.simulation.classes=4",
    "data.simulation.side=48",
    "network.classes=4",
    "network.width=0.125",
    "hyperparameters.global_batch_size=8",
    "hyperparameters.sgd_opt_base_learning_rate=0.01",
    "hyperparameters.sgd_opt_learning_rate_decay_steps=9",
    "training.max_epochs=4",
    "training.epochs_between_evals=1",
    "training.eval_batch_size=2",
    "training.device=cpu",
    "loading.workers=1",
]
LARS = ["opt_name=lars", "lars_opt_learning_rate_decay_steps=9", "lars_opt_learning_rate_warmup_epochs=1"]


def settings(*more):
    return [word for setting in (*TINY, *more) for word in ("--set", setting)]


def hyperparameters(*choices):
    return [f"hyperparameters.{choice}" for choice in choices]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "pictures"
    made = mlhpc("data", "make", "resnet50", "--out", out, *settings())
    assert made.returncode == 0, made.stderr
    return out


@pytest.fixture(scope="module")
def one_rank(pictures, tmp_path_factory):
    """A run of one rank, staged, evaluated after epochs 1, 3 and 4; other runs are compared with it."""
    folder = tmp_path_factory.mktemp("one")
    offset = ["training.epochs_between_evals=2", "training.eval_offset_epochs=1", "target.value=0.999"]
    done = mlhpc(
        "run", "resnet50", "--seed", 7,
        "--data", pictures, "--stage", folder / "stage", "--out", folder / "out", *settings(*offset),
        "--set", "training.checkpoint_epochs=4",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    return folder / "out"


def test_the_record_of_a_run(one_rank):
    record = result(one_rank)
    total = record["time_to_train_s"]
    assert sum(part or 0 for part in record["breakdown_s"].values()) == pytest.approx(total, rel=0.01)
    assert record["staging"]["files"] >= 26 + 7 and not (one_rank.parent / "stage").exists()
    assert [epoch["samples"] for epoch in record["epochs"]] == [24, 24, 24, 24]
    assert [epoch["epoch"] for epoch in record["epochs"] if "eval_accuracy" in epoch] == [1, 3, 4]
    # Accuracies are multiples of 1/7: every one of the seven images counted once.
    assert all(number * 7 == pytest.approx(round(number * 7)) for number in trace(one_rank)[1::2])


def test_the_log_has_the_keys_required_by_the_rules(one_rank):
    values = {record["key"]: record["value"] for record in mllog(one_rank)}
    assert values["submission_benchmark"] == "resnet" and values["model_bn_span"] == 8
    assert "lars_epsilon" not in values and values["sgd_opt_momentum"] == 0.9
    evaluated = [r["metadata"]["epoch_num"] for r in mllog(one_rank) if r["key"] == "eval_accuracy"]
    assert evaluated == [1, 3, 4]


def test_weights_load_into_torchvisions_network(one_rank, tmp_path):
    done = mlhpc("weights", one_rank, "--out", tmp_path / "w.safetensors")
    assert done.returncode == 0, done.stderr
    weights = load_file(tmp_path / "w.safetensors")
    assert f"{sum(w.numel() for w in weights.values())} weights in {len(weights)} arrays" in done.stdout
    network = ResNet(Bottleneck, [1, 1, 1, 1], num_classes=4, width_per_group=8)
    network.load_state_dict(weights)  # raises where a name or shape differs
    trained = torch.load(io.BytesIO(np.load(one_rank / "checkpoint.npz")["shared_0"]), weights_only=True)
    assert all(torch.equal(value, trained["model"][name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_the_official_checker_objects_only_to_the_target(
    optimizer, one_rank, pictures, tmp_path, monkeypatch
):
    """A closed log of the closed division's keys, but for the target: the values are a tiny run's."""
    out = tmp_path / "out"
    chosen = hyperparameters(*LARS) if optimizer == "lars" else []
    low = settings(*chosen, "target.value=0.0")
    done = mlhpc("run", "resnet50", "--data", pictures, "--stage", tmp_path / "s", "--out", out, *low)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "closed.log"
    log.write_text((out / "run.log").read_text().replace('"value": "open"', '"value": "closed"'))
    words = ["mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0", log]
    monkeypatch.chdir(tmp_path)
    done = run_warm(NO_FRAMEWORK, ["-m", *words], timeout=60)
    text = done.stdout + done.stderr
    assert "Failed checks for eval_accuracy" in text, text
    assert text.count("Failed checks") + text.count("Required ") + text.count("CHECK for") == 1, text
    # Our own checks of the log as written: the open division does not require the official target.
    assert mlhpc("check", out).returncode == 0


def test_two_ranks_differ_from_one_only_by_batch_norm(pictures, one_rank, tmp_path):
    """The same batches; batch norm sees half of each. Evaluation is over all seven images, four and three."""
    out = tmp_path / "out"
    words = ["--data", pictures, "--out", out, "--seed", 7, "--ranks", 2, *settings("target.value=0.999")]
    done = mlhpc("run", "resnet50", *words)
    assert done.returncode == 3, done.stderr
    record = result(out)
    assert record["ranks"] == 2
    assert trace(out)[0] == pytest.approx(trace(one_rank)[0], rel=0.3)
    assert all(number * 7 == pytest.approx(round(number * 7)) for number in trace(out)[1::2])
    assert {r["key"]: r["value"] for r in mllog(out)}["model_bn_span"] == 4


def test_without_batch_norm_two_ranks_equal_one(pictures, tmp_path):
    lenet = settings("network.name=lenet", "target.value=0.999", "training.max_epochs=2")
    for name, ranks in (("one", 1), ("two", 2)):
        words = ["--data", pictures, "--out", tmp_path / name, "--seed", 3, "--ranks", ranks, *lenet]
        done = mlhpc("run", "resnet50", *words)
        assert done.returncode == 3, done.stderr
    assert trace(tmp_path / "two") == pytest.approx(trace(tmp_path / "one"), rel=1e-4)


def test_a_killed_run_resumes_on_the_same_trajectory_and_is_marked(pictures, tmp_path):
    words = ["run", "resnet50", "--data", pictures, *settings("target.value=0.999")]
    out = resumed_after_a_kill(tmp_path, *words, rel=1e-3)
    assert "resumed" in mlhpc("check", out).stdout


def test_a_killed_rank_ends_the_run_and_is_named(pictures, tmp_path):
    out = tmp_path / "out"
    more = settings("training.max_epochs=500", "target.value=0.9999")
    words = ["run", "resnet50", "--data", pictures, "--out", out, "--ranks", 2, *more]
    run = start_mlhpc(*words)
    wait_for(lambda: (out / "run.log").exists() and "eval_accuracy" in (out / "run.log").read_text())
    os.kill(rank_process(run.pid, 1), signal.SIGKILL)
    error = run.communicate(timeout=60)[1]
    assert run.returncode != 0 and "rank 1 on" in error and "was lost in phase" in error, error
    assert [r["metadata"]["status"] for r in mllog(out) if r["key"] == "run_stop"] == ["aborted"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_packing_while_staging_does_not_change_training(ranks, pictures, tmp_path):
    more = settings("target.value=0.999", "training.max_epochs=2")
    words = ["run", "resnet50", "--seed", 3, "--data", pictures, "--ranks", ranks, *more]
    for packed in (False, True):
        done = mlhpc(
            *words, "--stage", tmp_path / "s", "--out", tmp_path / f"{packed}",
            "--set", f"staging.pack={packed}".lower(),
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert not (tmp_path / "s").exists()
    assert trace(tmp_path / "True") == trace(tmp_path / "False")
    plain, packed = (result(tmp_path / f"{packed}")["staging"] for packed in (False, True))
    assert (plain.pop("packed"), packed.pop("packed")) == (False, True)
    assert plain.keys() == packed.keys() and plain["files"] == packed["files"]
    assert mlhpc("report", tmp_path / "True").returncode == 0
    assert "packed during the copy" in (tmp_path / "True" / "report.html").read_text()


def test_packing_needs_replicated_staging_and_does_not_concern_the_rules(pictures, tmp_path):
    pack = ["--set", "staging.pack=true", "--data", pictures]
    stage = ["--stage", tmp_path / "s"]
    for more, message in (
        (settings(), "requires --stage"),
        ([*stage, *settings("staging.mode=shard")], "requires mode=replicate"),
    ):
        done = mlhpc("run", "resnet50", *pack, *more, "--out", tmp_path / "out")
        lines = [line for line in done.stderr.splitlines() if line.startswith("mlhpc: ")]
        assert done.returncode == 2 and len(lines) == 1 and message in lines[0], done.stderr
        assert not (tmp_path / "out").exists()
    rules = ["rules", "resnet50", "--preset", "closed", *stage]
    plain, packed = mlhpc(*rules, "--data", pictures), mlhpc(*rules, *pack)
    assert (packed.returncode, packed.stdout) == (plain.returncode, plain.stdout)


def break_an_image(data, split="train"):
    path = sorted((data / split).rglob("*.JPEG"))[0]
    path.write_bytes(path.read_bytes()[:100])
    (data / "manifest.json").unlink(missing_ok=True)  # else its checksum fails first
    return path.name


@pytest.mark.parametrize(
    ("damage", "more", "message"),
    [
        (break_an_image, [], "class0000"),
        (lambda d: shutil.rmtree(d), [], "no such"),
        (lambda d: None, hyperparameters("sgd_opt_base_learning_rate=1e30"), "base learning rate"),
        (lambda d: None, hyperparameters("global_batch_size=64"), "cannot fill one step"),
        (lambda d: None, ["training.precision=mixed_float16"], "needs a GPU"),
        (
            lambda d: None,
            ["network.classes=5"],
            "mlhpc: network.classes must equal data.simulation.classes 4",
        ),
        (lambda d: None, ["network.parameters=7"], "parameters, not 7"),
        (lambda d: None, ["training.eval_offset_epochs=1"], "eval_offset_epochs must be below"),
    ],
)
def test_invalid_input_is_a_one_line_error_with_status_2_and_an_aborted_log(
    damage, more, message, pictures, tmp_path
):
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(pictures, data)
    damage(data)
    done = mlhpc("run", "resnet50", "--data", data, "--out", out, *settings(*more))
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("mlhpc: ")]
    assert len(lines) == 1 and message in lines[0], done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.rglob("*.part"))
    if (out / "run.log").exists() and "run_start" in (out / "run.log").read_text():
        assert mllog(out)[-1]["metadata"]["status"] == "aborted"


@pytest.mark.parametrize("ranks", [1, 2])
def test_skipped_images_are_recorded(ranks, pictures, tmp_path):
    """One broken image in each split, each counted once, for any rank and any number of reads."""
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(pictures, data)
    names = [break_an_image(data, split) for split in ("train", "validation")]
    more = settings("loading.broken_images=skip", "training.max_epochs=3", "target.value=0.999")
    done = mlhpc("run", "resnet50", "--seed", 5, "--data", data, "--out", out, "--ranks", ranks, *more)
    assert done.returncode == 3, done.stderr
    counts = [epoch["images_skipped"] for epoch in result(out)["epochs"]]
    assert counts[-1] == 2 and counts == sorted(counts)
    events = [json.loads(line) for line in (out / "events.rank0.jsonl").read_text().splitlines()]
    noted = [e["images"] for e in events if e["event"] == "note" and e["name"] == "images_skipped"]
    assert all(name in skipped for name, skipped in zip(names, noted[-1], strict=True))


@pytest.mark.parametrize("network", ["lenet", "alexnet", "resnet101"])
def test_other_networks_are_never_the_closed_benchmark(network, tmp_path):
    words = ["--preset", "closed", "--data", tmp_path / "no", "--out", tmp_path / "o"]
    done = mlhpc("run", "resnet50", *words, "--set", f"network.name={network}")
    assert done.returncode == 2 and "network.name" in done.stderr and not (tmp_path / "o").exists()


def test_a_presets_blocks_are_refused_under_the_name_of_another_network(tmp_path):
    """ResNet-101 with ResNet-50's reduced blocks would be measured under a name that is not its own."""
    out = tmp_path / "study"
    words = ("study", "resnet50", "--data", tmp_path / "no", "--out", out, "--steps", 1)
    done = mlhpc(*words, "--vary", "network.name=resnet50,resnet101")
    assert done.returncode == 2 and not out.exists()
    assert "blocks [1, 1, 1, 1] would override resnet101; set network.blocks=[]" in done.stderr
