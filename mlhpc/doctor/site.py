"""``mlhpc doctor --site NAME``: writes a site file from facts about this machine and its Slurm configuration.

Someone must check every line of the file. The file names the host where it was written, and lists the facts that
could not be determined.
"""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from rich.console import Console

from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import SHARED_TYPES, as_user_error, filesystem_of
from mlhpc.common.host.accelerators import accelerators
from mlhpc.common.host.binding import Cores, beside, numa_nodes, ranges
from mlhpc.common.host.probe import output, text
from mlhpc.common.pages.terminal import say
from mlhpc.errors import UserError, few
from mlhpc.quantities import bytes_text, count

SITES = Path("run_scripts/sites")
LOCAL_VARIABLES = ("SLURM_TMPDIR", "LOCAL_SCRATCH", "TMPDIR")
LOCAL_FOLDERS = ("/local/scratch", "/local_scratch", "/localscratch", "/scratch/local", "/nvme", "/mnt/nvme",
                 "/mnt/local", "/raid", "/local", "/scratch", "/tmp", "/dev/shm")  # fmt: skip
SHARED_VARIABLES = ("SCRATCH", "PSCRATCH", "WORK", "MEMBERWORK", "PROJECT")
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of GPUs (pci.ids): VGA and 3D controllers, other displays, processing accelerators."""
GPU_VENDORS = ("0x10de", "0x1002", "0x8086")  # NVIDIA, AMD and Intel, as opposed to on-board graphics
CONTAINERS = {
    "apptainer": "apptainer exec --nv mlhpc.sif",
    "singularity": "singularity exec --nv mlhpc.sif",
    "pyxis": "--container-image=$PWD/mlhpc.sqsh --container-mounts=$PWD,/scratch --container-workdir=$PWD",
}


@dataclass(frozen=True)
class SiteFacts:
    """The facts in a site file. ``shared``, ``local``: the shared and the node-local folder as shell words, with a
    note on the file system; None if no such folder was found. ``interface``: the fastest network interface, unless
    the machine has only one. ``container``: a key of ``CONTAINERS``. ``numa``: the cores of each NUMA node;
    ``gpu_nodes``: the NUMA node of each GPU; ``gpu_cores``: each GPU's share of the cores of its NUMA node; both
    are empty if the kernel does not report the NUMA node of every GPU."""

    host: str
    in_job: bool
    partition: str | None
    cores: int
    gpus: int
    shared: str | None
    local: str | None
    local_note: str
    interface: str | None
    modules: tuple[str, ...]
    has_modules: bool
    container: str | None
    numa: Mapping[int, Cores] = field(default_factory=dict)
    gpu_nodes: tuple[int, ...] = ()
    gpu_cores: tuple[Cores, ...] = ()


def write_site(name: str, out: Path | None, console: Console) -> int:
    """Write ``run_scripts/sites/NAME.sh``, or ``out``. Returns 0. Raises UserError for an invalid name, for an
    existing file, or if ``out`` is not passed outside a checkout."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise UserError(f"--site {name!r}: use only letters, digits, '.', '_' and '-'")
    path = out or SITES / f"{name}.sh"
    if out is None and not SITES.is_dir():
        raise UserError(
            f"no folder {SITES} here; start this in a checkout or a folder made by mlhpc scripts, or pass --out"
        )
    if path.exists():
        raise UserError(f"{path} exists; choose another name, or move it away")
    facts = find_site_facts()
    with as_user_error(path, "cannot be written", "choose another --out"):
        atomic.write_bytes(path, site_file(name, facts).encode())
    say(console, f"wrote {path}; check it, especially the lines marked CHECK")
    if not facts.in_job:
        hint = (
            f"{facts.host} may be a login node; for compute nodes: srun -N 1 -n 1 mlhpc doctor --site {name}"
        )
        say(console, hint)
    return 0


