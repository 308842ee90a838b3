"""The events of many ranks: where they lie, and the table of all ranks that a run leaves."""

import json
import re
from pathlib import Path

import pytest
from golden.make_run import make_run
from helpers.thread_world import on_ranks

from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.event_files import event_files, events_path
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.timing.steps import percentiles
from mlhpc.record.environment import RankBinding
from mlhpc.record.rank_table import NAME, RankTable, read_rank_table, write_rank_table
from mlhpc.record.run_directory import read
from mlhpc.submission.report import run_charts, run_page


def events_of(rank: int, epochs: int = 3) -> list[dict[str, object]]:
    """Those of one rank: it waits ``rank`` times as long as rank 1, and its quickest epoch depends on it."""
    events: list[dict[str, object]] = [{"t": 1, "event": "end", "name": "init", "seconds": 4.0 + rank}]
    for epoch in range(1, epochs + 1):
        median = 0.5 + (rank - epoch) ** 2
        events += [
            {"t": 2, "event": "timed", "name": "data_wait", "epoch": epoch, "seconds": rank * 0.5,
             "max": rank / 8},
            {"t": 2, "event": "steps", "name": "train", "epoch": epoch, "p50": median, "p90": median + 1,
             "p99": median + 2, "max": median + 3 + rank},
            {"t": 2, "event": "end", "name": "train", "epoch": epoch, "seconds": 9.0},
        ]  # fmt: skip
    return [*events, {"t": 3, "event": "note", "name": "memory", "peak_bytes": 1000 + rank}]


def write_events(folder: Path, ranks: int) -> None:
    for rank in range(ranks):
        path = events_path(folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(event) + "\n" for event in events_of(rank)))


def test_every_rank_is_in_the_table_and_steps_are_those_of_the_quickest(tmp_path: Path) -> None:
    on_ranks(1, 5, lambda world: write_rank_table(tmp_path, world, events_of(world.rank)))
    table = RankTable.read(tmp_path / NAME)
    assert table.ranks == (0, 1, 2, 3, 4) and table.left_out == 0
    assert table.init_s == (4.0, 5.0, 6.0, 7.0, 8.0) and table.train_s == (27.0,) * 5
    assert table.data_wait_s == (0.0, 1.5, 3.0, 4.5, 6.0)
    assert table.longest_wait_s == (0.0, 0.125, 0.25, 0.375, 0.5)
    assert table.peak_bytes == (1000.0, 1001.0, 1002.0, 1003.0, 1004.0)
    assert table.staging_s == table.device_peak_bytes == (None,) * 5, "which no rank has recorded"
    # In epoch n rank n is the quickest.
    assert table.steps == {n: {"p50": 0.5, "p90": 1.5, "p99": 2.5, "max": 3.5 + n} for n in (1, 2, 3)}
    assert list(table.of("data_wait_s")) == [0, 1, 2, 3, 4]


def test_the_steps_of_an_epoch_with_evaluations_are_those_of_all_its_parts(tmp_path: Path) -> None:
    """Against the percentiles of the steps themselves, in parts whose steps all take the same time."""
    parts = {9.0: 7, 0.5: 1, 20.0: 2}  # steps by seconds
    events = [
        {
            "t": n,
            "event": "steps",
            "name": "train",
            "epoch": 1,
            "count": steps,
            **percentiles([seconds] * steps),
        }
        for n, (seconds, steps) in enumerate(parts.items())
    ]
    every = [seconds for seconds, steps in parts.items() for _ in range(steps)]
    on_ranks(1, 1, lambda world: write_rank_table(tmp_path, world, events))
    assert RankTable.read(tmp_path / NAME).steps == {1: percentiles(every)}
    assert percentiles(every) == {"p50": 9.0, "p90": 20.0, "p99": 20.0, "max": 20.0}


def test_without_the_table_the_events_of_the_ranks_say_the_same(tmp_path: Path) -> None:
    write_events(tmp_path, 5)
    before = read_rank_table(tmp_path, 5)
    on_ranks(1, 5, lambda world: write_rank_table(tmp_path, world, events_of(world.rank)))
    for path in event_files(tmp_path).values():
        path.unlink()
    assert read_rank_table(tmp_path, 5) == before


