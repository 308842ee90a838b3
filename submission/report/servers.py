"""Measurements of a run with parameter servers other than its throughput (``mlhpc study --vary
parameter_servers``).

After Han et al. 2019: accuracy by servers (Fig. 9b), device utilisation (Fig. 12), bytes from host
to device (Table III). Bytes over the network are counted at the messages, and compared with the formulas of
``perf/collectives.py``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlhpc.errors import shown
from mlhpc.perf.collectives import ring_bytes, server_bytes


@dataclass(frozen=True)
class ServerFigures:
    """``accuracy``: of the final weights on the evaluation images. ``utilisation``: the mean share of the time
    of the steps that workers spent in forward and backward passes. ``host_to_device``, ``worker_bytes``,
    ``busiest_bytes``: bytes per step, all workers together; of a worker; of a server, or with none of a rank of
    the ring. ``predicted_bytes``: the last by its formula. ``staleness``: mean number of updates by which
    gradients are stale.
    """

    accuracy: float
    utilisation: float
    staleness: float
    host_to_device: float
    worker_bytes: float
    busiest_bytes: float
    predicted_bytes: float


def servers_figures(record: Mapping[str, Any]) -> ServerFigures:
    """From ``servers.json``. Raises KeyError, TypeError or ValueError where it is damaged."""
    workers, servers, steps = (_whole(record[key]) for key in ("workers", "servers", "steps"))
    all_steps = steps + _whole(record["warmup_steps"])
    model = _whole(record["model_bytes"])
    traffic = [(_whole(sent), _whole(received)) for sent, received in record["traffic"]]
    if workers < 1 or steps < 1 or len(traffic) != workers + servers:
        raise ValueError("its servers.json does not match its number of ranks")
    # A server receives gradients and then sends weights; the ranks of a ring do both at the same time.
    both = [sent + received for sent, received in traffic]
    of_workers = both[:workers] if servers else [sent for sent, _ in traffic]
    busiest = both[workers:] if servers else of_workers
    if not (seconds := _finite(record["seconds"])):
        raise ValueError("its steps took no time")
    return ServerFigures(
        accuracy=_finite(record["accuracy"]),
        utilisation=_finite(record["compute_s"]) / seconds,
        staleness=_finite(record["staleness"]),
        host_to_device=_whole(record["host_to_device_bytes"]) / steps,
        worker_bytes=sum(of_workers) / workers / all_steps,
        busiest_bytes=sum(busiest) / len(busiest) / all_steps,
        predicted_bytes=server_bytes(model, workers, servers) if servers else ring_bytes(model, workers),
    )


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise TypeError(f"{shown(value)} is not a count")
    return value


def _finite(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TypeError(f"{shown(value)} is not a measurement")
    return float(value)
