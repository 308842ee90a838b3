"""The accelerators of this node, as their vendors' tools report them: NVIDIA's, AMD's and Intel's.

The tools are ``nvidia-smi``, ``amd-smi`` or ``rocm-smi``, and ``xpu-smi``. An accelerator is the device of one
rank: a GPU, one of the two dies (GCDs) of an MI250X, or a tile of a Data Center GPU Max.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mlhpc.common.host.probe import output
from mlhpc.errors import UserError

Vendor = Literal["nvidia", "amd", "intel"]

_NVIDIA = Path("/proc/driver/nvidia")
_VISIBLE: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
}


class Accelerator(NamedTuple):
    """An accelerator. ``memory_mib``: its memory in MiB; None if the tool does not report it."""

    vendor: Vendor
    name: str
    memory_mib: int | None = None

    def __str__(self) -> str:
        return self.name if self.memory_mib is None else f"{self.name}, {self.memory_mib} MiB"


def accelerators() -> list[str]:
    """Model and memory of each accelerator of this node; empty if there are none."""
    return [str(one) for one in installed()]


def installed() -> list[Accelerator]:
    """The accelerators of this node, all from the first vendor whose tool lists any. A tool that fails, or hangs
    for 30 s, is treated as missing."""
    for of_vendor in (_nvidia, _amd, _intel):
        if there := of_vendor():
            return there
    return []


def usable() -> list[Accelerator]:
    """``installed()``; empty if the vendor's variable hides all of them from this process."""
    there = installed()
    hidden = bool(there) and os.environ.get(visible_variable(there[0].vendor)) in ("", "-1")
    return [] if hidden else there


def require_none(framework: str) -> None:
    """Raise UserError if an accelerator is usable, since ``framework`` would compute on the CPU beside it."""
    if there := usable():
        name, hiding = there[0].name, visible_variable(there[0].vendor)
        raise UserError(
            f"{framework} does not see this machine's {name}; check its driver and the build of {framework}, or "
            f"train on the CPU with {hiding}="
        )


def driver_version() -> str | None:
    """The version of the NVIDIA driver, such as 580.65.06; None without one."""
    lines = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    return lines[0] if lines and re.fullmatch(r"[\d.]+", lines[0]) else None


def visible_variable(vendor: Vendor, env: Mapping[str, str] = os.environ) -> str:
    """The environment variable that hides accelerators of ``vendor`` from a process: the one that is set, or else
    the one that is usual for the vendor."""
    return next((name for name in _VISIBLE[vendor] if name in env), _VISIBLE[vendor][0])


def _nvidia() -> list[Accelerator]:
    if answer := output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"):
        rows = [line.rpartition(",") for line in answer.splitlines() if line.strip()]
        return [Accelerator("nvidia", name.strip(), _number(memory)) for name, _, memory in rows]
    models = []
    for path in sorted(_NVIDIA.glob("gpus/*/information")):
        model = re.search(r"^Model:\s*(.+)$", path.read_text(errors="replace"), re.MULTILINE)
        models.append(Accelerator("nvidia", model[1].strip() if model else "NVIDIA GPU"))
    return models


def _amd() -> list[Accelerator]:
    """AMD's accelerators, from amd-smi (ROCm 6 and later), or else from rocm-smi."""
    if there := list(_parsed(_amd_smi, "amd-smi", "static", "--asic", "--vram", "--json")):
        return there
    return list(_parsed(_rocm_smi, "rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"))


def _amd_smi(answer: Any) -> Iterator[Accelerator]:
    """Parse amd-smi's list of GPUs, which ROCm 7 and later put under ``gpu_data``. Sizes are labelled MB but are
    in MiB."""
    for gpu in answer["gpu_data"] if isinstance(answer, dict) else answer:
        size = gpu.get("vram", {}).get("size", "")
        memory = size.get("value") if isinstance(size, dict) else size
        yield Accelerator("amd", str(gpu["asic"]["market_name"]), _number(memory))


def _rocm_smi(answer: Any) -> Iterator[Accelerator]:
    """Parse rocm-smi's ``{"card0": {"Card series": …, "VRAM Total Memory (B)": …}, …}``; newer versions write
    ``Card Series``."""
    for card, facts in answer.items():
        if re.fullmatch(r"card\d+", card):
            lower = {key.lower(): value for key, value in facts.items()}
            memory = _number(lower.get("vram total memory (b)"))
            name = str(lower.get("card series") or lower.get("card model") or "AMD GPU")
            yield Accelerator("amd", name, None if memory is None else memory >> 20)


def _intel() -> list[Accelerator]:
    listed = list(_parsed(lambda answer: iter(answer["device_list"]), "xpu-smi", "discovery", "-j"))
    there: list[Accelerator] = []
    for device in listed:
        number = str(device.get("device_id"))
        there += _parsed(_xpu_smi, "xpu-smi", "discovery", "-d", number, "-j")
    return there


def _xpu_smi(answer: Any) -> Iterator[Accelerator]:
    """Parse xpu-smi's details of one device. Its tiles are separate accelerators unless ZE_FLAT_DEVICE_HIERARCHY
    says otherwise (Level Zero specification, programming guide, "Environment Variables": FLAT is the default)."""
    flat = os.environ.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "COMPOSITE"
    tiles = (_number(answer.get("number_of_tiles")) or 1) if flat else 1
    memory = _number(answer.get("memory_physical_size_byte"))
    for tile in range(tiles):
        name = str(answer["device_name"]) + (f", tile {tile + 1} of {tiles}" if tiles > 1 else "")
        yield Accelerator("intel", name, None if memory is None else memory // tiles >> 20)


def _parsed(parse: Callable[[Any], Iterator[Any]], *command: str) -> Iterator[Any]:
    """The items that ``parse`` extracts from the JSON that ``command`` prints; none if its structure is
    unexpected."""
    answer = output(*command)
    try:
        yield from list(parse(json.loads(answer))) if answer else ()
    except (ValueError, KeyError, TypeError, AttributeError):
        return


def _number(value: Any) -> int | None:
    match = re.match(r"\s*(\d+)", str(value))
    return int(match[1]) if match else None
