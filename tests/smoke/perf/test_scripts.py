"""Every measuring script runs at its smallest size, with the variables that ``mlhpc run`` sets."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda.library import devices, loader
from golden.make_run import make_run
from ranks.need import need
from smoke.conftest import TINY, mlhpc

from mlhpc.common.ranks.environment import set_variables

SCRIPTS = Path(__file__).parents[2] / "perf"
TINY_STEP = "--batch 1 --rows 32 --columns 48 --steps 1 --rounds 1 --precision float32"
ONE_ROUND = "--rounds 1 --seconds 0 --no-sweep --no-shuffle"
PARTS = dict.fromkeys(("staging", "data_wait", "step", "evaluation", "eval_data_wait", "cost"), 1.0)
WAITED = {  # a run, as data_wait.py records it; tests/smoke/mlhpc/test_data_wait.py has such runs
    "cell": "deepcam",
    "injected": 1.0,
    "simulated": {**PARTS, "lost": [1.0]},
    "reported": PARTS,
    "lost": [[0, 1.0]],
}
TRAINED = {  # ways to train, of which the tests below write what runs would have recorded
    "codec_equivalence": [
        "npy",
        "npy-float16",
        "delta-paper",
        *(f"delta-1e-{n}" for n in (1, 2, 3)),
        "delta-3e-2",
    ],
    "cosmoflow_equivalence": ["tensorflow", "pytorch"],
    "cosmoflow_techniques": ["preset", "without augmentation", "without no dropout", "multi-resolution"],
}
RECORDED = "--out {work} --test"
SMALLEST = {
    "changes": "--series 2 --noise white",
    "codec_equivalence": RECORDED,
    "codec_loaders": "cosmoflow {sample} --samples 2 --rounds 1",
    "codecs": "cosmoflow {sample} --rounds 1",
    "cosmoflow_equivalence": f"{RECORDED} --seeds 2",
    "cosmoflow_input": "--side 16 --batch 2 --samples 4 --rounds 1 --seconds 0.1",
    "cosmoflow_step": "--side 32 --batch 1 --rounds 1 --precision float32",
    "cosmoflow_techniques": f"{RECORDED} --data {{work}}",
    "data_wait": "{work} --only none",
    "deepcam_profile": f"--device cpu --ways eager {TINY_STEP}",
    "deepcam_step": f"--only ours {TINY_STEP}",
    "direct_reads": "--folder {work} --file-mb 0.1 --files 4 --threads 1 --rounds 1",
    "exchange": "--nodes 4 --files 8 --ranks 1 --spread 0",
    "history": "{run} --records 20",
    "io_emulation": "{work} steps counting generation --turns 1 --mib 1",
    "lamb": "--repeats 1 --device cpu --width 0.1",
    "loaders": f"--loaders floor mlhpc --side 8 --samples 4 --batch 2 {ONE_ROUND}",
    "resnet50_input": "--images 16 --side 64 --batch 4 --workers 1 --rounds 1",
    "resnet50_staging": "--images 200 --rounds 1 --workers 1 --scratch {work}",
    "resnet50_step": "--batch 2 --side 64 --rounds 1 --device cpu",
    "roll_call": "4 --lose killed",
    "runlog": "100",
    "size": "--json",
    "staging": "--data {work} --files 2 --rounds 1 --workers 1",
    "step_memory": "resnet50 smoke 2",
    "submission": "--sets 1",
    "triton_kernels": "--target sm_80 --kernel logarithm",
    "watch": "--ranks 4 --looks 2",
}
ON_DEVICE = {"host_step": "--benchmark cosmoflow --batch 1 --precision float32 --mode eager --seconds 0.1"}
ELSEWHERE = {
    "codec_study": "minutes",
    "deepcam_input": "mlcommons/hpc",
    "equivalence": "imported",
    "first_hour_gpu": "tests/smoke/fake_cuda/test_first_hour.py",
    "io_dlio": "DLIO",
    "io_scaling": "minutes",
    "io_similarity": "minutes",
    "pages": "Chromium: test_pages_are_drawn",
    "smoke_baselines": "scikit-learn",
    "steady_storage": "FUSE",
    "step_prediction": "minutes",
}
"""Where each of the others runs, or what it needs that is not here."""
STARTED = ("codec_study", "deepcam_input", "io_scaling", "io_similarity", "step_prediction")


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    out = tmp_path_factory.mktemp("set") / "cosmoflow"
    done = mlhpc("data", "make", "cosmoflow", "--out", out, *(w for each in TINY for w in ("--set", each)))
    assert done.returncode == 0, done.stderr
    return min((out / "train").iterdir())


@pytest.fixture
def variables(monkeypatch):
    """As ``mlhpc run`` sets them."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    set_variables()
    return dict(os.environ)


def run(script, words, env):
    command = [sys.executable, SCRIPTS / f"{script}.py", *words.split()]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and done.stdout.strip(), done.stdout + done.stderr


def record_runs(script, folder):
    """Two seeds of each way, as such a script records them after its trainings."""
    values = {"train_loss": 1.0, "reached": True, "best": 0.5, "epochs": 4, "folder": "run"}
    lines = [
        json.dumps(values | {"way": way, "seed": first + n, "value": 0.5 + n / 10, "seconds": 10.0 + n})
        for way, n, first in itertools.product(TRAINED[script], range(2), (1001, 3001))
    ]
    (folder / "runs.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("script", SMALLEST)
def test_runs_at_its_smallest_size(sample, variables, tmp_path, script):
    if script in TRAINED:
        record_runs(script, tmp_path)
    if script == "data_wait":
        (tmp_path / "cells.jsonl").write_text(json.dumps(WAITED) + "\n")
    recorded = make_run(tmp_path / "run") if "{run}" in SMALLEST[script] else ""
    run(script, SMALLEST[script].format(sample=sample, work=tmp_path, run=recorded), variables)


@pytest.mark.parametrize("script", STARTED)
def test_starts(variables, script):
    """Of those that take too long, at least what they import is there."""
    run(script, "--help", variables)


@pytest.mark.parametrize("script", ON_DEVICE)
def test_runs_on_a_device(variables, script):
    run(script, ON_DEVICE[script], variables | loader() | devices())


@pytest.mark.system
def test_pages_are_drawn(variables):
    need("chromium")
    run("pages", "--sets 2 --runs 3 --repeats 1", variables)


def test_every_script_is_run_or_has_a_reason():
    there = {path.stem for path in SCRIPTS.glob("*.py")}
    assert there == {*SMALLEST, *ON_DEVICE, *ELSEWHERE}
