"""The differential codec's kernel compiled ahead of time, without a GPU: registers and spills.

python tests/perf/delta_kernels.py [sm_80 sm_90 gfx90a gfx942]
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from mlhpc.deepcam.data.delta_triton import decode_line

SIGNATURE = {
    "kinds": "*u8", "first": "*i64", "coded": "*i64", "pivots": "*fp32", "units": "*i8", "codes": "*u8",
    "raw": "*fp32", "shift": "*fp32", "scale": "*fp32", "out": "*fp16", "rows": "i32", "columns": "i32",
    "row_stride": "i32", "column_stride": "i32", "channel_stride": "i32", "NORMALISE": "constexpr",
    "BFLOAT16": "constexpr", "BLOCK": "constexpr",
}  # fmt: skip


def figures(target: str) -> tuple[int, int]:
    """Registers a thread, and bytes that a thread spills."""
    nvidia = target.startswith("sm_")
    gpu = GPUTarget("cuda", int(target[3:]), 32) if nvidia else GPUTarget("hip", target, 64)
    constants: Any = {"NORMALISE": True, "BFLOAT16": False, "BLOCK": 2048}
    source = triton.compiler.ASTSource(decode_line, SIGNATURE, constants)
    made = triton.compile(source, target=gpu, options={"enable_fp_fusion": False})
    if not nvidia:
        text = made.asm["amdgcn"]
        registers, spilled = (
            int(re.search(rf"\.{name}:\s+(\d+)", text)[1])  # type: ignore[index]
            for name in ("vgpr_count", "private_segment_fixed_size")
        )
        return registers, spilled
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(made.asm["ptx"])
        name = "sm_90a" if target == "sm_90" else target
        done = subprocess.run(
            [ptxas, "-v", f"--gpu-name={name}", "-o", "/dev/null", ptx],
            capture_output=True,
            text=True,
            check=True,
        )
    said = done.stdout + done.stderr
    stores = re.search(r"(\d+) bytes spill stores", said)
    used = re.search(r"Used (\d+) registers", said)
    assert stores and used, said
    return int(used[1]), int(stores[1])


for each in sys.argv[1:] or ["sm_80", "sm_90", "gfx90a", "gfx942"]:
    print("{}: {} registers, {} bytes spilled".format(each, *figures(each)))
