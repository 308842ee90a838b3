"""Energy from the vendors' counters. No device is here: libraries are stand-ins with the functions of the real
ones, AMD's numbers are a recorded counter and the energy that rocm-smi printed for it."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlhpc.common.host import energy
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog

RECORDED = Path(__file__).parents[3] / "data/accelerators/rocm_smi_energy.json"


def test_nvidia_counts_in_millijoules_and_devices_without_a_counter_are_left_out(monkeypatch):
    def consumed(device):
        if device == 1:
            raise RuntimeError("Not Supported")  # NVMLError_NotSupported: before Volta
        return 1_234_567

    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
                           nvmlDeviceGetHandleByIndex=lambda number: number,
                           nvmlDeviceGetTotalEnergyConsumption=consumed)  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    counters = energy.counters("nvidia")
    assert counters.joules() == [1234.567] and not counters.problem


@pytest.mark.parametrize("key", ["energy_accumulator", "power"])  # power: before ROCm 6.4
def test_amds_counter_times_its_resolution_is_what_rocm_smi_prints(monkeypatch, key):
    card = json.loads(RECORDED.read_text())["card0"]
    count = {key: int(card["Energy counter"]), "counter_resolution": 15.3, "timestamp": 1}
    amdsmi = SimpleNamespace(amdsmi_init=lambda: None, amdsmi_get_processor_handles=lambda: ["first die"],
                             amdsmi_get_energy_count=lambda device: count)  # fmt: skip
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    [joules] = energy.counters("amd").joules()
    assert joules == pytest.approx(float(card["Accumulated Energy (uJ)"]) / 1e6)


def test_amdsmi_without_its_library_is_one_line(monkeypatch, tmp_path):
    """What amdsmi 7.0.2 of PyPI raises when it is imported: it comes without libamd_smi.so."""
    (tmp_path / "amdsmi.py").write_text("_libraries = {}\n_libraries['libamd_smi.so'].amdsmi_init\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    counters = energy.counters("amd")
    assert counters.reads == () and "\n" not in counters.problem
    assert "KeyError: 'libamd_smi.so'" in counters.problem and "/opt/rocm/share/amd_smi" in counters.problem


@pytest.mark.parametrize(
    "vendor, module, remedy", [("nvidia", "pynvml", "nvidia"), ("amd", "amdsmi", "rocm")]
)
def test_a_missing_library_is_one_line_with_what_to_install(monkeypatch, vendor, module, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    problem = energy.counters(vendor).problem
    assert "not installed" in problem and remedy in problem and "\n" not in problem


def test_intel_counts_cards_once_though_tiles_have_files_too(tmp_path):
    """Names and units: Linux, Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon."""
    for card, number, name, microjoules in [("card0", 1, "i915", 5_000_000), ("card0", 2, "i915_gt0", 2_000_000),
                                            ("card1", 3, "xe", 7_000_000), ("card2", 4, "amdgpu", 9)]:  # fmt: skip
        folder = tmp_path / f"sys/class/drm/{card}/device/hwmon/hwmon{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy1_input").write_text(f"{microjoules}\n")
    assert energy._intel(tmp_path).joules() == [5.0, 7.0]
    assert "no energy counter" in energy._intel(tmp_path / "empty").problem


def test_a_counter_that_was_reset_counts_from_its_reset():
    counters = energy.Counters("NVML", (lambda: 150.0, lambda: 30.0))
    assert counters.spent([100.0, 100.0]) == 80.0


def test_a_run_records_what_its_accelerators_used_between_start_and_stop(tmp_path):
    readings = iter([100.0, 350.0])
    counters = energy.Counters("NVML", (lambda: next(readings), lambda: 7.0))
    with RunLog(tmp_path, Solo(), counters) as log:
        with log.span("init"):
            pass
        with log.span("run", sync=True):
            log.finish("success")
    events = [json.loads(line) for line in (tmp_path / "events.rank0.jsonl").read_text().splitlines()]
    [note] = [event for event in events if event["name"] == "energy"]
    assert (note["joules"], note["counters"], note["source"]) == (250.0, 2, "NVML")


def test_a_run_without_counters_has_no_such_record(tmp_path):
    with RunLog(tmp_path, Solo(), energy.Counters()) as log, log.span("run"):
        pass
    assert '"energy"' not in (tmp_path / "events.rank0.jsonl").read_text()


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_counter_that_fails_during_a_run_leaves_no_figure_and_ends_nothing(tmp_path, fails_at):
    readings = iter([1.0, 2.0])

    def read():
        if len(seen) + 1 == fails_at:
            raise RuntimeError("GPU is lost")
        seen.append(next(readings))
        return seen[-1]

    seen: list[float] = []
    with RunLog(tmp_path, Solo(), energy.Counters("NVML", (read,))) as log:
        with log.span("run"):
            log.metric("eval_error", 0.1, epoch=1)
        log.finish("success")
    text = (tmp_path / "events.rank0.jsonl").read_text()
    assert '"energy"' not in text and '"finish"' in text
