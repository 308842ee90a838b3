"""Findings against sets of runs; the references are the official package_checker and compliance checker."""

import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from golden.make_tree import EPOCHS, Records, describe, make_set, records, write_log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from mlhpc.cli import main
from mlhpc.submission.check.check import SetCheck, check, check_set, check_sets
from mlhpc.submission.check.console import print_check, print_score
from mlhpc.submission.logs.findings import grouped
from mlhpc.submission.logs.result_sets import result_sets

SETS = [("cosmoflow", "strong"), ("deepcam", "strong"), ("deepcam", "weak"), ("resnet", None)]


def only(path: Path, ruleset: str = "2.0.0") -> SetCheck:
    (checked,) = check_sets(path, ruleset)
    return checked


def rules(checked: SetCheck, severity: str = "error") -> set[str]:
    return {f.rule for f in checked.findings if f.severity == severity}


def package_checker(tree: Path, usage: str = "hpc", version: str = "2.0.0") -> str:
    """What its command line says; its exit status is 0 whatever it found, and it writes into ``tree``."""
    scratch = tree.parent / "official"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mlperf_logging.package_checker", str(tree), usage, version]
    return subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False).stderr


def key(made: Records, name: str) -> dict[str, Any]:
    return next(record for record in made if record["key"] == name)


def in_run(number: int, change: Callable[[Records], object]) -> Callable[[int, Records], None]:
    def edit(n: int, made: Records) -> None:
        if n == number:
            change(made)

    return edit


def says(name: str, value: Any) -> Callable[[Records], object]:
    return lambda made: key(made, name).update(value=value)


def misses(made: Records) -> None:
    for record in made:
        if record["key"] in ("eval_error", "eval_accuracy"):
            record["value"] = 0.5
    key(made, "run_stop")["metadata"]["status"] = "aborted"


@pytest.mark.parametrize(("benchmark", "level"), SETS)
def test_a_good_set_passes_here_and_officially(benchmark: str, level: str | None, tmp_path: Path) -> None:
    make_set(tmp_path / "org", benchmark, level=level)
    checked = only(tmp_path)
    assert checked.passes and not rules(checked), checked.findings
    assert checked.complying == len(checked.results.logs)
    usage = ("training", "4.0.0") if level is None else ("hpc", "2.0.0")
    assert checked.rules == "_".join(usage)
    assert "FOUND NO ERRORS" in package_checker(tmp_path / "org", *usage)


# Rejections of package_checker, the rule that reports them, and our own finding beside it.
Make = Callable[[Path], object]
REJECTED: dict[str, tuple[Make, set[str]]] = {
    "four runs": (lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13]), {"package/runs"}),
    "six runs": (lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13, 14, 15]), {"package/runs"}),
    "four instances": (
        lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13], level="weak"), {"package/runs"}
    ),
    "equal seeds": (
        lambda tree: make_set(tree, "deepcam", edit=in_run(4, says("seed", 3))),
        {"package/seed", "set/seed"},
    ),
    "no seed": (lambda tree: make_set(tree, seed=None), {"package/seed"}),
    "a seed that is a word": (
        lambda tree: make_set(tree, edit=in_run(2, says("seed", "x"))), {"package/seed"}
    ),
    "too few epochs": (lambda tree: make_set(tree, "deepcam", epochs=11), {"package/rcp", "set/rcp"}),
    "no point": (
        lambda tree: make_set(tree, "deepcam", edit=lambda _, made: says("global_batch_size", 4096)(made)),
        {"package/rcp", "set/rcp"},
    ),
    "two runs missed": (
        lambda tree: make_set(tree, "deepcam", edit=lambda n, made: misses(made) if n in (2, 5) else None),
        {"package/compliance", "package/rcp", "set/converged", "hpc_2.0.0/eval_accuracy", "log/status"},
    ),
    "two batch sizes": (
        lambda tree: make_set(tree, "deepcam", edit=in_run(4, says("global_batch_size", 128))),
        {"package/crash", "set/settings", "set/rcp"},
    ),
    "another benchmark's log": (
        lambda tree: write_log(make_set(tree, "deepcam") / "result_4.txt", records("cosmoflow", seed=4)),
        {"package/crash", "set/benchmark", "set/settings", "set/rcp"},
    ),
    "missing fields": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, cooling=None, framework=None)),
        {"package/system"},
    ),
    "no division": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, division=None)),
        {"package/system", "package/crash"},
    ),
    "a number in the description": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, accelerators_per_node=4)),
        {"package/crash", "set/system"},
    ),
    "no description": (
        lambda tree: (make_set(tree, "deepcam"), (tree / "systems" / "machine.json").unlink()),
        {"set/system"},
    ),
    "a pattern for a name": (
        lambda tree: make_set(tree, "deepcam", system="machine[8]"),
        {"set/name", "package/runs", "package/crash"},
    ),
}  # fmt: skip


