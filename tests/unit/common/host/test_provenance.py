"""What env.json records: runs that differ in anything that affects a result must be distinguishable."""

import json
import os
import shutil
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
    recorded = provenance.variables(moving | private | SLURM)
    assert recorded.items() >= (moving | SLURM).items()
    assert {recorded.get(name, provenance.HIDDEN) for name in private} == {provenance.HIDDEN}
    assert {"HOME", "AWS_SECRET_ACCESS_KEY", "PATH"}.isdisjoint(recorded)  # not even that they are set


SECRET = "hunter2-alice"
PRIVATE = [
    "PBS_JOBCOOKIE", "PBS_O_LOGNAME", "PBS_O_MAIL", "PBS_O_HOST", "PBS_O_WORKDIR", "PBS_NODEFILE",
    "PBS_ACCOUNT", "LSB_MAILTO", "LSB_JOBFILENAME", "LSB_OUTPUTFILE", "LSB_ERRORFILE", "LSB_SUB_HOST",
    "LSB_JOBNAME", "LSB_EEXEC_REAL_UID", "SLURM_JOB_EXTRA", "SLURM_JWT", "SLURM_JOB_USER",
    "SLURM_JOB_ACCOUNT", "SLURM_SUBMIT_DIR", "SLURM_JOB_NAME", "SLURM_JOB_COMMENT",
    "SLURM_TASK_PROLOG", "SLURM_SRUN_COMM_HOST", "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_STEP_LAUNCHER_PORT", "SLURMD_DEBUG", "SLURM_CONTAINER", "NCCL_CONF_FILE",
    "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_COMM_ID", "NCCL_UNHEARD_OF",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_HOST_FILE", "I_MPI_ROOT", "FLUX_URI",
    "FLUX_KVS_NAMESPACE", "OMPI_MCA_orte_precondition_transports", "OMPI_MCA_orte_hnp_uri",
    "OMPI_MCA_orte_local_daemon_uri", "OMPI_MCA_mca_base_param_files", "LD_PRELOAD",
    "PMIX_HOSTNAME", "PMIX_SERVER_URI41", "PMIX_NAMESPACE", "PMIX_SECURITY_MODE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_HOSTNAME", "HOROVOD_SECRET_KEY",
    "HOROVOD_TIMELINE", "TF_CONFIG", "TF_CUDA_PATHS", "TORCH_HOME", "TORCHELASTIC_RUN_ID",
    "CUDA_CACHE_PATH", "CUDA_HOME", "MLHPC_TOKEN", "MLHPC_LEADER", "XLA_UNHEARD", "UCX_LOG_FILE",
    "FI_HOOK", "MALLOC_PERTURB_FILE",
]  # fmt: skip


@pytest.mark.parametrize("name", PRIVATE)
def test_of_variables_not_known_to_be_harmless_only_the_name_is_recorded(name: str) -> None:
    assert SECRET not in json.dumps(provenance.variables({name: SECRET}))


@pytest.mark.parametrize(
    "value", ["/home/alice/x", "alice@example.org", "tcp://10.0.0.1:4711", "x" * 2000, "a\nb"]
)
def test_a_harmless_variable_with_a_strange_value_is_not_recorded(value: str) -> None:
    assert provenance.variables({"NCCL_ALGO": value}) == {"NCCL_ALGO": provenance.HIDDEN}


def test_a_hanging_nvidia_smi_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It used to be a traceback after 30 s. The driver's own files list the GPUs too."""

    def hang(command: list[str], timeout: float, **rest: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
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
    git = ["git", "-C", str(root), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    if done.returncode or not (root / ".git").exists():
        pytest.skip("not a checkout")
    assert provenance.commit()["commit"] == done.stdout.strip()


def test_packages_are_those_installed() -> None:
    versions = provenance.packages()
    assert versions["mlhpc"] and versions["numpy"] == __import__("numpy").__version__
    assert all(name in provenance.PACKAGES or name.startswith("nvidia-") for name in versions)