def test_a_large_run_without_the_table_shows_its_first_ranks_and_counts_the_others(
    tmp_path, monkeypatch
) -> None:
    write_events(tmp_path, 300)
    monkeypatch.setattr("mlhpc.record.rank_table._MOST_BYTES", 10 * events_path(tmp_path, 1).stat().st_size)
    table = read_rank_table(tmp_path, 512)
    assert 5 < len(table.ranks) < 15 and table.ranks == tuple(range(len(table.ranks)))
    assert len(table.ranks) + table.left_out == 512


def test_a_folder_has_the_events_of_at_most_256_ranks(tmp_path: Path) -> None:
    for rank in (0, 255, 256, 700):
        with RunLog(tmp_path, Solo(rank=rank, size=1000)):
            pass
    files = event_files(tmp_path)
    assert list(files) == [0, 255, 256, 700] and files[700] == events_path(tmp_path, 700)
    folders = {path.parent.name for path in files.values()}
    assert folders == {tmp_path.name, "events.ranks256-511", "events.ranks512-767"}


def test_runs_of_early_versions_have_all_events_in_one_folder_and_links_are_not_followed(
    tmp_path: Path,
) -> None:
    for rank in (0, 300):
        (tmp_path / f"events.rank{rank}.jsonl").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "events.rank600.jsonl").touch()
    (tmp_path / "events.ranks512-767").symlink_to(elsewhere)
    (tmp_path / "events.rank2.jsonl").symlink_to(elsewhere / "events.rank600.jsonl")
    assert list(event_files(tmp_path)) == [0, 300]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"ranks": [0], "init_s": [-1]}',
        '{"ranks": ["x"]}',
        '{"init_s": [1e999]}',
        '{"steps": {"x": {}}}',
    ],
)
def test_a_damaged_table_is_read_from_the_events_instead(tmp_path: Path, text: str) -> None:
    write_events(tmp_path, 2)
    (tmp_path / NAME).write_text(text)
    assert read_rank_table(tmp_path, 2).init_s == (4, 5)


def test_columns_that_are_too_short_are_shown_as_far_as_they_go() -> None:
    table = RankTable(ranks=(0, 1, 2), init_s=(3.0, None), data_wait_s=(1.0, 2.0, 3.0, 4.0))
    assert table.of("init_s") == {0: 3.0} and list(table.of("data_wait_s")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("low", "high", "first", "last"), [(100.0, 100.04, "100.002", "100.04"), (1.0, 21.0, "2", "21")]
)
def test_the_histogram_labels_twenty_classes_with_twenty_ends(low, high, first, last) -> None:
    waits = tuple(low + (high - low) * n / 99 for n in range(100))
    figure = run_charts.rank_spread(RankTable(ranks=tuple(range(100)), data_wait_s=waits))
    ends = re.findall(r"5 ranks up to ([\d.]+) s", figure.alt_text) if figure else []
    assert (len(set(ends)), ends[0], ends[-1]) == (20, first, last)


def test_the_page_of_many_ranks_has_a_histogram_and_the_slowest_ten_with_their_nodes(tmp_path: Path) -> None:
    ranks = 200
    waits = tuple((rank * 37 % ranks) / 100 for rank in range(ranks))
    table = RankTable(ranks=tuple(range(ranks)), data_wait_s=waits, train_s=(9.0,) * ranks)
    figure = run_charts.rank_spread(table)
    assert figure is not None
    classes = [int(number) for number in re.findall(r"(\d+) ranks? up to", figure.alt_text)]
    assert len(classes) == 20 and sum(classes) == ranks and max(classes) == min(classes) == 10

    def env(facts: dict[str, object]) -> None:
        facts["bindings"] = [
            RankBinding(rank=rank, hostname=f"nid{rank // 4:03}", local_rank=rank % 4, cores="0").model_dump()
            for rank in range(ranks)
        ]

    run = make_run(tmp_path / "run", env=env)
    table.write(run / NAME)
    page = run_page.page(read(run), [], None)
    assert "Spread over 200 ranks" in page and "others are not shown" not in page
    ten = sorted(range(ranks), key=lambda rank: -waits[rank])[:10]
    rows = re.findall(r"<t[hd][^>]*>(\d+)</t[hd]>\s*<td[^>]*>(nid\d+)</td>", page)
    assert [(int(rank), node) for rank, node in rows] == [(rank, f"nid{rank // 4:03}") for rank in ten]