def described(tree: Path, **facts: Any) -> Path:
    return describe(tree, "machine", **{"number_of_nodes": "2", "accelerators_per_node": "4", **facts})


@pytest.mark.parametrize("name", REJECTED)
def test_rejections_of_package_checker_are_findings(name: str, tmp_path: Path) -> None:
    make, wanted = REJECTED[name]
    make(tmp_path / "org")
    checked = only(tmp_path)
    assert rules(checked) == wanted, grouped(checked.findings)
    assert not any(f.expected == "see the message" for f in checked.findings)  # every message is understood
    assert all(f.where and f.actual and f.remedy for f in checked.findings)


@pytest.mark.parametrize("name", ["no seed", "two runs missed", "a number in the description"])
def test_package_checkers_command_line_rejects_the_same_sets(name: str, tmp_path: Path) -> None:
    REJECTED[name][0](tmp_path / "org")
    assert "FOUND NO ERRORS" not in package_checker(tmp_path / "org")


def twice(tree: Path) -> None:
    folder = make_set(tree, "deepcam")
    write_log(folder / "result_4.txt", records("deepcam", seed=4))
    write_log(folder / "result_5.txt", records("deepcam", seed=5))


# What it lets pass, and we do not, or warn of.
PASSED: dict[str, tuple[Make, str, str]] = {
    "one run twice": (twice, "set/twice", "error"),
    "open runs in a closed system": (
        lambda tree: (make_set(tree, "deepcam", division="open"), described(tree)), "set/division", "error",
    ),
    "closed runs in an open system": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, division="open")), "set/division", "warning",
    ),
    "equal seeds in the open division": (
        lambda tree: make_set(tree, "deepcam", division="open", edit=in_run(4, says("seed", 3))),
        "set/seed", "error",
    ),
    "equal seeds of instances": (
        lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13, 14, 15], level="weak", division="open",
                              edit=in_run(6, says("seed", 3))),
        "set/seed", "warning",
    ),
    "two learning rates": (
        lambda tree: make_set(tree, "deepcam", edit=in_run(4, says("opt_lr", 0.002))),
        "set/settings", "error",
    ),
    "another machine than described": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, number_of_nodes="3")),
        "set/system", "warning",
    ),
    "throughput alone": (lambda tree: make_set(tree, "deepcam", level="weak"), "set/throughput", "warning"),
    "an instance that missed": (
        lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13, 14, 15], level="weak",
                              edit=in_run(6, misses)),
        "set/converged", "error",
    ),
    "a pruned log that does not comply": (
        lambda tree: write_log(make_set(tree, "deepcam", level="weak") / "pruned_results" / "result_1.txt",
                               records("deepcam", start_ms=1)[1:]),
        "hpc_2.0.0/cache_clear", "warning",
    ),
    "one key twice in a record": (
        lambda tree: double(make_set(tree, "deepcam") / "result_2.txt"), "log/repeated", "error",
    ),
}  # fmt: skip


def double(log: Path) -> None:
    log.write_text(log.read_text().replace('"value": 1024,', '"value": 512, "value": 1024,'))


@pytest.mark.parametrize("name", PASSED)
def test_problems_that_package_checker_misses_are_found(name: str, tmp_path: Path) -> None:
    make, rule, severity = PASSED[name]
    make(tmp_path / "org")
    checked = only(tmp_path)
    assert rule in rules(checked, severity)
    assert not any("package_checker" in f.source and f.severity == "error" for f in checked.findings)


def test_round_0_7_had_no_level_strong(tmp_path: Path) -> None:
    """Its folders are not seen by package_checker, which then finds no errors in them."""
    make_set(tmp_path / "org", "deepcam", [10.0, 11, 12, 13], level=None)
    assert "FOUND NO ERRORS" in package_checker(tmp_path / "org")
    assert rules(only(tmp_path)) == {"package/runs"}


