"""Energy counters in the kernel's files: RAPL for processors, and pm_counters on HPE Cray nodes."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from mlhpc.common.energy.counters import Counters, Measured, Read, answering, reading
from mlhpc.common.host.probe import text

_ZONE = re.compile(r"intel-rapl:[0-9a-f]+(?P<part>:[0-9a-f]+)?")
"""powercap numbers zones in hexadecimal digits (Linux, drivers/powercap/powercap_sys.c, "%s:%x")."""


def rapl(root: Path = Path("/")) -> Counters:
    """The counters of this node's processor packages and their memory, from Linux's powercap (kernel.org,
    Documentation/power/powercap/powercap.rst).

    They are zones of the control type intel-rapl, which also covers AMD's processors: ``intel-rapl:0`` is a
    package or die, ``intel-rapl:0:1`` a part of it. Memory (``dram``) is listed as a part, but its energy is not
    included in the package's (Intel, Software Developer's Manual, volume 3, "RAPL Domains"). Left out are core and
    uncore, which the package includes; psys, which includes the packages; and intel-rapl-mmio, another way to read
    the same packages.

    AMD's processors have one counter per package. Linux 6.10 and 6.11 list it once per die, as ``package-0-die-1``
    and so on, each with the energy of the whole package (fixed in 6.12, "Fix the energy-pkg event for AMD CPUs"),
    so only one zone per package is counted.
    """
    zones, doubled = _zones(root / "sys/class/powercap", one_per_package=_is_amd(root))
    if doubled:
        problem = f"two counters (RAPL) are named {doubled} and may count the same energy"
        return Counters("processors", "RAPL, packages", problems=(problem,))
    if not zones:
        return Counters("processors")
    has_memory = any(name.startswith("dram") for name in zones)
    source = "RAPL, packages" + " and memory" * has_memory
    if any(_is_denied(folder / "energy_uj") for folder in zones.values()):
        problem = "readable only by root; run chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        return Counters("processors", source, problems=(problem,))
    ranges = {
        name: reading(partial(_joules, folder / "max_energy_range_uj")) for name, folder in zones.items()
    }
    wraps = {name: joules for name, joules in ranges.items() if isinstance(joules, float) and joules > 0}
    reads: dict[str, Read] = {name: partial(_joules, zones[name] / "energy_uj") for name in wraps}
    counters = answering("processors", source, reads, "no counter (RAPL) can be read")
    unknown = tuple(f"{name} does not state its range" for name in zones if name not in wraps)
    caps = [partial(_joules, zones[name] / "constraint_0_power_limit_uw") for name in wraps]
    return Counters("processors", source, counters.reads, counters.problems + unknown, wraps, caps=caps)


def _zones(folder: Path, one_per_package: bool) -> tuple[dict[str, Path], str]:
    """The zones of packages and memory by name, and a name shared by two zones, or "" if there is none.
    ``one_per_package``: the dies of a package share one counter."""
    zones: dict[str, Path] = {}
    for zone in sorted(folder.glob("*")):
        number, name = _ZONE.fullmatch(zone.name), text(zone / "name")
        if number and number["part"] and name == "dram":
            package = zone.with_name(zone.name.removesuffix(number["part"]))
            name = f"dram of {text(package / 'name')}"
        elif not number or number["part"] or not name.startswith("package"):
            continue
        if one_per_package:
            name = re.sub(r"-die-\d+$", "", name)
        elif name in zones:
            return {}, name
        zones.setdefault(name, zone)
    return zones, ""


def _is_amd(root: Path) -> bool:
    """Return whether the processors are made by AMD, or by Hygon to the same design."""
    processors = text(root / "proc/cpuinfo")
    return bool(re.search(r"^vendor_id\s*:\s*(AuthenticAMD|HygonGenuine)$", processors, re.M))


def _is_denied(path: Path) -> bool:
    try:
        path.read_text()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _joules(path: Path) -> float:
    return int(path.read_text()) / 1e6


def cray(measured: Measured, root: Path = Path("/")) -> Counters:
    """Counters from pm_counters, which every user may read and which a node updates ten times a second:
    ``12345 J 1700000000000000 us`` (HPE, docs-csm, "User Access to Compute Node Power Data"). The node's counter
    includes the other counters."""
    files = _cray_files(measured, root / "sys/cray/pm_counters")
    if not files:
        return Counters(measured)
    source = "Cray pm_counters"
    if measured == "processors":
        source += ": " + ", ".join(path.name.removesuffix("_energy") for path in files)
    reads: dict[str, Read] = {path.name: partial(_cray_figure, path) for path in files}
    limits = [path.with_name(path.name.replace("energy", "power_cap")) for path in files]
    # A power cap of 0 means that there is none.
    caps = [partial(_cray_figure, path) for path in limits if path.exists() and _cray_figure(path)]
    return replace(answering(measured, source, reads, "Cray's pm_counters cannot be read"), caps=caps)


def _cray_files(measured: Measured, folder: Path) -> list[Path]:
    if measured == "accelerators":
        return sorted(folder.glob("accel[0-9]*_energy")) or sorted(folder.glob("accel_energy"))
    names = ("cpu_energy", "memory_energy") if measured == "processors" else ("energy",)
    return [path for name in names if (path := folder / name).exists()]


def _cray_figure(path: Path) -> float:
    shown = path.read_text()
    value = re.match(r"(\d+) [JW]\b", shown)
    if not value:
        raise ValueError(f"{shown.strip()!r} is not in joules or watts")
    return float(value[1])
