"""The description of a system that goes with a submission: what the machine and Slurm tell, in the official
fields, and by name what they do not tell.

Fields and which of them need an answer: MLPerf submission rules (mlcommons/policies, submission_rules.adoc,
"<system_desc_id>.json metadata"); the same names are required by mlperf-logging 4.1.68, system_desc_checker.
Nothing is guessed: a field is read from a file or a tool of the system, given by the user, or empty.
"""

import json
import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mlhpc.common.data import atomic
from mlhpc.common.errors import UserError, did_you_mean
from mlhpc.common.evidence import commit

REQUIRED = (
    "submitter", "division", "status", "system_name", "number_of_nodes", "host_processors_per_node",
    "host_processor_model_name", "host_processor_core_count", "host_memory_capacity", "host_storage_type",
    "host_storage_capacity", "host_networking", "host_networking_topology", "host_memory_configuration",
    "accelerators_per_node", "accelerator_model_name", "accelerator_host_interconnect",
    "accelerator_memory_configuration", "accelerator_memory_capacity", "accelerator_interconnect", "cooling",
    "framework", "other_software_stack", "operating_system",
)  # fmt: skip
"""Fields that need a meaningful answer."""
OPTIONAL = (
    "host_processor_vcpu_count", "host_processor_frequency", "host_processor_caches",
    "host_processor_interconnect", "accelerator_frequency", "accelerator_on-chip_memories",
    "accelerator_interconnect_topology", "hw_notes", "sw_notes",
)  # fmt: skip
"""Fields that have to be there and may be empty."""
EXTRA = ("system_type", "host_network_card_count")
"""Fields of the rules that the checker does not ask for: written where the user gives them."""
ORDER = (
    "submitter", "division", "system_type", "status", "system_name", "number_of_nodes",
    "host_processors_per_node", "host_processor_model_name", "host_processor_core_count",
    "host_processor_vcpu_count", "host_processor_frequency", "host_processor_caches",
    "host_processor_interconnect", "host_memory_capacity", "host_storage_type", "host_storage_capacity",
    "host_networking", "host_network_card_count", "host_networking_topology", "host_memory_configuration",
    "accelerators_per_node", "accelerator_model_name", "accelerator_host_interconnect",
    "accelerator_frequency", "accelerator_on-chip_memories", "accelerator_memory_configuration",
    "accelerator_memory_capacity", "accelerator_interconnect", "accelerator_interconnect_topology",
    "cooling", "hw_notes", "framework", "other_software_stack", "operating_system", "sw_notes",
)  # fmt: skip
"""All fields as the published descriptions order them."""
NOTES = ("hw_notes", "sw_notes")  # free text: nobody is asked for it

CHOICES = {
    "division": "closed or open",
    "status": '"Available on-premise", "Available cloud", "Preview" or '
    '"Research, Development, or Internal (RDI)"',
}
"""What fields of a few values may say (mlperf-logging, system_desc_checker)."""

SOFTWARE = {
    "Horovod": "horovod", "Keras": "keras", "NumPy": "numpy", "h5py": "h5py",
    "DALI": r"nvidia-dali-cuda\d+", "mlperf-logging": "mlperf-logging",
}  # fmt: skip
"""What other_software_stack lists, and the package (a pattern) that has its version."""
CUDA_SOFTWARE = {
    "CUDA runtime": r"nvidia-cuda-runtime(-cu\d+)?", "cuBLAS": r"nvidia-cublas(-cu\d+)?",
    "cuDNN": r"nvidia-cudnn-cu\d+", "NCCL": r"nvidia-nccl-cu\d+",
}  # fmt: skip
"""The same, where there is a driver to use it: frameworks bring these along to machines without a GPU."""


@dataclass(frozen=True)
class Description:
    """``fields``: all official fields in order, empty where not known. ``missing``: those that need an answer
    and have none, with what is known about them. ``open``: those that may stay empty."""

    fields: dict[str, Any]
    missing: dict[str, str]
    open: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(self.fields, indent=2, ensure_ascii=False) + "\n"