def find_site_facts(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> SiteFacts:
    """Examine this machine and return its facts. ``root``: the folder to read /sys from instead of /."""
    local, note = _local_folder(env)
    numa, gpu_nodes = numa_nodes(root), _gpu_nodes(root)
    if not set(gpu_nodes) <= numa.keys():
        gpu_nodes = ()
    facts = SiteFacts(
        host=os.uname().nodename,
        in_job="SLURM_JOB_ID" in env,
        partition=env.get("SLURM_JOB_PARTITION"),
        cores=os.cpu_count() or 1,
        gpus=len(accelerators()),
        shared=_shared_folder(env),
        local=local,
        local_note=note,
        interface=_interface(root),
        modules=tuple(module for module in env.get("LOADEDMODULES", "").split(":") if module),
        has_modules="LOADEDMODULES" in env or "MODULEPATH" in env,
        container=_container(),
        numa=numa,
        gpu_nodes=gpu_nodes,
        gpu_cores=beside(gpu_nodes, numa, root) if gpu_nodes else (),
    )
    return facts if facts.in_job else _of_default_partition(facts, output("sinfo", "-h", "-o", "%P %c %G"))


def _of_default_partition(facts: SiteFacts, lines: str) -> SiteFacts:
    """The facts that are available outside a job: cores and GPUs per node of the default partition, from the
    output of ``sinfo -o '%P %c %G'``."""
    rows = [line.split() for line in lines.splitlines() if len(line.split()) >= 3]
    row = next((row for row in rows if row[0].endswith("*")), rows[0] if rows else None)
    if row is None:
        return facts
    cores = re.match(r"\d+", row[1])
    gpus = re.search(r"gpu(?::[^:,(]+)?:(\d+)", row[2])
    return replace(
        facts,
        numa={},  # a login node may have different hardware
        gpu_nodes=(),
        gpu_cores=(),
        partition=row[0].rstrip("*"),
        cores=int(cores[0]) if cores else facts.cores,
        gpus=int(gpus[1]) if gpus else 0,
    )


def _shared_folder(env: Mapping[str, str]) -> str | None:
    """The first candidate folder on a file system that nodes share."""
    for name in SHARED_VARIABLES:
        if name in env and _type(env[name]) in SHARED_TYPES:
            return f"${name}"
    return "$PWD" if _type(os.getcwd()) in SHARED_TYPES else None


def _local_folder(env: Mapping[str, str]) -> tuple[str | None, str]:
    """The writable node-local folder with the most space, and its file system. Disks are preferred to memory."""
    candidates = {f"${name}": Path(env[name]) for name in LOCAL_VARIABLES if env.get(name)}
    candidates |= {folder: Path(folder) for folder in LOCAL_FOLDERS}
    best: tuple[bool, int] = (False, -1)
    words, note = None, ""
    for word, folder in candidates.items():
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            continue
        filesystem = filesystem_of(folder)
        if filesystem.type in SHARED_TYPES or (not filesystem.is_ram, filesystem.free_bytes) <= best:
            continue
        best = (not filesystem.is_ram, filesystem.free_bytes)
        kind = f"{filesystem.type}, memory" if filesystem.is_ram else filesystem.type
        words, note = word, f"{kind}, {bytes_text(filesystem.free_bytes)} free"
    return words, note


def _type(folder: str) -> str | None:
    try:
        return filesystem_of(Path(folder)).type
    except OSError:
        return None


def _interface(root: Path) -> str | None:
    """The fastest network interface that is up, with InfiniBand and Slingshot preferred; None if there is only one
    interface."""
    speeds: dict[str, tuple[bool, int]] = {}
    for folder in sorted(root.glob("sys/class/net/*")):
        virtual = re.match(r"(lo|docker|veth|virbr|br-|cni|tun|tap|bond_slave)", folder.name)
        if virtual or text(folder / "operstate") not in ("up", "unknown"):
            continue
        fabric = text(folder / "type") == "32" or folder.name.startswith("hsn")  # 32: ARPHRD_INFINIBAND
        speed = text(folder / "speed")
        speeds[folder.name] = (fabric, int(speed) if speed.isdigit() else 0)
    return max(speeds, key=lambda name: speeds[name]) if len(speeds) > 1 else None


def _gpu_nodes(root: Path) -> tuple[int, ...]:
    """The NUMA node of each GPU, in order of PCI addresses; empty if the NUMA node of any GPU is unknown (-1)."""
    of_gpus = []
    for folder in sorted(root.glob("sys/bus/pci/devices/*")):
        if text(folder / "class")[:6] in GPU_CLASSES and text(folder / "vendor") in GPU_VENDORS:
            node = text(folder / "numa_node")
            of_gpus.append(int(node) if node.isdigit() else -1)
    return tuple(of_gpus) if min(of_gpus, default=-1) >= 0 else ()


def _container() -> str | None:
    if "--container-image" in output("srun", "--help"):
        return "pyxis"
    return next((program for program in ("apptainer", "singularity") if shutil.which(program)), None)


class _SiteFile(Template):
    delimiter = "@"  # a shell has $


def site_file(name: str, facts: SiteFacts) -> str:
    """The text of the site file, at most 30 lines."""
    ranks = facts.gpus or 1
    options = [f"-p {facts.partition}"] if facts.partition else []
    options += ["-N 2", f"--ntasks-per-node={ranks}", f"--cpus-per-task={max(1, facts.cores // ranks)}"]
    options += [f"--gpus-per-node={facts.gpus}"] if facts.gpus else []
    wrap = CONTAINERS.get(facts.container or "")
    not_found = "CHECK: no shared file system was found; all nodes must be able to access this folder"
    values = {
        "name": name,
        "host": facts.host,
        "hardware": f"{count(facts.cores, 'core')}, {count(facts.gpus, 'GPU') if facts.gpus else 'no GPU'}",
        "where": "in a job" if facts.in_job else "not in a job: CHECK on a compute node",
        "options": " ".join(options),
        "modules": _modules(facts),
        "container": f'# In a container: export LAUNCH_WRAP="{wrap}"\n' if wrap else "",
        "shared": facts.shared or "$PWD",
        "shared_note": "shared by all nodes" if facts.shared else not_found,
        "local": facts.local or "/tmp",
        "local_note": f" ({facts.local_note})" if facts.local else ": none was found",
        "optional": _gpus(facts.gpus) + _numa(facts) + _network(facts.interface),
    }
    template = Path(__file__).with_name("site_file.template").read_text("utf-8")
    return _SiteFile(template).substitute(values).rstrip() + "\n"


def _modules(facts: SiteFacts) -> str:
    if not facts.has_modules:
        return "# No environment modules were found."
    if not facts.modules:
        return "# CHECK: no modules were loaded when this was written.\nmodule purge"
    return f"# CHECK: the loaded modules.\nmodule purge\nmodule load {shlex.join(facts.modules)}"


def _gpus(gpus: int) -> str:
    why = "# A rank uses the GPU of its local rank, so all GPUs of the node must be visible to it.\n"
    return f"{why}export SLURM_GPU_BIND=none\n" if gpus else ""


def _numa(facts: SiteFacts) -> str:
    if len(facts.numa) < 2:
        return ""
    nodes = few([f"{node}: {ranges(cores)}" for node, cores in facts.numa.items()], 3)
    if not 0 < facts.gpus == len(facts.gpu_cores):
        return (
            f"# CHECK: NUMA nodes ({nodes}). An equal share of the cores for each rank, with memory near them.\n"
            "export SLURM_CPU_BIND=cores SLURM_MEM_BIND=local MLHPC_BIND=cores\n"
        )
    lists = [ranges(cores) for cores in facts.gpu_cores]
    of_ranks = ":\\\n".join(":".join(lists[at : at + 4]) for at in range(0, len(lists), 4))
    on = " ".join(map(str, facts.gpu_nodes))
    return (
        f"# CHECK: NUMA nodes ({nodes}).\n"
        f"# Each rank is bound near its GPU; in PCI order the GPUs are on nodes {on}.\n"
        f"export SLURM_CPU_BIND=none\nMLHPC_BIND={of_ranks}\nexport MLHPC_BIND\n"
    )


def _network(interface: str | None) -> str:
    if interface is None:
        return ""
    names = ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    variables = " ".join(f"{variable}={interface}" for variable in names)
    return f"# CHECK: the fastest active interface.\nexport {variables}\n"
