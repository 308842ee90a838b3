"""The GPU decoder of the differential codec, run by Triton's interpreter, against the truth."""

import subprocess
import sys

import pytest

PROGRAM = """
import dataclasses, numpy as np, torch
from mlhpc.common.data.codecs import dtypes, frame
from mlhpc.deepcam.data import delta, delta_triton

rng = np.random.default_rng(0)
rows, columns, channels = 4, {columns}, 3
whole = max(4, (columns - 1).bit_length())
kinds = rng.choice([0, 1, 2 * 4, 2 * 4 + 1, 2 * 6, 2 * whole, 2 * whole + 1], rows * channels).astype("u1")
kinds[:3] = 0, 1, 2 * whole
segments = int(delta.segments_of(kinds, columns).sum())
pivots = rng.standard_normal(segments).astype("<f4")
pivots[:4] = 0, -0.0, 1e-45, 8e37
sections = dict(
    kinds=kinds.tobytes(), pivots=pivots.tobytes(),
    units=rng.choice([-126, -20, 0, 3, 98], segments).astype("i1").tobytes(),
    codes=rng.integers(0, 256, int((kinds > 1).sum()) * columns).astype("u1").tobytes(),
    raw=rng.integers(0, 2**32, int((kinds == 1).sum()) * columns, np.uint32).view("<f4").tobytes(),
)
lines = delta.parse(frame.unpack(frame.pack("delta", "<f4", (rows, columns, channels), sections)))
batch = [lines, dataclasses.replace(lines, pivots=-lines.pivots)]
by = rng.standard_normal((2, channels)).astype(np.float32)
for normalise in (None, tuple(by)):
    truth = np.stack([delta.decode_slowly(each, normalise) for each in batch])
    for dtype in (torch.float32, torch.float16):
        for first in (False, True):
            out = torch.empty((2, channels, rows, columns) if first else truth.shape, dtype=dtype)
            with np.errstate(all="ignore"):
                delta_triton.decode(batch, out.permute(0, 2, 3, 1) if first else out, normalise)
            decoded = (out.permute(0, 2, 3, 1) if first else out).float().numpy()
            expected = dtypes.cast(truth, "float16" if dtype == torch.float16 else "float32").astype(np.float32)
            same = (decoded.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(decoded) & np.isnan(expected))
            assert same.all(), (normalise, dtype, first, np.argwhere(~same)[:3])
print("same bits")
"""


@pytest.mark.parametrize("columns", [1, 17, 150])
def test_the_interpreted_kernel_gives_the_bits_of_the_truth(columns: int) -> None:
    """Every kind of line; pivots and units at the ends of their ranges; raw lines of any bits."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(columns=columns)],
        capture_output=True, text=True, env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "same bits\n", done.stderr[-2000:]
