"""Runs observed: watch, diff, trace and export read what a run wrote, complete or not."""

import csv
import io
import json
import os
from pathlib import Path

import jsonschema
import pytest
from golden.make_run import make_run
from rich.console import Console

from mlhpc import cli
from mlhpc.benchmarks import load
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog
from mlhpc.errors import UserError
from mlhpc.observe.trace import write_trace
from mlhpc.observe.watch import progress_of, watch
from mlhpc.record.differences import differences
from mlhpc.record.progress import Follower, _Tail

# Of the Trace Event Format: what Perfetto's JSON importer needs of the phases that are used here.
TRACE_SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "pid", "name"],
                "properties": {
                    "ph": {"enum": ["X", "C", "M"]},
                    "name": {"type": "string"},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "ts": {"type": "number", "minimum": 0},
                    "dur": {"type": "number", "minimum": 0},
                    "args": {"type": "object"},
                },
                "allOf": [
                    {
                        "if": {"properties": {"ph": {"const": "X"}}},
                        "then": {"required": ["ts", "dur", "tid"]},
                    },
                    {
                        "if": {"properties": {"ph": {"const": "C"}}},
                        "then": {
                            "required": ["ts", "args"],
                            "properties": {"args": {"additionalProperties": {"type": "number"}}},
                        },
                    },
                    {
                        "if": {"properties": {"ph": {"const": "M"}}},
                        "then": {"properties": {"name": {"enum": ["process_name", "thread_name"]}}},
                    },
                ],
            },
        },
    },
}


def started(out: Path, *, epochs: int, ended: bool = False) -> Path:
    """The folder of a run of two ranks that has trained ``epochs`` of 16 epochs, written by its own log, and is
    training the next one, unless it has ``ended``."""
    out.mkdir()
    settings = ["training.max_epochs=16", "data.train_samples=2048", "target.value=0.25"]
    (out / "config.toml").write_text(load.dumps(load.load("cosmoflow", "smoke", settings)))
    with RunLog(out, Solo()) as log:
        log.note("facts", ranks=2, resumed=False)
        with log.span("init"):
            pass
        with log.span("run"):
            for epoch in range(1, epochs + 1):
                with log.span("epoch", epoch=epoch):
                    with log.span("train", epoch=epoch):
                        list(log.timed(range(4), "data_wait", epoch=epoch))
                    log.metric("eval_error", 1.0 / epoch, epoch=epoch)
                log.metric("samples", 2048, epoch=epoch)
            if ended:
                log.finish("success")
    events = (out / "events.rank0.jsonl").read_text().splitlines(keepends=True)
    if not ended:
        last = [each for each in events if '"end", "name": "run"' not in each]
        begin = [
            json.dumps({"t": 50.0, "event": "begin", "name": name, "epoch": epochs + 1}) + "\n"
            for name in ("epoch", "train")
        ]
        step = json.dumps({"t": 58.0, "event": "progress", "name": "train", "step": 40}) + "\n"
        (out / "events.rank0.jsonl").write_text("".join([*last, *begin, step]))
    (out / "events.rank1.jsonl").write_text("".join(events))
    return out


def test_progress_of_a_run_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    now = Follower(started(tmp_path / "run", epochs=3)).look()
    assert (now.status, now.phase, now.epoch, now.epochs) == ("running", "training", 4, 16)
    assert (now.step, now.steps, now.ranks) == (40, 128, 2)
    assert now.best == pytest.approx(1 / 3) and now.target == 0.25
    assert now.samples_per_s and now.data_wait_share is not None and 0 <= now.data_wait_share <= 1
    assert now.left_s is not None


def test_in_the_first_epoch_the_rate_is_that_of_the_steps_so_far(tmp_path: Path) -> None:
    now = Follower(started(tmp_path / "run", epochs=0)).look()
    assert now.samples_per_s == pytest.approx(40 * 16 / 8.0)  # 40 steps of 16 samples in 8 s
    assert now.best is None and now.left_s is None


