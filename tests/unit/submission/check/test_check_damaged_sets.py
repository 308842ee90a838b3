"""Damaged, pruned and repeated logs: findings, never a crash."""

import hashlib
import json
import logging
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import pytest
from golden.make_tree import EPOCHS, Records, describe, make_set, records, write_log
from helpers.checked_sets import only, package_checker, printed, rules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlperf_logging.package_checker import package_checker as package_checker_module
from mlperf_logging.rcp_checker import rcp_checker
from rich.console import Console

from mlhpc.submission.check.check import check, check_set
from mlhpc.submission.check.console import print_check, print_score
from mlhpc.submission.check.official import package_findings, rcp_verdict
from mlhpc.submission.findings import grouped
from mlhpc.submission.result_sets import result_sets

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
    # Python 3.13 reads 10 000 levels of JSON, which is more than a line of the longest that is checked has.
    "a line that nests": (lambda text: text + ":::MLLOG " + "[" * 9_900 + "\n",
                          "hpc_2.0.0/crash" if sys.version_info < (3, 13) else "hpc_2.0.0/line"),
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
    """In a tree, in a bare folder, and by itself; no output of the official tools reaches the terminal."""
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
    """Epochs between bound and reference: the official tools write a factor next to the logs."""
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


# Repeated and incomplete records.


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


def without(benchmark: str, key: str, part: str) -> Callable[[Path], object]:
    """A set whose logs lack a record, or its metadata."""

    def edit(number: int, made: Records) -> None:
        made[:] = [r for r in made if part == "metadata" or r["key"] != key]
        for record in made:
            if record["key"] == key:
                record["metadata"] = {}

    return lambda tree: make_set(
        tree, benchmark, level=None if benchmark == "resnet" else "strong", edit=edit
    )


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (lambda tree: (make_set(tree, "deepcam"), describe(tree, "machine", division=None)), "division"),
        (without("deepcam", "eval_accuracy", "metadata"), "epoch_num"),
        (without("resnet", "eval_accuracy", "metadata"), "epoch_num"),
        (without("deepcam", "run_stop", "metadata"), "status"),
        (without("deepcam", "submission_benchmark", "record"), "value that it looks up"),
    ],
)
def test_a_value_that_the_official_tools_miss_is_named(
    make: Callable[[Path], object], missing: str, tmp_path: Path
) -> None:
    """They stop with a bare KeyError, the command lines with its traceback."""
    make(tmp_path / "org")
    status, text = printed(tmp_path, print_check)
    expected = f"no {missing} in the system description or the logs"
    assert status == 1 and expected in " ".join(text.split()) and "KeyError" not in text
    status, text = printed(tmp_path, print_score)
    assert status == 1 and "KeyError" not in text and (missing == "division" or expected in text)


@pytest.mark.parametrize(
    "error", [KeyError(), KeyError("a\nb"), ValueError("a\nb"), AssertionError(), SystemExit(2)]
)
def test_whatever_the_official_tools_raise_is_one_line(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_set(tmp_path, "deepcam")
    (results,) = result_sets(tmp_path)
    for module, name in (
        (package_checker_module, "check_training_package"),
        (rcp_checker, "check_directory"),
    ):
        monkeypatch.setattr(module, name, Mock(side_effect=error))
    (found,) = package_findings(results, "hpc_2.0.0")
    passes, message = rcp_verdict(results, "hpc_2.0.0")
    assert found.rule == "package/crash" and not passes and message == found.actual
    assert message and "\n" not in message and "()" not in message and "KeyError" not in message


def test_logs_without_a_benchmark_are_not_said_to_have_an_unknown_one(tmp_path: Path) -> None:
    made = [record for record in records("deepcam") if record["key"] != "submission_benchmark"]
    write_log(tmp_path / "result_1.txt", made)
    assert "no score: no log names its benchmark" in printed(tmp_path, print_score)[1]


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
