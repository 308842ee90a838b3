"""Whole runs on a CUDA device that computes nothing (tests/fake_cuda/README.md): what they do is real, what they
compute is not, so losses and metrics say nothing here."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from fake_cuda.library import Counts, counts_since, devices, loader
from helpers.warm import run_warm
from smoke.conftest import PYTORCH, TINY, TINY_CLIMATE, mlhpc
from smoke.resnet50.test_run import TINY as TINY_PICTURES

SETTINGS = {
    "deepcam": TINY_CLIMATE,
    "cosmoflow": [*TINY, "training.framework=pytorch"],
    "resnet50": TINY_PICTURES,
}


class Done:
    """A run that has ended: its process, its folder, and what the device of a rank counted."""

    def __init__(self, process: CompletedProcess[str], out: Path, reports: Path) -> None:
        self.status, self.out = process.returncode, out
        self.said = process.stdout + process.stderr
        self._reports = reports

    def counted(self, rank: int = 0) -> Counts:
        """Since ``run_start``: by section and name."""
        found = self._found(rank)
        return counts_since(found["before_run"], found["total"])

    def total(self, rank: int = 0) -> Counts:
        """Since the start of the process: by section and name."""
        return self._found(rank)["total"]

    def first_used(self, rank: int = 0) -> Counts:
        """What was used for the first time after ``run_start``: kernels, whose code is loaded then, kernels that
        were compiled, and page-locked memory."""
        everything, since = self.total(rank), self.counted(rank)
        kernels = {name: n for name, n in since["kernels"].items() if n == everything["kernels"][name]}
        used = {"kernels": kernels} | {
            name: since.get(name) or {} for name in ("modules", "host_allocations")
        }
        return {name: found for name, found in used.items() if found}

    def _found(self, rank: int) -> dict[str, Counts]:
        found: dict[str, Counts] = json.loads(Path(str(self._reports) % rank).read_text())
        assert found["total"].get("refused", {}) == {}
        return found

    def result(self) -> dict[str, Any]:
        assert (self.out / "result.json").exists(), self.said
        return dict(json.loads((self.out / "result.json").read_text()))


def on_device(
    folder: Path,
    data: Path,
    benchmark: str,
    *chosen: str,
    words: tuple[object, ...] = (),
    model: str = "h100",
    changes: Mapping[str, object] | None = None,
    preload: dict[str, str] | None = None,
) -> Done:
    """Train a tiny ``benchmark`` on devices of ``model``, with the settings ``chosen`` and other ``words``.
    ``preload``: variables of another library that is loaded besides."""
    folder.mkdir(exist_ok=True)
    out, reports = folder / "out", folder / "device%d.json"
    settings = [*SETTINGS[benchmark], "training.device=cuda", "training.max_epochs=2", *chosen]
    argv: list[object] = ["-m", "mlhpc", "run", benchmark, "--data", data, "--out", out, "--seed", 7, *words]
    argv += [word for setting in settings for word in ("--set", setting)]
    env = devices(model, changes, reports) | {"TMPDIR": str(folder)}
    return Done(run(argv, env, preload), out, reports)


def command(
    *words: object,
    settings: Sequence[str] = (),
    model: str = "h100",
    changes: Mapping[str, object] | None = None,
) -> CompletedProcess[str]:
    """``mlhpc`` with ``words`` where there are devices of ``model``."""
    argv = ["-m", "mlhpc", *words, *(word for setting in settings for word in ("--set", setting))]
    return run(argv, devices(model, changes))


def python(code: str, **changes: object) -> str:
    """What ``code`` prints in a process of its own where there are devices, their model with ``changes``."""
    done = run(["-c", code], devices(changes=changes))
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(
    argv: Sequence[object], env: dict[str, str], preload: dict[str, str] | None = None
) -> CompletedProcess[str]:
    """``python ARGV`` with the variables of ``devices`` in a process of its own, which has loaded PyTorch."""
    loaded = loader()
    if preload:
        loaded |= preload | {"LD_PRELOAD": f"{loaded['LD_PRELOAD']}:{preload['LD_PRELOAD']}"}
    # Inductor's pool of compiling processes cannot be started by a fork.
    env = os.environ | loaded | env | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return run_warm(PYTORCH, argv, 300, env=env, loader=loaded)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny data set for each benchmark."""
    made = {name: tmp_path_factory.mktemp("sets") / name for name in SETTINGS}
    for name, out in made.items():
        chosen = [word for setting in SETTINGS[name] for word in ("--set", setting)]
        done = mlhpc("data", "make", name, "--out", out, *chosen)
        assert done.returncode == 0, done.stderr
    return made
