"""The page and the trace of a run of two ranks."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest

WORKLOAD = """\
name = "tiny"
description = "<script>alert(1)</script>"
[dataset]
format = "binary"
files = 8
eval_files = 2
sample_bytes = 20_000
[reader]
transfer_bytes = 8192
[train]
computation = 0.001
[evaluation]
every_epochs = 1
[checkpoint]
files = [1000]
every_epochs = 1
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("io")
    (folder / "w.toml").write_text(WORKLOAD)
    for words in (
        ["io", "generate", "w.toml", "--data", "data", "--workers", "1"],
        ["io", "run", "w.toml", "--data", "data", "--out", "out", "--ranks", "2", "--trace"],
        ["io", "report", "out"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mlhpc", *words], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return folder / "out"


def test_the_page_shows_the_result_and_escapes_what_others_wrote(out):
    text = (out / "report.html").read_text()
    for title in (
        "Breakdown of the running time",
        "Over time",
        "Reads",
        "Epochs",
        "Evaluations",
        "Checkpoints",
        "Ranks",
    ):
        assert f">{title}</h2>" in text
    assert "<script>alert(1)" not in text
    assert "Not a result of MLPerf Storage" in text


def test_the_timeline_is_what_the_ranks_read_and_did(out):
    result = json.loads((out / "result.json").read_text())
    timeline = result["timeline"]
    assert sum(timeline["read_bytes"]) == pytest.approx(result["reading"]["bytes_asked"])
    assert sum(timeline["checkpoint_bytes"]) == pytest.approx(sum(c["bytes"] for c in result["checkpoints"]))
    phases = [*result["epochs"], *result["evaluations"]]
    computed = result["ranks"] * sum(phase["compute_s"] + phase["oversleep_s"] for phase in phases)
    assert sum(timeline["computing_s"]) == pytest.approx(computed)
    waited = result["ranks"] * sum(phase["wait_s"] for phase in phases)
    assert sum(timeline["waiting_s"]) == pytest.approx(waited)


def test_the_trace_has_every_step_and_read_of_every_rank(out):
    """Perfetto reads the Trace Event Format: complete events with microseconds."""
    trace = json.loads((out / "trace.json").read_text())
    events = trace["traceEvents"]
    result = json.loads((out / "result.json").read_text())
    complete = [event for event in events if event["ph"] == "X"]
    for rank in range(2):
        mine = [event for event in complete if event["pid"] == rank]
        computed = [e for e in mine if e["name"] == "compute" and e["args"]["split"] == "train"]
        assert [event["args"]["step"] for event in computed] == [1, 2, 3, 4]
        assert all(event["dur"] == 1000 for event in computed)
        reads = [event for event in mine if event["name"] == "read"]
        assert sum(e["args"]["bytes"] for e in reads) == result["rank_results"][rank]["reading"]["bytes"]
        evaluated = [e for e in mine if e["name"] == "wait" and e["args"]["split"] == "validation"]
        assert [event["args"]["step"] for event in evaluated] == [1]
        written = [event for event in mine if event["name"] == "checkpoint write"]
        assert [event["args"]["bytes"] for event in written] == [1000] * (rank == 0)
        assert {event["tid"] for event in reads} == {1} and {event["tid"] for event in computed} == {0}
    loop = sorted((e for e in complete if e["pid"] == 0 and e["tid"] == 0), key=lambda e: e["ts"])
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in pairwise(loop))
    assert not list(out.glob("*.part"))
    # Time 0 is that of the clock on the wall: after the run began, before its results were written.
    last = max(event["ts"] + event["dur"] for event in complete) / 1e6
    written = (out / "result.json").stat().st_mtime
    begun = (out.parent / "data/.iobench.json").stat().st_mtime
    assert begun < trace["otherData"]["origin_us"] / 1e6 < written - last + 0.01
