"""Whole campaigns of tiny CosmoFlow runs on this machine."""

import json
import signal

from smoke.conftest import mlhpc, result, settings, start_mlhpc, wait_for


def record(out):
    return json.loads((out / "campaign.json").read_text())


def test_concurrent_instances_share_the_stage(tiny_data, tmp_path):
    out, stage = tmp_path / "weak", tmp_path / "stage"
    words = ["--data", tiny_data, "--stage", stage, "--out", out, "--runs", 3, "--instances", 3]
    done = mlhpc("campaign", "cosmoflow", *words, *settings("target.value=9.0"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not stage.exists()
    runs = [result(out / f"run_{n:02}") for n in (1, 2, 3)]
    assert [run["status"] for run in runs] == ["success"] * 3
    assert len({run["seed"] for run in runs}) == 3
    assert all((out / f"run_{n:02}.out").read_text().count("reached") == 1 for n in (1, 2, 3))
    # Every run had every file: copied by it, or by another that was still running.
    for run in runs:
        assert run["staging"]["files"] + run["staging"]["kept"] == 27 + 7
        assert run["staging"]["shared"] == run["staging"]["kept"]
    made = record(out)
    assert made["metric"] == "weak" and [m["state"] for m in made["run_states"]] == ["converged"] * 3
    assert [m["evicted"] for m in made["run_states"]] == [run["source_evicted"] for run in runs]


def test_an_interrupted_campaign_closes_the_log_of_its_run(tiny_data, tmp_path):
    out = tmp_path / "strong"
    words = ["campaign", "cosmoflow", "--data", tiny_data, "--out", out, "--ranks", 2, "--runs", 2]
    campaign, log = start_mlhpc(*words, *settings("training.max_epochs=500")), out / "run_01" / "run.log"
    wait_for(lambda: (log.exists() and "eval_error" in log.read_text()) or campaign.poll() is not None)
    campaign.send_signal(signal.SIGTERM)
    output = "".join(campaign.communicate(timeout=90))
    assert campaign.returncode == 143, output
    assert "Traceback" not in output
    stops = [line for line in log.read_text().splitlines() if '"run_stop"' in line]
    assert len(stops) == 1 and '"aborted"' in stops[0]
    assert [m["state"] for m in record(out)["run_states"]] == ["aborted", "to do"]
    assert "SIGTERM" in record(out)["run_states"][0]["why"]
