"""Energy of this node's accelerators, from the counters of their drivers.

NVIDIA's through NVML (package nvidia-ml-py; Volta and later), AMD's through amdsmi (part of ROCm), Intel's from
the files of the i915 and xe drivers. A counter is of a device, not of a process: what else ran there is in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mlhpc.common.host import accelerators
from mlhpc.common.host.accelerators import Vendor

Read = Callable[[], float]
"""Joules since some moment in the past."""


@dataclass(frozen=True)
class Counters:
    """``source``: what they are read with. ``problem``: why there are none, in one line, with what to do about it;
    empty for a node without accelerators too."""

    source: str = ""
    reads: tuple[Read, ...] = ()
    problem: str = ""

    def joules(self) -> list[float]:
        """One number per counter; none where one cannot be read: that ends no run."""
        try:
            return [read() for read in self.reads]
        except Exception:  # each vendor's library raises classes of its own
            return []

    def spent(self, before: Sequence[float]) -> float | None:
        """Joules since ``joules()`` returned ``before``; None where the counters cannot be read any more. One that
        was reset counts from its reset."""
        after = self.joules()
        if len(after) != len(before):
            return None
        pairs = zip(before, after, strict=True)
        return sum(late - early if late >= early else late for early, late in pairs)


def counters(vendor: Vendor | None = None) -> Counters:
    """The counters of this node's accelerators, which are of ``vendor`` (default: found out by its tools)."""
    if vendor is None:
        there = accelerators.found()
        vendor = there[0].vendor if there else None
    if vendor == "nvidia":
        return _library("NVML", "pynvml", "pip install 'mlhpc[nvidia]'", _nvidia)
    if vendor == "amd":
        return _library("amdsmi", "amdsmi", "pip install /opt/rocm/share/amd_smi", _amd)
    return _intel() if vendor == "intel" else Counters()


def _library(source: str, module: str, install: str, reads_of: Callable[[Any], list[Read]]) -> Counters:
    """Any error of a vendor's library means no figures, never a run that ends."""
    try:
        library = import_module(module)
    except ModuleNotFoundError:
        return Counters(source, problem=f"{source} is not installed: {install}")
    except Exception as error:  # amdsmi of PyPI comes without libamd_smi.so, and its import raises KeyError
        return Counters(source, problem=f"{source} cannot load its library ({_said(error)}): {install}")
    try:
        reads = reads_of(library)
    except Exception as error:
        return Counters(
            source, problem=f"{source} cannot read the devices ({_said(error)}): check the driver"
        )
    return Counters(
        source, tuple(reads), "" if reads else f"{source} has no energy counter for these devices"
    )


def _nvidia(nvml: Any) -> list[Read]:
    """nvmlDeviceGetTotalEnergyConsumption: millijoules since the driver was loaded (NVML API reference)."""
    nvml.nvmlInit()
    devices = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    return _answering(
        [lambda one=one: nvml.nvmlDeviceGetTotalEnergyConsumption(one) / 1e3 for one in devices]
    )


def _amd(amdsmi: Any) -> list[Read]:
    """amdsmi_get_energy_count: a counter and the microjoules of one count (AMD SMI Python API). Of the two dies of
    an MI250X only the first counts, for both; ROCm before 6.4 calls the counter ``power``."""
    amdsmi.amdsmi_init()

    def joules(device: Any) -> float:
        count = amdsmi.amdsmi_get_energy_count(device)
        counter = count["energy_accumulator"] if "energy_accumulator" in count else count["power"]
        return float(counter) * float(count["counter_resolution"]) / 1e6

    return _answering([lambda one=one: joules(one) for one in amdsmi.amdsmi_get_processor_handles()])


def _intel(root: Path = Path("/")) -> Counters:
    """energy1_input of the hwmon devices called "i915" or "xe", which count a whole card in microjoules; those of
    its tiles are called "i915_gtN" (Linux, Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon)."""
    files = [
        path
        for path in sorted(root.glob("sys/class/drm/card*/device/hwmon/hwmon*/energy1_input"))
        if (path.parent / "name").read_text().strip() in ("i915", "xe")
    ]
    reads = _answering([lambda path=path: int(path.read_text()) / 1e6 for path in files])
    problem = "" if reads else "the driver has no energy counter (sys/class/drm/card*/device/hwmon)"
    return Counters("sysfs", tuple(reads), problem)


def _answering(reads: Sequence[Any]) -> list[Read]:
    """Those that can be read; older devices and second dies have no counter."""
    answering = []
    for read in reads:
        try:
            read()
        except Exception:
            continue
        answering.append(read)
    return answering


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
