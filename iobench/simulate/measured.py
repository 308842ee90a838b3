"""Derives service times of storage from runs of the workload on one and two ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.simulate.simulation import Service, System, simulate
from mlhpc.quantities import count

_HALVINGS = 30
_STEPS = 200
_SAMPLES = 200_000
"""Maximum steps and samples per rank of each of the simulations that ``fit`` compares."""
SPREAD = 0.03
"""Maximum relative difference between the rates of equal runs."""
APART = 1.3
"""If the largest exclusive share consistent with the runs exceeds the smallest by this factor, the runs do not
determine it."""
LEAST = 0.01
"""Minimum exclusive share. With a smaller one, two ranks were more than twice as fast as one, so sharing could not
be measured."""


@dataclass(frozen=True)
class Fit:
    """The fitted service times. ``measured`` and ``simulated``: samples/s on one rank and on two. If they differ,
    the simulation is unreliable, because the runs were disturbed or waited for something that is not simulated.
    ``exclusive``: a range for the share of a read that blocks other reads; with shares in this range, the
    simulation reproduces the second run to 3%."""

    service: Service
    system: System
    measured: tuple[float, float]
    simulated: tuple[float, float]
    exclusive: tuple[float, float]

    @property
    def told_apart(self) -> bool:
        """Return whether the two ranks competed enough for storage to determine its capacity."""
        low, high = self.exclusive
        return low > LEAST and high <= APART * low

    @property
    def error(self) -> float:
        """The larger of the relative errors on one rank and on two."""
        return max(abs(s / m - 1) for s, m in zip(self.simulated, self.measured, strict=True))


def fit(workload: Workload, results: Sequence[Mapping[str, Any]]) -> Fit:
    """The service times from the ``result.json`` of a run on one rank, with the exclusive share of a read chosen
    such that the simulation of two ranks is as fast as the second run. The system is the measured one, with a
    single target and metadata server. The runs must read the data of ``workload`` in the same way, but may have
    other steps, reader threads and prefetching.

    Two ranks that only read, with several threads, determine the capacity of storage best.

    Raises UserError unless the runs are of this workload on one and on two ranks, or if they read nothing.
    """
    by_ranks = {result["ranks"]: result for result in results}
    if sorted(by_ranks) != [1, 2]:
        raise UserError("a simulation requires runs of the workload on one rank and on two ranks")
    ran: dict[int, Workload] = {}
    for ranks, result in by_ranks.items():
        if _reads(result["workload"]) != _reads(workload.model_dump(mode="json", exclude_none=True)):
            raise UserError(f"the run on {count(ranks, 'rank')} used a different workload; pass another run")
        ran[ranks] = Workload.model_validate(result["workload"])
    one, two = by_ranks[1], by_ranks[2]
    for key in ("data", "filesystem", "object_store"):
        if one.get(key) != two.get(key):
            raise UserError(
                f"{key} is {one.get(key)} on one rank and {two.get(key)} on two; choose runs on the same data"
            )
    try:
        service, call_s = _services(one)
        system = System(cores=one["rank_results"][0]["cores"], ranks_per_node=2)
        steps = {ranks: min(_STEPS, result["epochs"][0]["steps"]) for ranks, result in by_ranks.items()}
        rates = min(one["samples_per_s"], two["samples_per_s"])
    except (KeyError, IndexError, TypeError, ZeroDivisionError):
        raise UserError("the runs recorded no read times; repeat them with this version of io run") from None
    if not rates > 0:
        raise UserError("a run recorded no throughput, so there is nothing to simulate")

    for ranks, workload in ran.items():
        at_most = _SAMPLES // workload.reader.batch_size
        if at_most < 1:
            raise UserError(
                f"a batch of {count(workload.reader.batch_size, 'sample')} is too large to simulate"
            )
        steps[ranks] = min(steps[ranks], at_most)

    def rate(ranks: int, share: float) -> float:
        divided = _divided(service, call_s, share)
        return simulate(ran[ranks], divided, system, ranks, steps[ranks]).samples_per_s

    measured = one["samples_per_s"], two["samples_per_s"]
    least, share, most = (_share(rate, factor * measured[1]) for factor in (1 + SPREAD, 1.0, 1 - SPREAD))
    simulated = rate(1, share), rate(2, share)
    return Fit(_divided(service, call_s, share), system, measured, simulated, (least, most))


def _share(rate: Callable[[int, float], float], measured: float) -> float:
    """The exclusive share of a read, found by bisection: the larger this share, the slower are two ranks."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        if rate(2, share) > measured:
            low = share
        else:
            high = share
    return (low + high) / 2


def _reads(stated: Mapping[str, Any]) -> object:
    """The settings of a workload that determine the duration of a read."""
    other = ("threads", "prefetch", "loader_cost")
    reader = {key: value for key, value in stated.get("reader", {}).items() if key not in other}
    return stated.get("dataset"), stated.get("storage"), reader


def _services(one: Mapping[str, Any]) -> tuple[Service, float]:
    """The mean service times on one rank, and the seconds of a sample's reads, which are not yet divided into
    latency and exclusive part."""
    reading = one["reading"]
    samples = sum(rank["reading"]["samples"] for rank in one["rank_results"])
    if not samples or not reading["opens"]:
        raise UserError("the run on one rank read nothing, so there is nothing to simulate")
    seconds = reading["thread_s"]
    threads = max(1, one["workload"]["reader"]["threads"])
    # Threads of a rank read concurrently and wait for one another; io_s counts the storage's work for all of them
    # once.
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
