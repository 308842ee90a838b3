"""Energy of this node's accelerators, from the counters of their drivers.

NVIDIA's through NVML (package nvidia-ml-py; Volta and later), AMD's through amdsmi (part of ROCm), Intel's from
the files of the i915 and xe drivers.
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
"""Counters by name, what tells the devices from others, their power limits, and how they are used."""


def accelerator_counters(vendor: Vendor | None = None, root: Path = Path("/")) -> Counters:
    """The counters of this node's accelerators, which are of ``vendor`` (default: found out by its tools)."""
    if vendor is None:
        vendor = vendor_here()
    if vendor == "nvidia":
        return _library("NVML", "pynvml", install("nvidia"), _nvidia)
    if vendor == "amd":
        return _without_second_dies(_library("amdsmi", "amdsmi", "pip install /opt/rocm/share/amd_smi", _amd))
    return _intel(root) if vendor == "intel" else _NONE


def vendor_here() -> Vendor | None:
    """Of this node's accelerators, by the vendors' tools, some of which take a second."""
    there = accelerators.installed()
    return there[0].vendor if there else None


def _library(source: str, module: str, remedy: str, found_by: Callable[[Any], _Found]) -> Counters:
    """Any error of a vendor's library means no figures, never a run that ends."""
    none = replace(_NONE, source=source)
    try:
        library = import_module(module)
    except ModuleNotFoundError:
        return replace(none, problems=(f"{source} is not installed: {remedy}",))
    except Exception as error:  # amdsmi of PyPI comes without libamd_smi.so, and its import raises KeyError
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
    """The UUIDs of devices, or their numbers where the driver does not say: each rank of a node may see others."""
    try:
        return tuple(str(identity(device)) for device in devices)
    except Exception:  # each vendor's library raises classes of its own
        return tuple(map(str, range(len(devices))))


def _nvidia(nvml: Any) -> _Found:
    """nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded, and
    nvmlDeviceGetEnforcedPowerLimit, milliwatts (NVML API reference)."""
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
    """nvmlDeviceGetUtilizationRates, nvmlDeviceGetMemoryInfo, nvmlDeviceGetPcieThroughput, which takes 20 ms a
    direction and is therefore read from one device in turn, and the NVLink throughput fields, KiB of all links
    since the driver was loaded (NVML API reference). ``last``: time and bytes of each device's last reading."""

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
    """amdsmi_get_energy_count, a counter and the microjoules of one count; amdsmi_get_power_cap_info, microwatts
    (AMD SMI Python API). Of the two dies of an MI250X only the first counts, for both; ROCm before 6.4 calls the
    counter ``power``."""
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
    """If half of the devices are silent, they are the second dies of MI250Xs: the counter of the first is that of
    both."""
    half = bool(counters.reads) and len(counters.problems) == len(counters.reads)
    return replace(counters, problems=()) if half else counters


def _intel(root: Path) -> Counters:
    """energy1_input of the hwmon devices called "i915" or "xe", which count a whole card in microjoules; those of
    its tiles are called "i915_gtN" (Linux, Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon)."""
    files = {
        path.parents[3].name: path
        for path in sorted(root.glob("sys/class/drm/card*/device/hwmon/hwmon*/energy1_input"))
        if (path.parent / "name").read_text().strip() in ("i915", "xe")
    }
    reads = {card: lambda path=path: int(path.read_text()) / 1e6 for card, path in files.items()}
    without = "the driver has no energy counter (sys/class/drm/card*/device/hwmon)"
    caps = [lambda path=path: int(path.with_name("power1_max").read_text()) / 1e6 for path in files.values()]
    return replace(answering("accelerators", "sysfs", reads, without), caps=caps)
