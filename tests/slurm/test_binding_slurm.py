"""Cores that a real Slurm gives to ranks: what env.json records is what plain tasks of the same srun have."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from smoke.conftest import climate_settings

# One Slurm: its tests run one after the other in one worker, as `--dist loadfile` has the tests of a file.
pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
LAYOUT = ("-N2", "--ntasks-per-node=2")
SETTINGS = climate_settings("training.max_epochs=1", "target.value=1e-6")
FIRST, SECOND = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
SWAPPED = f"map_cpu:{SECOND},{FIRST}"
"""The last core for the first rank: what no launcher does by itself."""


def given(slurm, *flags: str, **variables: str) -> dict[int, str]:
    """The cores of each plain task of an srun, as Linux lists them."""
    show = "echo $SLURM_PROCID $(sed -n 's/^Cpus_allowed_list://p' /proc/self/status)"
    done = slurm.run("srun", *LAYOUT, *flags, "sh", "-c", show, **variables)
    assert done.returncode == 0, done.stderr
    return {int(rank): cores for rank, cores in (line.split() for line in done.stdout.splitlines())}


def recorded(out: Path) -> dict[int, str]:
    return {each["rank"]: each["cores"] for each in environment(out)["bindings"]}


def environment(out: Path) -> dict:
    return json.loads((out / "env.json").read_text())


def run(slurm, climate, out: Path, *flags: str, **variables: str):
    words = ["-m", "mlhpc", "run", "deepcam", "--data", climate, "--out", out, *SETTINGS]
    return slurm.run("srun", *LAYOUT, *flags, sys.executable, *words, **variables)


@pytest.mark.parametrize("bind", [SWAPPED, "cores", "none"])
def test_a_run_records_the_cores_that_srun_gave_each_rank(binding_slurm, climate, tmp_path, bind):
    expected = given(binding_slurm, f"--cpu-bind={bind}")
    if bind == SWAPPED:
        assert expected == {0: str(SECOND), 1: str(FIRST), 2: str(SECOND), 3: str(FIRST)}
    done = run(binding_slurm, climate, tmp_path / "out", f"--cpu-bind={bind}")
    assert done.returncode == 0, done.stderr
    assert recorded(tmp_path / "out") == expected


def test_lists_of_a_site_go_to_ranks_that_srun_has_not_bound(binding_slurm, climate, tmp_path):
    """Ranks that srun has bound elsewhere get a message with their cores, and how to get others."""
    lists = {"MLHPC_BIND": f"{SECOND}:{FIRST}"}
    done = run(binding_slurm, climate, tmp_path / "out", SLURM_CPU_BIND="none", **lists)
    assert done.returncode == 0, done.stderr
    assert recorded(tmp_path / "out") == {0: str(SECOND), 1: str(FIRST), 2: str(SECOND), 3: str(FIRST)}
    done = run(
        binding_slurm,
        climate,
        tmp_path / "no",
        f"--cpu-bind=map_cpu:{FIRST},{SECOND}",
        "--kill-on-bad-exit=0",
        **lists,
    )
    assert done.returncode == 2 and not (tmp_path / "no").exists()
    problem = f"local rank 0 cannot use core {SECOND}; this process may use only {FIRST} (under srun:"
    assert problem in done.stderr


def test_ranks_of_a_job_have_the_cores_that_the_file_of_their_site_asks_srun_for(
    binding_slurm, climate, tmp_path
):
    shutil.copytree(ROOT / "run_scripts", tmp_path / "run_scripts")
    site = tmp_path / "run_scripts" / "sites" / "mine.sh"
    site.write_text(f"source run_scripts/sites/local.sh\nexport SLURM_CPU_BIND={SWAPPED}\n")
    out, log = tmp_path / "out", tmp_path / "job.out"
    done = binding_slurm.run(
        "sbatch", "--wait", *LAYOUT, f"--chdir={tmp_path}", "-o", log, tmp_path / "run_scripts" / "run.sbatch",
        *SETTINGS, BENCHMARK="deepcam", MLHPC_SITE="mine", DATA=str(climate), OUT=str(out),
        TMPDIR=str(tmp_path), PWD=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, log.read_text()
    assert recorded(out) == given(binding_slurm, SLURM_CPU_BIND=SWAPPED)
    assert recorded(out) == {0: str(SECOND), 1: str(FIRST), 2: str(SECOND), 3: str(FIRST)}
    assert SWAPPED.partition(":")[0] in environment(out)["job"]["cpu_binding"]
