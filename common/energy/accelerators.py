"""Energy of this node's accelerators, from the counters of their drivers.

NVIDIA's counters are read through NVML (package nvidia-ml-py; Volta and later), AMD's through amdsmi (part of
ROCm), and Intel's from files of the i915 and xe drivers.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from mlhpc.common.energy.counters import Counters, Read, Usage, answering, reading, said
from mlhpc.common.host import accelerators
from mlhpc.common.host.accelerators import Vendor
from mlhpc.errors import install

_NONE = Counters("accelerators")
_ALL_LINKS = 2**32 - 1  # scope of a field: the sum over all links
_Found = tuple[dict[str, Read], tuple[str, ...], list[Read], Callable[[], Usage] | None]
"""Counters by name, the devices' identities, readers of their power limits, and a reader of their usage."""


def accelerator_counters(vendor: Vendor | None, root: Path = Path("/")) -> Counters:
    """The counters of this node's accelerators, which are from ``vendor``; without one, there are none."""
    if vendor == "nvidia":
        return _library("NVML", "pynvml", install("nvidia"), _nvidia)
    if vendor == "amd":
        return _without_second_dies(_library("amdsmi", "amdsmi", "pip install /opt/rocm/share/amd_smi", _amd))
    return _intel(root) if vendor == "intel" else _NONE


def vendor_here() -> Vendor | None:
    """The vendor of this node's accelerators, according to the vendors' tools, some of which take a second; None
    if they are hidden from this process."""
    return next((each.vendor for each in accelerators.usable()), None)


def _library(source: str, module: str, remedy: str, found_by: Callable[[Any], _Found]) -> Counters:
    """The counters that ``found_by`` finds in a vendor's library, imported from ``module``. An error of the
    library becomes a problem of the counters and never ends a run."""
    none = replace(_NONE, source=source)
    try:
        library = import_module(module)
    except ModuleNotFoundError:
        return replace(none, problems=(f"{source} is not installed: {remedy}",))
    except Exception as error:  # importing PyPI's amdsmi, which lacks libamd_smi.so, raises KeyError
        return replace(none, problems=(f"{source} cannot load its library ({said(error)}): {remedy}",))
    try:
        reads, devices, caps, usage = found_by(library)
    except Exception as error:
        return replace(
            none, problems=(f"{source} cannot read the devices ({said(error)}): check the driver",)
        )
    counters = answering("accelerators", source, reads, f"{source} has no energy counter for these devices")
    return replace(counters, devices=devices, caps=caps, usage=usage)


def _identities(devices: Sequence[Any], identity: Callable[[Any], object]) -> tuple[str, ...]:
    """The UUIDs of devices, or their numbers if the driver has no UUIDs. They are needed because each rank of a
    node may see different devices."""
    try:
        return tuple(str(identity(device)) for device in devices)
    except Exception:  # each vendor's library raises classes of its own
        return tuple(map(str, range(len(devices))))


def _nvidia(nvml: Any) -> _Found:
    """NVIDIA's counters, read by nvmlDeviceGetTotalEnergyConsumption (millijoules since the driver was loaded) and
    nvmlDeviceGetEnforcedPowerLimit (milliwatts) (NVML API reference)."""
    nvml.nvmlInit()

    def joules(device: Any) -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3

    devices = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    reads: dict[str, Read] = {f"GPU {n}": partial(joules, device) for n, device in enumerate(devices)}

    def limit(device: Any) -> float:
        return float(nvml.nvmlDeviceGetEnforcedPowerLimit(device)) / 1e3

    caps: list[Read] = [partial(limit, device) for device in devices]
    names = _identities(devices, lambda device: nvml.nvmlDeviceGetUUID(device))
    return reads, names, caps, partial(_nvidia_usage, nvml, devices, itertools.cycle(devices), {})


