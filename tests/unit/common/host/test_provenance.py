"""What env.json records: runs that differ in anything that affects a result must be distinguishable."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlhpc.common.host import accelerators, provenance

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_NODELIST": "n[0-1]",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0xF",
}


def in_process(prefix: list[str], env: dict[str, str]) -> dict[str, object]:
    program = (
        "import json; from mlhpc.common.host.provenance import *; print(json.dumps(describe_environment()))"
    )
    words = [*prefix, sys.executable, "-c", program]
    done = subprocess.run(words, env=os.environ | env, capture_output=True, text=True, check=True)
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def test_runs_that_differ_only_in_threads_or_binding_are_distinguishable() -> None:
    core = min(os.sched_getaffinity(0))
    plain = in_process([], {})
    threads = in_process([], {"OMP_NUM_THREADS": "3"})
    bound = in_process(["taskset", "-c", str(core)], {})
    assert threads["variables"]["OMP_NUM_THREADS"] == "3"  # type: ignore[index]
    assert bound["binding"]["cores"] == str(core)  # type: ignore[index]
    assert plain["variables"] != threads["variables"]
    if len(os.sched_getaffinity(0)) > 1:
        assert plain["binding"] != bound["binding"]


def test_an_installation_without_a_compiler_is_distinguishable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.describe_environment()["compiled"] == {"decoders": True, "gradients": True}
    monkeypatch.setattr(provenance, "EXTENSION_SUFFIXES", [".absent"])
    assert provenance.describe_environment()["compiled"] == {"decoders": False, "gradients": False}


def test_the_batch_job_is_recorded() -> None:
    assert provenance.batch_job(SLURM | {"HOME": "/home/me"}) == {
        "id": "4711",
        "partition": "gpu",
        "nodes": "n[0-1]",
        "cpu_binding": "quiet,mask_cpu:0xF",
    }
    assert provenance.batch_job({"HOME": "/home/me"}) is None


def test_relevant_variables_are_recorded_but_secrets_are_not() -> None:
    moving = {
        "NCCL_ALGO": "Ring",
        "OMP_PROC_BIND": "close",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "UCX_TLS": "rc",
        "PYTORCH_CUDA_ALLOC_CONF": "x",
    }
    private = {
        "SLURM_JWT": "x", "SLURM_JOB_USER": "me", "SLURM_JOB_ACCOUNT": "a", "SLURM_SUBMIT_DIR": "/home/me",
        "MLHPC_TOKEN": "x", "HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "x", "SLURM_SUBMIT_HOST": "login",
        "TORCH_HOME": "/home/me/.cache", "SLURM_JOB_NAME": "secret-project", "PATH": "/bin",
    }  # fmt: skip
    assert provenance.variables(moving | private | SLURM) == dict(sorted((moving | SLURM).items()))


def test_a_hanging_nvidia_smi_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It used to be a traceback after 30 s. The driver's own files list the GPUs too."""

    def hang(command: list[str], timeout: float, **rest: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    monkeypatch.setattr(accelerators.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(provenance, "_NVIDIA", tmp_path)
    monkeypatch.setattr(accelerators, "_NVIDIA", tmp_path)
    assert accelerators.accelerators() == []
    for number in range(2):
        (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
        (tmp_path / "gpus" / f"0000:0{number}:00.0" / "information").write_text(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 42\n"
        )
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:17:17 UTC 2025\n"
    )
    assert accelerators.accelerators() == ["NVIDIA H100 80GB HBM3"] * 2
    assert provenance.drivers()["nvidia"] == "580.65.06"
    assert provenance.drivers()["mpi"] is None


def test_the_commit_is_that_of_this_checkout() -> None:
    """When the file moved one folder down, runs lost their commit."""
    root = Path(__file__).parents[4]
    git = ["git", "-C", root, "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    if done.returncode or not (root / ".git").exists():
        pytest.skip("not a checkout")
    assert provenance.commit()["commit"] == done.stdout.strip()


def test_packages_are_those_installed() -> None:
    versions = provenance.packages()
    assert versions["mlhpc"] and versions["numpy"] == __import__("numpy").__version__
    assert all(name in provenance.PACKAGES or name.startswith("nvidia-") for name in versions)
