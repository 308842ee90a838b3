"""What CosmoFlow does for a GPU, without one: TensorFlow's device calls and its results are the test's."""

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from mlhpc.benchmarks import load
from mlhpc.common.host import accelerators
from mlhpc.common.host.accelerators import Accelerator
from mlhpc.common.ranks.world import Solo
from mlhpc.cosmoflow.cpu.convolution import MinimalConv3D
from mlhpc.cosmoflow.tf import device, train
from mlhpc.errors import UserError


def test_ranges_of_a_gpu_are_nvtxs_where_it_is_installed(monkeypatch):
    assert device.device_ranges(None) is None
    marks = []
    nvtx = SimpleNamespace(push_range=marks.append, pop_range=lambda: marks.append("end"))
    monkeypatch.setattr(device, "find_spec", lambda name: nvtx)
    monkeypatch.setattr(device, "import_module", {"nvtx": nvtx}.__getitem__)
    ranges = device.device_ranges("GPU:0")
    ranges.range_push("epoch 1")
    ranges.range_pop()
    assert marks == ["epoch 1", "end"]
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert device.device_ranges("GPU:0") is None


def test_a_rank_uses_one_gpu_with_memory_growth(monkeypatch):
    config, calls = tf.config, []
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: ["gpu0", "gpu1"])
    monkeypatch.setattr(config, "get_visible_devices", lambda kind: ["gpu0", "gpu1"])
    monkeypatch.setattr(config, "set_visible_devices", lambda gpus, kind: calls.append(("visible", gpus)))
    monkeypatch.setattr(config.experimental, "get_memory_growth", lambda gpu: False)
    monkeypatch.setattr(config.experimental, "set_memory_growth", lambda gpu, on: calls.append((gpu, on)))
    assert device.use_one_gpu(local_rank=3) == "GPU:0"
    assert calls == [("visible", ["gpu1"]), ("gpu1", True)]


def test_gpu_settings_are_not_changed_once_set(monkeypatch):
    """With several ranks, TensorFlow has computed by now, and refuses."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu0"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu0"])
    monkeypatch.setattr(tf.config.experimental, "get_memory_growth", lambda gpu: True)
    for name in ("set_visible_devices", "experimental.set_memory_growth"):
        monkeypatch.setattr(f"tensorflow.config.{name}", None)
    assert device.use_one_gpu(local_rank=0) == "GPU:0"


def test_a_gpu_that_only_the_driver_sees_is_not_left_idle_beside_a_run(monkeypatch):
    """TensorFlow's build for CPUs: the log would count the GPU."""
    monkeypatch.setattr(accelerators, "installed", lambda: [Accelerator("nvidia", "NVIDIA H100")])
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    run = load.load("cosmoflow", "smoke")
    with pytest.raises(UserError, match=r"^TensorFlow does not see .*NVIDIA H100; .* CUDA_VISIBLE_DEVICES=$"):
        train.check(run, None, Solo())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    train.check(run, None, Solo())


def test_batches_copied_to_the_device_keep_order_and_values():
    batches = [(np.full((2, 3), n, np.int16), np.array([n], np.float32)) for n in range(4)]
    moved = list(device.to_device(iter(batches), "CPU:0"))
    assert all(isinstance(x, tf.Tensor) and x.dtype == tf.int16 for x, _ in moved)
    assert [(int(x[0, 0]), float(y[0])) for x, y in moved] == [(n, float(n)) for n in range(4)]
    assert list(device.to_device(iter(batches), None)) == batches


def test_the_next_batch_is_copied_while_a_step_computes():
    read = [threading.Event(), threading.Event()]

    def batches():
        for event in read:
            event.set()
            yield np.zeros(1), np.zeros(1)

    moved = device.to_device(batches(), "CPU:0")
    next(moved)
    assert read[1].wait(30), "the second batch is read only when the loop asks for it"
    moved.close()


def test_an_error_of_a_reader_is_raised_by_the_copy():
    def batches():
        yield np.zeros(1), np.zeros(1)
        raise UserError("a.tfrecord: truncated")

    moved = device.to_device(batches(), "CPU:0")
    next(moved)
    with pytest.raises(UserError, match="truncated"):
        list(moved)


class Late:
    """The result of a step that the device has not finished yet."""

    def __init__(self):
        self.done = threading.Event()

    def numpy(self):
        assert self.done.wait(30)


def test_an_event_has_passed_when_the_step_before_it_is_done(monkeypatch):
    monkeypatch.setattr(device.tf, "nest", SimpleNamespace(flatten=lambda result: [result]))
    first, second = Late(), Late()
    events = device.LaunchEvents()
    step = events.watch(lambda x, y: x)
    start = events()
    start.wait()  # nothing is launched: it has passed
    assert step(first, None) is first
    after_first = events()
    step(second, None)
    after_second = events()
    waiting = threading.Thread(target=after_first.wait)
    waiting.start()
    assert waiting.is_alive()
    first.done.set()
    waiting.join(30)
    assert not waiting.is_alive(), "the second step still runs, and is not waited for"
    second.done.set()
    after_second.wait()
    assert 0 <= after_first.seconds_since(start) <= after_second.seconds_since(start)


def test_too_little_memory_is_a_one_line_error():
    with pytest.raises(UserError, match="too little memory") as raised, device.oom_as_user_error():
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating\ntensor with shape[64,64]")
    assert "\n" not in str(raised.value)


def training():
    """CosmoFlow's training, with a log that records nothing."""
    log = SimpleNamespace(span=lambda *_, **__: nullcontext())
    train.train(load.load("cosmoflow", "smoke"), Path(), None, 1, None, Solo(), log)


def test_too_little_memory_anywhere_in_a_training_is_a_one_line_error(monkeypatch):
    def full(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(train, "build_model", full)
    with pytest.raises(UserError, match="too little memory"):
        training()


class Built(Exception):
    """A network would be built now."""


@pytest.mark.parametrize(("gpu", "layer"), [("GPU:0", keras.layers.Conv3D), (None, MinimalConv3D)])
def test_a_gpu_trains_without_the_kernels_of_processors(monkeypatch, gpu, layer):
    """Nor is XLA started for them, which would compile on the GPU."""
    started = []

    def build(*_, conv3d, **__):
        raise Built(conv3d)

    monkeypatch.setattr(train, "use_one_gpu", lambda local_rank: gpu)
    monkeypatch.setattr(train, "start_xla", lambda: started.append("XLA"))
    monkeypatch.setattr(train, "build_model", build)
    with pytest.raises(Built) as built:
        training()
    assert built.value.args == (layer,)
    assert started == ([] if gpu else ["XLA"])
