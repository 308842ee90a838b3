"""The test for ReFrame, run by ReFrame: on this machine, and on the two nodes of a Slurm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks.need import need
from smoke.conftest import TINY_CLIMATE

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "run_scripts" / "reframe"


def reframe(folder, partition, target, env=os.environ, **variables):
    """Run the DeepCAM test; returns the exit status and ReFrame's report."""
    need("reframe")
    settings = " ".join([*TINY_CLIMATE, f"target.value={target}"])
    values = {"settings": settings, **variables}
    words = [word for name, value in values.items() for word in ("-S", f"MlhpcRun.{name}={value}")]
    report = folder / "report.json"
    done = subprocess.run(
        ["reframe", "-C", FOLDER / "settings.py", "-c", FOLDER / "mlhpc_test.py", "-n", "benchmark=deepcam",
         f"--system=site:{partition}", f"--prefix={folder}", f"--report-file={report}", *words, "-r"],
        cwd=folder, capture_output=True, text=True, timeout=400,
        env={**env, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "TMPDIR": str(folder)},  # of its log
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    (case,) = json.loads(report.read_text())["runs"][0]["testcases"]
    return done, case


def test_a_run_on_this_machine_passes_with_its_figures(tmp_path):
    done, case = reframe(tmp_path, "local", 1e-6)
    assert done.returncode == 0 and case["result"] == "pass", done.stdout
    figures = {name.rpartition(":")[2]: value for name, (value, *_) in case["perfvalues"].items()}
    assert set(figures) == {"time_to_train", "staging", "throughput"} and min(figures.values()) > 0


def test_a_run_that_misses_its_target_fails(tmp_path):
    done, case = reframe(tmp_path, "local", 0.999)
    assert done.returncode != 0 and "ended as 'failed'" in case["fail_reason"], done.stdout


def test_two_ranks_on_two_nodes_of_slurm(slurm, tmp_path):
    done, case = reframe(tmp_path, "slurm", 1e-6, slurm.env, num_tasks=2, num_tasks_per_node=1)
    assert done.returncode == 0 and case["result"] == "pass", done.stdout
    (result,) = (tmp_path / "output").rglob("out/result.json")
    assert json.loads(result.read_text())["nodes"] == 2
