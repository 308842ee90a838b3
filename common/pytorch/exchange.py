"""The all-reduces of DistributedDataParallel, each timed: its buckets, and the part not hidden by computation."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from mlhpc.common.timing.profile import Exchange, by_size, covered


@dataclass
class _Bucket:
    bytes: int
    begin: float
    end: float = 0.0


@dataclass
class BucketTimes:
    """Wraps the all-reduce of each bucket with timers. Times are the host's: on a GPU the host cannot see the
    end of an all-reduce, so only sizes are measured."""

    world_size: int
    on_host: bool
    buckets: list[_Bucket] = field(default_factory=list)

    @classmethod
    def watch(cls, model: nn.Module, on_host: bool) -> "BucketTimes | None":
        """The times of ``model``, from ``wrap_ddp``; None for a model that exchanges nothing."""
        if not isinstance(model, DistributedDataParallel):
            return None
        times = cls(dist.get_world_size(), on_host)
        model.register_comm_hook(None, times._all_reduce)
        return times

    def start(self) -> None:
        """Count from here."""
        self.buckets.clear()

    def exchange(self, steps: int) -> Exchange:
        """Means over ``steps`` steps since ``start``."""
        per_step = len(self.buckets) // steps
        rounds = [self.buckets[n * per_step : (n + 1) * per_step] for n in range(steps)] if per_step else []
        messages = by_size(
            ((b.bytes, b.end - b.begin if self.on_host else None) for b in self.buckets), steps
        )
        if not self.on_host:
            return Exchange(messages, None, None)
        # The last bucket is sent when the last gradient is computed: after that, nothing hides the transfers.
        exposed = sum(max(b.end for b in each) - each[-1].begin for each in rounds) / steps
        under_way = covered((b.begin, b.end) for b in self.buckets) / steps
        return Exchange(messages, exposed, under_way)

    def _all_reduce(
        self,
        _: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> Future[Tensor]:
        buffer = bucket.buffer()
        times = _Bucket(buffer.nbytes, time.perf_counter())
        self.buckets.append(times)
        work: Any = dist.all_reduce(buffer.div_(self.world_size), async_op=True)

        def done(future: Future[list[Tensor]]) -> Tensor:
            times.end = time.perf_counter()
            return future.value()[0]

        shared: torch.futures.Future[Tensor] = work.get_future().then(done)
        return shared
