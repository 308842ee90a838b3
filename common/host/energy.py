"""Energy of this node's accelerators, from the counters of their drivers.

NVIDIA's through NVML (package nvidia-ml-py; Volta and later), AMD's through amdsmi (part of ROCm), Intel's from
the files of the i915 and xe drivers. A counter is of a device, not of a process: what else ran there is in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from mlhpc.common.host import accelerators
from mlhpc.common.host.accelerators import Vendor

Read = Callable[[], float]
"""Joules since some moment in the past."""
Reading = float | str
"""Joules, or why the counter could not be read."""


@dataclass(frozen=True)
class Counters:
    """``source``: what they are read with. ``reads``: one per device, by its name. ``problems``: why there are
    none, or why a device is left out, one line each; empty for a node without accelerators too."""

    source: str = ""
    reads: Mapping[str, Read] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def joules(self) -> dict[str, Reading]:
        """One reading per device. A counter that cannot be read ends no run."""
        return {name: _reading(read) for name, read in self.reads.items()}

    def spent(self, before: Mapping[str, Reading]) -> dict[str, Any]:
        """What the devices used since ``joules()`` returned ``before``: ``source``, ``joules``, of how many
        ``counters``, and the ``problems`` of those that are not in it. A counter that was reset counts from its
        reset."""
        after = self.joules()
        used: list[float] = []
        problems = list(self.problems)
        for name, late in after.items():
            early = before[name]
            if isinstance(early, str) or isinstance(late, str):
                reason = early if isinstance(early, str) else late
                problems.append(f"{name} could not be read during the run ({reason})")
            else:
                used.append(late - early if late >= early else late)
        return {"source": self.source, "joules": sum(used), "counters": len(used), "problems": problems}


def _reading(read: Read) -> Reading:
    try:
        return read()
    except Exception as error:  # each vendor's library raises classes of its own
        return _said(error)


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


def _library(source: str, module: str, install: str, reads_of: Callable[[Any], dict[str, Read]]) -> Counters:
    """Any error of a vendor's library means no figures, never a run that ends."""
    try:
        library = import_module(module)
    except ModuleNotFoundError:
        return Counters(source, problems=(f"{source} is not installed: {install}",))
    except Exception as error:  # amdsmi of PyPI comes without libamd_smi.so, and its import raises KeyError
        return Counters(source, problems=(f"{source} cannot load its library ({_said(error)}): {install}",))
    try:
        reads = reads_of(library)
    except Exception as error:
        problem = f"{source} cannot read the devices ({_said(error)}): check the driver"
        return Counters(source, problems=(problem,))
    return _answering(source, reads, f"{source} has no energy counter for these devices")


def _nvidia(nvml: Any) -> dict[str, Read]:
    """nvmlDeviceGetTotalEnergyConsumption: millijoules since the driver was loaded (NVML API reference)."""
    nvml.nvmlInit()

    def joules(device: Any) -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3

    devices = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    return {f"GPU {number}": partial(joules, device) for number, device in enumerate(devices)}


def _amd(amdsmi: Any) -> dict[str, Read]:
    """amdsmi_get_energy_count: a counter and the microjoules of one count (AMD SMI Python API). Of the two dies of
    an MI250X only the first counts, for both; ROCm before 6.4 calls the counter ``power``."""
    amdsmi.amdsmi_init()

    def joules(device: Any) -> float:
        count = amdsmi.amdsmi_get_energy_count(device)
        counter = count["energy_accumulator"] if "energy_accumulator" in count else count["power"]
        return float(counter) * float(count["counter_resolution"]) / 1e6

    devices = enumerate(amdsmi.amdsmi_get_processor_handles())
    return {f"GPU {number}": partial(joules, device) for number, device in devices}


def _intel(root: Path = Path("/")) -> Counters:
    """energy1_input of the hwmon devices called "i915" or "xe", which count a whole card in microjoules; those of
    its tiles are called "i915_gtN" (Linux, Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon)."""
    files = {
        path.parents[3].name: path
        for path in sorted(root.glob("sys/class/drm/card*/device/hwmon/hwmon*/energy1_input"))
        if (path.parent / "name").read_text().strip() in ("i915", "xe")
    }
    reads = {card: lambda path=path: int(path.read_text()) / 1e6 for card, path in files.items()}
    return _answering("sysfs", reads, "the driver has no energy counter (sys/class/drm/card*/device/hwmon)")


def _answering(source: str, reads: Mapping[str, Read], without: str) -> Counters:
    """Those that can be read; older devices and second dies have no counter. ``without``: the problem where no
    device has one."""
    tried = {name: _reading(read) for name, read in reads.items()}
    answering = {name: read for name, read in reads.items() if not isinstance(tried[name], str)}
    if not answering:
        reasons = dict.fromkeys(reason for reason in tried.values() if isinstance(reason, str))
        return Counters(source, problems=(without + (f" ({next(iter(reasons))})" if reasons else ""),))
    silent = {name: why for name, why in tried.items() if isinstance(why, str)}
    if source == "amdsmi" and len(silent) == len(answering):
        silent = {}  # the second dies of MI250Xs: the counter of the first is that of both
    problems = [f"{name} has no counter ({why})" for name, why in silent.items()]
    return Counters(source, answering, tuple(problems))


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