def test_the_rate_of_the_first_epoch_is_that_of_all_its_parts(tmp_path: Path) -> None:
    """Before an evaluation within it, 40 steps of 16 samples in 8 s; so far, 50 in 8 + 2 s."""
    out = started(tmp_path / "run", epochs=0)
    with (out / "events.rank0.jsonl").open("a") as file:
        for event in (
            {"t": 58.0, "event": "end", "name": "train", "epoch": 1, "seconds": 8.0},
            {"t": 60.0, "event": "begin", "name": "train", "epoch": 1},
            {"t": 62.0, "event": "progress", "name": "train of epoch 1", "step": 50},
        ):
            file.write(json.dumps(event) + "\n")
    now = Follower(out).look()
    assert now.step == 50 and now.samples_per_s == pytest.approx(50 * 16 / 10)


def test_a_follower_reads_only_whole_lines_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out = started(tmp_path / "run", epochs=1)
    follower = Follower(out)
    assert follower.look().best == 1.0
    line = json.dumps({"t": 60.0, "event": "metric", "name": "eval_error", "value": 0.25, "epoch": 2}) + "\n"
    with (out / "events.rank0.jsonl").open("a") as file:
        file.write(line[:20])
        file.flush()
        assert follower.look().best == 1.0
        file.write(line[20:])
    assert follower.look().best == 0.25


def lines_of(*events: dict) -> str:
    return "".join(json.dumps({"t": 20.0, **event}) + "\n" for event in events)


def test_a_hole_that_a_shared_file_system_shows_is_read_when_it_is_filled(tmp_path: Path) -> None:
    """NFS and Lustre may know how long a file is before its last bytes: a reader sees zeros there."""
    out = started(tmp_path / "run", epochs=1)
    follower = Follower(out)
    assert follower.look().best == 1.0
    path = out / "events.rank0.jsonl"
    whole, at = path.read_bytes(), path.stat().st_size
    added = lines_of({"event": "metric", "name": "eval_error", "value": 0.25, "epoch": 2}).encode()
    later = lines_of({"event": "metric", "name": "eval_error", "value": 0.125, "epoch": 3}).encode()
    path.write_bytes(whole + added[:20] + bytes(len(added) - 20) + later)
    assert follower.look().best == 1.0
    with path.open("r+b") as file:
        file.seek(at)
        file.write(added)
    assert follower.look().best == 0.125
    assert Follower(out).look().best == 0.125


@pytest.mark.parametrize("lost", [b"", b'{"t": 59.0, "eve'])  # whole lines, or from the middle of one
def test_a_hole_that_stays_is_passed_when_its_bytes_must_be_lost(
    tmp_path: Path, monkeypatch, lost: bytes
) -> None:
    """The pages of a client that a file system has evicted, or of a node that crashed, stay zeros."""
    out, now, got = started(tmp_path / "run", epochs=1), [1000.0], [0]
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        data = pread(fd, length, offset)
        got[0] += len(data)
        return data

    follower = Follower(out, clock=lambda: now[0])
    assert follower.look().best == 1.0
    path = out / "events.rank0.jsonl"
    with path.open("ab") as file:
        file.write(lost + bytes(300))
    now[0] += 100.0
    assert follower.look().best == 1.0
    now[0] += 100.0
    assert follower.look().best == 1.0, "nothing follows the zeros: this may be the end that is being written"
    metrics = [lines_of({"event": "metric", "name": "eval_error", "value": 1.0 / 2**n}) for n in range(1, 4)]
    with path.open("a") as text:
        text.write("\n" + "".join(metrics) + lines_of({"event": "note", "name": "x", "text": "y" * 500_000}))
    monkeypatch.setattr(os, "pread", counted)
    for _ in range(20):
        now[0] += 1.0
        follower.look()
    assert got[0] < 600_000, "what follows a hole is not read again with each look"
    now[0] += 10.0
    assert follower.look().best == 0.125
    with path.open("a") as text:
        text.write(lines_of({"event": "metric", "name": "eval_error", "value": 0.0625}))
    assert follower.look().best == 0.0625, "one hole does not delay what comes later"


