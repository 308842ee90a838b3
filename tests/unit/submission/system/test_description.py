"""The system description, from /proc and /sys as the kernel documents them, and from tools that say what the
real ones say; checked with the official checker of system descriptions."""

import json

import pytest
from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc

from mlhpc import cli
from mlhpc.doctor import command
from mlhpc.errors import UserError
from mlhpc.submission.system.description import REQUIRED, describe, given_fields, read
from mlhpc.submission.system.node import node_facts

ANSWERS = {
    "submitter": "Lab", "division": "closed", "status": "Available on-premise", "system_name": "cluster",
    "number_of_nodes": "16", "host_networking_topology": "Fat tree", "cooling": "Liquid",
    "host_memory_configuration": "12 x 32 GB", "framework": "TensorFlow 2.18.1",
    "host_processors_per_node": "2", "host_processor_model_name": "x", "host_processor_core_count": "26",
    "host_memory_capacity": "384 GB", "host_storage_type": "SSD", "host_storage_capacity": "1 TB",
    "host_networking": "HDR", "accelerators_per_node": "4", "accelerator_model_name": "V100",
    "accelerator_host_interconnect": "PCIe", "accelerator_memory_configuration": "HBM2",
    "accelerator_memory_capacity": "32 GB", "accelerator_interconnect": "NVLink",
}  # fmt: skip


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """``machine({path: content})``: a root folder with these files, and ``machine.tool(name, script)``."""
    root, tools = tmp_path / "root", tmp_path / "bin"
    root.mkdir()
    tools.mkdir()
    # No tool of the machine that the tests run on.
    monkeypatch.setenv("PATH", str(tools))

    def write(files):
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        return root

    def tool(name, script):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)

    write.tool = tool
    return write


def fields(root, env=()):
    return node_facts(dict(env), root)["fields"]


def cpus(sockets, cores, threads):
    """The topology of a machine, as /sys has it: hyperthreads are numbered after all cores."""
    files, number = {}, 0
    for _ in range(threads):
        for package in range(sockets):
            for core in range(cores):
                folder = f"sys/devices/system/cpu/cpu{number}/topology"
                files |= {
                    f"{folder}/physical_package_id": package,
                    f"{folder}/core_id": core,
                    f"{folder}/die_id": 0,
                }
                number += 1
    return files


@pytest.mark.parametrize(("sockets", "cores", "threads"), [(2, 26, 2), (1, 48, 1), (2, 64, 1), (4, 2, 2)])
def test_processors_are_counted_as_in_the_rules_example(machine, sockets, cores, threads):
    # Two Xeon Platinum 8164 are host_processors_per_node 2, host_processor_core_count 26 there.
    described = fields(machine(cpus(sockets, cores, threads)))
    assert described["host_processors_per_node"] == str(sockets)
    assert described["host_processor_core_count"] == str(cores)
    assert described["host_processor_vcpu_count"] == str(cores * threads)
    assert described.get("host_processor_interconnect") == ("N/A" if sockets == 1 else None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": "model name\t: Intel(R) Xeon(R) CPU E5-2690 v3 @ 2.60GHz"}, "2600 MHz"),
        ({"sys/devices/system/cpu/cpu0/cpufreq/base_frequency": 2000000,
          "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": 3700000}, "2000 MHz"),
        ({"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": 2200000}, "2200 MHz (highest)"),
        ({"proc/cpuinfo": "model name\t: AMD EPYC 7742\ncpu MHz\t\t: 2245.780"}, None),  # of this moment
    ],
)  # fmt: skip
def test_the_frequency_is_the_nominal_one_or_missing(machine, files, expected):
    assert fields(machine(files)).get("host_processor_frequency") == expected


def test_without_a_name_in_cpuinfo_the_model_comes_from_lscpu(machine):
    machine.tool("lscpu", "echo 'Model name:            A64FX'")
    assert fields(machine({"proc/cpuinfo": "processor\t: 0"}))["host_processor_model_name"] == "A64FX"


def test_caches_are_listed_by_level(machine):
    cache = "sys/devices/system/cpu/cpu0/cache/index"
    sizes = [(1, "Data", "32K", "0,52"), (1, "Instruction", "32K", "0,52"), (2, "Unified", "1024K", "0,52"),
             (3, "Unified", "36608K", "0-25,52-77")]  # fmt: skip
    files = {}
    for i, (level, kind, size, shared) in enumerate(sizes):
        files |= {f"{cache}{i}/level": level, f"{cache}{i}/type": kind, f"{cache}{i}/size": size,
                  f"{cache}{i}/shared_cpu_list": shared}  # fmt: skip
    assert fields(machine(files))["host_processor_caches"] == (
        "L1: 32K D shared by 2 threads + 32K I shared by 2 threads, L2: 1024K shared by 2 threads, "
        "L3: 36608K shared by 52 threads"
    )


