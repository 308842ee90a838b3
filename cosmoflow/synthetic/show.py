"""Draws an image of one sample, the input of the network."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.formats.tf_example import read_examples
from mlhpc.common.host import picture
from mlhpc.cosmoflow.synthetic.cosmology import MEAN, PARAMETERS
from mlhpc.cosmoflow.synthetic.simulate import REDSHIFTS
from mlhpc.errors import UserError

SPREAD = 0.3
"""The normalised parameters -1 and 1 are 30% below and above the mean (Ibrahim and Oliker 2022, section V-B)."""


def show(sample_file: Path, out_png: Path) -> dict[str, Any]:
    """Draw a slab of the sample at its four redshifts, a histogram of the counts at each, and the parameters.
    Returns the figures that Ibrahim and Oliker 2022, section V-B, report: the number of values, of distinct values
    and of distinct groups of a voxel's four values, and how often each value occurs.

    Raises UserError if the file is missing or corrupt, or does not contain exactly one cubic sample at four
    redshifts, or if the image cannot be written.
    """
    # Not pyplot, which requires a display and keeps every figure.
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    samples = list(read_examples(sample_file))
    raw, unit = samples[0] if samples else (b"", np.empty(0, np.float32))
    channels = len(REDSHIFTS)
    n = round((len(raw) / (2 * channels)) ** (1 / 3))
    if len(samples) != 1 or not n or len(raw) != 2 * channels * n**3 or unit.size != len(PARAMETERS):
        raise UserError(
            f"{sample_file}: not a sample of n³ voxels at {channels} redshifts; pass a sample file"
        )
    voxels = np.frombuffer(raw, "<i2").reshape(n, n, n, channels)

    slab = max(1, n // 8)
    pictures = voxels[:slab].mean(axis=0, dtype=np.float64)
    # Colours from sparse to dense voxels; an empty column is drawn as half a particle.
    floor, top = (float(np.quantile(pictures, q)) for q in (0.002, 0.9995))
    floor = max(floor, 0.5 / slab)
    top = max(top, 2 * floor)
    figure = Figure(figsize=(13, 6.4), layout="constrained", facecolor="white")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.0, 1.35))[:, 0]
    axes = above.subplots(1, channels)
    for channel, (axis, redshift) in enumerate(zip(axes, REDSHIFTS, strict=True)):
        image = axis.imshow(
            np.maximum(pictures[..., channel], floor).T,
            origin="lower",
            cmap="magma",
            norm=LogNorm(floor, top),
            interpolation="nearest" if n < 64 else "antialiased",
        )
        axis.set_title(f"z = {redshift:g}", fontsize=12)
        axis.set_axis_off()
    beyond = picture.extend(pictures.min(), pictures.max(), floor, top)
    bar = above.colorbar(image, ax=axes, fraction=0.02, pad=0.01, extend=beyond)
    bar.set_label(f"particles per voxel, mean of {slab} layer{'s' * (slab > 1)}")

    values = np.array(MEAN) * (1 + SPREAD * unit)
    each = zip(PARAMETERS, values, unit, strict=True)
    words = "     ".join(f"{name} = {value:.4g}  ({u:+.2f})" for name, value, u in each)
    figure.suptitle(f"{sample_file.name}\n{words}", fontsize=12)

    _draw_counts(below.subplots(), voxels)
    picture.save(figure, out_png, dpi=130)
    number = np.bincount(voxels.ravel())
    held = np.flatnonzero(number)
    groups = np.unique(np.ascontiguousarray(voxels).view("<u8"))  # four values of two bytes
    return {
        "values": voxels.size,
        "unique_values": len(held),
        "unique_groups": len(groups),
        "frequencies": [[int(value), int(number[value])] for value in held],
    }


def _draw_counts(axis: Any, voxels: npt.NDArray[np.int16]) -> None:
    """Draw, for each redshift, a histogram of the particle counts ``voxels`` [n, n, n, redshifts]."""
    for channel, redshift in enumerate(REDSHIFTS):
        number = np.bincount(voxels[..., channel].ravel())
        held = np.flatnonzero(number)
        axis.plot(held + 1, number[held], lw=1.6, color=f"C{channel}", label=f"z = {redshift:g}")
    axis.set(xscale="log", yscale="log", xlabel="1 + particles in a voxel", ylabel="voxels")
    axis.grid(alpha=0.25, which="both", lw=0.5)
    axis.legend(frameon=False, ncols=2)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
