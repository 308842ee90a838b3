"""Trees of sysfs with energy counters, as Linux and HPE Cray's nodes have them.

The files of a zone are those of kernel.org, Documentation/power/powercap/powercap.rst; /sys/class/powercap has a
link to every zone and part, side by side. Which zones a machine has is recorded:

- LAPTOP: ``grep . /sys/class/powercap/intel-rapl*/name`` of an Intel laptop, mailing list linux-kernel, K. Crudup,
  "4 counters case";
- SERVER: two Xeons, each with memory: HSUper's documentation, "Energy Consumption"; ranges of a Xeon Silver 4314;
- EPYC: one package with a part ``core``; range of an EPYC 7543.

The numbers of the counters are made up, with the joules that a test wants.
"""

from collections.abc import Mapping
from pathlib import Path

PACKAGE_UJ, XEON_MEMORY_UJ, AMD_UJ = 262_143_328_850, 65_712_999_613, 65_532_610_987
"""max_energy_range_uj of Intel's packages, of a Xeon's memory, and of AMD's packages."""

LAPTOP = {
    "intel-rapl:0": ("package-0", PACKAGE_UJ),
    "intel-rapl:0:0": ("core", PACKAGE_UJ),
    "intel-rapl:0:1": ("uncore", PACKAGE_UJ),
    "intel-rapl:1": ("psys", PACKAGE_UJ),
    "intel-rapl-mmio:0": ("package-0", PACKAGE_UJ),
}
SERVER = {
    "intel-rapl:0": ("package-0", PACKAGE_UJ),
    "intel-rapl:0:0": ("dram", XEON_MEMORY_UJ),
    "intel-rapl:1": ("package-1", PACKAGE_UJ),
    "intel-rapl:1:0": ("dram", XEON_MEMORY_UJ),
}
EPYC = {"intel-rapl:0": ("package-0", AMD_UJ), "intel-rapl:0:0": ("core", AMD_UJ)}

CRAY_EX = {
    "energy": 9000,
    "cpu_energy": 2000,
    "memory_energy": 500,
    "accel0_energy": 3000,
    "accel1_energy": 2500,
}
"""pm_counters of a node with two accelerators (names: HPE, docs-csm, "User Access to Compute Node Power Data")."""


def powercap(root: Path, zones: Mapping[str, tuple[str, int]], microjoules: int = 1_000_000) -> Path:
    """Zones by their folder: name and range. Each counts ``microjoules``; ``count`` changes that."""
    folder = root / "sys/class/powercap"
    (folder / "intel-rapl").mkdir(parents=True)
    (folder / "intel-rapl/enabled").write_text("1\n")
    for zone, (name, most) in zones.items():
        # Real zones are nested below /sys/devices/virtual/powercap, and linked.
        real = root / "sys/devices/virtual/powercap" / zone
        real.mkdir(parents=True)
        for file, text in (("name", name), ("max_energy_range_uj", most), ("enabled", 1), ("uevent", "")):
            (real / file).write_text(f"{text}\n")
        (folder / zone).symlink_to(real)
        count(root, zone, microjoules)
    return root


def processors_of(root: Path, vendor: str) -> Path:
    """A /proc/cpuinfo of two cores that says who made them."""
    (root / "proc").mkdir(parents=True, exist_ok=True)
    core = f"vendor_id\t: {vendor}\ncpu family\t: 25\nflags\t\t: fpu vme\n\n"
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\n{core}processor\t: 1\n{core}")
    return root


def booted(root: Path, boot_id: str) -> Path:
    """A separate machine, as the kernel reports it to all its processes."""
    folder = root / "proc/sys/kernel/random"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "boot_id").write_text(f"{boot_id}\n")
    return root


def count(root: Path, zone: str, microjoules: int) -> None:
    (root / "sys/class/powercap" / zone / "energy_uj").write_text(f"{microjoules}\n")


def pm_counters(root: Path, joules: Mapping[str, int]) -> Path:
    """Files as ``12345 J 1700000000000000 us``."""
    folder = root / "sys/cray/pm_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in joules.items():
        (folder / name).write_text(f"{value} J 1700000000000000 us\n")
    (folder / "power").write_text("812 W 1700000000000000 us\n")
    (folder / "raw_scan_hz").write_text("10\n")
    return root