@pytest.mark.parametrize("change", [misses, lambda made: made.pop()], ids=["missed", "killed"])
def test_one_run_may_miss_the_target(change: Callable[[Records], object], tmp_path: Path) -> None:
    """Olympic scoring, to which package_checker agrees: the run counts as the slowest."""
    make_set(tmp_path / "org", "deepcam", edit=in_run(3, change))
    checked = only(tmp_path)
    assert checked.passes and checked.score.minutes is not None
    assert rules(checked, "expected") and rules(checked, "warning") >= {"set/converged", "package/compliance"}
    assert checked.complying == 4
    assert "FOUND NO ERRORS" in package_checker(tmp_path / "org")


def test_a_run_that_met_the_target_and_does_not_comply_is_not_excused(tmp_path: Path) -> None:
    """The official tools drop it as if it were the slowest; its time may be the fastest."""
    make_set(tmp_path / "org", "deepcam", edit=in_run(3, lambda made: made.pop(0)))
    assert rules(only(tmp_path)) == {"hpc_2.0.0/cache_clear"}


@pytest.mark.parametrize(
    ("name", "written", "same"),
    [
        ("opt_base_learning_rate", "1e-3", True),  # the others log the number 0.001
        ("opt_learning_rate_warmup_factor", 1, True),  # 1.0
        ("opt_learning_rate_decay_boundary_epochs", [32.0, 64.0], True),  # [32, 64]
        ("opt_base_learning_rate", 0.0010001, False),
        ("opt_learning_rate_decay_boundary_epochs", [32, 65], False),
    ],
)
def test_settings_are_compared_as_numbers(name: str, written: Any, same: bool, tmp_path: Path) -> None:
    make_set(tmp_path / "org", "cosmoflow", edit=in_run(3, says(name, written)))
    assert ("set/settings" not in rules(only(tmp_path))) == same


def test_a_finding_shared_by_many_logs_is_reported_once(tmp_path: Path) -> None:
    make_set(tmp_path / "org", "deepcam", edit=lambda _, made: made.pop(0))
    same = [f for f in grouped(only(tmp_path).findings) if f.rule == "hpc_2.0.0/cache_clear"]
    assert [f.where for f in same] == ["result_1.txt, result_2.txt, result_3.txt and 2 more"]


def test_every_ruleset_can_be_checked(tmp_path: Path) -> None:
    """Staging before the run passes only 3.0.0; ResNet-50 always has its own ruleset."""

    def staged_before(number: int, made: Records) -> None:
        staging = [made.pop(made.index(key(made, name))) for name in ("staging_start", "staging_stop")]
        made[made.index(key(made, "init_stop")) : 0] = staging

    make_set(tmp_path / "org", "deepcam", edit=staged_before)
    make_set(tmp_path / "org", "resnet", level=None)
    for ruleset in ("1.0.0", "2.0.0", "3.0.0"):
        verdicts = {c.rules: c.passes for c in check_sets(tmp_path, ruleset)}
        assert verdicts == {f"hpc_{ruleset}": ruleset == "3.0.0", "training_4.0.0": True}


# Run directories of this suite.


def test_a_campaign_of_a_small_preset_is_checked_run_by_run(tmp_path: Path) -> None:
    for n in range(3):
        make_run(tmp_path / f"run-{n}", epochs=5 + n, log=lambda lines, n=n: says("seed", n)(lines),
                 result=lambda result, n=n: result.update(seed=n))  # fmt: skip
    checked = only(tmp_path)
    assert checked.passes and rules(checked, "expected") == {"hpc_2.0.0/eval_error"}
    assert rules(checked, "warning") == {"set/runs"}  # three runs are not enough for a score
    (tmp_path / "run-1" / "env.json").unlink()
    assert ("run/files", "run-1/env.json") in {(f.rule, f.where) for f in check(tmp_path)}


# Bad input.


def clock_back(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:-3], lines[4], *lines[-3:]])


