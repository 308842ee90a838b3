"""Draws an overview of a data set: some of its images, with class and size."""

from pathlib import Path

from mlhpc.common.data.manifest import describe
from mlhpc.common.host import picture
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.quantities import count
from mlhpc.resnet50.data.dataset import open_splits
from mlhpc.resnet50.data.image import BrokenImage, decode

ROWS, COLUMNS = 5, 8


def show(data: Path, out_png: Path) -> None:
    """Draw 40 evenly spaced training images of the data set at ``data``, in any format, in order of class,
    uncropped and as stored. Raises UserError if the data set or one of the images cannot be read, or if the
    overview cannot be written.
    """
    # Not pyplot, which requires a display and keeps every figure.
    from matplotlib.figure import Figure

    dataset = describe(data, Solo())
    splits, names = open_splits(dataset, Solo())
    images = splits["train"]
    drawn = min(ROWS * COLUMNS, len(images))
    shown = []
    for index in (i * len(images) // drawn for i in range(drawn)):
        stored, label = images.read(index)
        try:
            shown.append((label, decode(stored).permute(1, 2, 0).numpy()))
        except BrokenImage as error:
            raise UserError(f"{images.name(index)}: {error}; fix or remove it") from error
    shown.sort(key=lambda pair: pair[0])

    figure = Figure(figsize=(13, 9), layout="constrained", facecolor="white")
    axes = figure.subplots(ROWS, COLUMNS, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, (label, pixels) in zip(axes, shown, strict=False):
        axis.imshow(pixels, interpolation="antialiased")
        name = names[label] if names else f"class {label}"
        axis.set_title(f"{name}\n{pixels.shape[1]} × {pixels.shape[0]}", fontsize=8)
    classes = f", {len(names)} class{'es' * (len(names) != 1)}" if names else ""
    figure.suptitle(f"{data.resolve().name}: {count(len(images), 'training image')}{classes}", fontsize=12)
    picture.save(figure, out_png, dpi=100)
