"""``mlhpc doctor --site``: a site file from the facts of the machine, to be read by a shell and a person."""

import os
import subprocess
from pathlib import Path

import pytest
from ranks.need import need

from mlhpc import cli
from mlhpc.common.host.binding import cores_of_ranks, nodes_of, numa_nodes
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


def numa_machine(root, gpus=()):
    """Two NUMA nodes of 32 cores with two threads each, and GPUs (PCI address, class, vendor, NUMA node)."""
    for node, cores in enumerate(("0-31,64-95", "32-63,96-127")):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores + "\n")
    for core in range(64):
        for thread in (core, core + 64):
            folder = root / f"sys/devices/system/cpu/cpu{thread}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{core},{core + 64}\n")
    for address, *values in gpus:
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for file, value in zip(("class", "vendor", "numa_node"), values, strict=True):
            (folder / file).write_text(f"{value}\n")
    return root


# As a node with eight MI250X dies lists them (classes of pci.ids). And the board's own graphics, and a NIC.
BUSES = ("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")
DIES = [(f"0000:{bus}:00.0", "0x038000", "0x1002", n) for bus, n in zip(BUSES, "11000011", strict=True)]
OTHERS = [("0000:03:00.0", "0x030000", "0x1a03", "0"), ("0000:c5:00.0", "0x020000", "0x17db", "1")]


def test_ranks_are_bound_beside_their_gpus(tmp_path, monkeypatch):
    need("shellcheck")
    monkeypatch.setattr(site, "accelerators", lambda: ["MI250X"] * 8)
    root = numa_machine(tmp_path / "root", DIES + OTHERS)
    facts = site.find_site_facts({"SLURM_JOB_ID": "1"}, root)
    assert facts.gpu_nodes == (1, 1, 0, 0, 0, 0, 1, 1)
    text = site_file("mine", facts)
    assert max(map(len, text.splitlines())) <= 120
    variables = source(text, tmp_path)
    assert "SLURM_CPU_BIND=none" in variables
    [bind] = [line.removeprefix("MLHPC_BIND=") for line in variables if line.startswith("MLHPC_BIND=")]
    cores = cores_of_ranks(bind, 8, frozenset(range(128)))
    assert [nodes_of(own, numa_nodes(root)) for own in cores] == [{int(node)} for *_, node in DIES]
    assert sorted(core for own in cores for core in own) == list(range(128))
    assert all(core + 64 in own for own in cores for core in own if core < 64), "whole physical cores"
    (tmp_path / "mine.sh").write_text(text)
    done = subprocess.run(["shellcheck", tmp_path / "mine.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "gpus", [[], [(*DIES[0][:3], "-1"), *DIES[1:]], DIES[:4]], ids=["none", "unknown", "some"]
)
def test_where_the_place_of_gpus_is_not_known_each_rank_has_a_share(gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(site, "accelerators", lambda: ["MI250X"] * 8)
    facts = site.find_site_facts({"SLURM_JOB_ID": "1"}, numa_machine(tmp_path / "root", gpus))
    variables = source(site_file("mine", facts), tmp_path)
    assert {"SLURM_CPU_BIND=cores", "SLURM_MEM_BIND=local", "MLHPC_BIND=cores"} <= set(variables)


def test_one_numa_node_and_login_nodes_get_no_binding(tmp_path, monkeypatch):
    assert "BIND" not in site_file("mine", BARE)
    monkeypatch.setattr(site, "output", lambda *words: "gpu* 128 gpu:4\n")
    facts = site.find_site_facts({}, numa_machine(tmp_path))
    assert facts.gpus == 4 and "CPU_BIND" not in site_file("mine", facts)


def test_the_command_writes_the_file_once_at_the_top_of_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor", "--site", "mine"]) == 2
    assert "start this in a checkout" in capsys.readouterr().err
    sites = tmp_path / "run_scripts" / "sites"
    sites.mkdir(parents=True)
    assert cli.main(["doctor", "--site", "mine"]) == 0
    text = (sites / "mine.sh").read_text()
    assert "STAGE" in text and source(text, tmp_path)
    assert cli.main(["doctor", "--site", "mine"]) == 2
    assert "exists" in capsys.readouterr().err and (sites / "mine.sh").read_text() == text
    assert cli.main(["doctor", "--site", "mine", "--out", str(Path("elsewhere.sh"))]) == 0
