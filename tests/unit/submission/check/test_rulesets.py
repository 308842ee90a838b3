"""A set's own ruleset, and the official compliance checker's count under it, on the same logs."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from golden.make_run import make_run
from golden.make_tree import Records, make_set, records, write_log
from helpers.checked_sets import in_run, key, only, printed, says
from mlperf_logging.compliance_checker import mlp_compliance

from mlhpc.submission.check.check import check_sets
from mlhpc.submission.check.console import print_check, print_score
from mlhpc.submission.check.content import check_content, score_content
from mlhpc.submission.check.rulesets import HPC, RULESETS, TRAINING

EVERY = [("hpc", "deepcam", each) for each in HPC] + [("training", "resnet", each) for each in TRAINING]


@contextmanager
def silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def official(folder: Path, usage: str, version: str) -> list[bool]:
    """Whether the official checker passes each log, by its own entry point for a file."""
    verdicts = []
    for log in sorted(folder.glob("result_*.txt")):
        mlp_compliance.enqueued_configs.clear()
        checker = mlp_compliance.make_checker(usage, version, False, False)
        with silent():
            try:
                verdicts.append(bool(checker.check_file(str(log), f"{usage}_{version}/common.yaml")))
            except Exception:  # a rule file that it does not have
                verdicts.append(False)
    return verdicts


def in_the_old_format(made: Records) -> str:
    """The records of a run of ResNet-50 as round 0.6 logged them, with the keys that it required."""
    more = {"submission_poc_name": "a", "submission_entry": "b", "model_bn_span": 256,
            "opt_base_learning_rate": 1.0, "opt_learning_rate_warmup_epochs": 5}  # fmt: skip
    lines = []
    for record in made:
        names = {"epoch_start": ["block_start", "epoch_start"], "epoch_stop": ["epoch_stop", "block_stop"]}
        for name in names.get(record["key"], [record["key"]]):
            metadata = record["metadata"] | {
                "first_epoch_num": record["metadata"].get("epoch_num"),
                "epoch_count": 1,
            }
            content = json.dumps({"value": record["value"], "metadata": metadata})
            lines.append(f":::MLL {record['time_ms'] / 1e3:.3f} {name}: {content}")
        if record["key"] == "init_start":
            lines += [f":::MLL {record['time_ms'] / 1e3:.3f} {k}: {json.dumps({'value': v, 'metadata': {}})}"
                      for k, v in more.items()]  # fmt: skip
    return "\n".join(lines) + "\n"


def damaged_set(tree: Path, benchmark: str) -> Path:
    """Five logs: right, without two keys, of the old format, empty, and with a wrong value."""
    folder = make_set(tree, benchmark, level=None if benchmark == "resnet" else "strong")
    without = [
        record
        for record in records(benchmark, seed=2)
        if record["key"] not in ("submission_benchmark", "run_stop")
    ]
    write_log(folder / "result_2.txt", without)
    (folder / "result_3.txt").write_text(in_the_old_format(records("resnet", seed=3)))
    (folder / "result_4.txt").write_text("nothing of MLPerf\n")
    write_log(folder / "result_5.txt", records(benchmark, seed=5), says("opt_name", "adagrad"))
    return folder


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("usage", "benchmark", "version"), EVERY)
def test_as_many_logs_pass_as_by_the_official_checker(
    usage: str, benchmark: str, version: str, given: bool, tmp_path: Path
) -> None:
    """Under the ruleset of the published round whose folder it is, or the one that is given."""
    top = tmp_path / ("elsewhere" if given else f"{usage}_results_v{version.removesuffix('.0')}")
    folder = damaged_set(top / "org", benchmark)
    checked = only(top, version if given else None)
    assert checked.rules == f"{usage}_{version}"
    expected = official(folder, usage, version)
    assert checked.complying == sum(expected)
    assert expected == [(version != "0.6.0"), False, version == "0.6.0", False, False] or not any(expected)
    _, text = printed(top, print_check) if not given else (0, "")
    assert given or f"compliance checker, {usage}_{version}: {sum(expected)} of 5 logs pass" in text


def test_a_good_set_passes_whole_under_most_rounds(tmp_path: Path) -> None:
    """So that the counts above are not all none: in training from 0.7 on, where the logged keys are known."""
    make_set(tmp_path / "org", "resnet", level=None)
    whole = [version for version in TRAINING if only(tmp_path, version).complying == 5]
    assert whole == [version for version in TRAINING if all(official(_logs(tmp_path), "training", version))]
    assert "4.0.0" in whole and len(whole) >= 3


def _logs(top: Path) -> Path:
    return next(top.rglob("result_1.txt")).parent


def test_a_log_is_checked_under_the_rules_of_its_set_whatever_it_says(tmp_path: Path) -> None:
    """Without submission_benchmark it used to be checked by HPC's, and so counted as passing."""

    def lose(made: Records) -> None:
        made[:] = [record for record in made if record["key"] not in ("submission_benchmark", "run_stop")]

    folder = make_set(tmp_path / "org", "resnet", level=None, edit=in_run(2, lose))
    checked = only(tmp_path)
    assert (checked.rules, checked.complying) == (
        "training_4.0.0",
        sum(official(folder, "training", "4.0.0")),
    )
    assert checked.complying == 4
    assert {f.source for f in checked.findings if f.rule.endswith("/submission_benchmark")} == {
        "mlperf-logging training_4.0.0"
    }