def describe(nodes: Sequence[Mapping[str, Any]], given: Mapping[str, str]) -> Description:
    """The description of a system of ``nodes`` (:func:`node_facts` of each), with what the user has ``given``
    laid over it. A field in which the nodes differ is not known."""
    found: dict[str, Any] = {}
    hints = CHOICES | {key: hint for node in nodes for key, hint in node["hints"].items()}
    for key in ORDER:
        values = {json.dumps(node["fields"].get(key, "")) for node in nodes}
        if len(values) == 1:
            found[key] = json.loads(values.pop())
        else:
            hints[key] = "the nodes differ: " + "; ".join(sorted(values)[:4])
    if found.get("number_of_nodes") == "1":  # as each node knows itself without Slurm
        found["number_of_nodes"] = str(len(nodes))
    fields = {key: given.get(key, found.get(key, "")) for key in ORDER if key not in EXTRA or key in given}
    if fields["number_of_nodes"] == "1":
        fields["host_networking_topology"] = fields["host_networking_topology"] or "N/A"
    missing = {key: hints.get(key, "") for key in REQUIRED if not fields[key]}
    still_open = tuple(key for key in OPTIONAL if not fields[key] and key not in NOTES)
    return Description(fields, missing, still_open)


def given_fields(settings: Iterable[str]) -> dict[str, str]:
    """``key=value`` settings as fields. Raises UserError for a key that is no official field."""
    given = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not value:
            raise UserError(f"--set {setting!r} is not of the form field=value, such as cooling=Water-cooled")
        if key not in ORDER:
            raise UserError(f"no field {key!r} in a system description; {did_you_mean(key, ORDER)}")
        if key == "division" and value not in ("closed", "open"):
            raise UserError(f"--set division={value}: a division is closed or open")
        given[key] = value
    return given


def read(path: Path) -> dict[str, Any]:
    """The fields of a system description. Raises UserError when it is no JSON object."""
    try:
        fields = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; make one with: mlhpc doctor --system --out {path}"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}; mend it, or make it again") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} is no system description: give a JSON object with the official fields")
    return fields


