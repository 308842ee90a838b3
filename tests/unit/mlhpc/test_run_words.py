"""Messages of ``mlhpc run``: its last line, and why a run cannot be resumed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.compare_logs import made_log, one

from mlhpc import run as module
from mlhpc.benchmarks import load
from mlhpc.benchmarks.registry import Framework
from mlhpc.common.host import accelerators
from mlhpc.common.host.accelerators import Accelerator
from mlhpc.common.ranks.world import Loss, Solo
from mlhpc.common.training.checkpoint import Checkpoint, save
from mlhpc.errors import UserError
from mlhpc.record.conclusion import Conclusion, last_line, summarize
from mlhpc.record.mllog import parse
from mlhpc.record.result import Result
from mlhpc.submission.score.score import instance_scale
from mlhpc.unused import warn_of_unused


@pytest.mark.parametrize(
    "staging, said",
    [
        ({"files": 2, "bytes": 9, "seconds": 1}, "1.85 s, including staging;"),
        (None, "1.85 s, nothing was staged;"),
    ],
)
def test_the_last_line_says_whether_staging_is_included(staging: Any, said: str) -> None:
    result = {
        "benchmark": "deepcam", "preset": "smoke", "division": "open", "status": "failed", "resumed": False,
        "ranks": 1, "target": {"metric": "eval_accuracy", "label": "IoU", "value": 0.5, "best": 0.3},
        "time_to_train_s": 1.85, "samples": {"train": 1, "eval": 1, "shape": [1]}, "staging": staging,
    }  # fmt: skip
    assert said in last_line(Result.model_validate(result), Path("out"))


def saved(folder: Path, *settings: str) -> Path:
    run = load.load("deepcam", "smoke", settings)
    save(folder, Checkpoint(1, 7, load.dumps(run), [np.zeros(1)], [[]]))
    return folder


def test_resume_refuses_other_settings_and_names_them(tmp_path: Path) -> None:
    saved(tmp_path, "training.max_epochs=4")
    assert module.seed_of(tmp_path, load.load("deepcam", "smoke", ["training.max_epochs=4"])) == 7
    with pytest.raises(UserError) as said:
        module.seed_of(tmp_path, load.load("deepcam", "smoke", ["training.max_epochs=3"]))
    assert str(said.value) == (
        f"{tmp_path} was run with different settings: training.max_epochs was 4, now 3; resume with "
        f"--config {tmp_path}/config.toml"
    )


@pytest.mark.parametrize(("rank", "staged"), [(0, False), (0, True), (1, False)])
def test_settings_without_effect_are_named_once(capsys, rank: int, staged: bool) -> None:
    """One line of rank 0, for what was set: sgd has no lars rate; the preset's own lars settings are not named."""
    settings = [
        "hyperparameters.lars_opt_base_learning_rate=5",
        "staging.mode=shard",
        "training.max_epochs=1",
    ]
    world: Any = SimpleNamespace(rank=rank, size=2)
    settings.append("training.bucket_cap_mib=1")  # applies to two ranks
    warn_of_unused(load.load("resnet50", "smoke", settings), settings, world, staged=staged)
    rate = "hyperparameters.lars_opt_base_learning_rate applies to lars, not to sgd"
    mode = "" if staged else "; staging.mode applies with --stage"
    said = f"mlhpc: warning: without effect in this run: {rate}{mode}\n"
    assert capsys.readouterr().err == ("" if rank else said)


def test_a_run_without_such_settings_has_no_warning_of_them(capsys) -> None:
    settings = ["hyperparameters.opt_name=lars", "hyperparameters.lars_opt_base_learning_rate=5"]
    warn_of_unused(load.load("resnet50", "smoke", settings), settings, Solo(), staged=False)
    assert capsys.readouterr().err == ""


def test_of_many_differing_settings_three_are_named(tmp_path: Path) -> None:
    saved(tmp_path)
    other = [
        "training.max_epochs=9",
        "network.width=0.1",
        "training.eval_batch_size=1",
        "data.eval_samples=3",
    ]
    with pytest.raises(
        UserError, match=r"different settings: ([^;]* was [^;]*, now [^;]*; ){3}and 1 more; resume"
    ):
        module.seed_of(tmp_path, load.load("deepcam", "smoke", other))


def test_a_different_division_does_not_prevent_resuming(tmp_path: Path) -> None:
    saved(tmp_path)
    other = load.load("deepcam", "smoke").model_copy(update={"division": "closed"})
    assert module.seed_of(tmp_path, other) == 7


def test_another_benchmark_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(UserError, match=r"benchmark was deepcam, now cosmoflow; .* more; resume with"):
        module.seed_of(tmp_path, load.load("cosmoflow", "smoke"))


def test_a_missing_framework_is_a_one_line_error(tmp_path: Path) -> None:
    framework = Framework("no_such_framework.train", "none", ("no-such-framework",))
    with pytest.raises(UserError, match="deepcam in pytorch needs the package no_such_framework"):
        module._import_trainer(load.load("deepcam", "smoke"), framework, Solo())


