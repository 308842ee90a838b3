"""Energy from the vendors' counters. No device is here: libraries are stand-ins with the functions of the real
ones, AMD's numbers are a recorded counter and the energy that rocm-smi printed for it."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlhpc.common.energy.accelerators import accelerator_counters
from mlhpc.common.energy.counters import reading

RECORDED = Path(__file__).parents[3] / "data/accelerators/rocm_smi_energy.json"


def joules(counters):
    return {name: reading(read) for name, read in counters.reads.items()}


def test_nvidia_counts_in_millijoules_and_devices_without_a_counter_are_left_out(monkeypatch):
    def consumed(device):
        if device == 1:
            raise RuntimeError("Not Supported")  # NVMLError_NotSupported: before Volta
        return 1_234_567

    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
                           nvmlDeviceGetHandleByIndex=lambda number: number,
                           nvmlDeviceGetTotalEnergyConsumption=consumed)  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    counters = accelerator_counters("nvidia")
    assert joules(counters) == {"GPU 0": 1234.567}
    assert counters.problems == ("GPU 1 has no counter (RuntimeError: Not Supported)",)


def test_devices_of_which_none_has_a_counter_are_one_problem(monkeypatch):
    def consumed(device):
        raise RuntimeError("Not Supported")

    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 8,
                           nvmlDeviceGetHandleByIndex=lambda number: number,
                           nvmlDeviceGetTotalEnergyConsumption=consumed)  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    counters = accelerator_counters("nvidia")
    assert not counters.reads
    assert counters.problems == (
        "NVML has no energy counter for these devices (RuntimeError: Not Supported)",
    )


@pytest.mark.parametrize("key", ["energy_accumulator", "power"])  # power: before ROCm 6.4
def test_amds_counter_times_its_resolution_is_what_rocm_smi_prints(monkeypatch, key):
    card = json.loads(RECORDED.read_text())["card0"]
    count = {key: int(card["Energy counter"]), "counter_resolution": 15.3, "timestamp": 1}
    amdsmi = SimpleNamespace(amdsmi_init=lambda: None, amdsmi_get_processor_handles=lambda: ["first die"],
                             amdsmi_get_energy_count=lambda device: count)  # fmt: skip
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    [counted] = joules(accelerator_counters("amd")).values()
    assert counted == pytest.approx(float(card["Accumulated Energy (uJ)"]) / 1e6)


def test_second_dies_of_mi250xs_are_no_problem_and_other_silent_counters_are(monkeypatch):
    silent = {"GPU 1", "GPU 3"}

    def consumed(device):
        if device in silent:
            raise RuntimeError("no counter")
        return {"energy_accumulator": 1_000_000, "counter_resolution": 15.3}

    amdsmi = SimpleNamespace(amdsmi_init=lambda: None, amdsmi_get_energy_count=consumed,
                             amdsmi_get_processor_handles=lambda: [f"GPU {n}" for n in range(4)])  # fmt: skip
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    assert accelerator_counters("amd").problems == () and len(accelerator_counters("amd").reads) == 2
    silent.remove("GPU 3")
    assert accelerator_counters("amd").problems == ("GPU 1 has no counter (RuntimeError: no counter)",)


def test_amdsmi_without_its_library_is_one_line(monkeypatch, tmp_path):
    """What amdsmi 7.0.2 of PyPI raises when it is imported: it comes without libamd_smi.so."""
    (tmp_path / "amdsmi.py").write_text("_libraries = {}\n_libraries['libamd_smi.so'].amdsmi_init\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    counters = accelerator_counters("amd")
    assert not counters.reads and "\n" not in counters.problems[0]
    assert (
        "KeyError: 'libamd_smi.so'" in counters.problems[0]
        and "/opt/rocm/share/amd_smi" in counters.problems[0]
    )


@pytest.mark.parametrize(
    "vendor, module, remedy", [("nvidia", "pynvml", "nvidia"), ("amd", "amdsmi", "rocm")]
)
def test_a_missing_library_is_one_line_with_what_to_install(monkeypatch, vendor, module, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    [problem] = accelerator_counters(vendor).problems
    assert "not installed" in problem and remedy in problem and "\n" not in problem


def test_intel_counts_cards_once_though_tiles_have_files_too(tmp_path):
    """Names and units: Linux, Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon."""
    for card, number, name, microjoules in [("card0", 1, "i915", 5_000_000), ("card0", 2, "i915_gt0", 2_000_000),
                                            ("card1", 3, "xe", 7_000_000), ("card2", 4, "amdgpu", 9)]:  # fmt: skip
        folder = tmp_path / f"sys/class/drm/{card}/device/hwmon/hwmon{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy1_input").write_text(f"{microjoules}\n")
        (folder / "power1_max").write_text("300000000\n")
    assert list(joules(accelerator_counters("intel", tmp_path)).values()) == [5.0, 7.0]
    assert [limit() for limit in accelerator_counters("intel", tmp_path).caps] == [300.0, 300.0]
    assert "no energy counter" in accelerator_counters("intel", tmp_path / "empty").problems[0]


def test_devices_are_known_by_their_uuid_where_the_driver_says_it(monkeypatch):
    """NVML numbers the devices that a process can see, so that each of two ranks may call its own 0."""
    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
                           nvmlDeviceGetHandleByIndex=lambda number: number,
                           nvmlDeviceGetTotalEnergyConsumption=lambda device: 1,
                           nvmlDeviceGetEnforcedPowerLimit=lambda device: 700_000 - 1000 * device,
                           nvmlDeviceGetUUID=lambda device: f"GPU-{device + 7}")  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert accelerator_counters("nvidia").devices == ("GPU-7", "GPU-8")
    assert [limit() for limit in accelerator_counters("nvidia").caps] == [700.0, 699.0]
    amdsmi = SimpleNamespace(amdsmi_init=lambda: None, amdsmi_get_processor_handles=lambda: ["a", "b"],
                             amdsmi_get_energy_count=lambda device: {"power": 1, "counter_resolution": 15.3},
                             amdsmi_get_power_cap_info=lambda device: {"power_cap": 560_000_000},
                             amdsmi_get_gpu_device_uuid=lambda device: f"uuid {device}")  # fmt: skip
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    assert accelerator_counters("amd").devices == ("uuid a", "uuid b")
    assert [limit() for limit in accelerator_counters("amd").caps] == [560.0, 560.0]
    del amdsmi.amdsmi_get_gpu_device_uuid
    assert accelerator_counters("amd").devices == ("0", "1")


def test_nvidia_tells_how_its_devices_are_used(monkeypatch):
    """Means over the devices; PCIe of one device a reading, NVLink by its counters of two readings."""
    clock, sent, asked, broken = iter([10.0, 12.0, 14.0, 16.0]), {0: 0, 1: 0}, [], []

    def fields(device, wanted):
        assert wanted == [(138, 2**32 - 1), (139, 2**32 - 1)]
        sent[device] += 1 + device
        if device in broken:
            return [SimpleNamespace(nvmlReturn=1)]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=sent[device])) for _ in wanted]

    def throughput(device, way):
        asked.append((device, way))
        return 100 * (1 + device)

    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
                           nvmlDeviceGetHandleByIndex=lambda number: number,
                           nvmlDeviceGetTotalEnergyConsumption=lambda device: 1000,
                           nvmlDeviceGetUtilizationRates=lambda d: SimpleNamespace(gpu=50 + 50 * d, memory=20),
                           nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=4e9 * (1 + device)),
                           NVML_PCIE_UTIL_TX_BYTES=0, NVML_PCIE_UTIL_RX_BYTES=1,
                           nvmlDeviceGetPcieThroughput=throughput,
                           NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX=138, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX=139,
                           nvmlDeviceGetFieldValues=fields)  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr("mlhpc.common.energy.accelerators.time.monotonic", lambda: next(clock))
    usage = accelerator_counters("nvidia").usage
    known = {"busy": 0.75, "memory_busy": 0.2, "memory_bytes": 6e9}
    assert usage() == known | {"pcie_bytes_per_s": 200e3}
    # In two seconds, both ways, 2 KiB of the first device and 4 of the second.
    assert usage() == known | {"pcie_bytes_per_s": 400e3, "nvlink_bytes_per_s": 1.5 * 1024}
    assert asked == [(0, 0), (0, 1), (1, 0), (1, 1)]
    # A device that cannot be read once has the mean of both intervals in the next reading.
    broken.append(0)
    assert usage()["nvlink_bytes_per_s"] == 2 * 1024
    broken.clear()
    assert usage()["nvlink_bytes_per_s"] == 1.5 * 1024


def test_a_driver_that_tells_nothing_of_the_usage_is_no_problem(monkeypatch):
    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 1,
                           nvmlDeviceGetHandleByIndex=lambda number: number,
                           nvmlDeviceGetTotalEnergyConsumption=lambda device: 1000)  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    counters = accelerator_counters("nvidia")
    assert counters.problems == () and counters.usage() == {}
