"""Energy from the vendors' counters. No device is here: libraries are stand-ins with the functions of the real
ones, AMD's numbers are a recorded counter and the energy that rocm-smi printed for it."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlhpc.common.host import energy
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog, named_once

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
    assert counters.joules() == {"GPU 0": 1234.567}
    assert counters.problems == ("GPU 1 has no counter (RuntimeError: Not Supported)",)


def test_devices_of_which_none_has_a_counter_are_one_problem(monkeypatch):
    def consumed(device):
        raise RuntimeError("Not Supported")

    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 8,
                           nvmlDeviceGetHandleByIndex=lambda number: number,
                           nvmlDeviceGetTotalEnergyConsumption=consumed)  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    counters = energy.counters("nvidia")
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
    [joules] = energy.counters("amd").joules().values()
    assert joules == pytest.approx(float(card["Accumulated Energy (uJ)"]) / 1e6)


def test_second_dies_of_mi250xs_are_no_problem_and_other_silent_counters_are(monkeypatch):
    silent = {"GPU 1", "GPU 3"}

    def consumed(device):
        if device in silent:
            raise RuntimeError("no counter")
        return {"energy_accumulator": 1_000_000, "counter_resolution": 15.3}

    amdsmi = SimpleNamespace(amdsmi_init=lambda: None, amdsmi_get_energy_count=consumed,
                             amdsmi_get_processor_handles=lambda: [f"GPU {n}" for n in range(4)])  # fmt: skip
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    assert energy.counters("amd").problems == () and len(energy.counters("amd").reads) == 2
    silent.remove("GPU 3")
    assert energy.counters("amd").problems == ("GPU 1 has no counter (RuntimeError: no counter)",)


def test_a_problem_of_many_nodes_is_named_once():
    missing = "NVML is not installed"
    found = [("node0", [missing]), ("node1", [missing]), ("node2", [missing, "GPU 3 has no counter"])]
    assert named_once(found) == [
        "NVML is not installed on node0 and 2 other nodes",
        "GPU 3 has no counter on node2",
    ]


def test_amdsmi_without_its_library_is_one_line(monkeypatch, tmp_path):
    """What amdsmi 7.0.2 of PyPI raises when it is imported: it comes without libamd_smi.so."""
    (tmp_path / "amdsmi.py").write_text("_libraries = {}\n_libraries['libamd_smi.so'].amdsmi_init\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    counters = energy.counters("amd")
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
    [problem] = energy.counters(vendor).problems
    assert "not installed" in problem and remedy in problem and "\n" not in problem


def test_intel_counts_cards_once_though_tiles_have_files_too(tmp_path):
    """Names and units: Linux, Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon."""
    for card, number, name, microjoules in [("card0", 1, "i915", 5_000_000), ("card0", 2, "i915_gt0", 2_000_000),
                                            ("card1", 3, "xe", 7_000_000), ("card2", 4, "amdgpu", 9)]:  # fmt: skip
        folder = tmp_path / f"sys/class/drm/{card}/device/hwmon/hwmon{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy1_input").write_text(f"{microjoules}\n")
    assert list(energy._intel(tmp_path).joules().values()) == [5.0, 7.0]
    assert "no energy counter" in energy._intel(tmp_path / "empty").problems[0]


def test_a_counter_that_was_reset_counts_from_its_reset():
    counters = energy.Counters("NVML", {"GPU 0": lambda: 150.0, "GPU 1": lambda: 30.0})
    assert counters.spent({"GPU 0": 100.0, "GPU 1": 100.0})["joules"] == 80.0


def recorded(folder, counters):
    """The energy note of a run with ``counters``; None where there is none."""
    with RunLog(folder, Solo(), counters) as log:
        with log.span("init"):
            pass
        with log.span("run", sync=True):
            log.metric("eval_error", 0.1, epoch=1)
        log.finish("success")
    events = [json.loads(line) for line in (folder / "events.rank0.jsonl").read_text().splitlines()]
    assert events[-1]["name"] == "finish"
    notes = [event for event in events if event["name"] == "energy"]
    return notes[0] if notes else None


def test_a_run_records_what_its_accelerators_used_between_start_and_stop(tmp_path, capsys):
    readings = iter([100.0, 350.0])
    reads = {"GPU 0": lambda: next(readings), "GPU 1": lambda: 7.0}
    note = recorded(tmp_path, energy.Counters("NVML", reads))
    assert (note["joules"], note["counters"], note["source"], note["problems"]) == (250.0, 2, "NVML", [])
    assert capsys.readouterr().err == ""


def test_a_run_without_accelerators_has_no_such_record(tmp_path, capsys):
    assert recorded(tmp_path, energy.Counters()) is None
    assert capsys.readouterr().err == ""


def test_a_run_whose_accelerators_have_no_counters_says_why(tmp_path, capsys):
    note = recorded(tmp_path, energy.Counters("NVML", problems=("NVML is not installed: pip install x",)))
    assert (note["joules"], note["counters"]) == (None, 0)
    assert note["problems"] == ["NVML is not installed: pip install x"]
    assert capsys.readouterr().err == "no energy figure: NVML is not installed: pip install x\n"


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_counter_that_fails_during_a_run_is_named_and_ends_nothing(tmp_path, capsys, fails_at):
    """The others are still summed, and the record says that one is not among them."""
    calls, steady = [], iter([5.0, 12.0])

    def read():
        calls.append(1)
        if len(calls) == fails_at:
            raise RuntimeError("GPU is lost")
        return 100.0 * len(calls)

    reads = {"GPU 0": lambda: next(steady), "GPU 1": read}
    note = recorded(tmp_path, energy.Counters("NVML", reads))
    problem = "GPU 1 could not be read during the run (RuntimeError: GPU is lost)"
    assert (note["joules"], note["counters"], note["problems"]) == (7.0, 1, [problem])
    assert capsys.readouterr().err == f"the energy figure is of 1 of the devices: {problem}\n"
