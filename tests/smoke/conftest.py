"""Tiny data sets and a quick way to run the command line, for tests of whole runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.warm import WarmPython, run_warm

EXAMPLES = Path(__file__).parents[2] / "examples"

# What is imported once for all programs of these tests. No TensorFlow where PyTorch trains: it is blocked there.
COMMANDS = ("mlhpc.cli", "mlhpc.run")
# Python 3.13 has no Horovod: tests of one rank run there.
HOROVOD = ("horovod.tensorflow",) if find_spec("horovod") else ()
TENSORFLOW = ("mlhpc.cosmoflow.tf.train", *HOROVOD, *COMMANDS)
TRAIN_WITH_PYTORCH = ("mlhpc.cosmoflow.pytorch.train", "mlhpc.deepcam.train", "mlhpc.resnet50.train")
PYTORCH = ("!tensorflow", "!keras", "!horovod", *TRAIN_WITH_PYTORCH, *COMMANDS)
NO_FRAMEWORK = ("mlhpc.submission.report.report", *COMMANDS)
LOADED = {"cosmoflow": TENSORFLOW, "deepcam": PYTORCH, "resnet50": PYTORCH}

# 24 + 7 universes: small enough for seconds, and neither divides by a batch of 8 or by two ranks.
TINY = [
    "data.train_samples=27",
    "data.eval_samples=7",
    "data.sample_shape=[32,32,32,4]",
    "data.simulation.box_mpc_h=256",
    "data.simulation.particles=32",
    "network.conv_layers=4",
    "network.conv_filters=2",
    "hyperparameters.global_batch_size=8",
    "hyperparameters.opt_name=sgd",
    "training.max_epochs=3",
    "training.eval_batch_size=2",
]


TINY_CLIMATE = [
    "data.train_samples=13",
    "data.eval_samples=5",
    "data.sample_shape=[32,48,16]",
    "data.simulation.test_samples=1",
    "network.width=0.1",
    "network.middle_blocks=1",
    "hyperparameters.global_batch_size=4",
    "training.max_epochs=3",
    "training.eval_batch_size=2",
    "training.device=cpu",
    # Large compared with most gradients: steps are smooth functions of them, and rounding errors stay small.
    "hyperparameters.opt_eps=0.01",
]


# After a few steps from a random start any metric is possible. Targets that every seed reaches: an error below
# 9, an IoU above 1e-6, a top-1 accuracy of 0. Targets that none reaches: 0.01, 0.999, 0.999.


def settings(*more: str) -> list[str]:
    """Options of a tiny run of CosmoFlow."""
    return [word for setting in (*TINY, *more) for word in ("--set", setting)]


def climate_settings(*more: str) -> list[str]:
    """Options of a tiny run of DeepCAM."""
    return [word for setting in (*TINY_CLIMATE, *more) for word in ("--set", setting)]


def loaded_for(words: Sequence[object]) -> tuple[str, ...]:
    """What a command line imports that trains, with any number of ranks."""
    trains = words[0] in ("run", "campaign", "study")
    if trains and "training.framework=pytorch" in words:
        return PYTORCH
    return LOADED.get(str(words[1]), NO_FRAMEWORK) if trains else NO_FRAMEWORK


def mlhpc(
    *words: object, env: dict[str, str] | None = None, new_process: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does, in a process that has loaded what it needs; with ``env`` added to the
    environment, in a new process."""
    if env or new_process:
        command = [sys.executable, "-m", "mlhpc", *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, env=os.environ | (env or {}), timeout=300
        )
    return run_warm(loaded_for(words), ["-m", "mlhpc", *words], timeout=300)


def install_example(name: str, folder: Path) -> dict[str, str]:
    """Install ``examples/name`` into ``folder``, away from this environment; returns the variables that add it."""
    source = folder / "source"
    shutil.copytree(EXAMPLES / name, source)  # a build leaves files next to the sources
    words = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        folder / "site",
        source,
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *map(str, words)], check=True)
    return {"PYTHONPATH": os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])}


def lines_of_example(name: str) -> int:
    """Its lines of Python and TOML."""
    files = [
        path for path in (EXAMPLES / name).rglob("*") if path.suffix in (".py", ".toml") and path.is_file()
    ]
    return sum(len(path.read_text().splitlines()) for path in files if "build" not in path.parts)


def start_mlhpc(*words: object) -> WarmPython:
    """Start the command line as ``mlhpc`` does."""
    return WarmPython(loaded_for(words), ["-m", "mlhpc", *words])


def result(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((out / "result.json").read_text())
    return loaded


def mllog(out: Path) -> list[dict[str, Any]]:
    lines = (out / "run.log").read_text().splitlines()
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def trace(out: Path) -> list[float]:
    """The training loss and the evaluation of every epoch, -1 for one without."""
    record = result(out)
    metric = record["target"]["metric"]
    return [number for epoch in record["epochs"] for number in (epoch["train_loss"], epoch.get(metric, -1))]


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def rank_process(parent: int, rank: int) -> int:
    """The process of a rank: ``mlhpc run --ranks`` starts only the ranks, in order."""
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[rank])


def resumed_after_a_kill(folder: Path, *words: object, rel: float) -> Path:
    """Kill a run of eight epochs after a checkpoint and resume it; its losses and evaluations must be
    those of an undisturbed run, within ``rel``. Returns the folder of the resumed run."""
    whole, killed, out = folder / "whole", folder / "killed", folder / "out"
    same = [*words, "--set", "training.checkpoint_epochs=1", "--set", "training.max_epochs=8"]
    mlhpc(*same, "--out", whole, "--seed", 9)
    run = start_mlhpc(*same, "--out", killed, "--seed", 9)
    wait_for((killed / "checkpoint.npz").exists)
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=60)
    done = mlhpc(*same, "--out", out, "--resume", killed)
    record = result(out)
    assert record["resumed"] and record["seed"] == 9, done.stderr
    left = len(record["epochs"])
    assert 1 <= left < 8
    assert trace(out) == pytest.approx(trace(whole)[-2 * left :], rel=rel)
    return out


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "tiny"
    made = mlhpc("data", "make", "cosmoflow", "--out", out, *settings())
    assert made.returncode == 0, made.stderr
    return out


@pytest.fixture(scope="session")
def climate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "climate"
    made = mlhpc("data", "make", "deepcam", "--out", out, *climate_settings())
    assert made.returncode == 0, made.stderr
    return out


@pytest.fixture(scope="session")
def one_rank(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one rank, staged, with a checkpoint after every epoch; other runs are compared with it."""
    folder = tmp_path_factory.mktemp("one")
    done = mlhpc(
        "run", "cosmoflow", "--seed", 7,
        "--data", tiny_data, "--stage", folder / "stage", "--out", folder / "out",
        *settings("training.checkpoint_epochs=1"),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr  # three epochs do not reach the target
    return folder / "out"
