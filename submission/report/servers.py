"""Measurements of a run with parameter servers other than its throughput (``mlhpc study --vary
parameter_servers``).

The measurements follow Han et al. 2019: accuracy by number of servers (Fig. 9b), device utilisation (Fig. 12),
bytes copied from host to device (Table III). Bytes sent over the network are counted per message and compared with
the formulas in ``perf/collectives.py``.
"""

from dataclasses import dataclass
from typing import Self

from mlhpc.perf.collectives import ring_bytes, server_bytes
from mlhpc.record.series import ServersRecord


@dataclass(frozen=True)
class ServerFigures:
    """The measurements of one run. ``accuracy``: accuracy of the final weights on the evaluation images.
    ``utilisation``: the fraction of the time of steps that workers spent in forward and backward passes, as a mean
    over workers. Bytes per step: ``host_to_device`` for all workers together, ``worker_bytes`` for one worker,
    ``busiest_bytes`` for the busiest server (without servers, for a rank of the all-reduce ring), and
    ``predicted_bytes`` for the prediction of ``busiest_bytes``. ``staleness``: mean number of updates by which
    gradients are stale.
    """

    accuracy: float
    utilisation: float
    staleness: float
    host_to_device: float
    worker_bytes: float
    busiest_bytes: float
    predicted_bytes: float

    @classmethod
    def of(cls, record: ServersRecord) -> Self:
        """The measurements in a record. Raises ValueError if the lengths of its lists do not match its number of
        ranks."""
        workers, servers, model = record.workers, record.servers, record.model_bytes
        all_steps = record.steps + record.warmup_steps
        if len(record.traffic) != workers + servers:
            raise ValueError("its servers.json does not match its number of ranks")
        # A server receives gradients and then sends weights; the ranks of a ring do both at the same time.
        both = [sent + received for sent, received in record.traffic]
        of_workers = both[:workers] if servers else [sent for sent, _ in record.traffic]
        busiest = both[workers:] if servers else of_workers
        return cls(
            accuracy=record.accuracy,
            utilisation=record.compute_s / record.seconds,
            staleness=record.staleness,
            host_to_device=record.host_to_device_bytes / record.steps,
            worker_bytes=sum(of_workers) / workers / all_steps,
            busiest_bytes=sum(busiest) / len(busiest) / all_steps,
            predicted_bytes=server_bytes(model, workers, servers) if servers else ring_bytes(model, workers),
        )
