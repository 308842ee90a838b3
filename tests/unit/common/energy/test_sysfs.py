"""RAPL by powercap and Cray's pm_counters, from trees as machines have them (helpers/energy_trees.py)."""

from pathlib import Path

import pytest
from helpers.energy_trees import (
    AMD_UJ,
    CRAY_EX,
    EPYC,
    LAPTOP,
    PACKAGE_UJ,
    SERVER,
    XEON_MEMORY_UJ,
    count,
    pm_counters,
    powercap,
    processors_of,
)

from mlhpc.common.energy.counters import reading
from mlhpc.common.energy.sysfs import cray, rapl


def joules(counters):
    return {name: reading(read) for name, read in counters.reads.items()}


@pytest.mark.parametrize(("zones", "names", "source"), [
    (LAPTOP, {"package-0"}, "RAPL, packages"),
    (SERVER, {"package-0", "package-1", "dram of package-0", "dram of package-1"}, "RAPL, packages and memory"),
    (EPYC, {"package-0"}, "RAPL, packages"),
])  # fmt: skip
def test_packages_and_memory_are_counted_and_neither_their_parts_nor_what_contains_them(
    tmp_path, zones, names, source
):
    counters = rapl(powercap(tmp_path, zones))
    assert joules(counters) == dict.fromkeys(names, 1.0)
    assert (counters.measured, counters.source, counters.problems) == ("processors", source, ())


def test_the_parts_of_a_server_are_told_apart(tmp_path):
    root = powercap(tmp_path, SERVER)
    for number, zone in enumerate(SERVER):
        count(root, zone, 1_000_000 * 10**number)
    assert joules(rapl(root)) == {
        "package-0": 1.0, "dram of package-0": 10.0, "package-1": 100.0, "dram of package-1": 1000.0
    }  # fmt: skip
    assert rapl(root).wraps["package-1"] == 262_143.328850
    assert rapl(root).wraps["dram of package-1"] == 65_712.999613


@pytest.mark.parametrize("vendor", ["AuthenticAMD", "HygonGenuine"])
def test_a_package_of_amd_that_linux_lists_once_per_die_counts_once(tmp_path, vendor):
    """Linux 6.10 and 6.11 on Zen 4: each die's zone reads the register of the package."""
    dies = {f"intel-rapl:{zone:x}": (f"package-{zone // 12}-die-{zone % 12}", AMD_UJ) for zone in range(24)}
    root = processors_of(powercap(tmp_path, dies), vendor)
    assert joules(rapl(root)) == {"package-0": 1.0, "package-1": 1.0}
    assert rapl(root).problems == () and set(rapl(root).wraps) == {"package-0", "package-1"}


def test_dies_of_intel_have_counters_of_their_own(tmp_path):
    """Cascade Lake-AP (Linux, drivers/powercap/intel_rapl_common.c: the package's domains are per die)."""
    dies = {f"intel-rapl:{die}": (f"package-0-die-{die}", PACKAGE_UJ) for die in range(2)}
    root = processors_of(powercap(tmp_path, dies), "GenuineIntel")
    assert joules(rapl(root)) == {"package-0-die-0": 1.0, "package-0-die-1": 1.0}


def test_two_counters_of_one_name_make_no_figure(tmp_path):
    twice = {"intel-rapl:0": ("package-0", PACKAGE_UJ), "intel-rapl:1": ("package-0", PACKAGE_UJ)}
    counters = rapl(processors_of(powercap(tmp_path, twice), "GenuineIntel"))
    assert not counters.reads
    assert counters.problems == ("two counters (RAPL) are named package-0 and may count the same energy",)


def test_zones_are_numbered_in_hexadecimal_digits(tmp_path):
    """Linux, drivers/powercap/powercap_sys.c: "%s:%x"."""
    zones = {f"intel-rapl:{n:x}": (f"package-{n}", PACKAGE_UJ) for n in range(16)}
    zones["intel-rapl:f:a"] = ("dram", XEON_MEMORY_UJ)
    assert set(joules(rapl(powercap(tmp_path, zones)))) == {
        *(f"package-{n}" for n in range(16)), "dram of package-15"
    }  # fmt: skip


def test_a_machine_without_rapl_has_neither_figure_nor_problem(tmp_path):
    counters = rapl(tmp_path)
    assert not counters.reads and not counters.problems
    (tmp_path / "sys/class/powercap/intel-rapl").mkdir(parents=True)  # as some containers show it
    assert not rapl(tmp_path).reads and not rapl(tmp_path).problems


def test_counters_that_only_root_may_read_are_one_problem_with_its_remedy(tmp_path, monkeypatch):
    """energy_uj has mode 0400 since Linux 5.10 (CVE-2020-8694)."""
    root, read = powercap(tmp_path, SERVER), Path.read_text

    def denied(path, *args, **options):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", denied)
    counters = rapl(root)
    [problem] = counters.problems
    assert not counters.reads
    assert "only by root" in problem and "chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj" in problem


def test_a_counter_whose_range_is_not_known_is_left_out_and_named(tmp_path):
    root = powercap(tmp_path, SERVER)
    (root / "sys/class/powercap/intel-rapl:1/max_energy_range_uj").unlink()
    counters = rapl(root)
    assert "package-1" not in counters.reads and len(counters.reads) == 3
    assert counters.problems == ("package-1 does not state its range",)


def test_a_counter_that_cannot_be_read_is_named(tmp_path):
    root = powercap(tmp_path, SERVER)
    (root / "sys/class/powercap/intel-rapl:1:0/energy_uj").unlink()
    counters = rapl(root)
    assert len(counters.reads) == 3
    assert "dram of package-1 has no counter (FileNotFoundError" in counters.problems[0]


def test_a_cray_node_has_counters_of_each_kind(tmp_path):
    root = pm_counters(tmp_path, CRAY_EX)
    assert joules(cray("node", root)) == {"energy": 9000.0}
    assert joules(cray("processors", root)) == {"cpu_energy": 2000.0, "memory_energy": 500.0}
    assert joules(cray("accelerators", root)) == {"accel0_energy": 3000.0, "accel1_energy": 2500.0}
    assert cray("processors", root).source == "Cray pm_counters: cpu, memory"
    assert not cray("node", tmp_path / "elsewhere").problems


def test_the_one_accelerator_of_an_xc_node_has_no_number(tmp_path):
    assert joules(cray("accelerators", pm_counters(tmp_path, {"accel_energy": 5}))) == {"accel_energy": 5.0}


def test_another_unit_is_not_taken_for_joules(tmp_path):
    root = pm_counters(tmp_path, {"energy": 1})
    (root / "sys/cray/pm_counters/energy").write_text("1 kJ 1700000000000000 us\n")
    counters = cray("node", root)
    assert not counters.reads and "is not in joules" in counters.problems[0]
