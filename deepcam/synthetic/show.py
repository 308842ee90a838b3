"""Draws an image of one sample: its channels, and the storms that its mask marks."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.formats import npy
from mlhpc.common.formats.extent import opened
from mlhpc.common.host import picture
from mlhpc.deepcam.data import hdf5, sample
from mlhpc.deepcam.synthetic.label import CLASSES, CYCLONE, RIVER
from mlhpc.deepcam.synthetic.weather import UNITS
from mlhpc.errors import UserError

_COLOURS = {CYCLONE: "#e3008c", RIVER: "#ffb000"}
_DIVERGING = ("U850", "V850", "UBOT", "VBOT")
_MAPS = {
    "TMQ": "YlGnBu",
    "QREFHT": "YlGnBu",
    "PRECT": "Blues",
    "PS": "viridis",
    "PSL": "viridis",
    "ZBOT": "cividis",
}


def show(sample_file: Path, out_png: Path) -> None:
    """Draw water vapour and sea-level pressure at large size and all channels at small size, with the outlines of
    the mask, the range and mean of each channel, and the share of each class.

    ``sample_file`` is ``data-*.h5`` or ``data-*.npy``. Raises UserError if it is missing or damaged or does not
    have sixteen channels, and if the image cannot be written.
    """
    # Not pyplot, which requires a display and keeps every figure.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    fields, mask = _read(sample_file)
    channel = {name: fields[..., number] for number, name in enumerate(hdf5.CHANNELS)}
    figure = Figure(figsize=(13, 13.6), layout="constrained", facecolor="white")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.15, 1))[:, 0]

    axis = above.subplots()
    image = _draw(axis, channel["TMQ"], "TMQ")
    beyond = picture.extend(channel["TMQ"].min(), channel["TMQ"].max(), *image.get_clim())
    bar = above.colorbar(image, ax=axis, fraction=0.03, pad=0.01, extend=beyond)
    bar.set_label("water vapour (TMQ), kg/m²")
    isobars = np.arange(900, 1100, 8)
    axis.contour(*_places(mask), channel["PSL"] / 100, isobars, colors="#404040", linewidths=0.5)
    _outline(axis, mask, 1.6)
    axis.set(xticks=range(0, 361, 60), yticks=range(-90, 91, 30), xlabel="longitude, °", ylabel="latitude, °")
    lines = [Line2D([], [], color="#404040", lw=0.8, label="sea-level pressure, every 8 hPa")]
    lines += [
        Line2D([], [], color=colour, lw=2, label=f"{CLASSES[number]}  ({(mask == number).mean():.3%})")
        for number, colour in _COLOURS.items()
    ]
    axis.legend(handles=lines, loc="lower left", fontsize=9, framealpha=0.9)
    rows, columns = mask.shape
    figure.suptitle(f"{sample_file.name}    {rows} × {columns}", fontsize=12)

    for small, (name, field) in zip(below.subplots(4, 4).flat, channel.items(), strict=True):
        _draw(small, field, name)
        _outline(small, mask, 0.5)
        small.set_title(f"{name}, {UNITS[name]}\n{range_of(field)}", fontsize=8)
        small.set(xticks=(), yticks=())
    picture.save(figure, out_png, dpi=100)


def range_of(field: npt.NDArray[np.float32]) -> str:
    """Return a text such as ``least 0.8764, mean 19.4, largest 71.54`` for a field of any shape; a mean within the
    rounding errors of the values is shown as 0."""
    low, mean, high = float(field.min()), field.mean(dtype=np.float64), float(field.max())
    if abs(mean) < np.finfo(np.float32).eps * max(abs(low), abs(high)):
        mean = 0.0
    return f"minimum {low:.4g}, mean {mean:.4g}, maximum {high:.4g}"


def _read(path: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    if not path.is_file():
        what = "a folder, not a sample" if path.is_dir() else "no such file"
        raise UserError(f"{path}: {what}; pass a file named data-*.h5 or data-*.npy")
    if path.suffix == ".npy":
        with opened(path) as fd:
            shape = npy.locate(fd, path).shape
    else:
        shape = hdf5.read(path)[0].shape
    if len(shape) != 3 or shape[2] != len(hdf5.CHANNELS):
        raise UserError(f"{path} has shape {list(shape)}, not [rows, columns, {len(hdf5.CHANNELS)} channels]")
    fields, mask = np.empty(shape, np.float32), np.empty(shape[:2], np.uint8)
    sample.Reader(shape, None).read(path, fields, mask)
    return fields, mask


def _draw(axis: Any, field: npt.NDArray[np.float32], name: str) -> Any:
    low, high = np.quantile(field, (0.002, 0.998))
    if name in _DIVERGING:
        high = max(abs(low), abs(high))
        low = -high
    return axis.imshow(
        field,
        origin="lower",
        extent=(0, 360, -90, 90),
        aspect="auto",
        cmap="RdBu_r" if name in _DIVERGING else _MAPS.get(name, "RdYlBu_r"),
        vmin=low,
        vmax=high,
        interpolation="nearest" if len(field) < 200 else "antialiased",
    )


def _outline(axis: Any, mask: npt.NDArray[np.uint8], width: float) -> None:
    for number, colour in _COLOURS.items():
        if (mask == number).any():
            axis.contour(*_places(mask), mask == number, [0.5], colors=colour, linewidths=width)


def _places(mask: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The longitudes [columns] and latitudes [rows], in degrees, of the centres of the cells in the image."""
    rows, columns = mask.shape
    return (np.arange(columns) + 0.5) / columns * 360, ((np.arange(rows) + 0.5) / rows - 0.5) * 180
