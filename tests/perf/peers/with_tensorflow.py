"""tf.data as its guide recommends, and as the reference of CosmoFlow configures it."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from peers.tasks import MEAN, STD, Epoch, Task


def reference(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    """CosmoFlow's: one record a file, decoded in parallel, four batches ahead (its published configuration)."""
    return _pipeline(task, root, {**settings, "prefetch": 4})


def tf_data(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    return _pipeline(task, root, settings)


def _pipeline(task: Task, root: Path, settings: Mapping[str, Any]) -> Epoch:
    parse = {"deepcam": _field, "resnet50": _image}.get(task.name, _universe)(task, root)
    paths = [[str(path) for path in task.paths(root, number)] for number in range(task.samples)]
    samples = tf.data.Dataset.from_tensor_slices((paths, np.arange(task.samples, dtype=np.int64)))
    samples = samples.shuffle(task.samples, seed=1, reshuffle_each_iteration=True)
    batches = samples.map(parse, num_parallel_calls=settings["parallel_calls"]).batch(task.batch, True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = settings["workers"]
    batches = batches.prefetch(settings["prefetch"]).with_options(options)

    def epoch(epoch: int) -> Iterator[Any]:
        return itertools.islice(batches, task.samples // task.batch)

    return epoch


def _universe(task: Task, root: Path) -> Any:
    zipped = task.name.endswith("gzip")
    features = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([4], tf.float32)}

    def parse(paths: Any, number: Any) -> tuple[Any, Any]:
        record = tf.data.TFRecordDataset(paths[0], compression_type="GZIP" if zipped else None)
        example = tf.io.parse_single_example(record.get_single_element(), features)
        x = tf.reshape(tf.io.decode_raw(example["x"], tf.int16), task.shape)
        return tf.math.log(tf.cast(x, tf.float32) + 1) if zipped else x, example["y"]

    return parse


def _field(task: Task, root: Path) -> Any:
    from mlhpc.deepcam.data.hdf5 import read_statistics

    minimum, maximum = read_statistics(root, 16)
    shift, scale = np.float32(minimum), np.float32(1 / (maximum - minimum))

    def array(path: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
        values = tf.strings.substr(tf.io.read_file(path), 128, -1)  # after the header
        return tf.reshape(tf.io.decode_raw(values, dtype), shape)

    def parse(paths: Any, number: Any) -> tuple[Any, Any]:
        x = (array(paths[0], tf.float32, task.shape) - shift) * scale
        return x, array(paths[1], tf.uint8, task.shape[:2])

    return parse


def _image(task: Task, root: Path) -> Any:
    short, crop = round(task.crop * 256 / 224), task.crop

    def parse(paths: Any, number: Any) -> tuple[Any, Any]:
        pixels = tf.io.decode_jpeg(tf.io.read_file(paths[0]), 3, dct_method="INTEGER_ACCURATE")
        height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
        shorter = tf.minimum(height, width)
        size = [short * height // shorter, short * width // shorter]
        resized = tf.image.resize(pixels, size, antialias=True)
        top, left = (size[0] - crop) // 2, (size[1] - crop) // 2
        cropped = resized[top : top + crop, left : left + crop]
        return (cropped / 255 - tf.constant(MEAN)) / tf.constant(STD), number

    return parse


LOADERS = {"reference": reference, "tf.data": tf_data}
