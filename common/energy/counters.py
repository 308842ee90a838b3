"""Energy counters: what they count, and what was used since they were last read.

Accelerators, processors and whole nodes have counters of their own. A node's energy contains that of its
processors and accelerators, so that figures of different kinds are never added. A counter is of a device or a
node, not of a process: whatever else ran there is in it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from mlhpc.quantities import count, duration_text, si_text

Measured = Literal["accelerators", "processors", "node"]
NAMES = {"accelerators": "accelerators", "processors": "processors", "node": "whole nodes"}
"""Kinds of counters, in display order."""
Read = Callable[[], float]
"""Joules since an arbitrary time in the past."""
Reading = float | str
"""Joules, or why the counter could not be read."""
Usage = Mapping[str, float]
"""How devices are used, the mean over them: ``busy`` and ``memory_busy``, shares of the time in which a kernel ran
and memory was accessed; ``memory_bytes`` in use; ``pcie_bytes_per_s`` and ``nvlink_bytes_per_s``, both ways
together."""

MOST_W = 1000.0
"""Upper limit in watts for devices whose counter wraps: a package of 2025 draws 500 W (AMD EPYC 9965)."""
AT_ONCE_J = 100.0
"""Joules by which a counter may jump at once, because it is only updated periodically."""
STILL_S = 10.0
"""Seconds without a change after which a processor's or node's counter counts as broken: they change every
second, idle too."""


@dataclass(frozen=True)
class Counters:
    """The counters of one kind on one node.

    ``source``: what they are read with. ``reads``: one per counter, by its name. ``problems``: why there are none,
    or why one is left out, a line each; empty too for a node without what they count. ``wraps``: joules at which a
    counter starts again from zero; one without an entry never does. ``devices``: what tells the accelerators that
    this process can see from others, with or without a counter. ``caps``: read the power limits in watts.
    ``usage``: reads how the devices are used, what of it the driver tells.
    """

    measured: Measured
    source: str = ""
    reads: Mapping[str, Read] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    wraps: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    caps: Sequence[Read] = ()
    usage: Callable[[], Usage] | None = None


@dataclass(frozen=True)
class Spent:
    """What counters counted in a run. ``joules``: of the ``counters`` that could be read, which are of ``nodes``
    nodes. ``problems``: which are not in it, and why. ``host``: where, empty if the problems say it. ``readings``
    of a counter, and the seconds between the two that are farthest apart; ``caps_w``: power limits at the stop;
    ``usage``: mean over the readings."""

    measured: Measured
    source: str
    joules: float
    counters: int
    nodes: int
    problems: list[str]
    host: str
    readings: int = 0
    longest_gap_s: float = 0.0
    caps_w: tuple[float, ...] = ()
    usage: Usage = field(default_factory=dict)


def mean_usage(usages: Sequence[Usage]) -> Usage:
    """The mean of each figure over the devices or nodes that report it."""
    names = dict.fromkeys(name for usage in usages for name in usage)
    return {name: fmean(usage[name] for usage in usages if name in usage) for name in names}


def widest(by_kind: Mapping[str, float]) -> float | None:
    """The figure of the kind of counter that contains the others."""
    return next((by_kind[kind] for kind in ("node", "accelerators", "processors") if kind in by_kind), None)


def stood_still(measured: str, joules: float, seconds: float) -> bool:
    """Whether ``joules`` counted in ``seconds`` are those of a broken counter, as virtual machines show them."""
    return measured != "accelerators" and seconds >= STILL_S and joules == 0


def reading(read: Read) -> Reading:
    """A counter that cannot be read ends no run."""
    try:
        return read()
    except Exception as error:  # each vendor's library raises classes of its own
        return said(error)


def said(error: Exception) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def answering(measured: Measured, source: str, reads: Mapping[str, Read], without: str) -> Counters:
    """Those of ``reads`` that can be read; older devices have no counter. ``without``: the problem where none has
    one."""
    tried = {name: reading(read) for name, read in reads.items()}
    readable = {name: read for name, read in reads.items() if not isinstance(tried[name], str)}
    silent = {name: why for name, why in tried.items() if isinstance(why, str)}
    if not readable:
        reasons = list(dict.fromkeys(silent.values()))
        return Counters(measured, source, problems=(without + (f" ({reasons[0]})" if reasons else ""),))
    return Counters(
        measured, source, readable, tuple(f"{name} has no counter ({why})" for name, why in silent.items())
    )


def named_once(problems_by_host: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """The problems of hosts, each once with where it is: a thousand nodes may have the same. One of the host ""
    says that itself."""
    hosts: dict[str, list[str]] = {}
    for host, problems in problems_by_host:
        for problem in problems:
            hosts.setdefault(problem, []).append(host)
    others = {p: f" and {count(len(at) - 1, 'other node')}" if len(at) > 1 else "" for p, at in hosts.items()}
    return [f"{problem} on {at[0]}{others[problem]}" if at[0] else problem for problem, at in hosts.items()]


def _unread(name: str, why: str) -> str:
    return f"{name} could not be read during the run ({why})"


class Sum:
    """What ``counters`` have counted since ``start``, read often enough that none wraps twice in between."""

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        self.counters, self._clock = counters, clock
        self._last: dict[str, Reading] = {}
        self._at: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._lost: dict[str, str] = {}  # counters whose sum is not known, and why
        self._failed: dict[str, str] = {}  # those that could not be read the last time
        self._started = self._read_at = self._longest_gap_s = 0.0
        self._readings = 1
        self.usages: list[Usage] = []
        """How the devices were used, at each reading."""

    def start(self) -> None:
        """Read the counters for the first time."""
        if self.counters.usage:
            self.counters.usage()  # rates are between two readings
        self._started = self._read_at = self._clock()
        for name, read in self.counters.reads.items():
            self._last[name], self._at[name], self._used[name] = reading(read), self._clock(), 0.0
            if isinstance(first := self._last[name], str):
                self._lost[name] = _unread(name, first)

    @property
    def joules(self) -> float | None:
        """Those between ``start`` and the last reading; None without counters, and where one could not be read."""
        return None if self._lost or self._failed or not self._used else sum(self._used.values())

    @property
    def still(self) -> list[str]:
        """The counters that have not moved between ``start`` and the last reading, and should have."""
        seconds, measured = self._read_at - self._started, self.counters.measured
        return [name for name, used in self._used.items() if stood_still(measured, used, seconds)]

    def read(self) -> None:
        """Read the counters again."""
        before, self._read_at = self._read_at, self._clock()
        self._longest_gap_s = max(self._longest_gap_s, self._read_at - before)
        self._readings += 1
        if self.counters.usage:
            self.usages.append(self.counters.usage())
        for name, read in self.counters.reads.items():
            early, now, late = self._last[name], self._clock(), reading(read)
            if isinstance(early, str):
                continue
            if isinstance(late, str):
                self._failed[name] = late
                continue
            self._failed.pop(name, None)
            self._used[name] += self._between(name, early, late, now)
            self._last[name], self._at[name] = late, now

    def _between(self, name: str, early: float, late: float, now: float) -> float:
        wrap, gap = self.counters.wraps.get(name), now - self._at[name]
        if wrap is None:
            if late < early:
                self._lost[name] = (
                    f"{name} was reset: it went from {si_text(early, 'J', 4)} to {si_text(late, 'J', 4)}"
                )
            return late - early
        used, most = (late - early) % wrap, gap * MOST_W + AT_ONCE_J
        if most > wrap:
            self._lost[name] = f"{name} may have wrapped unnoticed: it was not read for {duration_text(gap)}"
        elif used > most:
            self._lost[name] = f"{name} counted {si_text(used, 'J', 4)} in {duration_text(gap)}: it was reset"
        return used

    def spent(self, host: str) -> Spent:
        """Read the counters for the last time."""
        self.read()
        seconds = self._read_at - self._started
        lost = {name: f"{name} did not advance for {duration_text(seconds)}" for name in self.still}
        lost |= {name: _unread(name, why) for name, why in self._failed.items()} | self._lost
        used = [joules for name, joules in self._used.items() if name not in lost]
        problems = [*self.counters.problems, *(lost[name] for name in self._used if name in lost)]
        kind, source = self.counters.measured, self.counters.source
        caps = (reading(cap) for cap in self.counters.caps)
        limits = tuple(cap for cap in caps if isinstance(cap, float))
        return Spent(kind, source, sum(used), len(used), 1 if used else 0, problems, host, self._readings,
                     self._longest_gap_s, limits, mean_usage(self.usages))  # fmt: skip
