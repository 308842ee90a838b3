"""The environment of a result: machine, binding, drivers, batch job, commit, packages. Nothing is guessed;
unknown values are None. Of variables that may contain a secret or identify a person, only the name is recorded."""

import ctypes
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlhpc.common.host.accelerators import accelerators, output_of
from mlhpc.common.ranks.environment import BOUND
from mlhpc.errors import EXTRAS

PACKAGES = (
    "mlhpc", "numpy", "tensorflow", "tensorflow-cpu", "keras", "horovod", "torch", "torchvision",
    "nvidia-dali-cuda130", "h5py", "isal", "mlperf-logging",
)  # fmt: skip
PREFIXES = (
    "SLURM_", "PBS_", "LSB_", "FLUX_", "NCCL_", "RCCL_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_",
    "DNNL_", "TF_", "XLA_", "TORCH", "PYTORCH_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "HOROVOD_", "GLOO_",
    "UCX_", "FI_", "ZE_", "ONEAPI_", "CCL_", "OMPI_MCA_", "MPICH_", "I_MPI_", "PMIX_", "MALLOC_", "MIMALLOC_",
    "LD_PRELOAD", "MLHPC_",
)  # fmt: skip
"""Environment variables that can affect a result: of launchers, the fabric, and the libraries' threads and
algorithms."""
RECORDED = frozenset(
    name
    for prefix, words in {
        "SLURM": "JOB_ID STEP_ID CLUSTER_NAME JOB_PARTITION JOB_NODELIST JOB_NUM_NODES NNODES NTASKS NPROCS "
        "NTASKS_PER_NODE TASKS_PER_NODE STEP_NUM_TASKS STEP_NUM_NODES STEP_TASKS_PER_NODE CPUS_PER_TASK "
        "CPUS_ON_NODE JOB_CPUS_PER_NODE THREADS_PER_CORE CPU_BIND CPU_BIND_LIST CPU_BIND_TYPE "
        "CPU_BIND_VERBOSE MEM_BIND MEM_BIND_LIST MEM_BIND_TYPE DISTRIBUTION GPUS GPUS_ON_NODE "
        "GPUS_PER_NODE GPUS_PER_TASK GPU_BIND GPU_FREQ CPU_FREQ_REQ HINT PROCID LOCALID NODEID "
        "RESTART_COUNT EXPORT_ENV MPI_TYPE NETWORK JOB_QOS ARRAY_TASK_ID ARRAY_JOB_ID MEM_PER_NODE "
        "MEM_PER_CPU JOB_GPUS STEP_GPUS TOPOLOGY_ADDR_PATTERN",
        "PBS": "JOBID QUEUE NUM_PPN NODENUM TASKNUM NP NCPUS NGPUS",
        "LSB": "JOBID QUEUE DJOB_NUMPROC MAX_NUM_PROCESSORS AFFINITY_HOSTFILE_TYPE",
        "FLUX": "JOB_ID JOB_SIZE JOB_NNODES TASK_RANK TASK_LOCAL_ID",
        "NCCL": "ALGO PROTO NTHREADS MIN_NCHANNELS MAX_NCHANNELS MIN_CTAS MAX_CTAS BUFFSIZE NSOCKS_PERTHREAD "
        "SOCKET_NTHREADS SOCKET_IFNAME SOCKET_FAMILY NET NET_PLUGIN NET_GDR_LEVEL NET_GDR_READ "
        "IB_DISABLE IB_HCA IB_TIMEOUT IB_RETRY_CNT IB_GID_INDEX IB_TC IB_SL IB_QPS_PER_CONNECTION "
        "IB_SPLIT_DATA_ON_QPS IB_AR_THRESHOLD IB_PCI_RELAXED_ORDERING P2P_DISABLE P2P_LEVEL SHM_DISABLE "
        "CROSS_NIC COLLNET_ENABLE NVLS_ENABLE CUMEM_ENABLE LAUNCH_MODE DEBUG DEBUG_SUBSYS "
        "ASYNC_ERROR_HANDLING BLOCKING_WAIT TUNER_PLUGIN IGNORE_CPU_AFFINITY GRAPH_MIXING_SUPPORT "
        "CHECKS_DISABLE ALLREDUCE",
        "RCCL": "MSCCL_ENABLE MSCCLPP_ENABLE MSCCL_FORCE_ENABLE",
        "OMP": "NUM_THREADS PROC_BIND PLACES SCHEDULE DYNAMIC WAIT_POLICY STACKSIZE THREAD_LIMIT "
        "MAX_ACTIVE_LEVELS NESTED DISPLAY_ENV",
        "GOMP": "CPU_AFFINITY SPINCOUNT STACKSIZE",
        "KMP": "AFFINITY BLOCKTIME SETTINGS HW_SUBSET STACKSIZE LIBRARY TPAUSE",
        "MKL": "NUM_THREADS DYNAMIC ENABLE_INSTRUCTIONS CBWR INTERFACE_LAYER THREADING_LAYER DOMAIN_NUM_THREADS "
        "VERBOSE",
        "OPENBLAS": "NUM_THREADS CORETYPE MAIN_FREE VERBOSE",
        "ONEDNN": "MAX_CPU_ISA VERBOSE PRIMITIVE_CACHE_CAPACITY DEFAULT_FPMATH_MODE CPU_ISA_HINTS",
        "DNNL": "MAX_CPU_ISA VERBOSE PRIMITIVE_CACHE_CAPACITY DEFAULT_FPMATH_MODE CPU_ISA_HINTS",
        "TF": "ENABLE_ONEDNN_OPTS NUM_INTRAOP_THREADS NUM_INTEROP_THREADS CPP_MIN_LOG_LEVEL CPP_MAX_VLOG_LEVEL "
        "XLA_FLAGS_EXTRA CUDNN_DETERMINISTIC DETERMINISTIC_OPS CUDNN_USE_AUTOTUNE USE_CUDNN_AUTOTUNE "
        "FORCE_GPU_ALLOW_GROWTH GPU_ALLOCATOR GPU_THREAD_MODE GPU_THREAD_COUNT "
        "ENABLE_CUBLAS_TENSOR_OP_MATH_FP32 ENABLE_CUDNN_TENSOR_OP_MATH_FP32 ENABLE_NHWC "
        "ENABLE_WINOGRAD_NONFUSED DISABLE_MKL ONEDNN_USE_SYSTEM_ALLOCATOR USE_LEGACY_KERAS "
        "ENABLE_AUTO_MIXED_PRECISION AUTOTUNE_THRESHOLD SYNC_ON_FINISH",
        "XLA": "FLAGS",
        "TORCH": "NCCL_BLOCKING_WAIT NCCL_ASYNC_ERROR_HANDLING NCCL_AVOID_RECORD_STREAMS NCCL_HIGH_PRIORITY "
        "CUDNN_V8_API_ENABLED CUDNN_V8_API_DISABLED CUDNN_V8_API_LRU_CACHE_LIMIT "
        "ALLOW_TF32_CUBLAS_OVERRIDE GLOO_LAZY_INIT COMPILE_DISABLE CPP_LOG_LEVEL DISTRIBUTED_DEBUG "
        "SHOW_CPP_STACKTRACES",
        "TORCHINDUCTOR": "MAX_AUTOTUNE FREEZING COMPILE_THREADS CPP_WRAPPER",
        "TORCHELASTIC": "RESTART_COUNT MAX_RESTARTS USE_AGENT_STORE ERROR_HANDLING",
        "PYTORCH": "CUDA_ALLOC_CONF HIP_ALLOC_CONF NO_CUDA_MEMORY_CACHING NVFUSER_DISABLE ALLOC_CONF",
        "CUDA": "VISIBLE_DEVICES DEVICE_ORDER DEVICE_MAX_CONNECTIONS LAUNCH_BLOCKING MODULE_LOADING "
        "CACHE_DISABLE CACHE_MAXSIZE AUTO_BOOST MPS_ACTIVE_THREAD_PERCENTAGE SOFTWARE VERSION",
        "NVIDIA": "VISIBLE_DEVICES DRIVER_CAPABILITIES TF32_OVERRIDE REQUIRE_CUDA PYTORCH_VERSION "
        "TENSORFLOW_VERSION",
        "HIP": "VISIBLE_DEVICES LAUNCH_BLOCKING FORCE_DEV_KERNARG",
        "ROCR": "VISIBLE_DEVICES",
        "HSA": "ENABLE_SDMA XNACK NO_SCRATCH_RECLAIM OVERRIDE_GFX_VERSION FORCE_FINE_GRAIN_PCIE "
        "ENABLE_PEER_SDMA",
        "HOROVOD": "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE CONTROLLER CPU_OPERATIONS "
        "GPU_OPERATIONS "
        "FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER "
        "AUTOTUNE GPU_ALLREDUCE GPU_ALLGATHER GPU_BROADCAST NUM_NCCL_STREAMS GLOO_TIMEOUT "
        "GLOO_TIMEOUT_SECONDS GLOO_IFACE GLOO_RENDEZVOUS_PORT LOG_LEVEL THREAD_AFFINITY "
        "STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS MPI_THREADS_DISABLE BATCH_D2D_MEMCOPIES "
        "ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS CCL_BGT_AFFINITY",
        "GLOO": "SOCKET_IFNAME DEVICE_TRANSPORT",
        "UCX": "TLS NET_DEVICES RNDV_SCHEME RNDV_THRESH ZCOPY_THRESH MEMTYPE_CACHE IB_GPU_DIRECT_RDMA "
        "MAX_RNDV_RAILS WARN_UNUSED_ENV_VARS IB_SL IB_TRAFFIC_CLASS LOG_LEVEL",
        "FI": "PROVIDER LOG_LEVEL CXI_DEFAULT_CQ_SIZE CXI_DEFAULT_TX_SIZE CXI_RX_MATCH_MODE CXI_RDZV_THRESHOLD "
        "CXI_RDZV_GET_MIN CXI_DISABLE_HOST_REGISTER CXI_OFLOW_BUF_SIZE CXI_REQ_BUF_SIZE MR_CACHE_MONITOR "
        "MR_CACHE_MAX_COUNT EFA_USE_DEVICE_RDMA EFA_FORK_SAFE HMEM_CUDA_USE_GDRCOPY VERBS_IFACE",
        "ZE": "AFFINITY_MASK FLAT_DEVICE_HIERARCHY ENABLE_PCI_ID_DEVICE_ORDER",
        "ONEAPI": "DEVICE_SELECTOR",
        "CCL": "ATL_TRANSPORT PROCESS_LAUNCHER WORKER_COUNT WORKER_AFFINITY ALLREDUCE ALLGATHERV BCAST "
        "REDUCE_SCATTER ZE_IPC_EXCHANGE LOG_LEVEL KVS_MODE MNIC MNIC_COUNT",
        "OMPI_MCA": "btl pml mtl coll osc io btl_tcp_if_include btl_tcp_if_exclude hwloc_base_binding_policy "
        "rmaps_base_mapping_policy btl_openib_allow_ib coll_hcoll_enable",
        "MPICH": "GPU_SUPPORT_ENABLED OFI_NIC_POLICY OFI_NUM_NICS MAX_THREAD_SAFETY ASYNC_PROGRESS "
        "VERSION_DISPLAY SMP_SINGLE_COPY_MODE OFI_STARTUP_CONNECT COLL_SYNC ALLREDUCE_NO_SMP",
        "I_MPI": "FABRICS PIN PIN_DOMAIN PIN_ORDER PIN_CELL PIN_RESPECT_CPUSET ADJUST_ALLREDUCE OFI_PROVIDER "
        "OFFLOAD ASYNC_PROGRESS THREAD_SPLIT DEBUG MPIRUN INFO_NUMA_NODE_NUM",
        "PMIX": "RANK SIZE VERSION MCA_gds MCA_psec",
        "MALLOC": "ARENA_MAX MMAP_THRESHOLD_ TRIM_THRESHOLD_ TOP_PAD_ MMAP_MAX_ CONF",
        "MIMALLOC": "LARGE_OS_PAGES PURGE_DELAY ALLOW_LARGE_OS_PAGES RESERVE_HUGE_OS_PAGES ARENA_EAGER_COMMIT",
        "MLHPC": "BIND RANK SIZE QUIET SITE WITHOUT_C",
    }.items()
    for name in (f"{prefix}_{word}" for word in words.split())
)
"""The variables recorded with their values: those known to hold neither a secret nor a person, an address or a
folder. Of others only the names are recorded, since it is not known what is in them."""
HIDDEN = "(set; not recorded)"
COMPILED = {"decoders": "common/data/codecs/_decode", "gradients": "*/cpu/_pooled"}
"""The parts in C (setup.py), which an installation without a compiler omits, as patterns of their paths."""
_ROOT = Path(__file__).resolve().parents[2]
_NVIDIA = Path("/proc/driver/nvidia")
_PLAIN = re.compile(r"[\w.,:;=+^()\[\]{} -]{0,1000}")
"""Numbers, names and lists: no folder, no address of mail or of a service."""