def write(description: Description, path: Path) -> None:
    """Write the JSON. Raises UserError when the place cannot be written, or holds something already."""
    if path.exists():
        raise UserError(f"{path} is there already; choose another --out, or move it away")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(path, description.to_json().encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from None


def node_facts(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, Any]:
    """``fields`` that this node tells, and ``hints`` to those that it tells in part. JSON can carry it.

    ``root`` stands for / where /proc, /sys and /etc are read.
    """
    fields: dict[str, Any] = {}
    hints: dict[str, str] = {}
    fields |= _processors(root)
    fields |= _memory(root)
    fields |= _storage(root)
    fields |= _network(root)
    accelerators, about_them = _accelerators(env, root)
    fields |= accelerators
    hints |= about_them
    frameworks = _frameworks()
    if len(frameworks) == 1:
        fields["framework"] = frameworks[0]
    elif frameworks:
        hints["framework"] = f"here are {' and '.join(frameworks)}: say which one the results were made with"
    fields["other_software_stack"] = _software(env, root)
    release = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release"), re.MULTILINE)
    if release:
        fields["operating_system"] = release[1]
    fields["number_of_nodes"], hints["number_of_nodes"] = _nodes(env)
    return {"fields": fields, "hints": hints}


def _nodes(env: Mapping[str, str]) -> tuple[str, str]:
    """Number of nodes, or a hint: outside a job the machine may be a login node, which is another system."""
    if count := env.get("SLURM_JOB_NUM_NODES"):
        return count, ""
    if shutil.which("sinfo"):
        return "", (
            "this machine has Slurm and this is no job: is it a compute node? Run this inside a job "
            "(srun -N 1 mlhpc doctor --system)"
        )
    return "1", ""


# Processor, memory ------------------------------------------------------------------------------------------


def _processors(root: Path) -> dict[str, str]:
    """Sockets, cores and threads from /sys/devices/system/cpu/cpu*/topology (Linux,
    Documentation/ABI/stable/sysfs-devices-system-cpu). Counts are those of one processor, as the rules'
    example has them."""
    cpus = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*"))
    places = [
        (
            _text(cpu / "topology/physical_package_id"),
            _text(cpu / "topology/die_id"),
            _text(cpu / "topology/core_id"),
        )
        for cpu in cpus
        if (cpu / "topology/core_id").exists()  # a processor that is offline has no topology
    ]
    fields = {}
    sockets = len({package for package, _, _ in places})
    if sockets:
        fields["host_processors_per_node"] = str(sockets)
        for key, count in (
            ("host_processor_core_count", len(set(places))),
            ("host_processor_vcpu_count", len(places)),
        ):
            if count % sockets == 0:
                fields[key] = str(count // sockets)
        if sockets == 1:
            fields["host_processor_interconnect"] = "N/A"
    if model := _processor_model(root):
        fields["host_processor_model_name"] = model
    if frequency := _frequency(root, model or ""):
        fields["host_processor_frequency"] = frequency
    if caches := _caches(root / "sys/devices/system/cpu/cpu0/cache"):
        fields["host_processor_caches"] = caches
    return fields


def _processor_model(root: Path) -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    if not match:  # ARM has no such line; lscpu knows the names of its numbers
        match = re.search(r"^Model name:\s*(.+)$", _output("lscpu"), re.MULTILINE)
    return " ".join(match[1].split()) if match else None


def _frequency(root: Path, model: str) -> str | None:
    """The base frequency; where only the highest is known, that, and so called."""
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    if base := _text(folder / "base_frequency"):
        return f"{int(base) // 1000} MHz"
    if named := re.search(r"@\s*([\d.]+)\s*GHz", model):
        return f"{float(named[1]) * 1000:.0f} MHz"
    if highest := _text(folder / "cpuinfo_max_freq"):
        return f"{int(highest) // 1000} MHz (highest)"
    return None


def _caches(folder: Path) -> str | None:
    """Of cpu0, one part a level: size, kind, and how many threads share it."""
    levels: dict[str, list[str]] = {}
    for index in sorted(folder.glob("index*")):
        level, size, shared = (_text(index / name) for name in ("level", "size", "shared_cpu_list"))
        letter = {"Data": " D", "Instruction": " I"}.get(_text(index / "type"), "")
        if level and size:
            threads = _count(shared)
            among = f" shared by {threads} threads" if threads > 1 else ""
            levels.setdefault(level, []).append(f"{size}{letter}{among}")
    return ", ".join(f"L{level}: {' + '.join(parts)}" for level, parts in sorted(levels.items())) or None


def _count(cpus: str) -> int:
    """How many processors a list such as ``0-3,8`` holds."""
    spans = [part.split("-") for part in cpus.split(",") if part]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def _memory(root: Path) -> dict[str, str]:
    """Capacity: the memory blocks that are online (Linux, ABI/testing/sysfs-devices-memory), which is what is
    installed; else MemTotal, what the kernel has left of it. Modules: EDAC, where the kernel has it."""
    fields = {}
    blocks = root / "sys/devices/system/memory"
    size = int(_text(blocks / "block_size_bytes") or "0", 16)
    online = [block for block in blocks.glob("memory[0-9]*") if _text(block / "state") == "online"]
    if size and online:
        fields["host_memory_capacity"] = f"{size * len(online) / 2**30:.0f} GiB"
    elif total := re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE):
        fields["host_memory_capacity"] = f"{int(total[1]) / 2**20:.0f} GiB usable"
    modules = Counter(
        f"{int(_text(module / 'size')) / 1024:g} GiB {_text(module / 'dimm_mem_type')}".strip()
        for module in root.glob("sys/devices/system/edac/mc/mc*/[dr]*")
        if (module / "dimm_mem_type").exists()
        and _text(module / "size").isdigit()
        and _text(module / "size") != "0"
    )
    if modules:
        fields["host_memory_configuration"] = " + ".join(
            f"{n} x {kind}" for kind, n in sorted(modules.items())
        )
    return fields


# Storage, network -------------------------------------------------------------------------------------------

_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd|rbd)\d*")
SHARED_TYPES = frozenset(
    {"lustre", "gpfs", "beegfs", "nfs", "nfs4", "ceph", "wekafs", "panfs", "pvfs2", "orangefs", "cifs",
     "smb3", "9p", "virtiofs", "glusterfs", "fuse.glusterfs", "fuse.cephfs", "fuse.sshfs", "fuse.juicefs",
     "afs", "dvs", "daos", "fuse.daos", "fuse.dfuse", "vastnfs"}
)  # fmt: skip
"""Types of file systems that several nodes share, as /proc/mounts names them."""


