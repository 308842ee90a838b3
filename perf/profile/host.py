"""Checks whether a profile was measured on the machine whose peaks it is compared with."""

import os
import platform
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from mlhpc.common.host import provenance
from mlhpc.common.host.accelerators import Accelerator, installed
from mlhpc.common.host.binding import parse_ranges
from mlhpc.common.timing.profile import Profile
from mlhpc.perf.machines import Machine
from mlhpc.quantities import bytes_text

_SIBLINGS = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
_NEAR = 0.1
"""Relative tolerance for the memory size: drivers reserve part of it."""


def differences(machine: Machine, profile: Profile) -> list[str]:
    """Differences between this node and a node of ``machine``, according to the first rank's ``profile`` and the
    operating system; empty if no difference is found."""
    if not profile.gpu:
        return list(_differences(machine, _processor(), [], cores()))
    listed = installed()  # TensorFlow names devices by number only
    return list(_differences(machine, listed[0].name if listed else "", listed, cores()))


def _processor() -> str:
    """The processor's model; empty if the operating system reports only the architecture, as on ARM."""
    name = str(provenance.machine()["cpu"] or "")
    return "" if name == platform.machine() else name


def _differences(
    machine: Machine, name: str, accelerators: Sequence[Accelerator], cores: Collection[int]
) -> Iterator[str]:
    """Yield the differences, in words. ``name``: the measured device, empty if unknown. ``accelerators``: the
    node's accelerators as listed by the driver. ``cores``: the number of cores, counted in each possible way."""
    if differs := another_device(machine, name, accelerators[0].memory_mib if accelerators else None):
        yield differs
    if len(accelerators) > machine.per_node:  # fewer may be visible in a batch job
        yield f"{len(accelerators)} accelerators per node instead of {machine.per_node}"
    listed = machine.facts.get("host.cores")
    if listed is not None and cores and int(listed) not in cores:
        yield f"{max(cores)} cores instead of {listed}"


def another_device(machine: Machine, name: str, memory_mib: int | None) -> str:
    """The difference of the device ``name`` from the accelerators of ``machine``, in words; empty if no difference
    is known."""
    if name and not is_of(machine.family, name):
        return f"{name} instead of {machine.facts['accelerator.model']}"
    memory, own = machine.figures["accelerator.memory"], (memory_mib or 0) * 2**20
    if own and abs(own / memory - 1) > _NEAR:
        return f"accelerators of {bytes_text(own)} instead of {bytes_text(memory)}"
    return ""


def is_of(family: str, name: str) -> bool:
    """Return whether the product ``name`` contains ``family`` as separate words: GH200 is not H200."""
    return f" {_words(family)} " in f" {_words(name)} "


def _words(name: str) -> str:
    """Lower-case words separated by single spaces, without marks such as (R) and (TM)."""
    return " ".join(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)", " ", name.lower())))


def cores() -> set[int]:
    """The number of cores of this node, counted in each possible way: only those available to this process, all
    with their hardware threads, and all without hardware threads."""
    logical = os.cpu_count() or 1
    try:
        threads = len(parse_ranges(_SIBLINGS.read_text("ascii").strip()))
    except (OSError, ValueError):
        threads = 1
    return {len(os.sched_getaffinity(0)), logical, logical // max(1, threads)}