def describe_environment() -> dict[str, Any]:
    """Facts of this process's machine and software, for ``env.json``."""
    return {
        **commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **machine(),
        "binding": binding(),
        "job": batch_job(os.environ),
        "variables": variables(os.environ),
        "drivers": drivers(),
        "python": platform.python_version(),
        "packages": packages(),
        "compiled": compiled_parts(),
    }


def machine() -> dict[str, Any]:
    """This node: processor, cores this process may use, memory, accelerators, operating system."""
    return {
        "hostname": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 3),
        "accelerators": accelerators(),
        "os": f"{_os_name()}, Linux {platform.release()}",
    }


def binding() -> dict[str, Any]:
    """The cores and NUMA nodes that this process may use, in Linux's list format (``0-3,8``), and its threads
    per core: runs that differ in these must be distinguishable."""
    status = _text(Path("/proc/self/status")) or ""
    allowed = {
        key: match[1] if (match := re.search(rf"^{name}:\s*(\S+)$", status, re.MULTILINE)) else None
        for key, name in (("cores", "Cpus_allowed_list"), ("numa_nodes", "Mems_allowed_list"))
    }
    smt = _text(Path("/sys/devices/system/cpu/smt/active"))
    return {**allowed, "simultaneous_multithreading": None if smt is None else smt.strip() == "1"}


