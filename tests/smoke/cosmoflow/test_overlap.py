"""Staging during the first epoch: the same losses, and times labelled correctly."""

import json
from pathlib import Path

import pytest
from smoke.conftest import mlhpc, mllog, result, settings, trace


@pytest.mark.parametrize("framework", [pytest.param("tensorflow", marks=pytest.mark.slow), "pytorch"])
def test_a_run_that_stages_meanwhile_has_the_same_losses(
    tiny_data: Path, tmp_path: Path, framework: str
) -> None:
    words = ("run", "cosmoflow", "--seed", "7", "--data", tiny_data, "--ranks", "2")
    options = settings("target.value=9", f"training.framework={framework}")
    in_place, beside = tmp_path / "in-place", tmp_path / "beside"
    assert mlhpc(*words, "--out", in_place, *options).returncode == 0
    staged = ("--stage", tmp_path / "stage", "--set", "staging.overlap=true")
    done = mlhpc(*words, *staged, "--out", beside, *options)
    assert done.returncode == 0, done.stderr
    assert trace(beside) == trace(in_place)
    record = result(beside)
    assert record["staging"]["overlapped"] and record["staging"]["verified"]
    keys = [line["key"] for line in mllog(beside)]
    assert keys.count("staging_start") == keys.count("staging_stop") == 2  # preparing, and waiting
    assert "staging_overlap" in keys and "staging_overlap" not in [line["key"] for line in mllog(in_place)]
    events = [json.loads(line) for line in (beside / "events.rank0.jsonl").read_text().splitlines()]
    spans = [(event["event"], event["name"]) for event in events if event["event"] in ("begin", "end")]
    assert spans.index(("end", "train")) < len(spans) - 1 - spans[::-1].index(("begin", "staging"))
    exposed = sum(e["seconds"] for e in events if (e["event"], e["name"]) == ("end", "staging"))
    assert record["breakdown_s"]["staging"] == pytest.approx(exposed, abs=1e-3)
    assert mlhpc("check", beside).returncode == 0
    assert mlhpc("report", beside).returncode == 0
    assert "Not comparable with runs that stage first" in (beside / "report.html").read_text()


@pytest.mark.parametrize(
    "settings", [("staging.overlap=true",), ("staging.mode=shard", "staging.exchange=true")]
)
def test_instances_that_share_a_stage_neither_overlap_nor_exchange_it(
    tiny_data: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    words = (
        "--data",
        tiny_data,
        "--stage",
        tmp_path / "stage",
        "--out",
        tmp_path / "out",
        "--instances",
        "2",
    )
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = mlhpc("campaign", "cosmoflow", "--preset", "smoke", *words, *chosen)
    assert done.returncode == 2 and "concurrent runs share a staging folder" in done.stderr
