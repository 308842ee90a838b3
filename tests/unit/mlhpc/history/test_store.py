"""The store: what was acknowledged is there, whatever happens to writers, files, and the index."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from golden.make_run import make_run

from mlhpc import cli
from mlhpc.common.files import atomic
from mlhpc.history import index as indexing
from mlhpc.history import store as storing
from mlhpc.history.store import compact, contents, files, put
from mlhpc.record.history import HistoryRecord, RunFigures


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MLHPC_HISTORY", raising=False)
    return tmp_path / "cache"


def record(seconds: float = 60.0, when: str = "2026-03-01T00:00:00Z", **more) -> HistoryRecord:
    figures = RunFigures(time_to_train_s=seconds, reached=True)
    return HistoryRecord(kind="run", benchmark="cosmoflow", when=when, runs=(figures,), **more)


def listed(store: Path, capsys, *words: str) -> list[dict]:
    assert cli.main(["history", "list", "--store", str(store), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)["records"]


def names(store: Path, capsys) -> list[str]:
    return [row["name"] for row in listed(store, capsys)]


def test_a_run_is_listed_with_its_figures_and_twice_is_once(tmp_path: Path, capsys) -> None:
    run, store = make_run(tmp_path / "run"), tmp_path / "store"
    copy = shutil.copytree(run, tmp_path / "elsewhere" / "copy")
    for path in (run, run, copy):
        assert cli.main(["history", "add", str(path), "--store", str(store)]) == 0
    capsys.readouterr()
    (row,) = listed(store, capsys)
    result = json.loads((run / "result.json").read_text())
    assert row["kind"] == "run" and row["benchmark"] == "cosmoflow" and row["status"] == "success"
    assert row["time_to_train_s"] == result["time_to_train_s"] and row["epochs"] == 8
    parts = sum(row[f"{part}_s"] or 0.0 for part in result["breakdown_s"])
    assert parts == pytest.approx(row["time_to_train_s"])
    (file,) = store.iterdir()
    assert file.name == f"{hashlib.sha256(file.read_bytes()).hexdigest()}.json" == f"{row['name']}.json"


def test_stores_are_merged_by_copying(tmp_path: Path, capsys) -> None:
    for store, seconds in (("a", (1.0, 2.0)), ("b", (2.0, 3.0))):
        for value in seconds:
            put(tmp_path / store, record(value))
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    assert sorted(row["time_to_train_s"] for row in listed(tmp_path / "a", capsys)) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("condition", "seconds"),
    [
        ("time_to_train_s<1.5min", [60.0, 80.0]),
        ("time_to_train_s>=80", [80.0, 100.0]),
        ("when>=2026-02,time_to_train_s!=80", [100.0]),
        ("system=per*", [60.0]),
        ("last=2", [80.0, 100.0]),
    ],
)
def test_selections(tmp_path: Path, capsys, condition: str, seconds: list[float]) -> None:
    put(tmp_path / "s", record(60.0, "2026-01-01T00:00:00Z", system="perlmutter"))
    put(tmp_path / "s", record(80.0, "2026-02-02T00:00:00Z", system="summit"))
    put(tmp_path / "s", record(100.0, "2026-03-01T00:00:00Z"))
    assert [row["time_to_train_s"] for row in listed(tmp_path / "s", capsys, "--where", condition)] == seconds


@pytest.mark.parametrize("condition", ["tme<3", "time_to_train_s", "last>2", "system="])
def test_a_bad_selection_is_one_line(tmp_path: Path, capsys, condition: str) -> None:
    put(tmp_path / "s", record())
    assert cli.main(["history", "list", "--store", str(tmp_path / "s"), "--where", condition]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("damage", ["gone", "old", "noise", "truncated", "one digit", "read-only"])
def test_the_index_is_rebuilt(tmp_path: Path, cache: Path, capsys, monkeypatch, damage: str) -> None:
    store = tmp_path / "store"
    version = indexing.VERSION
    monkeypatch.setattr(indexing, "VERSION", version - (damage == "old"))
    expected = [put(store, record(float(n)))[0] for n in range(1, 30)]
    assert sorted(names(store, capsys)) == sorted(expected)
    path = indexing.cache_of(store)
    match damage:
        case "gone":
            shutil.rmtree(cache)
        case "old":
            monkeypatch.setattr(indexing, "VERSION", version)
        case "noise":
            path.write_bytes(os.urandom(10_000))
        case "truncated":
            os.truncate(path, path.stat().st_size // 2)
        case "one digit":  # of a name; SQLite reads it without complaint
            content = path.read_bytes()
            assert content.count(expected[0].encode())
            path.write_bytes(content.replace(expected[0].encode(), b"0" * len(expected[0])))
        case "read-only":
            shutil.rmtree(cache)
            cache.write_text("a file where the folder should be")
    assert sorted(names(store, capsys)) == sorted(expected)


def test_a_withdrawal_of_nothing_hides_nothing(tmp_path: Path, capsys) -> None:
    name, _ = put(tmp_path / "store", record())
    put(tmp_path / "store", HistoryRecord(kind="withdrawal", when="2026-03-02T00:00:00Z"))
    assert names(tmp_path / "store", capsys) == [name]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated or changed"),
        (b'{"history":1,"kind":"run"', "truncated or changed"),
        (b'{"history":2,"kind":"run"}', "of version 2"),
        (b'{"kind":"run"}', "no record"),
        (b'{"history":1,"kind":"other"}', "no record"),
        (b"[" * 100_000, "no record"),
        (b"\xff", "no record"),
    ],
)
def test_other_files_are_named_and_the_rest_is_listed(
    tmp_path: Path, capsys, content: bytes, said: str
) -> None:
    store = tmp_path / "store"
    name, _ = put(store, record())
    changed = "truncated" in said
    other = "0" * 64 if changed else hashlib.sha256(content).hexdigest()
    (store / f"{other}.json").write_bytes(content)
    (store / "notes.txt").write_text("not of the store")
    for _ in range(2):  # also with an index
        assert cli.main(["history", "list", "--store", str(store), "--json"]) == 0
        out, err = capsys.readouterr()
        assert [row["name"] for row in json.loads(out)["records"]] == [name]
        assert said in err and err.count("\n") == 1
    if changed:  # the copy of the store is repeated
        (store / f"{other}.json").unlink()
        put(store, record(2.0))
        assert len(names(store, capsys)) == 2 and not capsys.readouterr().err


def test_a_truncated_copy_is_mended_by_adding_it_again(tmp_path: Path, capsys) -> None:
    store = tmp_path / "store"
    name, _ = put(store, record())
    os.truncate(store / f"{name}.json", 20)
    assert names(store, capsys) == []
    assert put(store, record()) == (name, True)
    assert names(store, capsys) == [name]


def test_withdrawn_records_stay_and_no_longer_count(tmp_path: Path, capsys) -> None:
    store = tmp_path / "store"
    bad, good = (put(store, record(seconds))[0] for seconds in (1.0, 2.0))
    assert cli.main(["history", "withdraw", bad[:8], "--reason", "wrong data", "--store", str(store)]) == 0
    capsys.readouterr()
    assert names(store, capsys) == [good]
    assert len(listed(store, capsys, "--withdrawn")) == 2
    assert cli.main(["history", "withdraw", "0" * 8, "--reason", "gone", "--store", str(store)]) == 2


def test_packs_have_the_same_records(tmp_path: Path, capsys) -> None:
    store = tmp_path / "store"
    years = [
        (put(store, record(float(n), f"{2020 + n % 4}-01-01T00:00:00Z"))[0], f"{2020 + n % 4}")
        for n in range(12)
    ]
    before = names(store, capsys)
    assert compact(store, years, 2022) == (9, 9)
    assert len(files(store)) == 3 + 3 and names(store, capsys) == before
    put(store, record(99.0, "2020-05-05T00:00:00Z"))
    assert cli.main(["history", "compact", "--before", "2023", "--store", str(store)]) == 0
    capsys.readouterr()
    assert len(files(store)) == 3 + 3 and len(names(store, capsys)) == 13
    shutil.rmtree(tmp_path / "cache")
    assert sorted(names(store, capsys)) == sorted(
        [*before, put(store, record(99.0, "2020-05-05T00:00:00Z"))[0]]
    )


def test_a_list_during_a_compaction_misses_nothing(tmp_path: Path, capsys, monkeypatch) -> None:
    store = tmp_path / "store"
    years = [(put(store, record(float(n)))[0], "2026") for n in range(5)]

    def late(folder: Path) -> set[str]:
        seen = files(folder)
        monkeypatch.setattr(storing, "files", files)
        compact(store, years, 2026)
        return seen

    monkeypatch.setattr(storing, "files", late)
    assert sorted(names(store, capsys)) == sorted(name for name, _ in years)


WRITER = """
import sys
from pathlib import Path
from mlhpc.history.store import put
from mlhpc.record.history import HistoryRecord, RunFigures
for n in range(100_000):
    figures = RunFigures(time_to_train_s=n + 1, seed=int(sys.argv[2]))
    name, _ = put(Path(sys.argv[1]), HistoryRecord(kind="run", runs=(figures,)))
    sys.stdout.write(name + "\\n")
    sys.stdout.flush()
