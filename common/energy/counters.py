"""Energy counters: what they count, and how much energy was used between readings.

Accelerators, processors and whole nodes have separate counters. A node's energy includes that of its processors
and accelerators, so figures of different kinds are never added. A counter belongs to a device or a node, not to a
process: it includes everything else that ran there.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from mlhpc.quantities import count, duration_text, joules_text

Measured = Literal["accelerators", "processors", "node"]
NAMES = {"accelerators": "accelerators", "processors": "processors", "node": "whole nodes"}
"""Kinds of counters, in display order."""
Read = Callable[[], float]
"""Joules since an arbitrary time in the past."""
Reading = float | str
"""Joules, or the reason why the counter could not be read."""
Usage = Mapping[str, float]
"""How devices are used, as means over the devices. ``busy`` and ``memory_busy``: shares of the time in which a
kernel ran and in which memory was accessed; ``memory_bytes``: bytes in use; ``pcie_bytes_per_s`` and
``nvlink_bytes_per_s``: transfer rates, both directions together."""

MOST_W = 1000.0
"""Highest plausible power, in watts, of a device whose counter wraps: a processor of 2025 draws 500 W (AMD EPYC
9965)."""
AT_ONCE_J = 100.0
"""Joules by which a counter may jump, because it is only updated periodically."""
STILL_S = 10.0
"""Seconds without a change after which a processor's or node's counter is considered broken: they change every
second, even when idle."""


@dataclass(frozen=True)
class Counters:
    """The counters of one kind on one node.

    ``source``: the name of the interface that reports them. ``reads``: functions that read the counters, by name.
    ``problems``: one line for each reason why there are no counters or why one is left out; also empty if the node
    has no devices of this kind. ``wraps``: joules at which a counter restarts from zero; counters without an entry
    never do. ``devices``: identities of the accelerators that this process can see, with or without a counter.
    ``caps``: functions that read the power limits, in watts. ``usage``: reads how the devices are used, as far as
    the driver reports it.
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
    """The energy counted in a run. ``joules``: sum over the counters that could be read; there are ``counters`` of
    them, on ``nodes`` nodes. ``problems``: which counters are left out of the sum, and why. ``host``: name of the
    node with these problems, empty if the problems name it. ``readings``: how often a counter was read;
    ``longest_gap_s``: longest time between two readings; ``caps_w``: power limits at the end of the run;
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


def shared_kind(figures: Iterable[Mapping[str, float]]) -> str:
    """The most comprehensive kind of counter that all non-empty ``figures`` have in common, so that they can be
    compared; "" if there is none."""
    measured = [by_kind for by_kind in figures if by_kind]
    kinds = ("node", "accelerators", "processors")
    return next((kind for kind in kinds if measured and all(kind in each for each in measured)), "")


def stood_still(measured: str, joules: float, seconds: float) -> bool:
    """Return whether ``joules`` counted in ``seconds`` reveal a broken counter, as in virtual machines."""
    return measured != "accelerators" and seconds >= STILL_S and joules == 0


def reading(read: Read) -> Reading:
    """What ``read`` returns, or why it failed: a counter that cannot be read must not end a run."""
    try:
        return read()
    except Exception as error:  # each vendor's library raises classes of its own
        return said(error)


def said(error: Exception) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def answering(measured: Measured, source: str, reads: Mapping[str, Read], without: str) -> Counters:
    """Counters for those ``reads`` that succeed; older devices have no counter. ``without``: the problem to report
    if none succeeds."""
    tried = {name: reading(read) for name, read in reads.items()}
    readable = {name: read for name, read in reads.items() if not isinstance(tried[name], str)}
    silent = {name: why for name, why in tried.items() if isinstance(why, str)}
    problems = tuple(f"{name} has no counter ({why})" for name, why in silent.items())
    if not readable:
        reason = next((f" ({why})" for why in silent.values()), "")
        problems = (without + reason,)
    return Counters(measured, source, readable, problems)


def named_once(problems_by_host: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """The problems of the hosts, each listed once with the hosts that have it, since a thousand nodes may have the
    same problem. The host is "" if the problem's text already names one."""
    hosts: dict[str, list[str]] = {}
    for host, problems in problems_by_host:
        for problem in problems:
            hosts.setdefault(problem, []).append(host)
    others = {p: f" and {count(len(at) - 1, 'other node')}" if len(at) > 1 else "" for p, at in hosts.items()}
    return [f"{problem} on {at[0]}{others[problem]}" if at[0] else problem for problem, at in hosts.items()]


def _unread(name: str, why: str) -> str:
    return f"{name} could not be read during the run ({why})"


class Sum:
    """What ``counters`` have counted since ``start``; they must be read so often that no counter wraps twice
    between readings."""

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        self.counters, self._clock = counters, clock
        self._last: dict[str, tuple[Reading, float]] = {}  # each counter's last reading, and when it was read
        self._used: dict[str, float] = {}
        self._lost: dict[str, str] = {}  # counters whose sum is unknown, and why
        self._failed: dict[str, str] = {}  # counters whose last reading failed, and why
        self._started = self._read_at = self._longest_gap_s = 0.0
        self._readings = 1
        self.usages: list[Usage] = []
        """How the devices were used, at each reading."""

    def start(self) -> None:
        """Read the counters for the first time."""
        if self.counters.usage:
            self.counters.usage()  # the first of the two readings that a rate needs
        self._started = self._read_at = self._clock()
        for name, read in self.counters.reads.items():
            first = reading(read)
            self._last[name], self._used[name] = (first, self._clock()), 0.0
            if isinstance(first, str):
                self._lost[name] = _unread(name, first)

    @property
    def joules(self) -> float | None:
        """Joules from ``start`` to the last reading; None without counters, or if one could not be read."""
        return None if self._lost or self._failed or not self._used else sum(self._used.values())

    @property
    def still(self) -> list[str]:
        """The counters that should have changed between ``start`` and the last reading, but did not."""
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
            (early, then), now, late = self._last[name], self._clock(), reading(read)
            if isinstance(early, str):
                continue
            if isinstance(late, str):
                self._failed[name] = late
                continue
            self._failed.pop(name, None)
            self._used[name] += self._between(name, early, late, now - then)
            self._last[name] = late, now

    def _between(self, name: str, early: float, late: float, gap: float) -> float:
        wrap = self.counters.wraps.get(name)
        if wrap is None:
            if late < early:
                went = f"it went from {joules_text(early)} to {joules_text(late)}"
                self._lost[name] = f"{name} was reset: {went}"
            return late - early
        used, most = (late - early) % wrap, gap * MOST_W + AT_ONCE_J
        if most > wrap:
            self._lost[name] = f"{name} may have wrapped unnoticed: it was not read for {duration_text(gap)}"
        elif used > most:
            self._lost[name] = f"{name} counted {joules_text(used)} in {duration_text(gap)}: it was reset"
        return used

    def spent(self, host: str) -> Spent:
        """Read the counters for the last time, and return what they counted."""
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
