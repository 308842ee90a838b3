"""The accelerators of a node, read from recorded outputs of the vendors' tools (tests/data/accelerators)."""

import json
import subprocess
from pathlib import Path

import pytest

from mlhpc.common.energy.accelerators import vendor_here
from mlhpc.common.host import accelerators, probe
from mlhpc.common.host.accelerators import Accelerator

RECORDED = Path(__file__).parents[3] / "data/accelerators"


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """A machine with only the tools that a test gives an output: {"first words of the command": its output}."""
    outputs: dict[str, str] = {}

    def run(command, **options):
        line = " ".join(command)
        answer = next((text for start, text in outputs.items() if line.startswith(start)), None)
        if answer is None:
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0, stdout=answer)

    monkeypatch.setattr(probe.shutil, "which", lambda name: any(name in start for start in outputs))
    monkeypatch.setattr(probe.subprocess, "run", run)
    monkeypatch.setattr(accelerators, "_NVIDIA", tmp_path)
    monkeypatch.delenv("ZE_FLAT_DEVICE_HIERARCHY", raising=False)
    return outputs


def recorded(name):
    return (RECORDED / name).read_text()


def test_a_machine_without_tools_has_none(tools):
    assert accelerators.installed() == []


def test_nvidia(tools):
    tools["nvidia-smi"] = "NVIDIA A100-SXM4-40GB, 40960\n" * 4
    assert accelerators.accelerators() == ["NVIDIA A100-SXM4-40GB, 40960 MiB"] * 4


def test_hidden_accelerators_are_installed_but_not_usable(tools, monkeypatch):
    tools["nvidia-smi"] = "NVIDIA A100-SXM4-40GB, 40960\n" * 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert accelerators.usable() == accelerators.installed() and vendor_here() == "nvidia"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (accelerators.usable(), len(accelerators.installed())) == ([], 4)
    assert vendor_here() is None, "the energy of a run on the CPU excludes them, as with training.device=cpu"


def test_amd_by_amd_smi(tools):
    tools["amd-smi static"] = recorded("amd_smi_static.json")
    assert accelerators.installed() == [Accelerator("amd", "AMD Instinct MI210", 65520)]


def test_amd_by_the_list_that_older_amd_smi_print(tools):
    tools["amd-smi static"] = json.dumps(json.loads(recorded("amd_smi_static.json"))["gpu_data"])
    assert accelerators.accelerators() == ["AMD Instinct MI210, 65520 MiB"]


def test_amd_by_rocm_smi_where_amd_smi_fails(tools):
    tools["amd-smi static"] = (
        "ERROR:root:Unable to detect any GPU devices, check amdgpu version and module status"
    )
    tools["rocm-smi"] = recorded("rocm_smi_mi210.json")
    assert accelerators.installed() == [Accelerator("amd", "Instinct MI210", 65520)]


def test_rocm_smi_without_memory_and_with_facts_of_the_system(tools):
    tools["rocm-smi"] = recorded("rocm_smi_energy.json")
    assert accelerators.accelerators() == ["AMD INSTINCT MI250 (MCM) OAM AC MBA"] * 2


def test_intel(tools):
    tools["xpu-smi discovery -j"] = recorded("xpu_smi_discovery.json")
    tools["xpu-smi discovery -d 0 -j"] = recorded("xpu_smi_discovery_device.json")
    assert accelerators.installed() == [Accelerator("intel", "Intel Corporation Device 56c1 (rev 05)", 5068)]


@pytest.mark.parametrize("hierarchy, wanted", [(None, 2), ("FLAT", 2), ("COMPOSITE", 1)])
def test_a_tile_is_an_accelerator_unless_the_devices_are_composite(tools, monkeypatch, hierarchy, wanted):
    card = json.loads(recorded("xpu_smi_discovery_device.json")) | {"number_of_tiles": "2"}
    tools["xpu-smi discovery -j"] = recorded("xpu_smi_discovery.json")
    tools["xpu-smi discovery -d 0 -j"] = json.dumps(card)
    if hierarchy:
        monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", hierarchy)
    there = accelerators.installed()
    assert len(there) == wanted
    assert sum(one.memory_mib or 0 for one in there) == 5068


@pytest.mark.parametrize("answer", ["", "[]", "{}", "No device", '{"gpu_data": [{"gpu": 0}]}', "[1]", "null"])
def test_an_unexpected_answer_counts_as_no_accelerator(tools, answer):
    for tool in ("amd-smi", "rocm-smi", "xpu-smi"):
        tools[tool] = answer
    assert accelerators.installed() == []


@pytest.mark.parametrize(
    "vendor, env, variable",
    [
        ("nvidia", {}, "CUDA_VISIBLE_DEVICES"),
        ("amd", {}, "HIP_VISIBLE_DEVICES"),
        ("amd", {"ROCR_VISIBLE_DEVICES": "0,1"}, "ROCR_VISIBLE_DEVICES"),
        ("intel", {}, "ZE_AFFINITY_MASK"),
    ],
)
def test_each_vendor_has_its_variable_that_hides_devices(vendor, env, variable):
    assert accelerators.visible_variable(vendor, env) == variable
