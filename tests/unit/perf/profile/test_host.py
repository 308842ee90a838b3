"""Profiles warn when they are compared with the peaks of another machine."""

from dataclasses import replace

import pytest

from mlhpc.common.host.accelerators import Accelerator
from mlhpc.common.timing.profile import Profile
from mlhpc.perf.machines import machine
from mlhpc.perf.profile import host

# What nvidia-smi, rocm-smi and /proc/cpuinfo say on such nodes, and the numbers of logical and physical cores.
A100_40 = ("NVIDIA A100-SXM4-40GB", 40_960)
NODES = {
    "perlmutter": (A100_40, 4, {128, 64}),
    "dgx-a100": (("NVIDIA A100-SXM4-80GB", 81_920), 8, {256, 128}),
    "h200": (("NVIDIA H200", 143_771), 8, {224, 112}),
    "gh200": (("NVIDIA GH200 120GB", 97_871), 4, {288}),
    "cori-gpu": (("Tesla V100-SXM2-16GB", 16_384), 8, {80, 40}),
    "frontera-rtx": (("Quadro RTX 5000", 16_384), 4, {32, 16}),
    "mi250x": (("AMD Instinct MI250X", 65_520), 8, {128, 64}),
    "cori-knl": (("Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz", None), 0, {272, 68}),
}


def differences(monkeypatch, name, node, *, count=None, cores=None):
    (model, memory), there, has = NODES[node] if isinstance(node, str) else node
    gpu = there > 0
    listed = [Accelerator("nvidia", model, memory)] * (there if count is None else count)
    monkeypatch.setattr(host, "installed", lambda: listed)
    monkeypatch.setattr(host, "cores", lambda: cores or has)
    monkeypatch.setattr(host.provenance, "machine", lambda: {"cpu": model if not gpu else "Some CPU"})
    profile = Profile("GPU:0" if gpu else "CPU, 4 threads", 1, 1, 1.0, (), (), gpu=gpu)
    return host.differences(machine(name), profile)


@pytest.mark.parametrize("name", NODES)
def test_a_node_of_the_machine_differs_in_nothing(monkeypatch, name):
    assert differences(monkeypatch, name, name) == []


@pytest.mark.parametrize(
    ("name", "node", "says"),
    [
        ("h200", "gh200", "NVIDIA GH200 120GB instead of NVIDIA H200 SXM 141 GB"),  # no H200 for its name
        ("gh200", "h200", "NVIDIA H200 instead of NVIDIA GH200 96 GB"),
        ("perlmutter", "dgx-a100", "accelerators of 85.9 GB instead of 42.5 GB"),
        ("dgx-a100", "perlmutter", "accelerators of 42.9 GB instead of 85.2 GB"),
        (
            "perlmutter",
            "cori-knl",
            "Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz instead of NVIDIA A100 SXM4 40 GB",
        ),
        (
            "cori-gpu",
            (("Tesla V100S-PCIE-32GB", 32_768), 2, {40}),
            "Tesla V100S-PCIE-32GB instead of NVIDIA V100",
        ),
        ("perlmutter", (A100_40, 4, {96, 48}), "96 cores instead of 64"),
        ("perlmutter", (A100_40, 8, {64}), "8 accelerators per node instead of 4"),
    ],
)
def test_another_node_is_told_by_what_it_has(monkeypatch, name, node, says):
    assert any(each.startswith(says) for each in differences(monkeypatch, name, node))


@pytest.mark.parametrize(
    "name",
    ["Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "AMD EPYC 7763 64-Core Processor", "NVIDIA GH200 120GB"],
)
def test_a_machine_is_of_the_family_that_doctor_writes_of_it(monkeypatch, name):
    """``mlhpc doctor --calibrate`` gives a machine the processor's whole name as family."""
    knl = machine("cori-knl")
    mine = replace(knl, facts={**knl.facts, "accelerator.family": name})
    monkeypatch.setattr(host, "cores", lambda: {68})
    monkeypatch.setattr(host.provenance, "machine", lambda: {"cpu": name})
    profile = Profile("CPU, 4 threads", 1, 1, 1.0, (), (), gpu=False)
    assert host.differences(mine, profile) == []


def test_a_job_that_sees_a_part_of_its_node_is_on_the_machine(monkeypatch):
    assert differences(monkeypatch, "perlmutter", "perlmutter", count=1, cores={16, 128, 64}) == []


def test_what_is_not_known_is_no_difference(monkeypatch):
    """No tool of the vendor's; a processor that Linux does not name, as on ARM."""
    assert differences(monkeypatch, "perlmutter", "perlmutter", count=0) == []
    monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
    assert differences(monkeypatch, "fugaku", (("aarch64", None), 0, {48})) == []


def test_this_machine_has_at_least_one_core():
    assert min(host.cores()) >= 1
