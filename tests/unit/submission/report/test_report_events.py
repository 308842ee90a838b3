"""The ranks' events in a report, and reports of runs that have not ended."""

import fcntl
import os
import time
from collections.abc import Callable
from io import StringIO, UnsupportedOperation
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from helpers.report_runs import aborted, report_of, unfinished, with_events
from rich.console import Console

from mlhpc.common.files.locks import is_locked
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog
from mlhpc.submission.report.report import report

# What ranks record.


def test_start_up_waiting_and_memory_are_shown(tmp_path: Path) -> None:
    page, _ = report_of(with_events(make_run(tmp_path / "run"), 1))
    assert "start-up (init) 10.5 s" in page.text
    assert "longest single wait 500 ms" in page.text
    assert "peak memory of the process 3 GB" in page.text
    assert "accelerator 0" not in page.text
    times = {row["series"]: row["y"] for row in page.rows("Step time by epoch")}
    assert times == {"p50": 2000.0, "p90": 2500.0, "p99": 2600.0, "max": 2700.0}


def test_the_spread_over_ranks_names_the_slowest(tmp_path: Path) -> None:
    page, _ = report_of(with_events(make_run(tmp_path / "run", ranks=4), 4))
    assert "Spread over 4 ranks" in page.text
    assert "its own data wait 1 s 2.5 s 4 s 3" in page.text
    assert [row["y"] for row in page.rows("Own data wait by rank")] == [1.0, 2.0, 3.0, 4.0]
    # The steps of the others contain waiting for the slowest one.
    assert {row["series"]: row["y"] for row in page.rows("Step time by epoch")}["p50"] == 2000.0


def waited(of: str, train_s: float, eval_s: float, *ranks: tuple[float, ...]) -> Callable[[Any], None]:
    """Sets the data wait of a result; ``ranks``: number, seconds in training and in evaluation, worst epoch."""
    listed = [dict(zip(("rank", "train_s", "eval_s", "epoch"), each, strict=True)) for each in ranks]
    return lambda told: told.update(
        data_wait={"of": of, "train_s": train_s, "eval_s": eval_s, "ranks": listed}
    )


@pytest.mark.parametrize(
    ("ranks", "result", "words"),
    [
        (2, waited("all ranks", 26.8, 3.2, (1, 26.5, 3.2, 4), (0, 0.3, 0.0, 1)),
         "26.8 s in training, 3.2 s in evaluation: rank 1 on n3 cost 26.5 s in training and 3.2 s in "
         "evaluation, most in epoch 4"),
        # Each of two equal ranks is the slowest in half of the steps.
        (2, waited("all ranks", 10.0, 0.0, (0, 5.5, 0.0, 1), (1, 4.5, 0.0, 1)),
         "10 s in training, 0 s in evaluation: no rank stands out"),
        (8, waited("all ranks", 10.0, 0.0, (6, 4.9, 0.0, 1), (7, 4.8, 0.0, 2), (0, 0.1, 0.0, 1)),
         "rank 6 on n3 cost 4.9 s in training, most in epoch 1; rank 7 on n3 cost 4.8 s in training, most in "
         "epoch 2"),
        (2, lambda told: told.pop("data_wait", None), "in training, of rank 0 only, because earlier versions"),
    ],
    ids=["one", "equal", "a node", "earlier"],
)  # fmt: skip
def test_the_rank_that_others_waited_for_is_named_with_its_cost(
    ranks: int, result: Callable[[Any], None], words: str, tmp_path: Path
) -> None:
    def env(facts: dict[str, Any]) -> None:
        facts["bindings"] = [
            {"rank": rank, "hostname": "n3", "local_rank": rank, "cores": "0-1"} for rank in range(ranks)
        ]

    page, terminal = report_of(make_run(tmp_path / "run", ranks=ranks, result=result, env=env))
    assert (
        words in terminal
        and f"Data wait: {terminal.split('data wait ')[1].split(' throughput')[0]}." in page.text
    )
    one, terminal = report_of(make_run(tmp_path / "one", result=result))
    assert "in training" not in one.text and "data wait " not in terminal


def test_an_aborted_run_says_that_its_waits_are_those_of_rank_0(tmp_path: Path) -> None:
    def result(told: dict[str, Any]) -> None:
        aborted(told)
        waited("rank 0", 5.1, 0.2)(told)

    page, terminal = report_of(make_run(tmp_path / "run", ranks=2, status="aborted", result=result))
    for text in (page.text, terminal):
        assert "5.1 s in training, of rank 0 only, because the run was aborted" in text


def test_events_without_percentiles_draw_no_step_time(tmp_path: Path) -> None:
    page, _ = report_of(make_run(tmp_path / "run"))
    assert "Step time" not in page.text


# Runs that have not ended.


def test_a_running_run_is_not_reported_as_dead(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    with open(run / "events.rank0.jsonl", "ab") as events:
        fcntl.flock(events, fcntl.LOCK_SH)  # as the log of a living rank holds it
        page, terminal = report_of(run)
    for text in (page.text, terminal):
        assert "the run is still running; its last event was" in text
        assert "missing" not in text and "damaged" not in text and "does not pass" not in text
    assert "No score yet:" in page.text and "Time to train Not ended" in page.text


def test_a_running_run_holds_a_lock_on_its_events(tmp_path: Path) -> None:
    with RunLog(tmp_path, Solo()):
        assert is_locked(tmp_path / "events.rank0.jsonl")
    assert not is_locked(tmp_path / "events.rank0.jsonl")


def test_a_run_whose_process_is_gone_has_no_score(tmp_path: Path) -> None:
    page, _ = report_of(unfinished(tmp_path / "run"))
    assert "No score: no readable result.json: the run did not end" in page.text


def test_recent_events_of_another_machine_may_be_those_of_a_running_run(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "run")
    for seconds, expected in ((60, True), (3600, False)):
        os.utime(run / "events.rank0.jsonl", (time.time() - seconds,) * 2)
        page, _ = report_of(run)
        assert ("may still be running on another machine" in page.text) == expected


def test_an_aborted_run_shows_its_times(tmp_path: Path) -> None:
    page, _ = report_of(make_run(tmp_path / "run", result=aborted))
    assert "Breakdown of time to train" in page.text and "93.25 100.0%" in page.text


def test_the_page_is_written_even_if_the_output_pipe_closes(tmp_path: Path) -> None:
    class Gone(StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    run = make_run(tmp_path / "run")
    with pytest.raises(
        (BrokenPipeError, SystemExit, UnsupportedOperation)
    ):  # rich leaves in one of these ways
        report(run, Console(file=Gone()))
    assert (run / "report.html").read_text("utf-8").endswith("</html>\n")
