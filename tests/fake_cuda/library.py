"""Builds the library, and gives the environment of a process that sees its devices."""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from mlhpc.perf.machines import machine

HERE = Path(__file__).parent
BUILT = HERE.parents[1] / "build" / "fake_cuda"
Counts = dict[str, dict[str, float]]
DRIVER = ("launch", "copy", "graph", "graph_node")
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")  # what others load it as
NVML = {  # what is loaded by its name, and nobody wrote
    f"nvml{name}"
    for name in (
        "Init_v2",
        "InitWithFlags",
        "Shutdown",
        "DeviceGetComputeRunningProcesses",
        "DeviceGetHandleByPciBusId_v2",
        "DeviceGetNvLinkRemoteDeviceType",
        "DeviceGetNvLinkRemotePciInfo_v2",
        "SystemGetCudaDriverVersion_v2",
    )
}
CALLED = r"(nccl[A-Z]|nvml|cuda|cu(dnn|blas|sparse|solver|rand|fft|File|pti)|cu[A-Z]|__cuda|nvrtc|nvJitLink)"

# What functions that nobody wrote do, by their names. Setting up cuBLAS, cuDNN or the profiler does nothing; what
# is left of the CUDA runtime, its driver and NCCL fails, so that nothing is taken to work that does not.
HARMLESS = re.compile(
    r"cublas|cudnn|cusparse|cusolver|curand|cufft|cupti|cudaProfiler|cuda\w*Destroy|cu(da)?FuncSet"
    r"|__cuda(Register|Unregister|Init)|ncclCommFinalize|cuInit|cudaFreeHost|nvml(Init|Shutdown)"
)
TEXTS = re.compile(r"(cuda|cudnn|cublas|nccl)\w*(ErrorName|ErrorString|LastError|StatusString)$")
ANSWERS = {  # what others write through their parameter of this number
    "cudaDeviceCanAccessPeer": (0, "int", "1"),
    "cudaStreamGetPriority": (1, "int", "0"),
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": (0, "int", "2"),
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": (0, "int", "2"),
    "cuOccupancyMaxActiveClusters": (0, "int", "1"),
    "cuGetErrorString": (1, "const char*", '"an error of the driver"'),
    "nvmlDeviceGetComputeRunningProcesses": (1, "unsigned", "0"),
    "nvmlDeviceGetHandleByPciBusId_v2": (1, "long", "1"),
    "cuDevicePrimaryCtxGetState": (2, "int", "1"),  # active
    "cuCtxGetCurrent": (0, "long", "1"),  # a context, which nothing looks into
    "cudaGraphGetNodes": (2, "long", "1"),  # PyTorch asks whether there are any
    "ncclCommGetAsyncError": (1, "int", "0"),
    "cublasLtMatmulAlgoGetHeuristic": (9, "int", "1"),  # one algorithm, without a workspace
    "cudnnBackendCreateDescriptor": (1, "void*", "new Handle"),
    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize": (8, "long", "0"),
    "cudnnGetBatchNormalizationBackwardExWorkspaceSize": (10, "long", "0"),
    "cudnnGetBatchNormalizationTrainingExReserveSpaceSize": (5, "long", "0"),
}
CREATES = (
    r"(Create(\w*Descriptor|_v2)?|DescCreate|LayoutCreate|PreferenceCreate|CreateCsr|CreateDnMat|DnCreate)$"
)
COMPUTES = (
    r"cublas(?!Lt|Get|Set).*(gemm|gemv|dot|axpy|scal|nrm2|trsm|syrk|ger|Gemm|Dot)|cublasLtMatmul$|cudnnBackendExecute$"
    r"|cudnn(BatchNormalization|Convolution|Pooling)(Forward|Backward)"
)


def build() -> Path:
    """The library for the installed PyTorch, built if it is not there yet."""
    site = site_packages()
    sources = [*sorted(HERE.glob("*.cpp")), *sorted(HERE.glob("*.h")), Path(__file__)]
    torch_version = (site / "torch" / "version.py").read_bytes()
    key = hashlib.sha256(torch_version + b"".join(map(Path.read_bytes, sources))).hexdigest()[:16]
    library = BUILT / key / "libfakecuda.so"
    with _alone():
        if not library.exists():
            _compile(library, site)
    return library


def site_packages() -> Path:
    spec = find_spec("torch")
    assert spec and spec.origin, "PyTorch is not installed"
    site = Path(spec.origin).parents[1]
    assert (site / "torch/lib/libtorch_cuda.so").exists(), "PyTorch is not its CUDA build"
    return site


