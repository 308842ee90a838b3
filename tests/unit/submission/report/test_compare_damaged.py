"""Comparisons over damaged logs and empty folders."""

from collections.abc import Callable
from pathlib import Path

import pytest
from golden.make_tree import make_set, records, write_log
from helpers.compare_logs import cut, twice
from helpers.page import Page

from mlhpc.errors import UserError
from mlhpc.submission.report.compare import compare
from mlhpc.submission.report.compare_page import page


def emptied(made: Path) -> None:
    made.write_bytes(b"")


def garbled(made: Path) -> None:
    text = made.read_text().replace('"time_ms": 17', '"time_ms": 1e400, "was": 17', 5)
    made.write_text(text.replace('"value": 64', '"value": "sixty-four"').replace("524288", '{"a": []}'))


@pytest.mark.parametrize("damage", [cut, twice, emptied, garbled])
def test_a_comparison_tolerates_damaged_logs(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org")
    damage(folder / "result_4.txt")
    comparison = compare([tmp_path])
    assert sum(e.logs for e in comparison.entries) == 10
    assert max(len(e.runs) for e in comparison.entries) >= 8
    Page(page(comparison))


def test_a_log_with_only_run_start_and_run_stop_is_accepted(tmp_path: Path) -> None:
    bare = [r for r in records() if r["key"] in ("run_start", "run_stop", "epoch_start", "epoch_stop")]
    write_log(tmp_path / "bare.txt", bare)
    comparison = compare([tmp_path / "bare.txt"])
    (entry,) = comparison.entries
    assert (entry.scale, entry.batch, entry.measured, entry.official) == (None, None, None, None)
    assert "not logged" in Page(page(comparison)).text


def test_an_empty_folder_is_a_finding(tmp_path: Path) -> None:
    make_set(tmp_path / "org")
    (tmp_path / "org" / "results" / "idle" / "strong" / "cosmoflow").mkdir(parents=True)
    comparison = compare([tmp_path])
    idle = tmp_path / "org" / "results" / "idle" / "strong" / "cosmoflow"
    assert "set/empty" in [f.rule for path, f in comparison.problems if path == idle]
    assert "set/empty" in Page(page(comparison)).text
    with pytest.raises(UserError, match="no log"):
        compare([tmp_path / "org" / "results" / "idle"])
