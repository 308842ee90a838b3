"""A search over real runs of CosmoFlow in PyTorch, interrupted and continued."""

import json
import signal

from smoke.conftest import mlhpc, settings, start_mlhpc, wait_for


def test_an_interrupted_search_continues_to_its_result(tiny_data, tmp_path):
    out = tmp_path / "out"
    words = ["tune", "cosmoflow", "--data", tiny_data, "--stage", tmp_path / "stage", "--out", out]
    words += ["--batch", "8", "--schedule", "1", "--budget", 3, "--pairs", 2]
    words += settings("training.framework=pytorch", "training.device=cpu", "target.value=9.0")
    search = start_mlhpc(*words)
    wait_for(lambda: (out / "run-002" / "run.log").exists() or search.poll() is not None)
    search.send_signal(signal.SIGTERM)
    output = "".join(search.communicate(timeout=90))
    assert search.returncode == 143 and "restart the search to continue" in output, output
    first = (out / "run-001" / "result.json").stat().st_mtime_ns
    done = mlhpc(*words, new_process=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "run-001" / "result.json").stat().st_mtime_ns == first
    record = json.loads((out / "tune.json").read_text())
    for number, run in enumerate(record["runs"], 1):
        if run["state"] == "converged":
            result = json.loads((out / f"run-{number:03}" / "result.json").read_text())
            assert (run["seconds"], run["epochs"]) == (result["time_to_train_s"], 1)
            assert result["staging"]["kept"] == 0
    assert "Traceback" not in output + done.stderr and (out / "tune.html").exists()
