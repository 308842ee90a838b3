"""Loaders with pipelines of their own: SPDL, Grain and DALI."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlhpc.common.pytorch.dali import load
from peers.tasks import MEAN, STD, Array, Epoch, Task, collate, decoder


def spdl(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """Stages in one pool of threads; images are decoded, resized and cropped by FFmpeg."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    decode = decoder(task, root)
    short, crop = round(task.crop * 256 / 224), task.crop
    mean, deviation = np.array(MEAN, np.float32), np.array(STD, np.float32)
    inverse = 1 / (255 * deviation)
    scale = f"scale='if(gt(iw,ih),-1,{short})':'if(gt(iw,ih),{short},-1)'"
    scale += ":flags=bilinear+accurate_rnd+full_chroma_int"

    def image(number: int) -> tuple[Array, Array]:
        packets = spdl.io.demux_image(str(task.paths(root, number)[0]))
        frames = spdl.io.decode_packets(packets, filter_desc=f"{scale},format=rgb24,crop={crop}:{crop}")
        pixels = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        return pixels * inverse - mean / deviation, np.asarray(np.int64(number))

    def sample(number: int) -> tuple[Array, Array]:
        return decode(task.parts(root, number))

    def epoch(epoch: int) -> Iterator[Any]:
        order = np.random.default_rng(epoch).permutation(task.samples).tolist()
        builder = PipelineBuilder().add_source(order)
        builder = builder.pipe(image if task.name == "resnet50" else sample, concurrency=settings["workers"])
        builder = builder.aggregate(task.batch, drop_last=True).pipe(collate).add_sink(settings["prefetch"])
        pipeline = builder.build(num_threads=settings["workers"])
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)

    return epoch


def grain(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """A shuffled MapDataset, decoded by threads that read ahead."""
    import grain as gr

    decode = decoder(task, root)
    reading = gr.ReadOptions(settings["workers"], prefetch_buffer_size=settings["prefetch"] * task.batch)

    def epoch(epoch: int) -> Iterator[Any]:
        samples = gr.MapDataset.range(task.samples).seed(epoch).shuffle()
        decoded = samples.map(lambda number: decode(task.parts(root, int(number)))).to_iter_dataset(reading)
        return iter(decoded.batch(task.batch, drop_remainder=True, batch_fn=collate))

    return epoch


def dali(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """Readers of its own, on the CPU: TFRecord with an index, NumPy, and files by folder."""
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipeline = load()[0].Pipeline(
        batch_size=task.batch,
        num_threads=settings["workers"],
        device_id=None,
        prefetch_queue_depth=settings["prefetch"],
        seed=1,
    )
    with pipeline:
        pipeline.set_outputs(
            *{"deepcam": _fields, "resnet50": _images}.get(task.name, _universes)(task, root)
        )
    batches = DALIGenericIterator(
        [pipeline], ["x", "y"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    return lambda epoch: ((batch["x"], batch["y"]) for (batch,) in batches)


def _universes(task: Task, root: Path) -> tuple[Any, Any]:
    from nvidia.dali import tfrecord

    _, fn, types = load()
    if task.name.endswith("gzip"):
        raise ValueError("DALI's TFRecord reader does not read compressed files")
    records = [task.paths(root, number)[0] for number in range(task.samples)]
    indexes = [path.with_suffix(".idx") for path in records]
    for record, index in zip(records, indexes, strict=True):
        index.write_text(f"0 {record.stat().st_size}\n")
    features = {
        "x": tfrecord.FixedLenFeature([], tfrecord.string, ""),
        "y": tfrecord.FixedLenFeature([4], tfrecord.float32, 0.0),
    }
    read = fn.readers.tfrecord(
        path=list(map(str, records)),
        index_path=list(map(str, indexes)),
        features=features,
        random_shuffle=True,
        name="reader",
    )
    return fn.reinterpret(read["x"], dtype=types.INT16, shape=list(task.shape)), read["y"]


def _fields(task: Task, root: Path) -> tuple[Any, Any]:
    from mlhpc.deepcam.data.hdf5 import read_statistics

    _, fn, types = load()
    minimum, maximum = read_statistics(root, 16)
    chosen: dict[str, Any] = {"random_shuffle": True, "seed": 1, "cache_header_information": True}
    files = [[task.paths(root, number)[part].name for number in range(task.samples)] for part in range(2)]
    x = fn.readers.numpy(file_root=str(root), files=files[0], name="reader", **chosen)
    y = fn.readers.numpy(file_root=str(root), files=files[1], **chosen)
    shift, scale = (types.Constant(np.float32(v)) for v in (minimum, 1 / (maximum - minimum)))
    return (x - shift) * scale, y


def _images(task: Task, root: Path) -> tuple[Any, Any]:
    _, fn, types = load()
    encoded, label = fn.readers.file(
        files=[str(task.paths(root, number)[0]) for number in range(task.samples)],
        labels=list(range(task.samples)),
        random_shuffle=True,
        name="reader",
    )
    pixels = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    pixels = fn.resize(pixels, resize_shorter=round(task.crop * 256 / 224), antialias=True)
    mean, std = ([255 * v for v in values] for values in (MEAN, STD))
    cut: dict[str, Any] = {"crop": (task.crop, task.crop), "rounding": "truncate", "output_layout": "HWC"}
    x = fn.crop_mirror_normalize(pixels, mean=mean, std=std, **cut)
    return x, fn.cast(label, dtype=types.INT64)


LOADERS = {"spdl": spdl, "grain": grain, "dali": dali}
