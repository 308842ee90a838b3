"""Hyperparameters of other submissions: published ones against their logs, and logs that cannot be used."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mlhpc import cli
from mlhpc.benchmarks import load, rules
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.record.hyperparameters import load_run
from mlhpc.run import RunPaths, prepare

PUBLISHED = json.loads(
    (Path(__file__).parents[2] / "data/reference/published_hyperparameters.json").read_text()
)["logs"]
NVIDIA, DEEPCAM = PUBLISHED[0]["records"], PUBLISHED[4]["records"]


def written(folder: Path, records: dict[str, Any], *more: tuple[str, Any]) -> Path:
    path = folder / "result_0.txt"
    lines = [
        ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", '
        f'"key": "{key}", "value": {json.dumps(value)}, "metadata": {{}}}}\n'
        for key, value in (*records.items(), *more)
    ]
    path.write_text("".join(["other output\n", *lines]))
    return path


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda each: each["path"])
def test_published_hyperparameters_are_taken_as_logged_or_refused(
    published: dict[str, Any], tmp_path: Path
) -> None:
    log, benchmark, records = (
        written(tmp_path, published["records"]),
        published["benchmark"],
        published["records"],
    )
    if "refused" in published:
        with pytest.raises(UserError) as refused:
            load_run(benchmark, "closed", [], log=log)
        assert published["refused"] in str(refused.value) and "\n" not in str(refused.value)
        return
    run = load_run(benchmark, "closed", [], log=log)
    taken = run.hyperparameters.logged()
    for key in taken.keys() & records.keys():
        assert taken[key] == records[key], key
    fixed = {"opt_momentum": 0.9, "opt_learning_rate_schedule": "multistep"}
    assert {key: taken[key] for key in taken.keys() - records.keys()} == (
        fixed if benchmark == "cosmoflow" else {}
    )
    own = load.load(benchmark, "closed")
    assert run.target == own.target and run.data == own.data and run.training == own.training
    assert run.hyperparameters_from is not None
    assert run.hyperparameters_from.submitter == records["submission_org"]
    assert run.hyperparameters_from.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()
    assert load.loads(load.dumps(run)) == run


def test_what_the_log_does_not_say_is_the_closed_division_s_and_not_the_presets(tmp_path: Path) -> None:
    """smoke has Adam's warm-up and a linear schedule, which a multistep log does not mention."""
    run = load_run("cosmoflow", "smoke", [], log=written(tmp_path, NVIDIA))
    closed = load_run("cosmoflow", "closed", [], log=written(tmp_path, NVIDIA))
    assert run.hyperparameters == closed.hyperparameters and run.data != closed.data


def test_settings_go_over_the_log_and_make_up_for_what_it_lacks(tmp_path: Path) -> None:
    settings = ["hyperparameters.global_batch_size=64", "hyperparameters.dropout=0.1"]
    lacking = {key: value for key, value in NVIDIA.items() if key != "dropout"} | {
        "global_batch_size": "many"
    }
    run = load_run("cosmoflow", "closed", settings, log=written(tmp_path, lacking))
    assert run.hyperparameters.global_batch_size == 64
    assert run.hyperparameters.model_dump()["dropout"] == 0.1
    assert run.hyperparameters.model_dump()["opt_weight_decay"] == 0.02
    factors = "hyperparameters.opt_learning_rate_decay_factor=[0.5,0.25,0.2,0.1]"
    fugaku = load_run("cosmoflow", "closed", [factors], log=written(tmp_path, PUBLISHED[2]["records"]))
    assert fugaku.hyperparameters.model_dump()["opt_learning_rate_decay_factor"] == (0.5, 0.25, 0.2, 0.1)


def test_a_run_of_ones_own_is_a_source_too(tmp_path: Path) -> None:
    """What this suite logs of a run is taken back whole, also of an open one."""
    run = load.load("cosmoflow", "open", ["hyperparameters.opt_base_learning_rate=0.003"])
    written(tmp_path, {"submission_benchmark": "cosmoflow", **run.hyperparameters.logged()}).rename(
        tmp_path / "run.log"
    )
    again = load_run("cosmoflow", "smoke", [], log=tmp_path)
    assert again.hyperparameters == run.hyperparameters
    assert again.hyperparameters_from is not None and again.hyperparameters_from.submitter == "unnamed"


@pytest.mark.parametrize("preset", ["closed", "closed-256", "smoke"])
def test_resnet_takes_the_keys_of_the_optimizer_in_use(preset: str, tmp_path: Path) -> None:
    source = load.load("resnet50", preset).hyperparameters
    log = written(tmp_path, {"submission_benchmark": "resnet", **source.logged()})
    assert load_run("resnet50", "mini", [], log=log).hyperparameters.logged() == source.logged()