@pytest.mark.parametrize(
    ("device", "visible", "logged"), [("cpu", "0", 0), ("auto", "0", 1), ("auto", "", 0), ("auto", "-1", 0)]
)
def test_accelerators_that_a_run_does_not_use_are_not_logged(
    monkeypatch, device: str, visible: str, logged: int
) -> None:
    """They are the scale of the run."""
    monkeypatch.setattr(accelerators, "installed", lambda: [Accelerator("nvidia", "NVIDIA H100")] * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    records: dict[str, Any] = {}
    log: Any = SimpleNamespace(note=lambda name, **tags: None, hyperparameters=records.update)
    run = load.load("deepcam", "smoke", [f"training.device={device}"])
    module._log_facts(run, None, None, 7, None, Solo(), log)
    assert records["accelerators_per_node"] == logged


@pytest.mark.parametrize(
    ("ranks", "nodes", "installed", "per_node", "total", "warned"),
    [
        (4, 1, 1, 4, 4, ""),  # srun --gpus-per-task=1: four ranks that see one GPU each, their own
        (8, 3, 4, 3, 8, "8 accelerators on 3 nodes: accelerators_per_node is logged as 3"),  # 3 + 3 + 2
        (6, 2, 4, 3, 6, ""),  # 4 + 2: the product is right
    ],
)
def test_each_rank_counts_as_one_accelerator(
    monkeypatch,
    capsys,
    tmp_path: Path,
    ranks: int,
    nodes: int,
    installed: int,
    per_node: int,
    total: int,
    warned: str,
) -> None:
    monkeypatch.setattr(accelerators, "installed", lambda: [Accelerator("nvidia", "NVIDIA H100")] * installed)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    records: dict[str, Any] = {}
    log: Any = SimpleNamespace(note=lambda name, **tags: None, hyperparameters=records.update)
    world = Solo(size=ranks, nodes=nodes)
    module._log_facts(load.load("deepcam", "smoke"), None, None, 7, None, world, log)
    assert records["accelerators_per_node"] == per_node
    logged = parse(made_log(tmp_path / "result_0.txt", [], **records))
    assert instance_scale(logged) == total and one(tmp_path).scale == total
    printed = capsys.readouterr().err
    assert warned in printed and bool(warned) == bool(printed)


def test_a_run_can_be_extended_by_more_epochs_alone(tmp_path: Path) -> None:
    saved(tmp_path, "training.max_epochs=4")
    longer = load.load("deepcam", "smoke", ["training.max_epochs=9"])
    assert module.seed_of(tmp_path, longer) == 7 and module.extended_from(tmp_path, longer) == 4
    assert module.extended_from(tmp_path, load.load("deepcam", "smoke", ["training.max_epochs=4"])) is None
    with pytest.raises(UserError, match=r"network\.width was"):
        module.seed_of(
            tmp_path, load.load("deepcam", "smoke", ["training.max_epochs=9", "network.width=0.1"])
        )


def test_a_resumed_run_and_one_of_a_study_have_no_time_to_train() -> None:
    facts = {"t": 0.1, "event": "note", "name": "facts", "resumed": True, "ranks": 1}
    span = {"event": "end", "name": "run", "seconds": 9.0, "t": 9.5}
    finish = {"t": 9.4, "event": "note", "name": "finish", "status": "success"}
    run = load.load("deepcam", "smoke")
    resumed = summarize(run, [facts, finish, span])
    assert resumed.time_to_train_s is None and resumed.time_to_train_without_staging_s is None
    assert "no time to train" in last_line(resumed, Path("out"))
    whole = [{**facts, "resumed": False}, finish, span]
    assert summarize(run, whole).time_to_train_s == 9.0
    study = load.load("deepcam", "smoke", ["study.steps=4"])  # ends after four steps of its first epoch
    assert summarize(study, whole).time_to_train_s is None


def test_settings_that_no_result_can_hold_end_the_run_before_it_trains(tmp_path: Path) -> None:
    """Those of a plug-in: found after the training, they would lose its result."""
    facts = {"t": 0.1, "event": "note", "name": "facts", "resumed": False, "ranks": 1}
    (tmp_path / "events.rank0.jsonl").write_text(json.dumps(facts) + "\n")
    run = load.load("deepcam", "smoke")
    Conclusion(run, tmp_path, Solo(), lambda loss: None)
    with pytest.raises(UserError, match=r"result\.json cannot store benchmark='two words'"):
        Conclusion(run.model_copy(update={"benchmark": "two words"}), tmp_path, Solo(), lambda loss: None)


def test_a_result_that_cannot_be_written_after_the_loss_of_a_rank_is_one_line(tmp_path: Path, capfd) -> None:
    """As on a full disk: the thread that ends the process prints no traceback, and does not stop halfway."""
    facts = {"t": 0.1, "event": "note", "name": "facts", "resumed": False, "ranks": 2}
    (tmp_path / "events.rank0.jsonl").write_text(json.dumps(facts) + "\n")
    (tmp_path / "result.json").mkdir()
    callbacks = []

    class Watched(Solo):
        def on_loss(self, callback):
            callbacks.append(callback)

    def full(loss: Loss) -> None:
        raise UserError("the disk is full")

    Conclusion(load.load("deepcam", "smoke"), tmp_path, Watched(size=2), full)
    callbacks[-1](Loss(1, "n1", "epoch 2", "killed"))
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and f"{tmp_path}/result.json cannot be written" in error