@pytest.mark.parametrize(
    ("folder", "benchmark", "says"),
    [
        ("hpc_results_v0.7", "deepcam", "mlperf-logging has no rules of round 0.7 for MLPerf HPC"),
        ("v0.7", "cosmoflow", "mlperf-logging has no rules of round 0.7 for MLPerf HPC"),
        ("training_results_v0.5/v0.5.0/lab/cloud", "resnet", "has no rules of round 0.5 for ResNet-50"),
        ("training_results_v0.5", "resnet", "has no rules of round 0.5 for ResNet-50 in MLPerf Training"),
        ("training_results_v5.0", "resnet", "has no rules of round 5.0 for ResNet-50 in MLPerf Training"),
    ],
)
def test_a_round_without_rules_never_passes(folder: str, benchmark: str, says: str, tmp_path: Path) -> None:
    make_set(tmp_path / folder / "org", benchmark, level=None if benchmark == "resnet" else "strong")
    checked = only(tmp_path)
    assert checked.complying is None and not checked.passes
    assert [f.rule for f in checked.findings if f.severity == "error"].count("run/rules") >= 5
    for show in (print_check, print_score):
        status, text = printed(tmp_path, show)
        assert status == 1 and "no rules: " in text and says in text and "logs pass" not in text
    (row,) = check_content(tmp_path, None)["sets"]
    assert (row["rules"], row["complying"], row["passes"]) == (None, None, False)
    # The rules of another round can be asked for.
    assert only(tmp_path, "2.0.0" if benchmark != "resnet" else "4.0.0").passes


def test_a_requested_ruleset_is_that_of_every_benchmark_that_has_it(tmp_path: Path) -> None:
    make_set(tmp_path / "a", "deepcam")
    make_set(tmp_path / "b", "resnet", level=None)
    for version in RULESETS:
        counts = {c.rules: c.complying is not None for c in check_sets(tmp_path, version)}
        assert counts == {f"hpc_{version}": version in HPC, f"training_{version}": version in TRAINING}


def test_a_log_that_cannot_be_read_is_not_one_that_missed_the_target(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org", "resnet", level=None)
    for number, content in ((2, in_the_old_format(records("resnet"))), (4, "nothing\n"), (5, ":::MLLOG {\n")):
        (folder / f"result_{number}.txt").write_text(content)
    _, text = printed(tmp_path, print_score)
    assert (
        "3 of 5 logs not readable" in text and "converge" not in text.split("no score")[1].split("target:")[0]
    )
    (row,) = score_content(tmp_path, None)["sets"]
    left_out = {Path(run["log"]).name: run["left_out"] for run in row["runs"] if run["left_out"]}
    assert left_out == {
        "result_2.txt": "not readable: no MLLOG lines, but those of the format :::MLL of round 0.6",
        "result_4.txt": "not readable: no MLLOG lines",
        "result_5.txt": "not readable: none of 1 MLLOG line can be read",
    }
    checked = only(tmp_path)
    assert "set/converged" not in {f.rule for f in checked.findings}
    assert [f.where for f in checked.findings if f.rule == "set/readable"] == list(left_out)
    (folder / "result_2.txt").write_text(":::MLPv0.5.0 resnet 1541638094.9 (a.py:1) run_start\n")
    _, text = printed(tmp_path, print_score)
    assert "those of the format :::MLPv0.5.0 of round 0.5" in text


def test_a_preset_with_its_own_target_says_why_no_log_passes(tmp_path: Path) -> None:
    for n in range(3):
        make_run(tmp_path / f"run-{n}", epochs=5 + n, log=says("seed", n),
                 result=lambda result, n=n: result.update(seed=n))  # fmt: skip
    checked = only(tmp_path)
    assert (checked.passes, checked.complying, checked.excused) == (True, 0, 3)
    _, text = printed(tmp_path, print_check)
    assert (
        "0 of 3 logs pass (all fail only because preset smoke has a target of its own: expected, and not an "
        "MLPerf result)" in text
    )
    make_run(tmp_path / "run-3", epochs=8, log=lambda lines: lines.remove(key(lines, "submission_org")))
    assert only(tmp_path).excused == 3, "this one fails for another reason"


def test_a_benchmark_of_another_round_names_the_rulesets_that_have_it(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt", records("deepcam"), says("submission_benchmark", "openfold"))
    (found,) = [f for f in only(log).findings if f.rule == "hpc_2.0.0/crash"]
    assert found.actual == "it has no rules for closed openfold; hpc 3.0.0 has some"
