"""Whole runs whose nodes exchange their shards between epochs: two nodes of one rank each, on this machine."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.two_nodes import as_torchrun, with_horovodrun
from smoke.conftest import climate_settings, mlhpc, mllog, result, settings, trace

from mlhpc.common.data.manifest import load
from mlhpc.common.data.partition import Shards, balance

pytestmark = pytest.mark.slow

FRAMEWORK = ("training.framework=pytorch", "training.device=cpu")


EXCHANGE = ("--set", "staging.mode=shard", "--set", "staging.exchange=true")


def shards_exchanged(data, out, stage):
    """What every exchanging run of three epochs with seed 7 on two nodes records."""
    record = result(out)
    assert (record["nodes"], record["ranks"], len(record["epochs"])) == (2, 2, 3)
    assert record["data"]["shuffle_scope"] == record["staging"]["shuffle_scope"] == "global"
    sent = [epoch.get("exchange_bytes", 0) for epoch in record["epochs"]]
    assert sent[0] == 0
    sizes = np.array([file.size for file in load(data).folder("train")])
    shards = Shards(balance(sizes, 2), seed=7)
    for epoch in (1, 2):
        moved = shards.nodes(epoch - 1) != shards.nodes(epoch)
        assert sent[epoch] == sizes[moved].sum() > 0
    parts = record["breakdown_s"]
    assert parts["exchange"] > 0
    assert sum(part or 0 for part in parts.values()) == pytest.approx(record["time_to_train_s"], rel=1e-6)
    assert [line["value"] for line in mllog(out) if line["key"] == "shuffle_scope"] == ["global"]
    spans = [json.loads(line) for line in (out / "events.rank1.jsonl").read_text().splitlines()]
    assert [e["epoch"] for e in spans if e["event"] == "end" and e["name"] == "exchange"] == [2, 3]
    assert not Path(f"{stage}0").exists() and not Path(f"{stage}1").exists()


@pytest.mark.parametrize("benchmark", ["deepcam", "cosmoflow"])
def test_a_run_records_what_its_nodes_exchanged(climate, tiny_data, tmp_path, benchmark):
    data, options = {
        "deepcam": (climate, climate_settings("target.value=0.999")),
        "cosmoflow": (tiny_data, settings("target.value=0.01", *FRAMEWORK)),
    }[benchmark]
    out, stage = tmp_path / "out", tmp_path / "stage"
    words = ("-m", "mlhpc", "run", benchmark, "--seed", 7, "--data", data, "--out", out, *options)
    ended = as_torchrun(*words, *EXCHANGE, stage=stage)
    assert [done.returncode for done in ended] == [3, 3], ended  # it misses the target
    shards_exchanged(data, out, stage)
    assert mlhpc("report", out).returncode == 0
    page = (out / "report.html").read_text()
    assert "exchanged between epochs" in page and "2 times" in page and "Exchange" in page


def test_a_run_in_tensorflow_trains_on_what_its_nodes_exchanged(tiny_data, tmp_path):
    """Losses of the first epoch equal those of a run that keeps its shards; later epochs have other batches."""
    words = (
        "-m",
        "mlhpc",
        "run",
        "cosmoflow",
        "--seed",
        7,
        "--data",
        tiny_data,
        *settings("target.value=0.01"),
    )
    out, stage = tmp_path / "out", tmp_path / "stage"
    done = with_horovodrun(*words, "--out", out, *EXCHANGE, stage=stage)
    assert done.returncode != 0 and "target" in done.stdout + done.stderr, done
    shards_exchanged(tiny_data, out, stage)
    assert result(out)["framework"] == "tensorflow"
    kept = tmp_path / "kept"
    with_horovodrun(*words, "--out", kept, *EXCHANGE[:2], stage=stage)
    assert result(kept)["data"]["shuffle_scope"] == "node"
    exchanged, local = (np.reshape(trace(folder), (3, 2)) for folder in (out, kept))
    assert np.isfinite(exchanged).all()
    assert exchanged[0] == pytest.approx(local[0], rel=2e-5)
    assert (np.abs(exchanged[1:] / local[1:] - 1) > 2e-4).all()
