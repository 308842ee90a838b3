"""Times Horovod's all-reduces of the gradients inside the compiled step."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from mlhpc.common.ranks.horovod_world import average_gradients, timeline
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.horovod_timeline import FusedMessage, fused_messages
from mlhpc.common.timing.profile import Exchange, by_size

Tensor = Any  # tf.Tensor, which has no type annotations


class HorovodTimes:
    """Averages gradients as in a run, with timers, and reads the fused messages from Horovod's timeline.

    The step averages all gradients after the last one is computed, so nothing hides the exchange. Times are
    measured on the host, so on a GPU only the timeline's are meaningful. A rank's time includes waiting for late
    ranks; the timeline's messages do not.
    """

    def __init__(self, world: World, on_host: bool) -> None:
        self.world, self.on_host = world, on_host
        self.seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self.bytes = 0
        self.messages: list[FusedMessage] = []

    def average(self, gradients: list[Tensor]) -> list[Tensor]:
        """The mean over ranks of each tensor, of any shape. For use inside ``tf.function``."""
        self.bytes = sum(gradient.shape.num_elements() * gradient.dtype.size for gradient in gradients)
        if not self.on_host:
            return average_gradients(gradients)
        with tf.control_dependencies(gradients):
            begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            averaged = average_gradients([tf.identity(gradient) for gradient in gradients])
        with tf.control_dependencies(averaged):
            taken = self.seconds.assign_add(tf.timestamp() - begin)
        with tf.control_dependencies([taken]):
            return [tf.identity(gradient) for gradient in averaged]

    @contextmanager
    def recorded(self, steps: int) -> Iterator[None]:
        """Context manager for the ``steps`` that are to be counted. Called by all ranks."""
        self.seconds.assign(0.0)
        folder = Path(tempfile.mkdtemp(prefix="mlhpc-timeline-"))
        path = folder / "timeline.json"
        try:
            with timeline(path):
                yield
                self.world.barrier()  # rank 0 must not stop recording while others are in the last step
            if self.world.rank == 0:
                self.messages = self._of_gradients(fused_messages(path), steps)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def exchange(self, steps: int) -> Exchange:
        """The exchange per step, averaged over ``steps`` steps. Fused messages are the same on all ranks; their
        seconds are measured on rank 0. Called by all ranks."""
        exposed = float(self.seconds.numpy()) / steps if self.on_host else None
        sent = self.world.broadcast(self.messages)
        timed = self.world.rank == 0
        under_way = sum(s for _, s in sent) / steps  # Horovod sends one message at a time, so none overlap
        messages = by_size(((n, s if timed else None) for n, s in sent), steps)
        return Exchange(messages, exposed, under_way if timed else None)

    def _of_gradients(self, messages: list[FusedMessage], steps: int) -> list[FusedMessage]:
        """Return ``messages`` without the message of the barrier after the last step."""
        left, own = steps * self.bytes, []
        for message in messages:
            if left <= 0:
                break
            own.append(message)
            left -= message.bytes
        return own
