"""Loaders around PyTorch's DataLoader: the reference's of DeepCAM, torchvision, WebDataset, MosaicML Streaming."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from peers.tasks import Array, Epoch, Task, collate, decoder

SHARDS = 8


class Hdf5(Dataset[Any]):
    """A published file of DeepCAM, read by h5py, its field normalised and its mask in the type of the file."""

    def __init__(self, task: Task, root: Path) -> None:
        from mlhpc.deepcam.data.hdf5 import read_statistics

        minimum, maximum = read_statistics(root, 16)
        self.paths = [root / f"data-{number:05d}.h5" for number in range(task.samples)]
        self.shift, self.scale = np.float32(minimum), np.float32(1 / (maximum - minimum))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[Array, Array]:
        import h5py

        with h5py.File(self.paths[number], "r", libver="latest", swmr=True) as file:
            field, mask = file["climate/data"][...], file["climate/labels_0"][...]
        return self.scale * (field - self.shift), mask.astype(np.uint8)


def _loaded(dataset: Any, settings: Mapping[str, Any], **more: Any) -> Any:
    return DataLoader(
        dataset,
        num_workers=settings["workers"],
        prefetch_factor=max(1, settings["prefetch"] // settings["workers"]),
        persistent_workers=True,
        **more,
    )


def reference(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """DeepCAM's: shuffled, incomplete batches dropped."""
    loader = _loaded(Hdf5(task, root), settings, batch_size=task.batch, shuffle=True, drop_last=True)
    return lambda epoch: loader


def torchvision(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """ImageFolder with Pillow and transforms v2, as its documentation trains on ImageNet."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    from peers.tasks import MEAN, STD

    short = round(task.crop * 256 / 224)
    steps: list[Callable[..., Any]] = [
        v2.Resize(short, antialias=True),
        v2.CenterCrop(task.crop),
        v2.PILToTensor(),
    ]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    images = ImageFolder(str(root), v2.Compose(steps))
    loader = _loaded(images, settings, batch_size=task.batch, shuffle=True, drop_last=True)

    def channels_last(epoch: int) -> Iterable[tuple[Any, Any]]:
        return ((x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1), y) for x, y in loader)

    return channels_last


def webdataset(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """Shards shuffled, then samples within a buffer; batches are made in the workers."""
    import webdataset as wds

    shards = root.with_suffix(".tar")  # beside it: ImageFolder takes folders for classes
    if not shards.exists():
        shards.mkdir()
        for shard in range(min(SHARDS, task.samples)):
            with wds.TarWriter(str(shards / f"{shard:04d}.tar")) as tar:
                for number in range(shard, task.samples, SHARDS):
                    tar.write({"__key__": f"{number:05d}", **task.parts(root, number)})
    decode = decoder(task, root)
    dataset = wds.WebDataset(
        sorted(map(str, shards.glob("*.tar"))),
        shardshuffle=settings["shardshuffle"],
        nodesplitter=wds.split_by_node,
        workersplitter=wds.split_by_worker,
        empty_check=False,
    )
    dataset = dataset.shuffle(settings["shuffle"]).map(decode).batched(task.batch, collation_fn=collate)
    loader = _loaded(dataset, settings, batch_size=None)
    return lambda epoch: loader


def streaming(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """Shards of the default size, without compression, in a local folder."""
    from streaming import MDSWriter, StreamingDataset

    shards = root.with_suffix(".mds")
    if not shards.exists():
        names = [*task.suffixes, *(["cls"] if task.name == "resnet50" else [])]
        with MDSWriter(out=str(shards), columns=dict.fromkeys(names, "bytes")) as writer:
            for number in range(task.samples):
                writer.write(task.parts(root, number))
    decode = decoder(task, root)

    class Decoded(StreamingDataset):
        def __getitem__(self, index: int) -> Any:
            return decode(super().__getitem__(index))

    dataset = Decoded(
        local=str(shards), shuffle=True, batch_size=task.batch, shuffle_algo=settings["shuffle_algo"]
    )
    loader = _loaded(dataset, settings, batch_size=task.batch, drop_last=True, collate_fn=collate)
    return lambda epoch: loader


LOADERS = {
    "reference": reference,
    "torchvision": torchvision,
    "webdataset": webdataset,
    "streaming": streaming,
}
