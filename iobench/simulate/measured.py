"""Service times of a storage, from runs of the workload on one and two ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlhpc.errors import UserError, count
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.simulate.simulation import Service, System, simulate

_HALVINGS = 30


@dataclass(frozen=True)
class Fit:
    """``measured`` and ``simulated``: samples/s on one rank and on two. Where they differ the simulation has no
    grounds: the runs were disturbed, or wait for something that is not in it."""

    service: Service
    system: System
    measured: tuple[float, float]
    simulated: tuple[float, float]

    @property
    def error(self) -> float:
        """The larger relative error of the two."""
        return max(abs(s / m - 1) for s, m in zip(self.simulated, self.measured, strict=True))


def fit(workload: Workload, results: Sequence[Mapping[str, Any]]) -> Fit:
    """The service times in the ``result.json`` of a run on one rank, and the share of a read that two ranks cannot
    do at once: the one with which the simulation of two ranks is as fast as the second run was. The system is the
    one that was measured, a single target and metadata server.

    Raises UserError when the runs are not of one and two ranks of this workload, or read nothing.
    """
    by_ranks = {result["ranks"]: result for result in results}
    if sorted(by_ranks) != [1, 2]:
        raise UserError("simulating needs two runs of the workload, on one rank and on two")
    stated = workload.model_dump(mode="json", exclude_none=True)
    for result in results:
        if result["workload"] != stated:
            raise UserError(
                f"the run on {count(result['ranks'], 'rank')} is of another workload; give runs of this one"
            )
    one, two = by_ranks[1], by_ranks[2]
    try:
        service, call_s = _services(one)
        system = System(cores=one["rank_results"][0]["cores"], ranks_per_node=2)
        steps = min(50, one["epochs"][0]["steps"])
        rates = min(one["samples_per_s"], two["samples_per_s"])
    except (KeyError, IndexError, TypeError, ZeroDivisionError):
        raise UserError("the runs have no reading times; repeat them with this version of io run") from None
    if not rates > 0:
        raise UserError("a run measured no samples per second: there is nothing to simulate")
    low, high = 0.0, 1.0  # of a read; the more of it is the device's alone, the slower are two ranks
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        tried = _divided(service, call_s, share)
        if simulate(workload, tried, system, 2, steps).samples_per_s > two["samples_per_s"]:
            low = share
        else:
            high = share
    found = _divided(service, call_s, (low + high) / 2)
    alone, both = (simulate(workload, found, system, ranks, steps).samples_per_s for ranks in (1, 2))
    return Fit(found, system, (one["samples_per_s"], two["samples_per_s"]), (alone, both))


def _services(one: Mapping[str, Any]) -> tuple[Service, float]:
    """The mean times of one rank, and the seconds of a sample's reads, not yet divided."""
    reading = one["reading"]
    samples = sum(rank["reading"]["samples"] for rank in one["rank_results"])
    if not samples or not reading["opens"]:
        raise UserError("the run on one rank read nothing: there is nothing to simulate")
    seconds = reading["thread_s"]
    threads = max(1, one["workload"]["reader"]["threads"])
    # Threads of one rank read at the same time, and each waits for the others: what the storage does for all of
    # them is counted once, in io_s.
    at_once = min(threads, max(1.0, (seconds["call_s"] + seconds["open_s"]) / one["reading"]["io_s"]))
    service = Service(
        open_s=seconds["open_s"] / reading["opens"] / at_once,
        latency_s=0.0,
        device_s=0.0,
        decode_s=(seconds["decode_s"] + seconds["preprocess_s"]) / samples,
    )
    return service, seconds["call_s"] / samples / at_once


def _divided(service: Service, call_s: float, share: float) -> Service:
    return Service(service.open_s, call_s * (1 - share), call_s * share, service.decode_s)
