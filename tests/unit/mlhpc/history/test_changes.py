"""Change points and the page of a system, on series with a change that is known."""

import json
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from golden.make_run import make_run

from mlhpc import cli
from mlhpc.history.changes import changes, smallest_step
from mlhpc.history.reading import folder_record
from mlhpc.history.store import compact, put
from mlhpc.record.history import HistoryRecord


def series(step: float, runs: int = 60, at: int = 40, seed: int = 0) -> list[float]:
    """Times with noise of 2%, and a step in units of that."""
    values = np.random.default_rng(seed).standard_normal(runs)
    values[at:] += step
    return (100 * np.exp(0.02 * values)).tolist()


@pytest.mark.parametrize("step", [4.0, -4.0])
def test_a_step_is_found_where_it_is(step: float) -> None:
    hits = 0
    for seed in range(40):
        found = changes(series(step, seed=seed))
        hits += any(
            39 <= change.at <= 41 and change.found <= 46 and (change.ratio > 1) == (step > 0)
            for change in found
        )
    assert hits >= 36


def test_noise_raises_few_alarms() -> None:
    """At most one in 200 runs, of two figures: 40 series of 250 runs have 25 at most, and some for chance."""
    assert sum(len(changes(series(0.0, 250, seed=seed))) for seed in range(40)) <= 40


def test_a_single_outlier_is_no_change() -> None:
    before = after = 0
    for seed in range(20):
        values = series(0.0, seed=seed)
        before += len(changes(values))
        values[50] *= 1.5
        after += len(changes(values))
    assert after <= before + 1


def test_the_unit_does_not_matter() -> None:
    values = series(3.0)
    hours = [value / 3600 for value in values]
    assert [change.at for change in changes(values)] == [change.at for change in changes(hours)]


@pytest.mark.parametrize("values", [[], [1.0], [2.0] * 100, list(range(1, 9))])
def test_few_or_equal_runs_have_no_change(values: list[float]) -> None:
    assert changes(values) == []


def test_the_step_that_noise_can_show_is_its_deviation() -> None:
    assert smallest_step(series(0.0, 200)) == pytest.approx(0.02, rel=0.25)
    assert smallest_step([1.0] * 5) is None


@pytest.fixture
def store(tmp_path: Path, monkeypatch) -> Path:
    """Of 60 runs of a system; from the 46th on they wait for data, with another NumPy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLHPC_HISTORY", str(tmp_path / "store"))
    record = folder_record(make_run(tmp_path / "run"), "frontier")
    draw = random.Random(1)
    (figures,) = record.runs
    for n in range(60):
        parts = {part: seconds * draw.gauss(1, 0.02) for part, seconds in figures.parts_s.items()}
        parts["data_wait"] += 12.0 if n >= 45 else 0.0
        update = {"parts_s": parts, "time_to_train_s": sum(parts.values()), "seed": n}
        when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n)
        content = json.loads(json.dumps(record.content))
        content["environment"]["packages"]["numpy"] = "2.0.2" if n < 45 else "2.1.0"
        put(tmp_path / "store", record.model_copy(
            update={"runs": (figures.model_copy(update=update),), "when": f"{when:%Y-%m-%dT%H:%M:%SZ}",
                    "content": content}))  # fmt: skip
    return tmp_path / "store"


def test_the_page_shows_the_change_and_what_differs(store: Path, tmp_path: Path, capsys) -> None:
    assert (
        cli.main(["history", "annotate", "new <b>driver</b>", "--system", "frontier", "--when", "2026-02-15"])
        == 0
    )
    out = tmp_path / "page.html"
    assert cli.main(["history", "page", "frontier", "--out", str(out)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"time to train \+1\d\.\d% from \w+ \(2026-02-1[45]", said)
    page = out.read_text()
    assert "packages.numpy" in page and "2.1.0" in page and "new &lt;b&gt;driver" in page
    assert "can show steps of" in page and "<script src" not in page
    links = set(re.findall(r'href="(store/\w+\.json)"', page))
    assert len(links) == 60 and all((tmp_path / link).is_file() for link in links)


def test_after_a_compaction_no_link_is_dead(store: Path, tmp_path: Path) -> None:
    packed, kept = (
        sorted(path.stem for path in store.iterdir())[part] for part in (slice(20), slice(20, None))
    )
    compact(store, [(name, "2026") for name in packed], 2026)
    out = tmp_path / "page.html"
    assert cli.main(["history", "page", "frontier", "--out", str(out)]) == 1
    page = out.read_text()
    assert set(re.findall(r'href="store/(\w+)\.json"', page)) == set(kept)
    assert all(name[:12] in page for name in packed)


def test_without_a_change_the_status_is_0(store: Path, tmp_path: Path) -> None:
    words = ["history", "page", "frontier", "--out", str(tmp_path / "p.html"), "--where", "when<2026-02-10"]
    assert cli.main(words) == 0


def test_an_unknown_system_is_one_line(store: Path, tmp_path: Path, capsys) -> None:
    assert cli.main(["history", "page", "summit", "--out", str(tmp_path / "p.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_runs_with_clocks_that_went_back_are_sorted_by_time(store: Path, tmp_path: Path) -> None:
    early = HistoryRecord(kind="run", benchmark="cosmoflow", system="frontier", when="1970-01-01T00:00:00Z",
                          status="success")  # fmt: skip
    put(store, early)
    assert cli.main(["history", "page", "frontier", "--out", str(tmp_path / "p.html")]) == 1
