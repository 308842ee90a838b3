"""What is read: the samples of each benchmark, the same bytes in every container, and what becomes of them.

A batch is ``x``, of the task's shape and type with channels last in memory, and ``y``, from which ``number`` tells
which sample a row is: ``cosmoflow`` counts in int16 (their logarithm belongs to the step), ``cosmoflow_gzip``
logarithms from compressed files, as published; ``deepcam`` fields normalised by their channels' ranges, and masks;
``resnet50`` the centre of an image whose shorter side was resized to 256/224 of the crop's, normalised, and its
class.
"""

import io
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlhpc.common.formats.tf_example import decode_example
from mlhpc.cosmoflow.data.sample import write_sample
from mlhpc.deepcam.data.hdf5 import Statistics, read_statistics, write_statistics

Array = npt.NDArray[Any]
Parts = dict[str, bytes]
"""The files of a sample, by suffix."""
Epoch = Callable[[int], Iterable[tuple[Any, Any]]]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MASK_DIGITS = 12  # of a sample's number, in the first row of its mask


@dataclass(frozen=True)
class Task:
    """``side`` scales a sample; 128 is the published size."""

    name: str
    side: int
    samples: int
    batch: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of ``x`` without the batch."""
        if self.name == "deepcam":
            return 6 * self.side, 9 * self.side, 16
        return (self.crop, self.crop, 3) if self.name == "resnet50" else (self.side,) * 3 + (4,)

    @property
    def crop(self) -> int:
        return max(8, self.side * 224 // 128)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return {"deepcam": ("data.npy", "label.npy"), "resnet50": ("jpg",)}.get(self.name, ("tfrecord",))

    def paths(self, root: Path, number: int) -> list[Path]:
        """The files of a sample, in the order of ``suffixes``."""
        name = f"{number:05d}"
        if self.name == "deepcam":
            return [root / f"{part}-{name}.npy" for part in ("data", "label")]
        return [root / name / "0.jpg"] if self.name == "resnet50" else [root / f"{name}.tfrecord"]

    def parts(self, root: Path, number: int) -> Parts:
        """The content of a sample's files."""
        paths = self.paths(root, number)
        parts = {suffix: path.read_bytes() for suffix, path in zip(self.suffixes, paths, strict=True)}
        return parts | ({"cls": str(number).encode()} if self.name == "resnet50" else {})

    def number(self, y: Array) -> int:
        """The number of the sample with this target."""
        if self.name == "deepcam":
            return int((y[0, :MASK_DIGITS].astype(int) * 3 ** np.arange(MASK_DIGITS)).sum())
        return int(y) if self.name == "resnet50" else int(y[0])


TASKS = ("cosmoflow", "cosmoflow_gzip", "deepcam", "resnet50")
NEEDED = {"cosmoflow": 224, "cosmoflow_gzip": 224, "deepcam": 82, "resnet50": 3000}
"""Samples/s that an accelerator trains on."""


def write(task: Task, root: Path) -> None:
    """The files of all samples, and of DeepCAM also in the published HDF5."""
    root.mkdir(parents=True)
    rng = np.random.default_rng(1)
    if task.name == "deepcam":
        write_statistics(
            root / "stats.h5",
            Statistics(*np.array([1, 2], np.float32)[:, None] * np.geomspace(1e-6, 1e5, 16)),
        )
    {"deepcam": _fields, "resnet50": _images}.get(task.name, _universes)(task, root, rng)


def _universes(task: Task, root: Path, rng: np.random.Generator) -> None:
    for number in range(task.samples):
        x = rng.poisson(rng.lognormal(-0.3, 1.2, task.shape)).astype(np.int16)
        y = np.array([number, *rng.uniform(-1, 1, 3)], np.float32)
        write_sample(task.paths(root, number)[0], x, y, "gzip" if task.name.endswith("gzip") else "plain")


def _fields(task: Task, root: Path, rng: np.random.Generator) -> None:
    import h5py

    x = np.geomspace(1e-6, 1e5, 16, dtype=np.float32) * (rng.random(task.shape, np.float32) + 1)
    for number in range(task.samples):
        mask = rng.choice(3, task.shape[:2], p=(0.986, 0.001, 0.013)).astype(np.uint8)
        mask[0, :MASK_DIGITS] = number // 3 ** np.arange(MASK_DIGITS) % 3
        field = np.roll(x, number, axis=0)
        for path, array in zip(task.paths(root, number), (field, mask), strict=True):
            np.save(path, array)
        with h5py.File(root / f"data-{number:05d}.h5", "w") as file:
            file["climate/data"], file["climate/labels_0"] = field, mask.astype(np.int64)


def _images(task: Task, root: Path, rng: np.random.Generator) -> None:
    from PIL import Image

    from mlhpc.resnet50.synthetic.drawing import draw

    for number in range(task.samples):
        with Image.open(io.BytesIO(draw(1, number % 4, number, max(16, task.side * 500 // 128)))) as image:
            pixels = np.asarray(image.convert("RGB"), np.float32)
        pixels = pixels + 9 * rng.standard_normal(pixels.shape, np.float32)  # the grain of a photograph
        path = task.paths(root, number)[0]
        path.parent.mkdir()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def decoder(task: Task, root: Path) -> Callable[[Parts], tuple[Array, Array]]:
    """How a user of NumPy and torchvision turns a sample's files into one row of ``x`` and ``y``; for the loaders
    that leave this to the user."""
    if task.name == "resnet50":
        return _image_decoder(task)
    if task.name == "deepcam":
        minimum, maximum = read_statistics(root, 16)
        shift, scale = np.float32(minimum), np.float32(1 / (maximum - minimum))

        def decode(parts: Parts) -> tuple[Array, Array]:
            field, mask = (_npy(parts[suffix]) for suffix in task.suffixes)
            x = field - shift
            x *= scale
            return x, mask

        return decode

    def decode_universe(parts: Parts) -> tuple[Array, Array]:
        content = parts["tfrecord"]
        record = zlib.decompress(content, 31) if content[:2] == b"\x1f\x8b" else content
        voxels, y = decode_example(memoryview(record)[12:-4])
        x = np.frombuffer(voxels, np.int16).reshape(task.shape)
        if not task.name.endswith("gzip"):
            return x, y
        logarithms = x.astype(np.float32)
        return np.log1p(logarithms, out=logarithms), y

    return decode_universe


def _npy(content: bytes) -> Array:
    """An array without a copy."""
    start = io.BytesIO(content[:4096])
    np.lib.format.read_magic(start)
    shape, _, dtype = np.lib.format.read_array_header_1_0(start)
    return np.frombuffer(content, dtype, offset=start.tell()).reshape(shape)


def _image_decoder(task: Task) -> Callable[[Parts], tuple[Array, Array]]:
    import torch
    from torchvision.io import decode_image
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.Resize(round(task.crop * 256 / 224), antialias=True),
            v2.CenterCrop(task.crop),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )

    def decode(parts: Parts) -> tuple[Array, Array]:
        pixels = decode_image(torch.frombuffer(bytearray(parts["jpg"]), dtype=torch.uint8), "RGB")
        return transform(pixels).permute(1, 2, 0).numpy(), np.asarray(np.int64(parts["cls"]))

    return decode


def collate(samples: Iterable[tuple[Array, Array]]) -> tuple[Any, Any]:
    """Rows as a batch of tensors."""
    import torch

    x, y = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(x)), torch.from_numpy(np.stack(y))
