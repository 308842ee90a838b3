"""MLLOG lines from files as they occur in practice."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlperf_logging.compliance_checker import mlp_parser

from mlhpc.common.files.untrusted import printable
from mlhpc.errors import UserError
from mlhpc.record.mllog import YEARS_MS, Interval, Log, parse

GOOD = Path(__file__).parents[2] / "golden" / "good.log"


def mllog(time_ms: float, key: str, value: object = None, **metadata: object) -> str:
    return (
        ":::MLLOG "
        + json.dumps({"time_ms": time_ms, "key": key, "value": value, "metadata": metadata})
        + "\n"
    )


def parsed(tmp_path: Path, *lines: str) -> Log:
    path = tmp_path / "a.log"
    path.write_text("".join(lines), encoding="utf-8")
    return parse(path)


def test_good_log_is_read_as_written() -> None:
    log = parse(GOOD)
    assert not log.problems
    assert len(log.records) == len(GOOD.read_text().splitlines()) == 43
    # Figures read off the file by hand.
    assert log.time_to_train_s == 38.308
    assert log.staging == (Interval(1700000004010, 1700000007110),)
    assert [round(e.seconds, 3) for e in log.epochs] == [13.048, 10.796, 10.844]
    assert [e.epoch for e in log.evaluations("eval_error")] == [1, 2, 3]
    assert log.evaluations("eval_error")[-1].value == pytest.approx(0.12028)
    assert log.value("opt_name") == "sgd"
    record = log.first("run_stop")
    assert record is not None
    assert (record.event_type, record.metadata["status"], record.line) == ("INTERVAL_END", "success", 43)


def test_a_truncated_last_line_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    log = parsed(tmp_path, mllog(1, "run_start"), mllog(2, "eval_error", 0.5), mllog(3, "run_stop")[:-20])
    assert [(p.line, p.what) for p in log.problems] == [(3, "truncated")]
    assert [r.key for r in log.records] == ["run_start", "eval_error"]
    assert log.time_to_train_s is None


def test_foreign_text_around_records_is_ignored(tmp_path: Path) -> None:
    log = parsed(tmp_path, "Loading modules\n", "[rank 0] " + mllog(1, "seed", 7), "::MLLOG no\n", "\n")
    assert [(r.key, r.value, r.line) for r in log.records] == [("seed", 7, 2)]
    assert not log.problems
    assert log.mllog_lines == (2,)


def test_the_last_of_two_records_on_a_line_counts_as_in_the_official_parser(tmp_path: Path) -> None:
    log = parsed(tmp_path, mllog(1, "seed", 7).strip() + mllog(2, "seed", 8))
    lines, _ = mlp_parser.parse_file(str(log.path), ruleset="2.0.0")
    assert [r.value for r in log.records] == [line.value["value"] for line in lines] == [8]


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        ("[1, 2]", "not a JSON object"),
        ("17", "not a JSON object"),
        ('{"key": "seed", "value": 1, "metadata": {}}', "has no 'time_ms'"),
        ('{"time_ms": 1, "key": "seed", "metadata": {}}', "has no 'value'"),
        ('{"time_ms": "1.2.3", "key": "seed", "value": 1, "metadata": {}}', "not a JSON object"),
        ('{"time_ms": null, "key": "seed", "value": 1, "metadata": {}}', "not a JSON object"),
        ('{"time_ms": 1', "not a JSON object"),
    ],
)
def test_an_invalid_record_becomes_a_problem(payload: str, what: str, tmp_path: Path) -> None:
    log = parsed(tmp_path, ":::MLLOG " + payload + "\n", mllog(2, "seed", 7))
    assert [r.value for r in log.records] == [7]
    assert log.problems[0].line == 1
    assert what in log.problems[0].what


def test_null_metadata_is_empty_metadata(tmp_path: Path) -> None:
    log = parsed(tmp_path, ':::MLLOG {"time_ms": 1, "key": "a", "value": 2, "metadata": null}\n')
    assert log.records[0].metadata == {}


def test_time_is_first_start_to_first_stop_and_later_training_is_left_out(tmp_path: Path) -> None:
    log = parsed(
        tmp_path,
        mllog(500, "eval_error", 0.01, epoch_num=0),  # before the run
        mllog(1000, "run_start"),
        mllog(2000, "eval_error", 0.4, epoch_num=1),
        mllog(3500, "run_stop", status="failed"),
        mllog(4000, "eval_error", 0.1, epoch_num=2),  # after it
        mllog(9000, "run_stop", status="success"),
    )
    assert log.time_to_train_s == 2.5
    assert [e.value for e in log.evaluations("eval_error")] == [0.4]


def test_records_count_in_a_run_whose_clock_goes_back(tmp_path: Path) -> None:
    log = parsed(tmp_path, mllog(1000, "run_start"), mllog(900, "eval_error", 0.4), mllog(3500, "run_stop"))
    assert [e.value for e in log.evaluations("eval_error")] == [0.4]


def test_run_without_stop_keeps_its_evaluations(tmp_path: Path) -> None:
    log = parsed(tmp_path, mllog(1000, "run_start"), mllog(2000, "eval_error", 0.4))
    assert log.run is None
    assert [(e.value, e.epoch) for e in log.evaluations("eval_error")] == [(0.4, None)]


def test_repeated_and_unfinished_staging(tmp_path: Path) -> None:
    log = parsed(
        tmp_path,
        mllog(10, "staging_start"),
        mllog(20, "staging_stop"),
        mllog(30, "staging_start"),
        mllog(45, "staging_stop"),
        mllog(50, "staging_start"),
    )
    assert log.staging == (Interval(10, 20), Interval(30, 45))


@pytest.mark.parametrize("events", ["0+ 1+ 5- 8-", "0+ 1+ 8- 5-", "0+ 1+ 2+ 5- 8-"])
def test_staging_that_every_rank_logs_lasts_from_the_first_start_to_the_last_stop(
    events: str, tmp_path: Path
) -> None:
    """In the last one a rank does not say when it stopped."""
    kinds = {"+": "staging_start", "-": "staging_stop"}
    log = parsed(tmp_path, *(mllog(int(event[:-1]), kinds[event[-1]]) for event in events.split()))
    assert log.staging == (Interval(0, 8),)


def test_empty_file_gives_an_empty_log(tmp_path: Path) -> None:
    log = parsed(tmp_path, "")
    assert (log.records, log.evaluations("eval_error"), log.time_to_train_s) == ((), (), None)


def test_an_unreadable_path_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no-such\.log cannot be read: No such file"):
        parse(tmp_path / "no-such.log")


@settings(max_examples=150, deadline=None)
@given(
    cut=st.tuples(st.integers(0, 12_000), st.integers(0, 40)),
    junk=st.binary(max_size=12).map(lambda b: bytes(c & 127 for c in b)),
)
def test_damaged_logs_are_parsed_like_in_the_official_parser(
    tmp_path_factory: pytest.TempPathFactory, cut: tuple[int, int], junk: bytes
) -> None:
    """Bytes removed and inserted: never an exception, and the same records as the official parser, with printable
    keys."""
    data = GOOD.read_bytes()
    path = tmp_path_factory.mktemp("damage") / "a.log"
    path.write_bytes(data[: cut[0]] + junk + data[sum(cut) :])
    log = parse(path)
    try:
        lines, errors = mlp_parser.parse_file(str(path), ruleset="2.0.0")
    except (TypeError, KeyError):  # the official parser falls over some damage; ours may not
        assert log.problems
        return
    # A time such as 1e309, which is infinite, is a record to the official parser.
    timely = [line for line in lines if YEARS_MS[0] <= line.timestamp <= YEARS_MS[1]]
    assert [(r.time_ms, r.key) for r in log.records] == [
        (line.timestamp, printable(line.key)) for line in timely
    ]
    assert len([problem for problem in log.problems if problem.official]) == len(errors)
    assert len(log.problems) - len(errors) == len(lines) - len(timely)
