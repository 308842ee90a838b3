"""``mlhpc doctor --site``: a site file from the facts of the machine, to be read by a shell and a person."""

import os
import subprocess
from pathlib import Path

import pytest
from ranks.need import need

from mlhpc import cli
from mlhpc.doctor import site
from mlhpc.doctor.site import CONTAINERS, SiteFacts, site_file

GPU_NODE = SiteFacts(
    host="g0001", in_job=True, partition="gpu", cores=64, gpus=4, shared="$SCRATCH", local="/local/scratch",
    local_note="xfs, 3400 GiB free", interface="hsn0", modules=("gcc/13.2", "cuda/13.0"), has_modules=True,
    container="apptainer",
)  # fmt: skip
BARE = SiteFacts(
    host="login", in_job=False, partition=None, cores=2, gpus=0, shared=None, local=None, local_note="",
    interface=None, modules=(), has_modules=False, container=None,
)  # fmt: skip


def source(text, folder, **env):
    """The variables that a shell has after it read the site file."""
    (folder / "site.sh").write_text(text)
    code = "module() { echo module $*; }; source ./site.sh; echo DATA=$DATA; echo OUT=$OUT; echo STAGE=$STAGE; env"
    env = {"PATH": os.environ["PATH"], "BENCHMARK": "deepcam", "PRESET": "mini", "SLURM_JOB_ID": "77"} | env
    done = subprocess.run(["bash", "-euc", code], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_site_file_of_a_gpu_node_has_the_detected_settings(tmp_path):
    lines = source(site_file("mine", GPU_NODE), tmp_path, SCRATCH="/lustre/me")
    assert lines[:2] == ["module purge", "module load gcc/13.2 cuda/13.0"]
    assert "DATA=/lustre/me/data/deepcam-mini" in lines and "OUT=/lustre/me/results/deepcam-mini-77" in lines
    assert "STAGE=/local/scratch/mlhpc-77" in lines
    assert "SLURM_GPU_BIND=none" in lines and "HOROVOD_GLOO_IFACE=hsn0" in lines
    text = site_file("mine", GPU_NODE)
    assert "sbatch -p gpu -N 2 --ntasks-per-node=4 --cpus-per-task=16 --gpus-per-node=4" in text
    assert CONTAINERS["apptainer"] in text and "xfs, 3400 GiB free" in text


def test_undetected_settings_are_marked(tmp_path):
    text = site_file("mine", BARE)
    lines = source(text, tmp_path)
    assert f"DATA={tmp_path}/data/deepcam-mini" in lines and "STAGE=/tmp/mlhpc-77" in lines
    assert text.count("CHECK") == 3 and "not in a job" in text and "none was found" in text


def test_paths_of_the_user_override_the_file(tmp_path):
    lines = source(site_file("mine", BARE), tmp_path, DATA="/d", OUT="/o", STAGE="/s")
    assert {"DATA=/d", "OUT=/o", "STAGE=/s"} <= set(lines)


@pytest.mark.parametrize("facts", [GPU_NODE, BARE], ids=["gpu", "bare"])
def test_the_file_is_as_short_and_clean_as_those_of_the_repository(facts, tmp_path):
    need("shellcheck")
    text = site_file("mine", facts)
    assert len(text.splitlines()) <= 30 and max(map(len, text.splitlines())) <= 120
    (tmp_path / "mine.sh").write_text(text)
    done = subprocess.run(["shellcheck", tmp_path / "mine.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_outside_a_job_the_default_partition_describes_the_nodes():
    sinfo = "debug 32 (null)\ngpu* 128+ gpu:a100:4(S:0-3),nvme:1\n"
    facts = site._of_default_partition(BARE, sinfo)
    assert (facts.partition, facts.cores, facts.gpus) == ("gpu", 128, 4)
    assert site._of_default_partition(BARE, "") == BARE


@pytest.mark.parametrize(
    ("interfaces", "fastest"),
    [
        ({"eth0": ("1", "up", "1000"), "lo": ("772", "unknown", "")}, None),
        ({"eth0": ("1", "up", "100000"), "ib0": ("32", "up", "")}, "ib0"),
        ({"eth0": ("1", "up", "1000"), "hsn0": ("1", "up", "200000")}, "hsn0"),
        ({"eth0": ("1", "up", "1000"), "eth1": ("1", "up", "25000"), "eth2": ("1", "down", "-1")}, "eth1"),
        ({"eth0": ("1", "up", "1000"), "docker0": ("1", "up", "10000")}, None),
    ],
)
def test_the_fastest_interface_that_is_up_is_chosen(interfaces, fastest, tmp_path):
    for name, values in interfaces.items():
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        for file, value in zip(("type", "operstate", "speed"), values, strict=True):
            (folder / file).write_text(value)
    assert site._interface(tmp_path) == fastest


def test_the_command_writes_the_file_once_at_the_top_of_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor", "--site", "mine"]) == 2
    assert "top of a checkout" in capsys.readouterr().err
    sites = tmp_path / "run_scripts" / "sites"
    sites.mkdir(parents=True)
    assert cli.main(["doctor", "--site", "mine"]) == 0
    text = (sites / "mine.sh").read_text()
    assert "STAGE" in text and source(text, tmp_path)
    assert cli.main(["doctor", "--site", "mine"]) == 2
    assert "exists" in capsys.readouterr().err and (sites / "mine.sh").read_text() == text
    assert cli.main(["doctor", "--site", "mine", "--out", str(Path("elsewhere.sh"))]) == 0
