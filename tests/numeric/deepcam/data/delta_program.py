"""The GPU decoder of the differential codec against the truth, on the device that the first argument names (on
``cpu`` by Triton's interpreter), for each number of columns that follows."""

import dataclasses
import sys

import numpy as np
import torch

from mlhpc.common.data.codecs import dtypes, frame
from mlhpc.deepcam.data import delta, delta_triton


def check(device, columns):
    rng = np.random.default_rng(0)
    rows, channels = 4, 3
    whole = max(4, (columns - 1).bit_length())
    kinds = rng.choice([0, 1, 2 * 4, 2 * 4 + 1, 2 * 6, 2 * whole, 2 * whole + 1], rows * channels).astype(
        "u1"
    )
    kinds[:3] = 0, 1, 2 * whole
    segments = int(delta.segments_of(kinds, columns).sum())
    pivots = rng.standard_normal(segments).astype("<f4")
    pivots[:4] = 0, -0.0, 1e-45, 8e37
    sections = dict(
        kinds=kinds.tobytes(),
        pivots=pivots.tobytes(),
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
                out = torch.empty(
                    (2, channels, rows, columns) if first else truth.shape, dtype=dtype, device=device
                )
                with np.errstate(all="ignore"):
                    delta_triton.decode(batch, out.permute(0, 2, 3, 1) if first else out, normalise)
                decoded = (out.permute(0, 2, 3, 1) if first else out).float().cpu().numpy()
                expected = dtypes.cast(truth, "float16" if dtype == torch.float16 else "float32").astype(
                    np.float32
                )
                same = (decoded.view(np.uint32) == expected.view(np.uint32)) | (
                    np.isnan(decoded) & np.isnan(expected)
                )
                assert same.all(), (normalise, dtype, first, np.argwhere(~same)[:3])


for given in sys.argv[2:]:
    check(sys.argv[1], int(given))
print("same bits")
