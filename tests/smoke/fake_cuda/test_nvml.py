"""NVML's counters through the suite: energy of a run, live view, doctor and system description."""

import json

import pytest
from smoke.fake_cuda.conftest import command, on_device

COUNTS = {"devices": 2, "watts": 0, "joules_per_launch": 2}  # known without a clock
USED = {"nvml_gpu_percent": 87, "nvml_memory_percent": 31, "nvml_pcie_kb_per_s": 5000, "nvml_nvlink_kib": 1}


@pytest.fixture(scope="module")
def counted(sets, tmp_path_factory):
    return on_device(tmp_path_factory.mktemp("counted"), sets["deepcam"], "deepcam", changes=COUNTS | USED)


def launches(done):
    """Before and after ``run_start``."""
    after = sum(done.counted()["kernels"].values())
    return sum(done.total()["kernels"].values()) - after, after


def test_the_joules_of_a_run_are_those_that_its_devices_counted(counted):
    _, after = launches(counted)
    used = counted.result()["energy"]["accelerators"]
    assert used["joules"] == pytest.approx(2 * 2 * after, rel=0.005)  # both devices count alike
    assert (used["source"], used["counters"], used["problems"]) == ("NVML", 2, [])
    shown = json.loads(command("watch", "--once", "--json", counted.out).stdout)
    assert shown["energy"]["accelerators"]["joules"] == pytest.approx(used["joules"], rel=0.005)


def test_a_run_records_how_its_devices_are_used(counted):
    usage = counted.result()["energy"]["accelerators"]["usage"]
    known = {"busy": 0.87, "memory_busy": 0.31, "pcie_bytes_per_s": 2 * 5000 * 1000}
    assert {name: usage[name] for name in known} == pytest.approx(known) and usage["nvlink_bytes_per_s"] > 0
    shown = command("report", counted.out).stdout
    assert "busy 87%, memory 31%, " in shown and "PCIe 10 MB/s, NVLink " in shown


def test_a_counter_that_wraps_and_a_device_that_falls_off_the_bus_are_no_figures(counted, sets, tmp_path):
    before, after = launches(counted)
    late = before + 7 * after // 8  # so that it ends with less than it began with
    wraps = COUNTS | {"devices": 1, "energy_wraps_at": 2000 * late}  # millijoules
    done = on_device(tmp_path / "wraps", sets["deepcam"], "deepcam", changes=wraps)
    used = done.result()["energy"]["accelerators"]
    assert not used["joules"] and "GPU 0 was reset: it went from" in used["problems"][0]

    falls = COUNTS | {"nvml_lost_device": 1, "nvml_lost_after": late}
    done = on_device(tmp_path / "falls", sets["deepcam"], "deepcam", changes=falls)
    used = done.result()["energy"]["accelerators"]
    assert used["joules"] == pytest.approx(2 * after, rel=0.005) and used["counters"] == 1
    assert used["problems"] == ["GPU 1 could not be read during the run (NVMLError_GpuIsLost: GPU is lost)"]


def test_the_doctor_and_the_system_description_know_the_devices():
    checks = json.loads(command("doctor", "--json", changes=COUNTS).stdout)["checks"]
    details = {check["name"]: check["detail"] for check in checks}
    assert details["GPUs"].startswith("2 (NVIDIA H100 80GB HBM3, 81559 MiB)")
    assert details["energy of accelerators"] == "NVML, 2 counters"
    assert details["GPU driver"].startswith("580.159.04; PyTorch is built for CUDA 13")
    assert details["PyTorch"].endswith("2 GPUs over nccl")
    system = json.loads(command("doctor", "--system", changes=COUNTS).stdout)
    named = ("accelerators_per_node", "accelerator_model_name", "accelerator_memory_capacity")
    assert [system[name] for name in named] == ["2", "NVIDIA H100 80GB HBM3", "80 GiB"]
    assert system["other_software_stack"]["CUDA driver"] == "580.159.04"
