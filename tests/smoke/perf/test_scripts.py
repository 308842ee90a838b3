"""Every measuring script runs at its smallest size, with the variables that ``mlhpc run`` sets."""

import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path

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
    "codec_study": "--work {work} --benchmarks deepcam --rounds 1 --batches 1 --storages shared --set-sizes 8 "
    "--steps 1 --set data.train_samples=8 --set data.eval_samples=4",
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
    "deepcam_input": "--reference {work} --samples 4 --rows 32 --columns 48 --rounds 1",
    "exchange": "--nodes 4 --files 8 --ranks 1 --spread 0",
    "history": "{run} --records 20",
    "io_emulation": "{work} steps counting generation --turns 1 --mib 1",
    "io_scaling": "{work} --ranks 2 --repeats 1 --set reader.loader=none --set dataset.files=8 "
    "--set dataset.sample_bytes=60000 --set dataset.sample_bytes_stdev=0",
    "io_similarity": "{work} resnet50 --samples 8 4 --repeats 1",
    "lamb": "--repeats 1 --device cpu --width 0.1",
    "loaders": f"--loaders floor mlhpc --side 8 --samples 4 --batch 2 {ONE_ROUND}",
    "resnet50_input": "--images 16 --side 64 --batch 4 --workers 1 --rounds 1",
    "resnet50_staging": "--images 200 --rounds 1 --workers 1 --scratch {work}",
    "resnet50_step": "--batch 2 --side 64 --rounds 1 --device cpu",
    "roll_call": "4 --lose killed",
    "runlog": "100",
    "size": "--json",
    "staging": "--data {work} --files 2 --rounds 1 --workers 1",
    "step_prediction": "--only resnet50 --precision float32 --steps 1 --rounds 1 --stand-ins 2 --machine dgx-a100",
    "step_memory": "resnet50 smoke 2",
    "submission": "--sets 1",
    "triton_kernels": "--target sm_80 --kernel logarithm",
    "watch": "--ranks 4 --looks 2",
}
ON_DEVICE = {"host_step": "--benchmark cosmoflow --batch 1 --precision float32 --mode eager --steps 5"}
ELSEWHERE = {
    "equivalence": "imported",
    "first_hour_gpu": "tests/smoke/fake_cuda/test_first_hour.py",
    "io_dlio": "DLIO: test_dlio_asks_of_the_storage_what_was_recorded",
    "pages": "Chromium: test_pages_are_drawn",
    "smoke_baselines": "test_baselines_read_the_data_set",
    "steady_storage": "FUSE: test_steady_storage_is_mounted",
}
"""Where each of the others runs, or what it needs that is not here."""
SLOW = {"codec_study", "io_similarity", "step_prediction"}
REFERENCE = """\
from pathlib import Path

from helpers.deepcam_files import as_the_reference_reads


class CamDataset:
    def __init__(self, folder, statistics, channels, shuffle):
        self.files, self.statistics = sorted(Path(folder).glob("data-*.h5")), Path(statistics)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        x, y = as_the_reference_reads(self.files[number], self.statistics)
        return x.transpose(2, 0, 1), y
"""
"""In place of data/cam_hdf5_dataset.py of mlcommons/hpc: the same samples."""


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


@pytest.mark.parametrize(
    "script", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in SMALLEST]
)
def test_runs_at_its_smallest_size(sample, variables, tmp_path, script):
    if script in TRAINED:
        record_runs(script, tmp_path)
    if script == "data_wait":
        (tmp_path / "cells.jsonl").write_text(json.dumps(WAITED) + "\n")
    recorded = make_run(tmp_path / "run") if "{run}" in SMALLEST[script] else ""
    if script == "io_similarity":
        need("strace")
    if script == "deepcam_input":
        (tmp_path / "data").mkdir()
        (tmp_path / "data/cam_hdf5_dataset.py").write_text(REFERENCE)
        variables["PYTHONPATH"] = str(SCRIPTS.parent)
    run(script, SMALLEST[script].format(sample=sample, work=tmp_path, run=recorded), variables)