def batch_job(env: Mapping[str, str]) -> dict[str, str] | None:
    """Identifier, partition, nodes and binding of the batch job; None outside of one."""
    names = {
        "id": ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"),
        "partition": ("SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE"),
        "nodes": ("SLURM_JOB_NODELIST", "LSB_MCPU_HOSTS"),
        "cpu_binding": ("SLURM_CPU_BIND",),
        "gpu_binding": ("SLURM_GPU_BIND", "SLURM_GPUS_ON_NODE"),
    }
    job = {key: env[name] for key, of in names.items() for name in reversed(of) if name in env}
    return job if "id" in job else None


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``PREFIXES``, sorted by name: those ``RECORDED`` with their values, others ``HIDDEN``."""
    return {
        name: value if name in RECORDED and _PLAIN.fullmatch(value) else HIDDEN
        for name, value in sorted(env.items())
        if name.startswith(PREFIXES) and name != BOUND
    }


def drivers() -> dict[str, str | None]:
    """Versions of the layers below the packages: GPU drivers, the newest CUDA that one supports, ROCm, MPI."""
    nvidia = re.search(r"(\d+\.\d[\d.]*)", _text(_NVIDIA / "version") or "")
    amd = _text(Path("/sys/module/amdgpu/version"))
    intel = _text(Path("/sys/module/i915/version")) or _text(Path("/sys/module/xe/version"))
    rocm = _text(Path("/opt/rocm/.info/version"))
    mpi = output_of("mpirun", "--version")
    return {
        "nvidia": nvidia[1] if nvidia else None,
        "cuda": _cuda_of_driver(),
        "amdgpu": amd.strip() if amd else None,
        "intel": intel.strip() if intel else None,
        "rocm": rocm.strip() if rocm else None,
        "mpi": mpi.strip().splitlines()[0] if mpi and mpi.strip() else None,
    }


def commit() -> dict[str, Any]:
    """The commit of the checkout that this package runs from; None if it is not a checkout."""

    def git(*words: str) -> str | None:
        try:
            completed = subprocess.run(
                ["git", "-C", _ROOT, *words], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return completed.stdout.strip() if completed.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != _ROOT:  # installed somewhere inside another project's checkout
        return {"commit": None, "dirty": None}
    head = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": head, "dirty": bool(changed) if changed is not None else None}


def compiled_parts() -> dict[str, bool]:
    """Whether each part in C was compiled when the suite was installed: decoders of encoded data sets,
    and gradients of convolution and pooling on a CPU. Without them runs are slower, with the same results."""
    return {
        name: any(next(_ROOT.glob(f"{path}{suffix}"), None) for suffix in EXTENSION_SUFFIXES)
        for name, path in COMPILED.items()
    }


def extras() -> dict[str, bool]:
    """Whether the packages of the extras that are not a benchmark's are installed."""
    return {name: all(find_spec(package) for package in needed) for name, needed in EXTRAS.items()}


def packages() -> dict[str, str]:
    """Installed versions of the packages that can change a result, and of all of NVIDIA's: CUDA, cuDNN, NCCL."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = re.sub(
            r"[-_.]+", "-", distribution.metadata["Name"] or ""
        ).lower()  # names compared as in PEP 503
        if name in PACKAGES or name.startswith("nvidia-"):
            versions.setdefault(name, distribution.version)  # the first on the path is the one imported
    order = {name: number for number, name in enumerate(PACKAGES)}
    return dict(sorted(versions.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def _cuda_of_driver() -> str | None:
    """From cuDriverGetVersion of <cuda.h>, which does not touch a GPU: 1000 × major + 10 × minor."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