def _storage(root: Path) -> dict[str, str]:
    """The node's own disks, from /sys/block (sizes there are in sectors of 512 bytes), and in the notes the
    shared file systems that are mounted."""
    disks = Counter(
        (_kind_of_disk(disk), f"{sectors * 512 / 1e9:.0f} GB")
        for disk in sorted(root.glob("sys/block/*"))
        if not _NO_DISK.fullmatch(disk.name) and (sectors := int(_text(disk / "size") or 0))
    )
    fields = {}
    if disks:
        fields["host_storage_type"] = " + ".join(dict.fromkeys(kind for kind, _ in disks))
        fields["host_storage_capacity"] = " + ".join(f"{n} x {size}" for (_, size), n in disks.items())
    elif (root / "sys/block").is_dir():
        fields |= {"host_storage_type": "none", "host_storage_capacity": "none"}
    mounts = [line.split() for line in _text(root / "proc/self/mounts").splitlines()]
    shared = sorted({mount[2] for mount in mounts if len(mount) > 2 and mount[2] in SHARED_TYPES})
    if shared:
        fields["hw_notes"] = f"shared file systems: {', '.join(shared)}"
    return fields


def _kind_of_disk(disk: Path) -> str:
    if disk.name.startswith("nvme"):
        return "NVMe SSD"
    if disk.name.startswith(("vd", "xvd")):  # a virtual disk does not know what it is made of
        return "virtual disk"
    return "HDD" if _text(disk / "queue/rotational") == "1" else "SSD"


def _network(root: Path) -> dict[str, str]:
    """InfiniBand and other RDMA ports (Linux, ABI/stable/sysfs-class-infiniband), Slingshot's hsn interfaces,
    and Ethernet that is up and has hardware behind it."""
    ports = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        if "ACTIVE" in _text(port / "state"):
            device = port.parents[1]
            name = (
                _text(device / "board_id") or _text(device / "hca_type") or re.sub(r"_\d+$", "", device.name)
            )
            ports.append(f"{_text(port / 'link_layer') or 'RDMA'} {_text(port / 'rate')} ({name})")
    rdma = {Path(os.path.realpath(d)) for d in root.glob("sys/class/infiniband/*/device")}
    for interface in sorted(root.glob("sys/class/net/*")):
        device = Path(os.path.realpath(interface / "device"))
        speed = _text(interface / "speed")
        if not (interface / "device").exists() or device in rdma or _text(interface / "operstate") != "up":
            continue
        if _text(interface / "type") == "1":  # ARPHRD_ETHER
            name = "Slingshot" if interface.name.startswith("hsn") else "Ethernet"
            rate = f" {int(speed) / 1000:g} Gb/s" if speed.isdigit() and int(speed) else ""
            ports.append(name + rate)
    counted = Counter(ports)
    return {"host_networking": ", ".join(f"{n} x {port}" for port, n in counted.items())} if counted else {}


# Accelerators -----------------------------------------------------------------------------------------------

_NVIDIA = ("name", "memory.total", "clocks.max.sm", "pcie.link.gen.max", "pcie.link.width.max")
_PCI_ACCELERATORS = ("0x0302", "0x0380", "0x1200")  # 3D controller, other display, processing accelerator


