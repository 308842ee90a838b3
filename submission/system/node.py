"""Reads the facts about a node for the system description: processors, memory, disks, network, accelerators, from
/proc, /sys and the vendors' tools. Fields are never guessed: a field that no file or tool provides is omitted."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlhpc.common.files.filesystem import SHARED_TYPES, mounts
from mlhpc.common.host import accelerators
from mlhpc.common.host.accelerators import Accelerator
from mlhpc.common.host.probe import output, text
from mlhpc.common.host.provenance import cpu_model
from mlhpc.submission.system import software
from mlhpc.submission.system.description import ORDER


def node_facts(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, Any]:
    """The facts about this node as JSON values: ``fields`` that can be read, and ``hints`` for fields that can be
    read only in part. ``root``: the folder used as / for /proc, /sys and /etc.
    """
    of_accelerators, hints = _accelerators(env, root)
    fields: dict[str, Any] = (
        _processors(root) | _memory(root) | _storage(root) | _network(root) | of_accelerators
    )
    frameworks = software.frameworks()
    if len(frameworks) == 1:
        fields["framework"] = frameworks[0]
    elif frameworks:
        hints["framework"] = f"{' and '.join(frameworks)} are installed: enter the one used for the results"
    fields["other_software_stack"] = software.stack(env, root)
    release = re.search(r'^PRETTY_NAME="?([^"\n]+)', text(root / "etc/os-release"), re.MULTILINE)
    if release:
        fields["operating_system"] = release[1]
    fields["number_of_nodes"], hints["number_of_nodes"] = _nodes(env)
    return {"fields": fields, "hints": hints}


def _nodes(env: Mapping[str, str]) -> tuple[str, str]:
    """The number of nodes of the job and an empty hint. On a Slurm system outside a job, an empty number and a
    hint, since this may be a login node, which is a different system. Without Slurm, 1."""
    if count := env.get("SLURM_JOB_NUM_NODES"):
        return count, ""
    if shutil.which("sinfo"):
        return "", ("run this inside a Slurm job, on a compute node: srun -N 1 mlhpc doctor --system")
    return "1", ""


# Processor, memory ------------------------------------------------------------------------------------------


def _processors(root: Path) -> dict[str, str]:
    """Sockets, cores and threads from /sys/devices/system/cpu/cpu*/topology (Linux,
    Documentation/ABI/stable/sysfs-devices-system-cpu). Counts are per processor, as in the example of the
    rules."""
    places = [
        tuple(text(cpu / "topology" / name) for name in ("physical_package_id", "die_id", "core_id"))
        for cpu in root.glob("sys/devices/system/cpu/cpu[0-9]*")
        if (cpu / "topology/core_id").exists()  # offline processors have no topology
    ]
    fields = {}
    if sockets := len({package for package, *_ in places}):
        fields["host_processors_per_node"] = str(sockets)
        for key, count in (
            ("host_processor_core_count", len(set(places))),
            ("host_processor_vcpu_count", len(places)),
        ):
            if count % sockets == 0:
                fields[key] = str(count // sockets)
        if sockets == 1:
            fields["host_processor_interconnect"] = "N/A"
    if model := cpu_model(root):
        fields["host_processor_model_name"] = model
    if frequency := _frequency(root, model or ""):
        fields["host_processor_frequency"] = frequency
    if caches := _caches(root / "sys/devices/system/cpu/cpu0/cache"):
        fields["host_processor_caches"] = caches
    return fields


def _frequency(root: Path, model: str) -> str | None:
    """The base frequency of the processors; if it cannot be read, the highest frequency, marked as such."""
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    if base := text(folder / "base_frequency"):
        return f"{int(base) // 1000} MHz"
    if named := re.search(r"@\s*([\d.]+)\s*GHz", model):
        return f"{float(named[1]) * 1000:.0f} MHz"
    if highest := text(folder / "cpuinfo_max_freq"):
        return f"{int(highest) // 1000} MHz (highest)"
    return None


def _caches(folder: Path) -> str | None:
    """The caches of cpu0, one entry per level: size, kind, and the number of threads that share the cache."""
    levels: dict[str, list[str]] = {}
    for index in sorted(folder.glob("index*")):
        level, size, shared = (text(index / name) for name in ("level", "size", "shared_cpu_list"))
        letter = {"Data": " D", "Instruction": " I"}.get(text(index / "type"), "")
        if level and size:
            threads = _count(shared)
            among = f" shared by {threads} threads" if threads > 1 else ""
            levels.setdefault(level, []).append(f"{size}{letter}{among}")
    return ", ".join(f"L{level}: {' + '.join(parts)}" for level, parts in sorted(levels.items())) or None


def _count(cpus: str) -> int:
    """Number of processors in a list such as ``0-3,8``."""
    spans = [part.split("-") for part in cpus.split(",") if part]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def _memory(root: Path) -> dict[str, str]:
    """The memory of the node. Its capacity is the total of the memory blocks that are online (Linux,
    ABI/testing/sysfs-devices-memory), which is the installed memory; if they cannot be read, MemTotal, the part
    usable by the kernel. The memory modules are read from EDAC, if available."""
    fields = {}
    blocks = root / "sys/devices/system/memory"
    size = int(text(blocks / "block_size_bytes") or "0", 16)
    online = [block for block in blocks.glob("memory[0-9]*") if text(block / "state") == "online"]
    if size and online:
        fields["host_memory_capacity"] = f"{size * len(online) / 2**30:.0f} GiB"
    elif total := re.search(r"^MemTotal:\s+(\d+) kB", text(root / "proc/meminfo"), re.MULTILINE):
        fields["host_memory_capacity"] = f"{int(total[1]) / 2**20:.0f} GiB usable"
    modules = Counter(
        f"{int(text(module / 'size')) / 1024:g} GiB {text(module / 'dimm_mem_type')}".strip()
        for module in root.glob("sys/devices/system/edac/mc/mc*/[dr]*")
        if (module / "dimm_mem_type").exists()
        and text(module / "size").isdigit()
        and text(module / "size") != "0"
    )
    if modules:
        fields["host_memory_configuration"] = " + ".join(
            f"{n} x {kind}" for kind, n in sorted(modules.items())
        )
    return fields


# Storage, network -------------------------------------------------------------------------------------------

_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd|rbd)\d*")


def _storage(root: Path) -> dict[str, str]:
    """The local disks of the node, from /sys/block (which states sizes in sectors of 512 bytes), and, in the
    notes, the mounted shared file systems."""
    disks = Counter(
        (_kind_of_disk(disk), f"{sectors * 512 / 1e9:.0f} GB")
        for disk in sorted(root.glob("sys/block/*"))
        if not _NO_DISK.fullmatch(disk.name) and (sectors := int(text(disk / "size") or 0))
    )
    fields = {}
    if disks:
        fields["host_storage_type"] = " + ".join(dict.fromkeys(kind for kind, _ in disks))
        fields["host_storage_capacity"] = " + ".join(f"{n} x {size}" for (_, size), n in disks.items())
    elif (root / "sys/block").is_dir():
        fields |= {"host_storage_type": "none", "host_storage_capacity": "none"}
    if shared := sorted(SHARED_TYPES & {kind for _, kind, _ in mounts(root)}):
        fields["hw_notes"] = f"shared file systems: {', '.join(shared)}"
    return fields


def _kind_of_disk(disk: Path) -> str:
    if disk.name.startswith("nvme"):
        return "NVMe SSD"
    if disk.name.startswith(("vd", "xvd")):  # virtual disks hide the kind of the real disk
        return "virtual disk"
    return "HDD" if text(disk / "queue/rotational") == "1" else "SSD"


def _network(root: Path) -> dict[str, str]:
    """InfiniBand and other RDMA ports (Linux, ABI/stable/sysfs-class-infiniband), Slingshot's hsn interfaces, and
    physical Ethernet interfaces that are up."""
    ports = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        if "ACTIVE" in text(port / "state"):
            device = port.parents[1]
            name = text(device / "board_id") or text(device / "hca_type") or re.sub(r"_\d+$", "", device.name)
            ports.append(f"{text(port / 'link_layer') or 'RDMA'} {text(port / 'rate')} ({name})")
    rdma = {Path(os.path.realpath(d)) for d in root.glob("sys/class/infiniband/*/device")}
    for interface in sorted(root.glob("sys/class/net/*")):
        device = Path(os.path.realpath(interface / "device"))
        speed = text(interface / "speed")
        if not (interface / "device").exists() or device in rdma or text(interface / "operstate") != "up":
            continue
        if text(interface / "type") == "1":  # ARPHRD_ETHER
            name = "Slingshot" if interface.name.startswith("hsn") else "Ethernet"
            rate = f" {int(speed) / 1000:g} Gb/s" if speed.isdigit() and int(speed) else ""
            ports.append(name + rate)
    counted = Counter(ports)
    return {"host_networking": ", ".join(f"{n} x {port}" for port, n in counted.items())} if counted else {}


# Accelerators -----------------------------------------------------------------------------------------------

_NVIDIA = ("name", "memory.total", "clocks.max.sm", "pcie.link.gen.max", "pcie.link.width.max")
_PCI_ACCELERATORS = ("0x0302", "0x0380", "0x1200")  # 3D controller, other display, processing accelerator


def _accelerators(env: Mapping[str, str], root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Fields and hints about accelerators. For NVIDIA, they come from nvidia-smi; AMD's and Intel's tools report
    model and memory; accelerators without a tool are only counted on the PCI bus."""
    table = [
        [cell.strip() for cell in line.split(",")]
        for line in output(
            "nvidia-smi", f"--query-gpu={','.join(_NVIDIA)}", "--format=csv,noheader,nounits"
        ).splitlines()
    ]
    gpus = [row for row in table if len(row) == len(_NVIDIA)]
    booked = _gpus_in_slurm(env)
    if not gpus and (others := accelerators.installed()) and others[0].vendor != "nvidia":
        return _of_other_vendors(others)
    if not gpus:
        devices = [
            p for p in root.glob("sys/bus/pci/devices/*/class") if text(p).startswith(_PCI_ACCELERATORS)
        ]
        if devices or booked:
            hint = f"{len(devices)} on the PCI bus, {booked or 0} in Slurm's configuration, but no nvidia-smi"
            return {}, {"accelerators_per_node": hint, "accelerator_model_name": hint}
        if not (root / "sys/bus/pci/devices").is_dir():
            return {}, {"accelerators_per_node": "/sys shows no PCI bus (a container?)"}
        return {"accelerators_per_node": "0"} | {
            key: "N/A" for key in ORDER if key.startswith("accelerator_")
        }, {}
    hints = {}
    fields = {}
    if booked and booked != len(gpus):
        hints["accelerators_per_node"] = f"nvidia-smi shows {len(gpus)}, Slurm has {booked} in the node"
    else:
        fields["accelerators_per_node"] = str(len(gpus))
    if len({tuple(gpu) for gpu in gpus}) > 1:
        hints["accelerator_model_name"] = "they differ: " + "; ".join(sorted({gpu[0] for gpu in gpus}))
        return fields, hints
    name, memory, clock, generation, width = gpus[0]
    fields["accelerator_model_name"] = name
    if memory.isdigit():
        fields["accelerator_memory_capacity"] = f"{int(memory) / 1024:.0f} GiB"
    if clock.isdigit():
        fields["accelerator_frequency"] = f"{clock} MHz (highest)"
    if generation.isdigit() and width.isdigit():
        fields["accelerator_host_interconnect"] = f"PCIe {generation}.0 x{width}"
    if len(gpus) == 1 and not booked:
        fields |= {"accelerator_interconnect": "N/A", "accelerator_interconnect_topology": "N/A"}
    elif links := _nvlinks():
        fields["accelerator_interconnect"] = links
    return fields, hints