def test_memory_is_the_installed_capacity_with_its_modules(machine):
    files = {f"sys/devices/system/memory/memory{i}/state": "online" for i in range(192)}
    files |= {"sys/devices/system/memory/memory900/state": "offline",
              "sys/devices/system/memory/block_size_bytes": "80000000",  # 2 GiB, in hexadecimal
              "proc/meminfo": "MemTotal:       395913288 kB"}  # fmt: skip
    for i in range(12):
        dimm = f"sys/devices/system/edac/mc/mc{i // 6}/dimm{i % 6}"
        files |= {f"{dimm}/size": 32768, f"{dimm}/dimm_mem_type": "Registered-DDR4"}
    files |= {"sys/devices/system/edac/mc/mc0/dimm9/size": 0,
              "sys/devices/system/edac/mc/mc0/dimm9/dimm_mem_type": "Empty"}  # fmt: skip
    described = fields(machine(files))
    assert described["host_memory_capacity"] == "384 GiB"
    assert described["host_memory_configuration"] == "12 x 32 GiB Registered-DDR4"


def test_without_memory_blocks_it_is_called_usable(machine):
    described = fields(machine({"proc/meminfo": "MemTotal:       33554432 kB"}))
    assert described["host_memory_capacity"] == "32 GiB usable"
    assert "host_memory_configuration" not in described


def test_disks_of_the_node_and_shared_file_systems_are_listed(machine):
    disk = {"size": 7501476528, "queue/rotational": 0}  # sectors of 512 bytes: 3.84 TB
    files = {
        f"sys/block/{name}/{key}": value for name in ("nvme0n1", "nvme1n1") for key, value in disk.items()
    }
    files |= {"sys/block/sda/size": 1875385008, "sys/block/sda/queue/rotational": 1,
              "sys/block/loop0/size": 8, "sys/block/dm-0/size": 99, "sys/block/zram0/size": 99,
              "proc/self/mounts": "a@o2ib:/x /scratch\x85 lustre rw 0 0\n/dev/sda1 / ext4 rw 0 0\n"
                                  "s:/h /home nfs4 rw 0 0"}  # fmt: skip
    described = fields(machine(files))
    assert described["host_storage_type"] == "NVMe SSD + HDD"
    assert described["host_storage_capacity"] == "2 x 3841 GB + 1 x 960 GB"
    assert described["hw_notes"] == "shared file systems: lustre, nfs4"


def test_a_node_without_disks_reports_none(machine):
    assert fields(machine({"sys/block/loop0/size": 8}))["host_storage_type"] == "none"


def test_the_fabric_is_counted_by_active_port(machine):
    files = {}
    for i, state in enumerate(["4: ACTIVE", "4: ACTIVE", "1: DOWN"]):
        port = f"sys/class/infiniband/mlx5_{i}/ports/1"
        files |= {f"{port}/state": state, f"{port}/rate": "200 Gb/sec (4X HDR)",
                  f"{port}/link_layer": "InfiniBand",
                  f"sys/class/infiniband/mlx5_{i}/board_id": "MT_0000000223"}  # fmt: skip
    for name, state, speed in (("eth0", "up", 25000), ("eth1", "down", 1000), ("hsn0", "up", 200000)):
        folder = f"sys/class/net/{name}"
        files |= {f"{folder}/operstate": state, f"{folder}/speed": speed, f"{folder}/type": 1,
                  f"{folder}/device/vendor": "0x15b3"}  # fmt: skip
    files |= {"sys/class/net/docker0/operstate": "up", "sys/class/net/docker0/type": 1}  # no hardware
    assert fields(machine(files))["host_networking"] == (
        "2 x InfiniBand 200 Gb/sec (4X HDR) (MT_0000000223), 1 x Ethernet 25 Gb/s, 1 x Slingshot 200 Gb/s"
    )


NVIDIA = """
case "$1" in
  --query-gpu=driver_version) for i in 0 1 2 3; do echo 535.104.05; done;;
  --query-gpu=*) for i in 0 1 2 3; do echo "NVIDIA A100-SXM4-40GB, 40960, 1410, 4, 16"; done;;
  nvlink) for g in 0 1 2 3; do echo "GPU $g: NVIDIA A100-SXM4-40GB (UUID: GPU-$g)"
    for l in 0 1 2 3 4 5 6 7 8 9 10 11; do echo "	 Link $l: 25 GB/s"; done; done;;
esac"""


def test_gpus_come_from_nvidia_smi(machine):
    machine.tool("nvidia-smi", NVIDIA)
    described = fields(machine({}))
    assert {key: described[key] for key in described if key.startswith("accelerator")} == {
        "accelerators_per_node": "4", "accelerator_model_name": "NVIDIA A100-SXM4-40GB",
        "accelerator_memory_capacity": "40 GiB", "accelerator_frequency": "1410 MHz (highest)",
        "accelerator_host_interconnect": "PCIe 4.0 x16", "accelerator_interconnect": "12 x 25 GB/s NVLink",
    }  # fmt: skip
    assert described["other_software_stack"]["CUDA driver"] == "535.104.05"


