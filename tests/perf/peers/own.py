"""The floor, and this suite's loaders."""

import mmap
from collections.abc import Callable, Iterator, Mapping
from os import preadv
from pathlib import Path
from typing import Any

import numpy as np

from mlhpc.common.data.assign import RankSamples
from mlhpc.common.data.loader import Draw, Loader, Source
from mlhpc.common.data.sharding import Pool
from peers.tasks import Array, Epoch, Task

AFTER_X = (
    31  # bytes of a TFRecord behind the voxels: the targets' message with 16 bytes of floats, a checksum
)


def floor(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """The least that one thread can do: each file is read or mapped, in one pass, into the same memory; nothing is
    checked. Of an image, only the decoding."""
    x = np.zeros((task.batch, *task.shape), np.int16 if task.name == "cosmoflow" else np.float32)
    read, y = _floor(task, root)

    def epoch(epoch: int) -> Iterator[tuple[Array, Array]]:
        order = np.random.default_rng(epoch).permutation(task.samples)
        for batch in order[: len(order) // task.batch * task.batch].reshape(-1, task.batch):
            for row, target, number in zip(x, y, batch, strict=True):
                with task.paths(root, number)[0].open("rb", buffering=0) as file:
                    read(file, row, target, number)
            yield x, y

    return epoch


def _floor(task: Task, root: Path) -> tuple[Callable[..., None], Array]:
    if task.name == "deepcam":
        from mlhpc.deepcam.data.hdf5 import read_statistics
        from mlhpc.deepcam.data.sample import shift_and_scale

        shift, scale = shift_and_scale(read_statistics(root, 16), task.shape[1])

        def read_field(file: Any, row: Array, target: Array, number: int) -> None:
            with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ) as mapped:
                stored = np.frombuffer(mapped, np.float32, offset=128).reshape(len(row), -1)
                for start in range(0, len(row), 8):
                    block = row[start : start + 8].reshape(-1, len(scale))
                    np.subtract(stored[start : start + 8], shift, out=block)
                    np.multiply(block, scale, out=block)
                del stored
            target[...] = np.load(task.paths(root, number)[1])

        return read_field, np.zeros((task.batch, *task.shape[:2]), np.uint8)
    if task.name == "resnet50":
        import torch
        from torchvision.io import decode_image

        def read_image(file: Any, row: Array, target: Array, number: int) -> None:
            decode_image(torch.frombuffer(bytearray(file.read()), dtype=torch.uint8), "RGB")
            target[...] = number

        return read_image, np.zeros((task.batch, 1), np.int64)
    tail, logarithms = np.zeros(AFTER_X, np.uint8), np.log1p(np.arange(1 << 15, dtype=np.float32))

    def read_universe(file: Any, row: Array, target: Array, number: int) -> None:
        voxels = row.reshape(-1)
        if task.name == "cosmoflow":
            start = file.seek(0, 2) - row.nbytes - AFTER_X
            preadv(file.fileno(), [voxels.view(np.uint8).data, tail.data], start)
            target[...] = tail[-20:-4].view(np.float32)
        else:
            from isal import isal_zlib

            record = np.frombuffer(isal_zlib.decompress(file.read(), 31), np.uint8)
            np.take(logarithms, record[-AFTER_X - 2 * row.size : -AFTER_X].view(np.int16), out=voxels)
            target[...] = record[-20:-4].view(np.float32)

    return read_universe, np.zeros((task.batch, 4), np.float32)


def mlhpc(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """As a training of this suite opens them."""
    source, samples = _source(task, root, {key: settings[key] for key in ("workers", "prefetch", "loader")})
    pool = Pool(task.samples, 1)
    loader: Loader[Any] = Loader(
        RankSamples(samples, samples, pool, pool, 0),
        source,
        local_batch_size=task.batch,
        eval_batch_size=task.batch,
        steps=task.samples // task.batch,
        seed=1,
    )
    last = (0, 2, 3, 1) if task.name in ("deepcam", "resnet50") else (0, 1, 2, 3, 4)
    return lambda epoch: ((x.permute(last) if len(last) == 4 else x, y) for x, y in loader.train_epoch(epoch))


def _source(task: Task, root: Path, loading: dict[str, Any]) -> tuple[Source[Any], Any]:
    paths = [task.paths(root, number)[0] for number in range(task.samples)]
    if task.name == "deepcam":
        from mlhpc.benchmarks import deepcam
        from mlhpc.deepcam.data.hdf5 import read_statistics
        from mlhpc.deepcam.data.source import DeepCamSource

        statistics = read_statistics(root, 16)
        rows, columns, channels = task.shape
        shape = rows, columns, channels
        return DeepCamSource(deepcam.Loading.model_validate(loading), shape, statistics), paths
    if task.name == "resnet50":
        from mlhpc.benchmarks import resnet50
        from mlhpc.resnet50.data.formats import Files
        from mlhpc.resnet50.data.source import ResNet50Source

        class Central(ResNet50Source):
            """The views of an evaluation in the order of a training: without chance, all loaders can agree."""

            def for_epoch(self, samples: Any, draw: Draw | None) -> Any:
                return super().for_epoch(samples, None)

        source = Central(resnet50.Loading.model_validate(loading), task.crop)
        return source, Files([str(path) for path in paths], range(task.samples), task.samples)
    from mlhpc.benchmarks import cosmoflow
    from mlhpc.cosmoflow.data.source import CosmoFlowSource

    loading = {key: loading[key] for key in ("workers", "prefetch")}
    dtype = {"cosmoflow": "int16", "cosmoflow_gzip": "float32"}[task.name]
    return CosmoFlowSource(cosmoflow.Loading(sample_dtype=dtype, **loading), task.shape, 4), paths


LOADERS = {"floor": floor, "mlhpc": mlhpc}