def loader() -> dict[str, str]:
    """The variables with which a process loads the library in place of CUDA's."""
    library = build()
    return {
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": f"{library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PATH": f"{library.parent}:{os.environ['PATH']}",  # of nvidia-smi
        "TRITON_LIBCUDA_PATH": str(library.parent),
        "NVTX_INJECTION64_PATH": str(library),
        "TRITON_CACHE_DIR": str(BUILT / "triton"),  # whose keys have what its kernels depend on
        "TORCHINDUCTOR_CACHE_DIR": str(BUILT / "inductor"),
    }


def devices(
    model: str = "h100", changes: Mapping[str, object] | None = None, report: Path | None = None
) -> dict[str, str]:
    """The variables that say which devices a process sees, with ``changes`` to their model, and where it counts
    what it does with them, if anywhere ("%d" in the name: the number of the device)."""
    number = int(str((changes or {}).get("devices", 1)))
    chosen = {
        "FAKE_CUDA_DEVICE": _words(_model(model)),
        "FAKE_CUDA_SET": _words(changes or {}),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(number))),  # `make test` hides real GPUs
    }
    return chosen | ({"FAKE_CUDA_REPORT": str(report)} if report else {})


def counts_since(before: Counts, after: Counts) -> Counts:
    """By section and name, what ``after`` has more; peaks as they are."""
    more = {
        section: {
            name: n - before.get(section, {}).get(name, 0) * (section != "peak") for name, n in names.items()
        }
        for section, names in after.items()
    }
    return {section: {name: n for name, n in names.items() if n} for section, names in more.items()}


def _model(name: str) -> dict[str, object]:
    """The values of a device, of the one that is its ``base``, and what the driver takes of the host, which is the
    same for all of them."""
    own = tomllib.loads((HERE / "devices" / f"{name}.toml").read_text())
    if base := own.pop("base", None):
        return _model(base) | own
    driver = machine("dgx-h100").figures
    return {f"{name}_host_us": 1e6 * driver[f"driver.{name}"] for name in DRIVER} | own


def _words(values: Mapping[str, object]) -> str:
    return ";".join(f"{key}={value}" for key, value in values.items())


def _compile(library: Path, site: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    include = [
        f"-I{site / folder}"
        for folder in (
            "nvidia/cu13/include",
            "nvidia/nccl/include",
            "triton/backends/nvidia/include",  # the only one with crt/host_defines.h
        )
    ]
    options = [
        "g++",
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Wno-deprecated-declarations",
        *include,
    ]
    written = sorted(HERE.glob("*.cpp"))
    jobs = [
        subprocess.Popen([*options, "-c", path, "-o", library.parent / f"{path.stem}.o"]) for path in written
    ]
    assert not any([job.wait() for job in jobs]), "the stand-in for CUDA does not compile"
    objects = [str(library.parent / f"{path.stem}.o") for path in written]
    there = set(_symbols("--defined-only", *objects))
    needed = {
        name
        for path in (site / "torch/lib").glob("*.so")
        for name in _symbols("-D", "--undefined-only", str(path))
    }
    triton = (site / "triton/backends/nvidia/driver.c").read_text()
    needed |= set(re.findall(r"\b(cu[A-Z]\w*)\(", triton))  # Triton compiles it when it first meets a device
    needed |= NVML
    rest = library.parent / "rest.cpp"
    rest.write_text("".join(_rest(sorted(name for name in needed - there if re.match(CALLED, name)))))
    part = library.with_suffix(".part")
    subprocess.run([*options, f"-I{HERE}", "-shared", rest, *objects, "-o", part], check=True)
    for name in NAMES:
        (library.parent / name).symlink_to(library.name)
    smi = library.parent / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nexec env -u LD_PRELOAD {sys.executable} {HERE / "nvidia_smi.py"} "$@"\n')
    smi.chmod(0o755)
    part.rename(library)


def _symbols(*words: str) -> Iterator[str]:
    listed = subprocess.run(["nm", *words], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        if line.strip() and not line.endswith(":"):
            yield line.split()[-1].partition("@")[0]


def _rest(names: list[str]) -> Iterator[str]:
    """C++ of the functions that PyTorch needs and nobody wrote."""
    yield '#include "libraries.h"\n'
    for name in names:
        if name in ANSWERS:
            number, kind, value = ANSWERS[name]
            parameters = ", ".join(["void*"] * number + [f"{kind}* to"])
            yield f"EXPORT int {name}({parameters}) {{ return *to = {value}, 0; }}\n"
        elif re.search(COMPUTES, name):
            yield f'EXPORT int {name}(Handle* handle) {{ return compute(handle, "{name}"); }}\n'
        elif library := TEXTS.match(name):
            yield f'EXPORT const char* {name}() {{ return "an error of {library[1]}"; }}\n'
        elif re.search(r"GetStream(_v2)?$", name) and not name.startswith("cuda"):
            yield f"EXPORT int {name}(Handle* handle, void** stream) {{ return *stream = handle->stream, 0; }}\n"
        elif re.search(r"SetStream(_v2)?$", name):
            yield f"EXPORT int {name}(Handle* handle, void* stream) {{ return handle->stream = stream, 0; }}\n"
        elif re.search(CREATES, name) and not name.startswith("cuda"):
            yield f"EXPORT int {name}(Handle** made) {{ return *made = new Handle, 0; }}\n"
        else:
            answer = "0" if HARMLESS.match(name) else f'refuse("{name}")'
            yield f"EXPORT int {name}() {{ return {answer}; }}\n"


@contextmanager
def _alone() -> Iterator[None]:
    """Two workers of pytest must not build it at once."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with open(BUILT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(build())