def _accelerators(env: Mapping[str, str], root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Fields and hints. NVIDIA's are asked by nvidia-smi; of others only the PCI bus is looked at."""
    table = [
        [cell.strip() for cell in line.split(",")]
        for line in _output(
            "nvidia-smi", f"--query-gpu={','.join(_NVIDIA)}", "--format=csv,noheader,nounits"
        ).splitlines()
    ]
    gpus = [row for row in table if len(row) == len(_NVIDIA)]
    booked = _gpus_in_slurm(env)
    if not gpus:
        devices = [
            p for p in root.glob("sys/bus/pci/devices/*/class") if _text(p).startswith(_PCI_ACCELERATORS)
        ]
        if devices or booked:
            hint = f"{len(devices)} on the PCI bus, {booked or 0} in Slurm's books, and no nvidia-smi to tell"
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


def _nvlinks() -> str | None:
    """The NVLinks of the first GPU: ``12 x 25 GB/s NVLink``."""
    first = _output("nvidia-smi", "nvlink", "--status").split("\nGPU ")[0]
    rates = Counter(re.findall(r"Link \d+: ([\d.]+ GB/s)", first))
    return " + ".join(f"{n} x {rate.replace('.000', '')} NVLink" for rate, n in rates.items()) or None


def _gpus_in_slurm(env: Mapping[str, str]) -> int | None:
    """GPUs of this node in Slurm's books (``Gres=gpu:a100:4(S:0-1)``), which a job may see only some of."""
    if not (node := env.get("SLURMD_NODENAME")):
        return None
    answer = _output("scontrol", "show", "node", "--oneliner", node)
    gres = re.search(r"\bGres=(\S+)", answer)
    counts = re.findall(r"\bgpu(?::[\w.-]+)?:(\d+)", gres[1]) if gres else []
    return sum(map(int, counts)) or None


# Software ---------------------------------------------------------------------------------------------------


def _frameworks() -> list[str]:
    known = (("TensorFlow", ("tensorflow", "tensorflow-cpu")), ("PyTorch", ("torch",)))
    return [
        f"{name} {v}" for name, packages in known if (v := next(filter(None, map(_version, packages)), None))
    ]


def _software(env: Mapping[str, str], root: Path) -> dict[str, str]:
    installed = {d.name.lower(): d.version for d in metadata.distributions() if d.name}
    stack = {"Python": platform.python_version()}
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    packages = SOFTWARE
    if driver and re.fullmatch(r"[\d.]+", driver[0].strip()):
        stack["CUDA driver"] = driver[0].strip()
        packages = SOFTWARE | CUDA_SOFTWARE
    for name, package in packages.items():
        versions = [v for n, v in sorted(installed.items()) if re.fullmatch(package, n)]
        if versions:
            stack[name] = versions[0]
    if head := commit()["commit"]:
        stack["mlhpc"] = f"{installed.get('mlhpc', '')} ({head})".strip()
    elif "mlhpc" in installed:
        stack["mlhpc"] = installed["mlhpc"]
    if mpi := re.search(
        r"\(Open MPI\) ([\w.]+)|(?:HYDRA|Intel\(R\) MPI)[^\n]*?(\d+\.[\d.]+)", _output("mpirun", "--version")
    ):
        stack["Open MPI" if mpi[1] else "MPI"] = mpi[1] or mpi[2]
    if slurm := re.match(r"slurm\S* (\S+)", _output("sinfo", "--version")):
        stack["Slurm"] = slurm[1]
    for name in ("APPTAINER_NAME", "SINGULARITY_NAME"):
        if name in env:
            stack["Container"] = env[name]
    if kernel := _text(root / "proc/sys/kernel/osrelease"):
        stack["Kernel"] = kernel
    return stack


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _text(path: Path) -> str:
    """What the file says; nothing where it is not there or not to be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _output(*command: str) -> str:
    """What a command says; nothing where it is not there, fails or hangs."""
    if not shutil.which(command[0]):
        return ""
    env = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
