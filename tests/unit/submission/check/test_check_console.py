"""The output of a check, and its exit status."""

import re
from pathlib import Path

import pytest
from golden.make_run import make_run
from golden.make_tree import make_set, records, write_log
from helpers.checked_sets import in_run, key, only, printed, rules, says

from mlhpc.cli import main
from mlhpc.submission.check.console import print_check, print_score


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
    assert status == 1 and "no score: 3 runs; a score requires 5" in text


def test_no_run_is_in_a_score_that_there_is_not(tmp_path: Path) -> None:
    make_set(tmp_path / "few", "deepcam", [10.0, 11, 12])
    _, text = printed(tmp_path / "few", print_score)
    rows = [line for line in text.splitlines() if line.strip().startswith("result_")]
    assert len(rows) == 3 and all(row.split()[-2:] == ["no", "score"] for row in rows)


def test_as_many_findings_are_counted_as_are_shown(tmp_path: Path) -> None:
    """A finding common to five logs is one finding in the table, and in the last line."""
    make_set(tmp_path / "bad", "deepcam", edit=lambda number, made: says("opt_name", "sgd")(made))
    _, text = printed(tmp_path / "bad", print_check)
    errors = sum(line.strip().startswith("error ") for line in text.splitlines())
    counted = re.search(r"does not pass: (\d+) error", text)
    assert counted and errors and int(counted[1]) == errors


def test_throughput_is_printed_as_its_four_numbers(tmp_path: Path) -> None:
    make_set(tmp_path / "org", "deepcam", level="weak")
    status, text = printed(tmp_path, print_score)
    assert (status, "(T, S, M', TTTa) = (40, 8, 5, 14.0000 min)" in text) == (0, True)


def test_a_small_preset_is_never_called_an_mlperf_result(tmp_path: Path) -> None:
    for n in range(10):
        make_run(tmp_path / f"{n}", epochs=5 + n, log=lambda lines, n=n: key(lines, "seed").update(value=n),
                 result=lambda result, n=n: result.update(seed=n))  # fmt: skip
    status, text = printed(tmp_path, print_score)
    assert status == 0 and "not the target of MLPerf: not an MLPerf result" in text


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
    assert "nothing does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "score", "report"])
def test_a_file_that_is_no_log_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    assert main([command, str(tmp_path / "passwd")]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and not printed.out
    assert "passwd is not a log: no line contains :::MLLOG" in printed.err


def test_runs_of_two_divisions_have_no_score(tmp_path: Path) -> None:
    """Without a system description only the logs describe the set."""
    for n in range(1, 11):
        made = records(seed=n, minutes=9 + n, division="open" if n == 1 else "closed")
        write_log(tmp_path / f"result_{n}.txt", made)
    assert "set/division" in rules(only(tmp_path))


def test_a_run_without_a_log_does_not_comply(tmp_path: Path) -> None:
    for n in (1, 2):
        make_run(tmp_path / f"run_{n}", preset="closed")
    (tmp_path / "run_2" / "run.log").unlink()
    assert only(tmp_path).complying == 1