def test_counts_of_a_trace(tmp_path):
    """Of two opens, one is read to its end; a folder beside the data set does not count."""
    (tmp_path / "trace.7").write_text(
        '1.0 openat(AT_FDCWD, "/x/data/a", O_RDONLY) = 3</x/data/a>\n'
        "2.0 read(3</x/data/a>, ..., 4096) = 10\n"
        "3.0 read(3</x/data/a>, ..., 512) = 0\n"
        '4.0 openat(AT_FDCWD, "/x/data/b", O_RDONLY) = 4</x/data/b>\n'
        "5.0 pread64(4</x/data/b>, ..., 100, 8) = 100\n"
        "6.0 read(5</x/other/c>, ..., 99) = 99\n"
    )
    traced = run_path(str(SCRIPTS / "io_dlio.py"))["traced"]
    assert traced(tmp_path, "data") == {
        **{"opens": 2, "reads": 3, "bytes_asked": 4708},
        "whole": {"opens": 1, "reads": 2, "bytes_asked": 4608},
    }


def test_steady_storage_answers_requests(tmp_path, monkeypatch):
    """Two reads asked for at the same moment: the second waits for the first."""
    waits = []
    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)
    monkeypatch.setattr(time, "sleep", waits.append)
    (tmp_path / "file").write_bytes(bytes(range(100)))
    server = run_path(str(SCRIPTS / "steady_storage.py"))["Server"](tmp_path, 1e6, 1e-3)
    (number,) = struct.unpack_from("=Q", server.lookup(1, b"file\0"))
    opened = server.open(number, b"")[:8]
    assert server.read(number, opened + struct.pack("=QI", 10, 1000)) == bytes(range(10, 100))
    assert server.read(number, opened + struct.pack("=QI", 0, 50)) == bytes(range(50))
    assert waits == pytest.approx([1e-3 + 90e-6, 2e-3 + 140e-6])
    server.release(number, opened)
    with pytest.raises(FileNotFoundError):
        server.lookup(1, b"none\0")


def test_steady_storage_is_mounted(tmp_path):
    """Its files are those of the folder, and it ends when it is unmounted."""
    folder, mount = tmp_path / "folder", tmp_path / "mount"
    (folder / "part").mkdir(parents=True)
    mount.mkdir()
    contents = {"a": b"", "b": bytes(range(256)) * 2000, "part/c": b"words"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    command = [sys.executable, SCRIPTS / "steady_storage.py", folder, mount, "1000", "10"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while not mount.is_mount():
            if server.poll() is not None:
                said = server.communicate()[1]
                refused = re.search("Operation not permitted|/dev/fuse", said)
                pytest.skip("no FUSE here, or no right to mount it") if refused else pytest.fail(said)
            time.sleep(0.05)
        found = {
            str(path.relative_to(mount)): path.read_bytes() for path in mount.rglob("*") if path.is_file()
        }
    finally:
        subprocess.run(["umount", "--lazy", mount], capture_output=True)
    assert found == contents
    assert server.wait(20) == 0


def test_baselines_read_the_data_set(sample):
    script = SCRIPTS / "smoke_baselines.py"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, script, "cosmoflow", sample.parent.parent]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    # Guessing 0 is off by 0.5, as targets are uniform in [-1, 1]; 27 universes teach a linear model more.
    errors = dict(line.rsplit(": mean absolute error ", 1) for line in done.stdout.splitlines())
    assert len(errors) == 14
    assert float(errors["linear, mean and spread"]) < 0.5


@pytest.mark.slow
@pytest.mark.system
def test_dlio_asks_of_the_storage_what_was_recorded(tmp_path):
    """The smallest of the workloads whose opens and reads the emulation is held to, run once more."""
    need("dlio_benchmark", "strace")
    python = Path(shutil.which("dlio_benchmark")).with_name("python")
    done = subprocess.run(
        [sys.executable, SCRIPTS / "io_dlio.py", tmp_path, python, "others", "npz"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.stdout.splitlines()[-1:] == ["npz: as 2.0.0"], done.stdout + done.stderr


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
