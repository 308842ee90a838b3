"""The suite's Triton kernels compiled ahead of time, without a GPU: registers, spills, occupancy, vector accesses.

    python tests/perf/triton_kernels.py [--target sm_80 gfx942 ...] [--kernel NAME ...] [--json]
    python tests/perf/triton_kernels.py --time [--json]

Occupancy is the share of a multiprocessor's or SIMD unit's warps that the registers allow. Vector accesses
are those that move 16 bytes a thread.

``--time`` needs a GPU: milliseconds of the operations that the kernels replace, forward and backward pass, by
these kernels and by PyTorch's own, at sizes of the closed presets, replayed from a graph so that the host does not
count. Bytes are those that these kernels must move: common/kernels/batchnorm.py counts them for batch norm.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from mlhpc.common.kernels import batchnorm
from mlhpc.common.kernels.launch import Kernel
from mlhpc.common.pytorch import batchnorm as pytorch_batchnorm
from mlhpc.common.pytorch.batchnorm import BatchNorm
from mlhpc.cosmoflow.network import LEAK
from mlhpc.cosmoflow.pytorch import kernels as cosmoflow
from mlhpc.cosmoflow.pytorch.model import _Pooled
from mlhpc.deepcam.data.delta_triton import BLOCK, decode_row

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
WARPS, REGISTERS = 64, 65536  # of an NVIDIA multiprocessor (CUDA C++ Programming Guide, compute capabilities)
WAVES, VGPRS = 8, 512  # of a SIMD unit of CDNA 2 and 3 (AMD, CDNA 3 ISA, section 3)


class Compiled(NamedTuple):
    """A kernel with the types of its arguments in order (":16": a multiple of 16), its constants, and its warps
    on NVIDIA's and AMD's."""

    function: Kernel
    arguments: str
    constants: dict[str, Any]
    warps: int = 4
    waves: int = 4


TILE = {"PARTS": batchnorm.PARTS, "ROWS": batchnorm.ROWS, "CHANNELS": batchnorm.CHANNELS}
FUSED = {"ADDED": True, "RELU": True, **TILE}
GIVEN = "*bf16 *bf16 *bf16 *fp32 *fp32 *fp32 *fp32"
POOLED = {"LEAK": 0.3, "ROWS": cosmoflow.ROWS, "CHANNELS": cosmoflow.CHANNELS}
KERNELS = {
    "logarithm": Compiled(
        cosmoflow.logarithm,
        "*i16 *fp32 *fp32 *bf16 i32 i32",
        {"NORMALISE": False, "ELEMENTS": cosmoflow.ELEMENTS},
    ),
    "pool": Compiled(cosmoflow.pool, "*bf16 *fp32 *bf16 *u8 i32 i32 i32 i32 i32", POOLED, waves=2),
    "spread_back": Compiled(
        cosmoflow.spread_back,
        "*bf16 *u8 *bf16 *fp32 i32 i32 i32 i32 i32",
        POOLED | {"GROUP": cosmoflow.GROUP},
        waves=2,
    ),
    "decode_row": Compiled(
        decode_row,
        "*u8 *i64 *i64 *fp32 *i8 *u8 *fp32 *fp32 *fp32 *fp16 i32:16 i32:16 i32:16 i32:16 i32:16",
        {"channel_stride": 1, "NORMALISE": True, "BFLOAT16": False, "CHANNELS": 16, "BLOCK": BLOCK},
    ),
    "sum_up": Compiled(
        batchnorm.sum_up, f"{GIVEN} i32 i32 i32", {"BACKWARD": False, "ADDED": False, "RELU": False} | TILE
    ),
    "sum_up_backward": Compiled(batchnorm.sum_up, f"{GIVEN} i32 i32 i32", {"BACKWARD": True} | FUSED),
    "normalise": Compiled(
        batchnorm.normalise,
        "*bf16 *bf16 *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 *bf16 i32 i32 i32 fp32 fp32",
        FUSED,
    ),
    "propagate": Compiled(batchnorm.propagate, f"{GIVEN} *bf16 *bf16 *fp32 *fp32 i32 i32 i32", FUSED),
}


class Figures(NamedTuple):
    """Registers and bytes spilled of a thread; the share of warps that fit; accesses of 16 bytes, and all."""

    registers: int
    spilled: int
    occupancy: float
    wide: int
    accesses: int


def figures(kernel: Compiled, target: str) -> Figures:
    """Compile ``kernel`` for ``target``."""
    nvidia = target.startswith("sm_")
    gpu = GPUTarget("cuda", int(target[3:]), 32) if nvidia else GPUTarget("hip", target, 64)
    names, types = kernel.function.jit.arg_names, kernel.arguments.split()
    signature = dict.fromkeys(names, "constexpr")
    signature |= zip(names, (kind.partition(":")[0] for kind in types), strict=False)
    # PyTorch's memory begins at multiples of 16 bytes and more, for which Triton compiles when it runs.
    known = [n for n, kind in enumerate(types) if kind.startswith("*") or kind.endswith(":16")]
    aligned = {(n,): [["tt.divisibility", 16]] for n in known}
    source = triton.compiler.ASTSource(kernel.function.jit, signature, kernel.constants, aligned)
    options: dict[str, Any] = {"enable_fp_fusion": kernel.function is not decode_row}
    options["num_warps"] = kernel.warps if nvidia else kernel.waves
    made = triton.compile(source, target=gpu, options=options)
    return _nvidia(made.asm["cubin"]) if nvidia else _amd(made.asm["amdgcn"])


def _number(pattern: str, listing: str) -> int:
    (first, *_) = re.findall(pattern, listing)
    return int(first)


def _nvidia(code: bytes) -> Figures:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        used, listing = (
            subprocess.run(
                [TOOLS / "cuobjdump", how, file.name], capture_output=True, text=True, check=True
            ).stdout
            for how in ("-res-usage", "-sass")
        )
    registers, stack = _number(r"REG:(\d+)", used), _number(r"STACK:(\d+)", used)
    resident = REGISTERS // (32 * 8 * -(-registers // 8))
    accesses = re.findall(r"\b(?:LDG|STG)\.E[.\w]*", listing)
    wide = sum(".128" in access for access in accesses)
    return Figures(registers, stack, min(1.0, resident / WARPS), wide, len(accesses))


def _amd(text: str) -> Figures:
    registers = _number(r"\.vgpr_count:\s+(\d+)", text)
    spilled = _number(r"\.private_segment_fixed_size:\s+(\d+)", text)
    resident = VGPRS // (8 * -(-registers // 8))
    accesses = re.findall(r"\b(?:global|buffer)_(?:load|store)_\w+", text)
    wide = sum(access.endswith("x4") for access in accesses)
    return Figures(registers, spilled, min(1.0, resident / WAVES), wide, len(accesses))


class Timed(NamedTuple):
    """``ours`` and ``theirs`` compute the same; ``gigabytes``: that ours must move."""

    ours: Callable[[], object]
    theirs: Callable[[], object]
    gigabytes: float


def timed_batch_norm(shape: tuple[int, ...], dtype: torch.dtype, *, relu: bool, added: bool) -> Timed:
    norm = BatchNorm(shape[1], relu=relu).cuda()
    x, z, gradient = (
        torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=torch.channels_last) for _ in range(3)
    )
    inputs = [each.requires_grad_() for each in ((x, z) if added else (x,))] + list(norm.parameters())

    def step(fused: bool) -> object:
        can_fuse, pytorch_batchnorm._can_fuse = pytorch_batchnorm._can_fuse, lambda x: fused
        y = norm(x, added=z if added else None)
        pytorch_batchnorm._can_fuse = can_fuse
        return torch.autograd.grad(y, inputs, gradient)

    moved = (12 if added else 8) * x.numel() * x.element_size()
    return Timed(partial(step, True), partial(step, False), moved / 1e9)


def timed_pool(shape: tuple[int, ...], dtype: torch.dtype) -> Timed:
    x = (
        torch.randn(shape, device="cuda", dtype=dtype)
        .to(memory_format=torch.channels_last_3d)
        .requires_grad_()
    )
    bias = torch.randn(shape[1], device="cuda", requires_grad=True)

    def unfused() -> Tensor:
        return F.leaky_relu(F.max_pool3d(x, 2) + bias.to(dtype).view(-1, 1, 1, 1), LEAK)

    gradient = torch.randn_like(unfused())

    def step(pooled: Callable[[], Tensor]) -> object:
        return torch.autograd.grad(pooled(), (x, bias), gradient)

    # x, y and a byte of places; y's gradient, places, x's gradient.
    moved = 2 * (x.numel() + gradient.numel()) * x.element_size() + 2 * gradient.numel()
    return Timed(partial(step, lambda: _Pooled.apply(x, bias)), partial(step, unfused), moved / 1e9)


def timed_counts(shape: tuple[int, ...], dtype: torch.dtype) -> Timed:
    counts, empty = (
        torch.randint(0, 300, shape, device="cuda", dtype=torch.int16),
        torch.empty(0, device="cuda"),
    )

    def unfused() -> object:
        return counts.float().add_(1.0).log_().to(dtype)

    moved = counts.numel() * (counts.element_size() + dtype.itemsize)
    return Timed(lambda: cosmoflow.log_counts(counts, empty, empty, dtype), unfused, moved / 1e9)


def timings() -> list[dict[str, Any]]:
    """Milliseconds and GB/s, of every operation at sizes of DeepCAM 2, ResNet-50 64 and CosmoFlow 4."""
    shapes = [(2, 128, 384, 576), (2, 256, 192, 288), (2, 728, 48, 72), (64, 64, 112, 112), (64, 256, 56, 56)]
    kinds = [(relu, added) for relu in (True, False) for added in (False, True) if relu or not added]
    made: dict[str, Callable[[torch.dtype], Timed]] = {
        f"batch norm{relu * ' + relu'}{added * ' + sum'} {shape}": partial(
            timed_batch_norm, shape, relu=relu, added=added
        )
        for shape in shapes
        for relu, added in kinds
    }
    made |= {
        f"pool {shape}": partial(timed_pool, shape)
        for shape in ((4, 32, 128, 128, 128), (4, 64, 64, 64, 64), (4, 128, 32, 32, 32))
    }
    made["log counts"] = partial(timed_counts, (4, 128, 128, 128, 4))
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for name, make in made.items():
            of = make(dtype)
            torch.cuda.synchronize()
            ours, theirs = (
                triton.testing.do_bench_cudagraph(work, rep=20, return_mode="median")
                for work in (of.ours, of.theirs)
            )
            row = {"operation": name, "dtype": str(dtype).removeprefix("torch."), "gigabytes": of.gigabytes}
            rows.append(row | {"ours_ms": ours, "theirs_ms": theirs})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--time", action="store_true", help="time the kernels on this machine's GPU")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.time:
        if not torch.cuda.is_available():
            print("no GPU: PyTorch sees none on this node; nothing was measured", file=sys.stderr)
            return 2
        measured = timings()
        if options.json:
            print(json.dumps({"device": torch.cuda.get_device_name(), "rows": measured}))
            return 0
        print(torch.cuda.get_device_name())
        for row in measured:
            row |= {"rate": row["gigabytes"] / row["ours_ms"], "times": row["theirs_ms"] / row["ours_ms"]}
            print(
                "{operation:40} {dtype:8} {ours_ms:7.3f} ms, {rate:5.2f} TB/s, PyTorch {theirs_ms:7.3f} ms, "
                "{times:5.2f} times as fast".format(**row)
            )
        return 0
    rows = [
        {"kernel": name, "target": target, **figures(KERNELS[name], target)._asdict()}
        for name in options.kernel
        for target in options.target
    ]
    if options.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        said = "{kernel:14} {target:7} {registers:4} registers, {spilled} bytes spilled, occupancy {occupancy:.0%}"
        print((said + ", {wide} of {accesses} accesses of 16 bytes").format(**row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