def _of_other_vendors(gpus: Sequence[Accelerator]) -> tuple[dict[str, str], dict[str, str]]:
    fields = {"accelerators_per_node": str(len(gpus))}
    models = sorted({re.sub(r", tile \d+ of \d+$", ", one tile", gpu.name) for gpu in gpus})
    if len(models) > 1:
        return fields, {"accelerator_model_name": "they differ: " + "; ".join(models)}
    fields["accelerator_model_name"] = models[0]
    if memory := gpus[0].memory_mib:
        fields["accelerator_memory_capacity"] = f"{memory / 1024:.0f} GiB"
    return fields, {}


def _nvlinks() -> str | None:
    """The NVLinks of the first GPU as text, such as ``12 x 25 GB/s NVLink``."""
    first = output("nvidia-smi", "nvlink", "--status").split("\nGPU ")[0]
    rates = Counter(re.findall(r"Link \d+: ([\d.]+ GB/s)", first))
    return " + ".join(f"{n} x {rate.replace('.000', '')} NVLink" for rate, n in rates.items()) or None


def _gpus_in_slurm(env: Mapping[str, str]) -> int | None:
    """Number of GPUs of this node in Slurm's configuration (``Gres=gpu:a100:4(S:0-1)``), which may exceed the
    number visible in the job."""
    if not (node := env.get("SLURMD_NODENAME")):
        return None
    answer = output("scontrol", "show", "node", "--oneliner", node)
    gres = re.search(r"\bGres=(\S+)", answer)
    counts = re.findall(r"\bgpu(?::[\w.-]+)?:(\d+)", gres[1]) if gres else []
    return sum(map(int, counts)) or None