@pytest.mark.parametrize(
    ("records", "more", "named"),
    [
        (NVIDIA | {"submission_benchmark": "deepcam"}, (), "states submission_benchmark deepcam; pass the log of "
                                                               "a cosmoflow submission"),
        ({"opt_name": "sgd"}, (), "states no submission_benchmark; pass the log of a cosmoflow submission"),
        (NVIDIA | {"opt_name": "rmsprop"}, (), "opt_name: Input should be 'sgd' or 'adam'; got 'rmsprop'"),
        (NVIDIA | {"dropout": True}, (), "dropout is True, expected a number or a name"),
        (NVIDIA | {"opt_learning_rate_warmup_factor": "0.25"}, (),
         'opt_learning_rate_warmup_factor is the string "0.25", expected a number'),
        (NVIDIA | {"global_batch_size": "512"}, (), 'global_batch_size is the string "512", expected a number'),
        (NVIDIA | {"opt_learning_rate_decay_factor": ["0.25", 0.125]}, (), "expected a number"),
        (NVIDIA | {"dropout": 1.5}, (), "hyperparameters.dropout: Input should be less than 1; got 1.5"),
        (NVIDIA | {"opt_learning_rate_warmup_epochs": 1.5}, (), "hyperparameters.opt_learning_rate_warmup_epochs"),
        (NVIDIA | {"opt_base_learning_rate": float("inf")}, (), "rate is inf, not a finite number"),
        (NVIDIA | {"opt_base_learning_rate": {"a": 1}}, (), "hyperparameters.opt_base_learning_rate"),
        (NVIDIA | {"opt_name": "x" * 90_000}, (), "hyperparameters.opt_name"),
        (NVIDIA, (("global_batch_size", 1024),), "global_batch_size has two values, 512 and 1024; pass a"),
        (NVIDIA | {"dropout": None}, (), "lacks dropout; add --set hyperparameters.dropout=VALUE"),
    ],
)  # fmt: skip
def test_logs_that_cannot_be_used_are_refused_in_one_line(
    records: dict[str, Any], more: Any, named: str, tmp_path: Path
) -> None:
    log = written(tmp_path, records, *more)
    with pytest.raises(UserError) as refused:
        load_run("cosmoflow", "closed", [], log=log)
    message = str(refused.value)
    assert named in message and message.startswith(str(log)) and "\n" not in message and len(message) < 1000


def test_a_source_in_somebodys_configuration_writes_only_text_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = load_run("cosmoflow", "smoke", [], log=written(tmp_path, NVIDIA))
    assert run.hyperparameters_from
    evil = run.hyperparameters_from.model_copy(update={"submitter": "Lab\x1b[2J\x1b]0;owned\x07"})
    evil_run = run.model_copy(update={"hyperparameters_from": evil})
    (tmp_path / "config.toml").write_text(load.dumps(evil_run))
    assert cli.main(["run", "cosmoflow", "--config", "config.toml", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "hyperparameters of Lab" in shown and "\x1b" not in shown and "\x07" not in shown
    paths = RunPaths(data=tmp_path / "nowhere", stage=None, out=None, resume=None)
    for quiet in ("", "1"):
        monkeypatch.setenv("MLHPC_QUIET", quiet)
        with pytest.raises(UserError, match="nowhere"):
            prepare(evil_run, paths, 7, False, Solo())
        said = capsys.readouterr().err
        assert "\x1b" not in said and "\x07" not in said
        assert ("hyperparameters of Lab" in said) == (not quiet)


def test_a_batch_that_may_be_that_of_one_backward_pass_is_refused(tmp_path: Path) -> None:
    log = written(tmp_path, DEEPCAM | {"gradient_accumulation_frequency": 4})
    with pytest.raises(UserError, match=r"global_batch_size 2048 is ambiguous \(per backward pass"):
        load_run("deepcam", "closed", [], log=log)
    one_pass = ["hyperparameters.gradient_accumulation_frequency=1"]
    with pytest.raises(UserError, match="global_batch_size 2048"):
        load_run("deepcam", "closed", one_pass, log=log)
    run = load_run("deepcam", "closed", ["hyperparameters.global_batch_size=8192"], log=log)
    assert run.backward_passes == 4


def test_a_mistake_in_the_settings_is_not_blamed_on_the_log(tmp_path: Path) -> None:
    log = written(tmp_path, NVIDIA)
    with pytest.raises(UserError) as refused:
        load_run("cosmoflow", "closed", ["training.max_epoch=3"], log=log)
    assert str(refused.value).startswith("unknown key")


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    for name, named in (
        ("fifo", "not a regular file"),
        ("none", "No such file"),
        ("empty", "no submission_benchmark"),
    ):
        with pytest.raises(UserError, match=named):
            load_run("cosmoflow", "closed", [], log=tmp_path / name)


def test_the_rules_hold_for_borrowed_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, DEEPCAM | {"opt_eps": 1e-8})
    run = load_run("deepcam", "closed", [], log=log)
    with pytest.raises(UserError, match=r"hyperparameters\.opt_eps"):
        rules.enforce(rules.RunContext(run))
    words = ["deepcam", "--preset", "closed", "--hyperparameters-from", str(log)]
    assert cli.main(["run", *words, "--dry-run"]) == 2
    assert "not a closed run: hyperparameters.opt_eps: 1e-06, not 1e-08" in capsys.readouterr().err
    assert cli.main(["rules", *words]) == 1
    assert "opt_eps" in capsys.readouterr().out


def test_a_dry_run_says_what_was_taken_and_from_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = written(tmp_path, NVIDIA)
    words = ["run", "cosmoflow", "--preset", "closed", "--hyperparameters-from", str(log), "--dry-run"]
    words += ["--set", "submission.org=Lab", "--set", "hyperparameters.opt_weight_decay=0.01"]
    assert cli.main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "hyperparameters of NVIDIA from result_0.txt (SHA-256" in text
    assert "global_batch_size = 512" in text and "opt_weight_decay = 0.01" in text
    assert cli.main([*words, "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["hyperparameters_from"]["submitter"] == "NVIDIA"