def _nvidia_usage(
    nvml: Any, devices: Sequence[Any], turns: Iterator[Any], last: dict[int, tuple[float, float]]
) -> Usage:
    """How NVIDIA's devices are used, by nvmlDeviceGetUtilizationRates, nvmlDeviceGetMemoryInfo,
    nvmlDeviceGetPcieThroughput (which takes 20 ms per direction, so each reading asks only the next device), and
    the NVLink throughput fields (KiB over all links since the driver was loaded) (NVML API reference). ``last``:
    time and NVLink bytes of each device's last reading."""

    def links(device: Any) -> float:
        fields = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
        values = nvml.nvmlDeviceGetFieldValues(device, [(each, _ALL_LINKS) for each in fields])
        if any(value.nvmlReturn for value in values):
            raise ValueError("no NVLink")
        return float(1024 * sum(value.value.ullVal for value in values))

    def pcie(device: Any) -> float:
        ways = nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES
        return float(1000 * sum(nvml.nvmlDeviceGetPcieThroughput(device, way) for way in ways))

    def mean(of: Callable[[Any], float], among: Sequence[Any] = devices) -> float | None:
        values = [value for each in among if isinstance(value := reading(partial(of, each)), float)]
        return sum(values) / len(values) if values else None

    found = {
        "busy": mean(lambda device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100),
        "memory_busy": mean(lambda device: nvml.nvmlDeviceGetUtilizationRates(device).memory / 100),
        "memory_bytes": mean(lambda device: float(nvml.nvmlDeviceGetMemoryInfo(device).used)),
        "pcie_bytes_per_s": mean(pcie, [next(turns)]) if devices else None,
    }
    now, rates = time.monotonic(), []
    for number, device in enumerate(devices):
        if isinstance(sent := reading(partial(links, device)), float):
            before, earlier = last.get(number, (-math.inf, sent))
            rates += [(sent - earlier) / (now - before)] if number in last else []
            last[number] = now, sent
    found["nvlink_bytes_per_s"] = fmean(rates) if rates else None
    return {name: value for name, value in found.items() if value is not None}


def _amd(amdsmi: Any) -> _Found:
    """AMD's counters, read by amdsmi_get_energy_count (a counter, and the microjoules per count) and
    amdsmi_get_power_cap_info (microwatts) (AMD SMI Python API). Only the first of the two dies of an MI250X has a
    counter, which covers both. ROCm before 6.4 calls the counter ``power``."""
    amdsmi.amdsmi_init()

    def joules(device: Any) -> float:
        count = amdsmi.amdsmi_get_energy_count(device)
        counter = count["energy_accumulator"] if "energy_accumulator" in count else count["power"]
        return float(counter) * float(count["counter_resolution"]) / 1e6

    devices = amdsmi.amdsmi_get_processor_handles()
    reads: dict[str, Read] = {f"GPU {n}": partial(joules, device) for n, device in enumerate(devices)}

    def limit(device: Any) -> float:
        return float(amdsmi.amdsmi_get_power_cap_info(device)["power_cap"]) / 1e6

    caps: list[Read] = [partial(limit, device) for device in devices]
    return reads, _identities(devices, lambda device: amdsmi.amdsmi_get_gpu_device_uuid(device)), caps, None


def _without_second_dies(counters: Counters) -> Counters:
    """``counters`` without problems if half of the devices have no counter: those are the second dies of MI250Xs,
    whose energy the counters of the first dies include."""
    half = bool(counters.reads) and len(counters.problems) == len(counters.reads)
    return replace(counters, problems=()) if half else counters


def _intel(root: Path) -> Counters:
    """Intel's counters, read from energy1_input (microjoules of a whole card) of the hwmon devices called "i915"
    or "xe". The devices of a card's tiles, called "i915_gtN", are not read (Linux,
    Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon)."""
    files = {
        path.parents[3].name: path
        for path in sorted(root.glob("sys/class/drm/card*/device/hwmon/hwmon*/energy1_input"))
        if (path.parent / "name").read_text().strip() in ("i915", "xe")
    }
    reads = {card: lambda path=path: int(path.read_text()) / 1e6 for card, path in files.items()}
    without = "the driver has no energy counter (sys/class/drm/card*/device/hwmon)"
    caps = [lambda path=path: int(path.with_name("power1_max").read_text()) / 1e6 for path in files.values()]
    return replace(answering("accelerators", "sysfs", reads, without), caps=caps)