@pytest.mark.parametrize(("gres", "expected"), [("gpu:a100:4(S:0-1)", "4"), ("gpu:8,nvme:1", None)])
def test_a_job_that_sees_some_gpus_of_the_node_does_not_count_them(machine, gres, expected):
    machine.tool("nvidia-smi", NVIDIA)
    machine.tool("scontrol", f"echo 'NodeName=n1 Arch=x86_64 Gres={gres} NodeAddr=n1'")
    facts = node_facts({"SLURMD_NODENAME": "n1"}, machine({}))
    assert facts["fields"].get("accelerators_per_node") == expected
    if expected is None:
        assert "Slurm has 8" in facts["hints"]["accelerators_per_node"]


@pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed because...'", "exit 127"])
def test_undetected_accelerators_must_be_given(machine, script):
    machine.tool("nvidia-smi", script)
    root = machine({"sys/bus/pci/devices/0000:41:00.0/class": "0x030200"})  # a 3D controller
    described = describe([node_facts({}, root)], {})
    assert "1 on the PCI bus" in described.missing["accelerators_per_node"]
    assert described.fields["accelerators_per_node"] == ""


def test_a_machine_without_accelerators_reports_none(machine):
    described = fields(machine({"sys/bus/pci/devices/0000:00:03.0/class": "0x020000"}))  # a network card
    assert (described["accelerators_per_node"], described["accelerator_model_name"]) == ("0", "N/A")


def test_unreadable_fields_stay_empty(machine):
    described = describe([node_facts({}, machine({}))], {})
    told = {"other_software_stack", "framework", "number_of_nodes", "host_networking_topology"}
    assert {key for key, value in described.fields.items() if value} <= told
    assert {"submitter", "host_processor_model_name", "host_memory_capacity", "cooling"} <= set(
        described.missing
    )


# The nodes of a job, and what the user gives.


def test_nodes_come_from_slurm_or_must_be_given_outside_a_job(machine):
    assert fields(machine({}), {"SLURM_JOB_NUM_NODES": "16"})["number_of_nodes"] == "16"
    machine.tool("sinfo", "echo 'slurm-wlm 22.05.8'")
    described = describe([node_facts({}, machine({}))], {})
    assert (
        "login" not in described.fields["number_of_nodes"] and "srun" in described.missing["number_of_nodes"]
    )
    assert described.fields["other_software_stack"]["Slurm"] == "22.05.8"


def test_a_field_in_which_nodes_differ_must_be_given():
    nodes = [
        {"fields": {"host_memory_capacity": size, "cooling": "Air"}, "hints": {}} for size in ("1 TB", "2 TB")
    ]
    described = describe(nodes, {})
    assert described.fields["host_memory_capacity"] == "" and described.fields["cooling"] == "Air"
    assert all(size in described.missing["host_memory_capacity"] for size in ("1 TB", "2 TB"))


def test_given_fields_override_and_the_official_checker_accepts_them(machine, tmp_path):
    given = given_fields(f"{key}={value}" for key, value in ANSWERS.items())
    described = describe([node_facts({}, machine({}))], given)
    assert not described.missing or set(described.missing) == {"operating_system"}
    path = tmp_path / "system.json"
    path.write_text(described.to_json())
    for usage, ruleset in (("hpc", "2.0.0"), ("hpc", "3.0.0")):
        valid, name, *_ = check_system_desc(str(path), usage, ruleset)
        assert valid and name == "cluster"
    assert read(path) == described.fields


@pytest.fixture
def described_machine(machine, monkeypatch):
    """The machine that ``mlhpc doctor --system`` describes has two sockets of 26 cores, and no PCI bus; nothing is
    read from the /sys of the machine that the tests run on, which a plain chroot does not have."""
    root = machine(cpus(2, 26, 2))
    monkeypatch.setattr(command, "node_facts", lambda: node_facts({}, root))
    monkeypatch.delenv("SLURM_NTASKS", raising=False)


def test_missing_fields_are_named_and_no_file_is_written(described_machine, tmp_path, capsys):
    out = tmp_path / "systems" / "mine.json"
    argv = ["doctor", "--system", "--out", str(out), "--set", "submitter=Lab"]
    assert cli.main(argv) == 1
    message = capsys.readouterr().err
    assert "--set division=" in message and "submitter=" not in message.replace(" ".join(argv), "")
    assert not out.exists()
    answers = {"accelerators_per_node": "0"} | dict.fromkeys(REQUIRED, "N/A") | ANSWERS
    repeat = [*argv, *(part for key, value in answers.items() for part in ("--set", f"{key}={value}"))]
    assert cli.main(repeat) == 0
    written = read(out)
    assert (written["submitter"], written["host_processor_vcpu_count"]) == ("Lab", "52")
    assert cli.main(repeat) == 2  # never overwritten


def test_with_all_required_fields_the_command_succeeds(described_machine, capsys):
    answers = dict.fromkeys(REQUIRED, "N/A") | ANSWERS
    argv = [part for key, value in answers.items() for part in ("--set", f"{key}={value}")]
    assert cli.main(["doctor", "--system", *argv]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["cooling"] == "Liquid"
    assert "required" not in captured.err


@pytest.mark.parametrize("content", ["[1]", "{", None, '"x"'])
def test_an_invalid_description_is_a_one_line_error(tmp_path, content):
    path = tmp_path / "s.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r"s\.json"):
        read(path)