def test_a_file_that_is_cut_and_written_anew_is_read_anew(tmp_path: Path) -> None:
    out = started(tmp_path / "run", epochs=3)
    follower = Follower(out)
    before = follower.look()
    assert before.epoch == 4 and before.best == pytest.approx(1 / 3)
    other = started(tmp_path / "other", epochs=1)
    for path in out.glob("events.rank*"):
        path.write_bytes((other / path.name).read_bytes())
    after, fresh = follower.look(), Follower(out).look()
    assert (after.epoch, after.best) == (2, 1.0)
    assert after.data_wait_share == fresh.data_wait_share != before.data_wait_share


def test_a_size_that_a_file_system_remembers_makes_no_file_cut(tmp_path: Path) -> None:
    """NFS tells an old size for seconds, while the reading of the file has got all of it."""
    path = tmp_path / "events.rank0.jsonl"
    path.write_text("one\ntwo\n")
    tail = _Tail(str(path))
    assert tail.read(4) == [b"one", b"two"]
    assert not tail.was_cut(4) and tail.read(4) == []
    path.write_text("on")
    assert tail.was_cut(2)


def test_the_data_wait_is_that_of_the_slowest_rank_whenever_its_events_appear(tmp_path: Path) -> None:
    out = started(tmp_path / "run", epochs=0)
    for path in out.glob("events.rank*"):
        path.unlink()

    def epoch(number: int, wait: float, train: float) -> str:
        part = [
            {"event": "begin", "name": "train", "epoch": number},
            {"event": "timed", "name": "data_wait", "epoch": number, "count": 4, "seconds": wait / 2},
            {"event": "steps", "name": "train", "epoch": number, "count": 4, "seconds": 99.0},
            {"event": "end", "name": "train", "epoch": number, "seconds": train / 2},
            {"event": "timed", "name": "eval_data_wait", "epoch": number, "count": 1, "seconds": 50.0},
            {"event": "end", "name": "eval", "epoch": number, "seconds": 60.0},
        ]
        return lines_of(*part, *part)  # an evaluation in the middle of the epoch

    (out / "events.rank0.jsonl").write_text(epoch(1, 2.0, 10.0))
    (out / "events.rank7.jsonl").write_text("")
    (out / "events.rankx.jsonl").write_text(epoch(1, 9.0, 10.0))
    follower = Follower(out)
    assert follower.look().data_wait_share == pytest.approx(0.2)
    (out / "events.rank7.jsonl").write_text(epoch(1, 4.0, 10.0))  # rank 7 of a node that is late
    assert follower.look().data_wait_share == pytest.approx(0.4)
    text = epoch(1, 6.0, 10.0) + epoch(2, 1.0, 10.0)
    (out / "events.rank12.jsonl").write_text(text[:-30])  # it is an epoch ahead, and its last line is cut
    assert follower.look().data_wait_share == pytest.approx(0.6)
    (out / "events.rank12.jsonl").write_text(text)
    with (out / "events.rank0.jsonl").open("a") as file:
        file.write(epoch(2, 3.0, 10.0))
    assert follower.look().data_wait_share == pytest.approx(0.3)


def test_damaged_and_foreign_events_do_not_stop_it(tmp_path: Path) -> None:
    out = started(tmp_path / "run", epochs=2)
    bad = [
        "[" * 100_000,
        "null",
        '{"event": "end", "name": "run", "t": "x"}',
        '{"event": "end", "name": "odd"}',
    ]
    bad += ['{"event": "metric", "name": "eval_error", "value": "low"}', "\x00", '{"event": 3}']
    with (out / "events.rank0.jsonl").open("a") as file:
        file.write("\n".join(bad) + "\n")
    assert Follower(out).look().best == 0.5


def test_watch_ends_with_the_run(tmp_path: Path) -> None:
    done = started(tmp_path / "done", epochs=4, ended=True)
    text = io.StringIO()
    assert watch(done, 1, Console(file=text), sleep=lambda seconds: None) == 0
    assert (
        text.getvalue().startswith("success, epoch 4 of 16") and "best 0.25, target 0.25" in text.getvalue()
    )


def test_watch_says_that_the_processes_of_a_run_are_gone(tmp_path: Path) -> None:
    dead = started(tmp_path / "dead", epochs=2)
    for path in dead.glob("events*"):
        os.utime(path, (1e9, 1e9))
    assert progress_of(dead).status == "gone"
    text = io.StringIO()
    assert watch(dead, 1, Console(file=text), once=True) == 1
    assert "ended without a result" in " ".join(text.getvalue().split())