# The change to a log, and the finding; None: odd, but no violation of a rule.
DAMAGE: dict[str, tuple[Callable[[str], str], str | None]] = {
    "cut in the middle of a line": (lambda text: text[: text.rindex("epoch_num")], "hpc_2.0.0/line"),
    "two runs in one file": (lambda text: text + text, "log/one-run"),
    "a clock that goes back": (clock_back, "log/clock"),
    "one key twice in a record": (lambda text: text.replace('"value": 2,', '"value": 2, "value": 3,'),
                                  "log/repeated"),
    "one record twice": (lambda text: text.splitlines(keepends=True)[9] + text, None),
    "nothing": (lambda text: "", "hpc_2.0.0/log"),
    "no text": (lambda text: "\x00\xff" * 1000, "hpc_2.0.0/log"),
    "a line that nests": (lambda text: text + ":::MLLOG " + "[" * 9_900 + "\n", "hpc_2.0.0/crash"),
    "a line that does not end": (lambda text: text + ":::MLLOG " + "[" * 99_000 + "\n", "hpc_2.0.0/line"),
    "endless numbers": (lambda text: text.replace(": 121266", ": 1e999").replace('num": 3', 'num": 1e999'),
                        "hpc_2.0.0/train_samples"),
    "long numbers": (lambda text: text.replace('"value": 0.1', '"value": ' + "9" * 400, 1), None),
    "lists for values": (lambda text: text.replace('"value": 1024', '"value": [64]').replace(": 2,", ": {},"),
                         "hpc_2.0.0/global_batch_size"),
    "lists for metadata": (lambda text: text.replace('"metadata": {', '"metadata": [1], "x": {', 60),
                           "hpc_2.0.0/epoch_start"),
    "a path for a benchmark": (lambda text: text.replace('"deepcam"', '"../../../../tmp/x"'),
                               "hpc_2.0.0/rule_file"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_gives_findings_and_modifies_no_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a tree, in a bare folder, and alone; no output of the official tools reaches the terminal."""
    damage, rule = DAMAGE[name]
    folder = make_set(tmp_path / "org", "deepcam")
    damaged = folder / "result_1.txt"
    damaged.write_text(damage(damaged.read_text()))
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in folder.iterdir():
        (bare / path.name).write_bytes(path.read_bytes())
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    before, handlers = digest(tmp_path), logging.getLogger().handlers[:]
    for path in (tmp_path / "org", bare, damaged):
        assert rule is None or rule in {f.rule for f in check(path)}, path
    for path in (tmp_path / "org", bare):
        print_score(path, "2.0.0", Console(file=StringIO()))
    assert digest(tmp_path) == before
    assert logging.getLogger().handlers == handlers
    assert capfd.readouterr() == ("", "")


def digest(top: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in top.rglob("*")
    }


def test_scaling_json_is_not_left_in_the_tree(tmp_path: Path) -> None:
    """Epochs between bound and reference: the official tools write a factor beside the logs."""
    make_set(tmp_path / "org", "deepcam", epochs=EPOCHS["deepcam"])
    write_log(
        tmp_path / "org/results/machine/strong/deepcam/result_2.txt",
        records("deepcam", seed=2, epochs=12, start_ms=1),
    )
    write_log(
        tmp_path / "org/results/machine/strong/deepcam/result_3.txt",
        records("deepcam", seed=3, epochs=12, start_ms=2),
    )
    before = digest(tmp_path)
    out = StringIO()
    print_score(tmp_path, "2.0.0", Console(file=out, width=200))
    assert digest(tmp_path) == before
    assert "a review may multiply the score by 1.02" in out.getvalue()  # 13 / ((13 + 13 + 12) / 3)
    package_checker(tmp_path / "org")
    told = json.loads((tmp_path / "org/results/machine/strong/deepcam/scaling.json").read_text())
    assert told["scaling_factor"] == pytest.approx(13 / (38 / 3))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 20_000), junk=st.binary(max_size=30), skip=st.integers(0, 200))
def test_damage_to_a_log_never_causes_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes, skip: int
) -> None:
    path = write_log(tmp_path_factory.mktemp("damage") / "result_1.txt", records())
    data = path.read_bytes()
    path.write_bytes(data[:cut] + junk + data[cut + skip :])
    (results,) = result_sets(path)
    checked = check_set(results)
    assert checked.score.minutes is None  # one run is not enough for a score
    assert print_score(path, "2.0.0", Console(file=StringIO())) == 1


# What is printed.


def printed(path: Path, show: Callable[[Path, str, Console], int]) -> tuple[int, str]:
    out = StringIO()
    return show(path, "2.0.0", Console(file=out, width=250)), out.getvalue()


def test_a_score_is_printed_with_the_verdict_of_its_check(tmp_path: Path) -> None:
    make_set(tmp_path / "good", "deepcam")
    status, text = printed(tmp_path / "good", print_score)
    assert (status, "score: 12.0000 min, without staging 11.0000 min" in text) == (0, True)
    assert "official result_summarizer, hpc_2.0.0: 12.0000 min" in text
    assert "check, hpc_2.0.0: passes" in text and "not a valid score" not in text
    make_set(tmp_path / "bad", "deepcam", edit=in_run(3, says("opt_name", "sgd")))
    status, text = printed(tmp_path / "bad", print_score)
    assert status == 1 and "not a valid score, since the set does not pass its check: 12.0000 min" in text
    make_set(tmp_path / "few", "deepcam", [10.0, 11, 12])
    status, text = printed(tmp_path / "few", print_score)
    assert status == 1 and "no score: 3 runs; a score is made from 5" in text


def test_throughput_is_printed_as_its_four_numbers(tmp_path: Path) -> None:
    make_set(tmp_path / "org", "deepcam", level="weak")
    status, text = printed(tmp_path, print_score)
    assert (status, "(T, S, M', TTTa) = (40, 8, 5, 14.0000 min)" in text) == (0, True)


def test_a_small_preset_is_never_called_an_mlperf_result(tmp_path: Path) -> None:
    for n in range(10):
        make_run(tmp_path / f"{n}", epochs=5 + n, log=lambda lines, n=n: key(lines, "seed").update(value=n),
                 result=lambda result, n=n: result.update(seed=n))  # fmt: skip
    status, text = printed(tmp_path, print_score)
    assert status == 0 and "its own, not MLPerf's: not an MLPerf result" in text


def test_sets_are_counted_at_the_end(tmp_path: Path) -> None:
    make_set(tmp_path / "a", "deepcam")
    make_set(tmp_path / "b", "deepcam", minutes=[10.0])
    status, text = printed(tmp_path, print_check)
    assert status == 1 and text.rstrip().endswith("1 of 2 sets pass")
    assert "compliance checker, hpc_2.0.0: 5 of 5 logs pass" in text


def test_the_command_line_returns_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path / "a b.c", "deepcam")
    assert main(["check", str(tmp_path / "a b.c")]) == main(["score", str(tmp_path / "a b.c")]) == 0
    (tmp_path / "a b.c/results/machine/strong/deepcam/result_1.txt").unlink()
    assert main(["check", str(tmp_path)]) == main(["score", str(tmp_path)]) == 1
    assert main(["score", str(tmp_path / "nothing")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_runs_of_two_divisions_have_no_score(tmp_path: Path) -> None:
    """Without a system description only the logs describe the set."""
    for n in range(1, 11):
        made = records(seed=n, minutes=9 + n, division="open" if n == 1 else "closed")
        write_log(tmp_path / f"result_{n}.txt", made)
    assert "set/division" in rules(only(tmp_path))


def test_a_run_without_a_log_does_not_comply(tmp_path: Path) -> None:
    for n in (1, 2):
        make_run(tmp_path / f"run_{n}")
    (tmp_path / "run_2" / "run.log").unlink()
    assert only(tmp_path).complying <= 1


# What is there more than once, or only in part.


def test_a_pruned_instance_that_was_killed_does_not_fail_the_set(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org", "deepcam", level="weak")
    write_log(folder / "pruned_results" / "result_1.txt", records("deepcam", seed=99, start_ms=1)[:-1])
    describe(tmp_path / "org", "machine", number_of_nodes="12", accelerators_per_node="4")
    checked = only(tmp_path)
    assert checked.passes, grouped(checked.findings)
    assert "hpc_2.0.0/run_stop" in rules(checked, "warning")
    assert "NO ERRORS" in package_checker(tmp_path / "org")


def test_a_set_of_only_pruned_logs_gives_findings_not_a_crash(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org", "deepcam", level="weak")
    (folder / "pruned_results").mkdir()
    for log in folder.glob("*.txt"):
        log.rename(folder / "pruned_results" / log.name)
    status, text = printed(tmp_path, print_check)
    assert status == 1 and "set/empty" in text
    status, text = printed(tmp_path, print_score)
    assert status == 1 and "KeyError" not in text


def test_copies_of_a_set_count_once(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        make_set(tmp_path / name, "deepcam")
    status, text = printed(tmp_path, print_check)
    assert status == 0
    assert text.rstrip().endswith("1 of 1 sets pass; 2 more are copies of them")
    assert text.count("set/copy") == 2


def test_check_keeps_only_the_records_needed_to_compare_sets(tmp_path: Path) -> None:
    """Records of keys that no rule for sets reads are 99% of a large log, and must not stay in memory."""

    def many(number: int, made: Records) -> None:
        last = made.pop()
        made += [dict(made[-1], key="tracked_stats", value=n) for n in range(2000)] + [last]

    make_set(tmp_path / "org", "deepcam", edit=many)
    checked = only(tmp_path)
    assert checked.passes
    assert "logs" not in vars(checked.results), "the complete logs were kept"
    assert max(len(log.records) for log in checked.results.condensed) < 100
