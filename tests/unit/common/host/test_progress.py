"""Long operations report without a terminal too: a line after four seconds, then at doubled times."""

import pytest

from mlhpc.common.host import progress


def lines_of(monkeypatch, capsys, seconds, **options):
    """What 1 file per second prints, with the operation's own clock."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.progress(seconds, "convert", "files", **options) as advance:
        for _ in range(seconds):
            now[0] += 1
            advance(1)
    return capsys.readouterr().err.splitlines()


def test_lines_at_doubled_times(monkeypatch, capsys):
    lines = lines_of(monkeypatch, capsys, 200)
    assert lines[0] == "mlhpc: convert: 4 of 200 files, 4 s"
    assert [int(line.split()[2]) for line in lines] == [4, 8, 16, 32, 64, 124, 184]


@pytest.mark.parametrize("options", [{"show": False}, {"lines": False}])
def test_none_where_another_rank_or_the_caller_reports(monkeypatch, capsys, options):
    assert lines_of(monkeypatch, capsys, 200, **options) == []


def test_none_with_quiet_nor_of_what_is_short(monkeypatch, capsys):
    assert lines_of(monkeypatch, capsys, 4) == []
    monkeypatch.setenv(progress.QUIET, "1")
    assert lines_of(monkeypatch, capsys, 200) == []