"""


def test_two_writers_without_locks_and_kill_lose_nothing(tmp_path: Path, capsys) -> None:
    store = tmp_path / "store"
    acknowledged: list[str] = []
    for turn in range(2):
        outs = [tmp_path / f"names{turn}{n}" for n in range(2)]
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(store), str(2 * turn + n)], stdout=out.open("w")
            )
            for n, out in enumerate(outs)
        ]
        while any(out.stat().st_size < 65 * 30 for out in outs):
            time.sleep(0.01)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        acknowledged += [name for out in outs for name in out.read_text().split("\n") if len(name) == 64]
    assert len(acknowledged) >= 120 and set(acknowledged) <= set(names(store, capsys))
    for file in files(store):
        assert all(isinstance(data, bytes) for _, data in contents(store, file))


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, capsys, monkeypatch) -> None:
    store = tmp_path / "store"
    name, _ = put(store, record())

    def full(fd: int, data: memoryview) -> None:
        os.write(fd, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "write_all", full)
    assert cli.main(["history", "add", str(make_run(tmp_path / "run")), "--store", str(store)]) == 2
    assert "No space left" in capsys.readouterr().err
    assert [path.stem for path in store.iterdir()] == [name] and names(store, capsys) == [name]


def test_an_export_has_no_names_of_hosts_and_users(tmp_path: Path, capsys) -> None:
    def named(env: dict) -> None:
        env |= {
            "hostname": "nid00042",
            "data": "/home/grace/data",
            "command": "mlhpc run --data /home/grace/data",
        }
        env["nodes"] = [{"hostname": "nid00042"}, {"hostname": "nid00043"}]
        env["variables"] = {"SLURM_JOB_NODELIST": "nid[00042-00043]"}

    run, store, out = make_run(tmp_path / "run", env=named), tmp_path / "store", tmp_path / "out"
    assert cli.main(["history", "add", str(run), "--store", str(store)]) == 0
    assert cli.main(["history", "export", "--out", str(out), "--store", str(store)]) == 0
    capsys.readouterr()
    (file,) = out.iterdir()
    text = file.read_text()
    assert "nid" not in text and "grace" not in text and "node2" in text
    (row,), (original,) = listed(out, capsys), listed(store, capsys)
    assert row["time_to_train_s"] == original["time_to_train_s"]


def test_an_export_keeps_what_makes_results_comparable(tmp_path: Path, capsys) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    content = {"config": {"data": {"train_samples": 64, "path": "/home/grace"}}, "environment": {}}
    for n in range(3):
        environment = {"environment": {"hostname": "nid00042" if n else "nid00043"}}
        versions = {"data": 3, "parts": 1, "preset": 2}
        put(store, record(60.0 + n, system="nid", versions=versions, content=content | environment))
    assert cli.main(["history", "export", "--out", str(out), "--store", str(store)]) == 0
    capsys.readouterr()
    rows = listed(out, capsys)
    assert {row["versions"] for row in rows} == {"data 3, parts 1, preset 2"}
    assert {row["system"] for row in rows} == {"system1"}  # one series stays one
    kept = [json.loads(file.read_text())["content"]["config"]["data"] for file in out.iterdir()]
    assert kept == [{"train_samples": 64, "path": "(path)"}] * 3


@pytest.mark.parametrize(
    ("condition", "selected"),
    [("when>=2026", 2), ("when<2026", 1), ("when>=2026-02", 1), ("settings=1234567890123456", 1),
     ("mlhpc=1.0", 3), ("time_to_train_s<61.5", 2), ("time_to_train_s<1.5min", 3), ("nodes=4", 3)],
)  # fmt: skip
def test_texts_are_compared_as_texts_and_figures_as_numbers(
    tmp_path: Path, capsys, condition: str, selected: int
) -> None:
    store = tmp_path / "store"
    for n, when in enumerate(("2025-12-31", "2026-01-01", "2026-02-01")):
        settings = "1234567890123456" if n == 1 else "abcdef"
        put(store, record(60.0 + n, f"{when}T00:00:00Z", settings=settings, mlhpc="1.0", nodes=4))
    assert len(listed(store, capsys, "--where", condition)) == selected


@pytest.mark.parametrize("condition", ["time_to_train_s<5mins", "nodes>three"])
def test_a_condition_that_is_no_number_is_one_line(tmp_path: Path, capsys, condition: str) -> None:
    put(tmp_path / "store", record())
    assert cli.main(["history", "list", "--store", str(tmp_path / "store"), "--where", condition]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a number" in line


def test_a_changed_line_of_a_pack_is_no_record(tmp_path: Path, capsys) -> None:
    store = tmp_path / "store"
    years = [(put(store, record(102.0 + n, "2020-01-01T00:00:00Z"))[0], "2020") for n in range(3)]
    compact(store, years, 2020)
    (pack,) = store.iterdir()
    pack.chmod(0o644)
    pack.write_text(pack.read_text().replace("102.0", "902.0"))
    assert cli.main(["history", "list", "--store", str(store), "--json"]) == 0
    printed = capsys.readouterr()
    assert [row["time_to_train_s"] for row in json.loads(printed.out)["records"]] in ([103, 104], [104, 103])
    assert "changed in a pack" in printed.err