@pytest.mark.parametrize("width", [40, 80])
def test_watch_is_no_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    text = io.StringIO()
    watch(started(tmp_path / "run", epochs=3), 1, Console(file=text, width=width), once=True)
    assert max(map(len, text.getvalue().splitlines())) <= width


def test_a_trace_of_a_run_is_valid_and_has_every_span_of_every_rank(tmp_path: Path) -> None:
    out = started(tmp_path / "run", epochs=3)
    trace = json.loads(write_trace(out, tmp_path / "trace.json").read_text())
    jsonschema.validate(trace, TRACE_SCHEMA)
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    for rank in (0, 1):
        names = [e["name"] for e in spans if e["pid"] == rank]
        assert names.count("train") == 3 + (rank == 0) and names.count("run") == 1
    # A span lies inside the one around it.
    (run,) = (e for e in spans if e["name"] == "run" and e["pid"] == 1)
    inside = [e for e in spans if e["name"] == "train" and e["pid"] == 1]
    assert all(run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"] for e in inside)


def test_a_trace_has_the_energy_of_each_node_as_counters(tmp_path: Path) -> None:
    """Joules at each reading, and from each reading to the next the mean power in between."""
    out = started(tmp_path / "run", epochs=1)
    readings = {0: [(1.0, 0.0), (11.0, 3000.0), (13.5, 4000.0)], 1: [(2.0, 0.0), (12.0, 5000.0)]}
    for rank, joules in readings.items():
        lines = [
            json.dumps({"t": t, "event": "energy", "name": "processors", "joules": value})
            for t, value in joules
        ]
        lines.append('{"t": 14.0, "event": "energy", "name": "processors", "joules": "many"}')
        with (out / f"events.rank{rank}.jsonl").open("a") as file:
            file.write("\n".join(lines) + "\n")
    trace = json.loads(write_trace(out, tmp_path / "trace.json").read_text())
    jsonschema.validate(trace, TRACE_SCHEMA)

    def counted(name: str, rank: int) -> list[tuple[float, float]]:
        events = [e for e in trace["traceEvents"] if (e["ph"], e["name"], e["pid"]) == ("C", name, rank)]
        return [(e["ts"] / 1e6, e["args"][name]) for e in events]

    assert counted("energy of processors, J", 0) == readings[0]
    assert counted("energy of processors, J", 1) == readings[1]
    assert counted("power of processors, W", 0) == [(1.0, 300.0), (11.0, 400.0)]
    assert counted("power of processors, W", 1) == [(2.0, 500.0)]


@pytest.mark.parametrize("levels", [100, 700, 850])  # which of them Python can read depends on its version
def test_a_trace_of_events_that_nest_is_a_trace_or_one_line(tmp_path: Path, capsys, levels: int) -> None:
    out, trace = started(tmp_path / "run", epochs=1), tmp_path / "trace.json"
    with (out / "events.rank0.jsonl").open("a") as file:
        file.write('{"t": 60.0, "event": "begin", "name": "x", "tag": ' + "[" * levels + "]" * levels + "}\n")
    status = cli.main(["trace", str(out), "--out", str(trace)])
    assert trace.exists() == (status == 0) and (status == 0 or levels > 100)
    assert status == 0 or (status == 2 and capsys.readouterr().err.count("\n") == 1)


def test_a_trace_overwrites_nothing(tmp_path: Path) -> None:
    out = started(tmp_path / "run", epochs=1)
    (tmp_path / "trace.json").write_text("kept")
    with pytest.raises(UserError, match="already exists"):
        write_trace(out, tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text() == "kept"


def test_csv_has_every_epoch_and_quotes_names(tmp_path: Path, capsys) -> None:
    name = 'a "b", <i>c</i>'

    def renamed(result):
        result["launcher"] = name
        result["epochs"][0][name] = 0.5
        node = {"joules": 5000.0, "source": "Slurm, ipmi", "counters": 1, "nodes": 1, "problems": []}
        result["energy"] = {"node": node, "processors": node | {"problems": ["package-1 did not advance"]}}

    make_run(tmp_path / "run", epochs=3, result=renamed)
    words = ["export", str(tmp_path / "run"), "--to", "csv", "--out", str(tmp_path / "csv")]
    assert cli.main(words) == 0
    with (tmp_path / "csv" / "epochs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    whole = json.loads((tmp_path / "run" / "result.json").read_text())["epochs"]
    assert [float(row["eval_error"]) for row in rows] == [epoch["eval_error"] for epoch in whole]
    assert rows[0][name] == "0.5" and rows[1][name] == ""
    facts = dict(csv.reader((tmp_path / "csv" / "run.csv").open(newline="")))
    assert (facts["energy_node_j"], facts["energy_processors_j"]) == ("5000.0", "")
    assert cli.main(words) == 2 and "already exists" in capsys.readouterr().err


def test_diff_names_settings_environment_and_machine(tmp_path: Path, capsys) -> None:
    make_run(tmp_path / "a", settings=["training.max_epochs=16"])
    make_run(
        tmp_path / "b",
        settings=["training.max_epochs=9"],
        env=lambda env: env.update(cores=4, packages={**env["packages"], "numpy": "2.1.0"}),
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert cli.main(["diff", a, a]) == 0
    assert "no differences" in capsys.readouterr().out
    assert cli.main(["diff", a, b, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["differences"]
    assert [(row["kind"], row["key"], row["a"], row["b"]) for row in rows] == [
        ("settings", "training.max_epochs", 16, 9),
        ("environment", "packages.numpy", "2.0.2", "2.1.0"),
        ("machine", "cores", 2, 4),
    ]
    assert cli.main(["diff", a, b]) == 1
    printed = capsys.readouterr().out
    assert all(f"{row['key']}" in printed and str(row["b"]) in printed for row in rows)


def test_diff_names_versions_across_which_results_are_not_comparable(tmp_path: Path) -> None:
    for name, version in (("a", 1), ("b", 2)):
        versions = {"data": version, "parts": 1}
        make_run(tmp_path / name, result=lambda result, own=versions: result.update(versions=own))
    (row,) = differences(tmp_path / "a", tmp_path / "b")
    assert row == ("data", "versions.data", 1, 2)


def test_diff_leaves_out_what_a_launcher_sets_for_every_launch(tmp_path: Path) -> None:
    for name, port, timeout in (("a", "4711", "30"), ("b", "4712", "60")):
        variables = {
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_RANK": port,
            "HOROVOD_GLOO_TIMEOUT": timeout,
        }
        make_run(tmp_path / name, env=lambda env, variables=variables: env.update(variables=variables))
    keys = [row.key for row in differences(tmp_path / "a", tmp_path / "b")]
    assert keys == ["variables.HOROVOD_GLOO_TIMEOUT"]


def test_steps_of_a_run_that_accumulates_gradients_are_updates(tmp_path: Path) -> None:
    folder = started(tmp_path / "run", epochs=1)
    twice = ["hyperparameters.gradient_accumulation_frequency=2"]
    (folder / "config.toml").write_text(load.dumps(load.load("deepcam", "smoke", twice)))
    now = Follower(folder).look()
    assert now.step == 20 and now.steps is not None and now.step <= now.steps


def test_another_users_run_can_neither_hang_nor_move_the_terminal(tmp_path: Path) -> None:
    folder = started(tmp_path / "run", epochs=1)
    (folder / "config.toml").unlink()
    os.mkfifo(folder / "config.toml")
    begin = {"t": 60.0, "event": "begin", "name": "x\x1b[31m"}
    with (folder / "events.rank0.jsonl").open("a") as file:
        file.write(json.dumps(begin) + "\n")
    text = io.StringIO()
    watch(folder, 1, Console(file=text), once=True)
    assert "\x1b" not in text.getvalue() and "x\\x1b[31m" in text.getvalue()


def test_json_of_a_failed_run_has_the_exit_status_of_the_text(tmp_path: Path) -> None:
    folder = started(tmp_path / "run", epochs=1, ended=True)
    events = folder / "events.rank0.jsonl"
    events.write_text(events.read_text().replace('"status": "success"', '"status": "failed"'))
    assert [cli.main(["watch", str(folder), "--once", *more]) for more in ([], ["--json"])] == [3, 3]
