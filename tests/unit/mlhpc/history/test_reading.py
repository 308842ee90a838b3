"""What is added: results of this suite by themselves and by hand, and those of others."""

import json
import shlex
import sqlite3
import threading
from pathlib import Path

import pytest
from golden.make_run import make_run

from mlhpc import cli
from mlhpc.history import reading


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLHPC_HISTORY", str(tmp_path / "store"))
    return tmp_path / "store"


def added(capsys, *paths: Path) -> list[dict]:
    assert cli.main(["history", "add", *map(str, paths)]) == 0
    capsys.readouterr()
    assert cli.main(["history", "list", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["records"]


def test_a_run_adds_itself_as_by_hand(tmp_path: Path, store: Path, capsys) -> None:
    run = make_run(tmp_path / "run")
    reading.remember(run)
    (file,) = store.iterdir()
    assert [row["name"] for row in added(capsys, run)] == [file.stem]


def test_the_history_and_the_report_have_one_throughput(tmp_path: Path, store: Path, capsys) -> None:
    """Of epochs on samples of full size: the others, here the majority, are not the benchmark's."""

    def coarse(result: dict) -> None:
        for epoch in result["epochs"]:
            of = {"trained_side": 16, "samples_per_s": 26.0 + epoch["epoch"]}
            epoch.update(of if epoch["epoch"] <= 5 else {"trained_side": 32, "samples_per_s": 16.25})

    run = make_run(tmp_path / "run", result=coarse)
    assert [row["samples_per_s"] for row in added(capsys, run)] == [16.25]
    assert cli.main(["report", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples_per_s"] == 16.25


@pytest.mark.parametrize("fails", ["full", "no run"])
def test_a_store_that_fails_costs_a_line(tmp_path: Path, monkeypatch, capsys, fails: str) -> None:
    run = make_run(tmp_path / "run")
    if fails == "full":
        monkeypatch.setenv("MLHPC_HISTORY", "/dev/full/store")
    else:
        (run / "result.json").write_text("{")
    reading.remember(run)
    err = capsys.readouterr().err
    assert err.startswith("mlhpc: warning: not in the history") and err.count("\n") == 1


def test_a_store_that_hangs_holds_no_process_and_the_warning_says_how_to_add(
    tmp_path: Path, store: Path, monkeypatch, capsys
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(reading, "ADDING_S", 0.1)
    monkeypatch.setattr(reading, "put", lambda *_: answers.wait())
    reading.remember(make_run(tmp_path / "a run"))  # returns although the store never answers
    err = capsys.readouterr().err
    answers.set()
    assert "not written within" in err and err.count("\n") == 1 and not store.exists()
    program, *words = shlex.split(err.partition("add it with: ")[2])
    assert program == "mlhpc" and cli.main(words) == 0
    assert len(list(store.iterdir())) == 1


def test_a_damaged_run_does_not_keep_the_others_out(tmp_path: Path, capsys) -> None:
    for n in range(3):
        make_run(tmp_path / "runs" / f"run{n}", epochs=5 + n)
    (tmp_path / "runs/run0/result.json").write_text('{"benchmark": "cosmo')
    assert cli.main(["history", "add", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert "2 read, 2 new records added" in out and "run0" in err and err.count("\n") == 1


def test_a_campaign_and_its_runs(tmp_path: Path, capsys) -> None:
    for n in range(2):
        make_run(tmp_path / "runs" / f"run_0{n + 1}", result=lambda result, n=n: result.update(seed=n))
    states = [{"name": f"run_0{n}", "state": "converged", "seconds": 60.0 + n, "epochs": 8,
               "joules": {"accelerators": 100.0 * n} | ({"node": 900.0} if n == 2 else {}),
               "joules_per_sample": {"node": 2.0 * n}} for n in (1, 2)]  # fmt: skip
    campaign = {"benchmark": "cosmoflow", "preset": "smoke", "metric": "strong", "run_states": states,
                "score": {"minutes": 1.0}}  # fmt: skip
    (tmp_path / "runs/campaign.json").write_text(json.dumps(campaign))
    rows = added(capsys, tmp_path / "runs")
    assert sorted(row["kind"] for row in rows) == ["campaign", "run", "run"]
    (one,) = (row for row in rows if row["kind"] == "campaign")
    assert one["number_of_runs"] == 2 and one["time_to_train_s"] == 61.5 and one["score_s"] == 60.0
    assert (one["joules"], one["joules_per_sample"]) == (150.0, 3.0)


def test_a_time_to_train_is_that_of_runs_that_reached_the_target(tmp_path: Path, capsys) -> None:
    """Four runs of 49 s and 4 epochs; the fifth trained to its last epoch and missed. A cell has a rate."""
    converged = {"state": "converged", "seconds": 49.0, "epochs": 4, "joules": {"node": 100.0}}
    missed = {"state": "missed", "seconds": 147.0, "epochs": 12, "joules": {"node": 300.0}}
    states = [{"name": f"run_0{n}", **(missed if n == 5 else converged)} for n in range(1, 6)]
    campaign = {"benchmark": "cosmoflow", "preset": "smoke", "metric": "strong", "run_states": states,
                "score": {"minutes": 49 / 60}}  # fmt: skip
    (tmp_path / "campaign").mkdir()
    (tmp_path / "campaign/campaign.json").write_text(json.dumps(campaign))
    make_run(tmp_path / "study/cell/run-1", status="failed")
    (tmp_path / "study/cell/cell.json").write_text("{}")
    rows = {row["kind"]: row for row in added(capsys, tmp_path / "campaign", tmp_path / "study")}
    one = rows["campaign"]
    assert (one["time_to_train_s"], one["epochs"], one["joules"]) == (49.0, 4, 100.0)
    cell = rows["study cell"]
    assert cell["samples_per_s"] and {cell["time_to_train_s"], cell["time_to_train_without_staging_s"]} == {
        None
    }


def test_a_tree_of_another_submitter_is_a_record_per_set(tmp_path: Path, capsys) -> None:
    tree = tmp_path / "Lab" / "results" / "machine" / "cosmoflow"
    tree.mkdir(parents=True)
    (tmp_path / "Lab/systems").mkdir()
    for n in range(3):
        run = make_run(tmp_path / f"run{n}")
        first, *others = (run / "run.log").read_text().splitlines(keepends=True)
        version = json.loads(first.removeprefix(":::MLLOG ")) | {"key": "preset_version", "value": 2}
        (tree / f"result_{n}.txt").write_text("".join([first, f":::MLLOG {json.dumps(version)}\n", *others]))
    (row,) = added(capsys, tmp_path / "Lab")
    assert row["kind"] == "result set" and row["org"] == "Lab" and row["system"] == "machine"
    assert row["versions"] == "preset 2"
    result = json.loads((tmp_path / "run0/result.json").read_text())
    assert row["time_to_train_s"] == pytest.approx(result["time_to_train_s"]) and row["epochs"] == 8


def test_predictions_and_profiles(tmp_path: Path, capsys) -> None:
    predicted = {"benchmark": "deepcam", "machine": "perlmutter", "nodes": 4, "step_s": [0.1, 0.09, 0.12],
                 "time_to_train_s": [600.0, 500.0, 700.0]}  # fmt: skip
    profile = {"benchmark": "deepcam", "preset": "smoke", "device": "NVIDIA A100", "gpu": True, "step_s": 0.3,
               "step_without_profiler_s": 0.2, "date": "2026-05-01T00:00:00+00:00"}  # fmt: skip
    for name, content in (("a", [predicted]), ("b", profile)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    rows = {row["kind"]: row for row in added(capsys, tmp_path / "a.json", tmp_path / "b.json")}
    assert rows["prediction"]["time_to_train_s"] == 600.0 and rows["prediction"]["system"] == "perlmutter"
    assert rows["profile"]["machine"] == "NVIDIA A100"
    assert rows["profile"]["training_step_s"] == 0.2 and rows["profile"]["when"] == "2026-05-01T00:00:00Z"


def reframe(path: Path, blob: str, schema: str = "1.0") -> Path:
    """A database as ReFrame 4.8 writes it (reframe/frontend/reporting/storage.py)."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE sessions(uuid TEXT PRIMARY KEY, session_start_unix REAL, session_end_unix REAL, "
                   "json_blob TEXT, report_file TEXT)")  # fmt: skip
        db.execute("CREATE TABLE metadata(schema_version TEXT)")
        db.execute("INSERT INTO metadata VALUES (?)", [schema])
        db.execute("INSERT INTO sessions VALUES ('u1', 1.7e9, 1.7e9, ?, '')", [blob])
    db.close()
    return path


def test_reframes_database(tmp_path: Path, capsys) -> None:
    case = {"name": "MlhpcRun %benchmark=deepcam", "system": "daint", "partition": "gpu", "environ": "builtin",
            "job_completion_time_unix": 1.7e9, "result": "pass",
            "perfvalues": {"daint:gpu:time_to_train": [71.5, 70, None, 0.1, "s"],
                           "daint:gpu:throughput": [12.0, 0, None, None, "samples/s"]}}  # fmt: skip
    failed = {"name": "x", "system": "daint", "partition": "gpu", "perfvalues": None, "result": "fail"}
    (row,) = added(capsys, reframe(tmp_path / "r.db", json.dumps({"runs": [{"testcases": [case, failed]}]})))
    assert row["kind"] == "reframe" and row["system"] == "daint:gpu" and row["time_to_train_s"] == 71.5
    assert row["throughput_samples_per_s"] == 12.0 and row["when"] == "2023-11-14T22:13:20Z"


def test_a_machine_file_of_a_node(tmp_path: Path, capsys) -> None:
    (tmp_path / "n7.toml").write_text(
        'title = "nid0007, as measured"\nnodes = 1\n[accelerator]\nmodel = "A100"\nfamily = "A100"\nper_node = 4\n'
        'float32 = { value = "19 TFLOP/s", source = "measured 2026-03-04: product" }\n'
        'memory = { value = "40 GB", source = "reported by the driver" }\n'
        'bandwidth = { value = "1.3 TB/s", source = "measured 2026-03-04: copy" }\n'
    )
    (row,) = added(capsys, tmp_path / "n7.toml")
    assert row["kind"] == "node" and row["node"] == "nid0007" and row["when"] == "2026-03-04T00:00:00Z"
    assert row["accelerator.bandwidth"] == 1.3e12 and row["machine"] == "A100" and row["system"] == "nid"


@pytest.mark.parametrize(
    "kind", ["nothing", "empty folder", "text", "schema", "blob", "not sqlite", "running", "no name"]
)
def test_what_cannot_be_added_is_one_line(tmp_path: Path, store: Path, capsys, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "empty folder":
            path.mkdir()
        case "text":
            path = tmp_path / "x.json"
            path.write_text('{"a": 1}')
        case "schema":
            reframe(path, "{}", "2.0")
        case "blob":
            reframe(path, '{"runs": [3]}')
        case "not sqlite":
            path.write_bytes(b"SQLite format 3\0" + b"x" * 1000)
        case "running":
            (make_run(path) / "result.json").write_text("{")
        case "no name":
            log = make_run(tmp_path / "run") / "run.log"
            path.write_text(log.read_text().replace('"value": "cosmoflow"', '"value": "a b <c>"'))
    assert cli.main(["history", "add", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not store.exists()
