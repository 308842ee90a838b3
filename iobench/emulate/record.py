"""The measurements of a rank's emulation, before they are summarised."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlhpc.iobench.emulate.checkpoints import Transfer
from mlhpc.iobench.emulate.counters import DeviceIo
from mlhpc.iobench.emulate.pipeline import ThreadTimes
from mlhpc.iobench.emulate.steps import EpochTimes
from mlhpc.iobench.formats.counting import ReadEvent, Timeline

_OF_STATISTICS = ("opens", "open_s", "calls", "bytes", "follow_ups", "sequential", "consecutive")
_OF_THREADS = ("samples", "content_bytes", "decode_s", "preprocess_s", "blocked_s")


@dataclass
class Reading:
    """The reads and the work of all reader threads over some epochs. Seconds are summed over threads."""

    opens: int = 0
    open_s: float = 0.0
    calls: int = 0
    bytes: int = 0
    call_s: float = 0.0
    follow_ups: int = 0
    sequential: int = 0
    consecutive: int = 0
    samples: int = 0
    content_bytes: int = 0
    decode_s: float = 0.0
    preprocess_s: float = 0.0
    blocked_s: float = 0.0
    reading_s: float = 0.0  # time in which at least one thread was reading
    waited_s: float = 0.0  # the part of ``reading_s`` in which the loop waited
    sizes: dict[int, int] = field(default_factory=dict)

    def add(self, times: Sequence[ThreadTimes]) -> None:
        """Add one epoch's reads and per-thread work."""
        sizes = Counter(self.sizes)
        for thread in times:
            thread.statistics.settle()
            self.call_s += thread.statistics.seconds
            sizes += thread.statistics.sizes
            for source, names in ((thread.statistics, _OF_STATISTICS), (thread, _OF_THREADS)):
                for name in names:
                    setattr(self, name, getattr(self, name) + getattr(source, name))
        self.sizes = dict(sizes)


@dataclass
class Run:
    """The measurements of one emulation on one rank, with real or null storage."""

    epochs: list[EpochTimes] = field(default_factory=list)
    evaluations: list[EpochTimes] = field(default_factory=list)
    reading: Reading = field(default_factory=Reading)
    origin: float = 0.0  # when the ranks met before the first epoch or checkpoint, on this process's clock
    read_bytes: Timeline = field(default_factory=Timeline)  # over all threads
    cpu_s: float = 0.0
    load_s: float = 0.0
    device_bytes: int | None = None  # read by this process in all epochs
    node_device: DeviceIo | None = None  # over all epochs, on the first rank of a node
    resident: list[float] = field(default_factory=list)  # share of data in the page cache
    events: list[tuple[int, list[ReadEvent]]] = field(default_factory=list)  # by reader thread, if traced
    transfers: list[Transfer] = field(default_factory=list)
