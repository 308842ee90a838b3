"""Simulates a workload on many ranks: a discrete-event simulation of its readers and its storage.

Every rank has its reader threads, its queue of ready samples, its steps and the barrier, as in an emulated run.
The ranks share servers with FIFO queues: metadata servers (for opening a file, or looking up a sample in a shared
file), storage targets (for reading), and the cores of a node (for decoding). Read ``simulate`` first.

A file is on one target, and its metadata on one server. A file shared by all ranks is distributed over all
targets by sample, but has one metadata server: this limits the scaling of a single shared file compared with
many files (Devarajan et al. 2021, Figs. 14 and 15).
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from mlhpc.iobench.definition.schema import Workload


@dataclass(frozen=True)
class Service:
    """Durations of a rank's requests in seconds. ``open_s``: opening a file, or a lookup. ``latency_s``: the part
    of a sample's reads that is independent of other readers; ``device_s``: the part that uses the target
    exclusively. ``decode_s``: CPU time per sample."""

    open_s: float
    latency_s: float
    device_s: float
    decode_s: float


@dataclass(frozen=True)
class System:
    """The simulated system. ``targets``: number of storage targets, each as fast as the measured one.
    ``metadata``: number of metadata servers. ``cores``: cores of a node with ``ranks_per_node`` ranks."""

    targets: int = 1
    metadata: int = 1
    cores: int = 1
    ranks_per_node: int = 1


@dataclass(frozen=True)
class Simulated:
    """A simulated run. ``au_percent``: utilisation over the steps that the workload's metric counts, None without
    such steps or compute time. ``busy``: the share of time in which the busiest of the metadata servers, of the
    targets and of the nodes' cores was busy."""

    ranks: int
    seconds: float
    samples_per_s: float
    au_percent: float | None
    busy: dict[str, float]

    @property
    def binding(self) -> str:
        """The busiest resource if it is almost always busy, otherwise the rank itself."""
        name = max(self.busy, key=lambda each: self.busy[each])
        return name if self.busy[name] > 0.9 else "each rank by itself"


class _Queue:
    """Several servers with a common queue."""

    def __init__(self, servers: int) -> None:
        self._free = [0.0] * servers
        self.worked = 0.0

    def serve(self, at: float, seconds: float) -> float:
        """Completion time of a request that arrives ``at`` and takes ``seconds``. Must be called in order of
        arrival."""
        begin = max(at, heappop(self._free))
        self.worked += seconds
        heappush(self._free, begin + seconds)
        return begin + seconds

    def busy(self, seconds: float) -> float:
        return self.worked / (seconds * len(self._free)) if seconds else 0.0


class _Rank:
    """The state of a rank's threads and loop: claimed samples, number of ready samples, next step."""

    def __init__(self, samples: int) -> None:
        self.samples, self.taken = samples, 0
        self.claimed = self.ready = self.steps = 0
        self.idle = 0  # threads that wait for space in the queue
        self.waiting = True  # whether the loop waits for a batch
        self.began = self.ended = 0.0  # of the steps that the utilisation counts


def simulate(workload: Workload, service: Service, system: System, ranks: int, steps: int) -> Simulated:
    """Simulate ``steps`` steps on each of ``ranks`` ranks, with the mean computing time per step."""
    return _Simulation(workload, service, system, ranks, steps).run()


class _Simulation:
    def __init__(self, workload: Workload, service: Service, system: System, ranks: int, steps: int) -> None:
        assert workload.dataset
        self._dataset, self._reader, self._service = workload.dataset, workload.reader, service
        self._system, self._steps = system, steps
        self._compute = workload.train.computation.expected
        self._step = self._compute + self._reader.step_s(self._dataset, self._reader.batch_size)
        metric = workload.metric
        self._counted = metric.exclude_start_steps, steps - metric.exclude_end_steps
        self._barrier = workload.train.barrier
        self._ranks = [_Rank(steps * self._reader.batch_size) for _ in range(ranks)]
        nodes = -(-ranks // system.ranks_per_node)
        self._targets = [_Queue(1) for _ in range(system.targets)]
        self._metadata = [_Queue(1) for _ in range(system.metadata)]
        self._cores = [_Queue(system.cores) for _ in range(nodes)]
        self._shared = self._dataset.files == 1
        # A reader without threads reads when the loop asks, like one thread that never reads ahead.
        self._room = self._reader.batch_size * (self._reader.prefetch if self._reader.threads else 1)
        self._events: list[tuple[float, int, _Stage, int, int]] = []
        self._count = self._arrived = 0

    def run(self) -> Simulated:
        # More threads than samples in the queue have nothing to do.
        threads = min(max(1, self._reader.threads), self._room, self._ranks[0].samples)
        for rank in range(len(self._ranks)):
            for _ in range(threads):
                self._claim(0.0, rank)
        now = 0.0
        while self._events:
            now, _, stage, rank, sample = heappop(self._events)
            stage(now, rank, sample)
        first, last = self._counted
        computed = max(0, last - first) * len(self._ranks) * self._compute
        running = sum(rank.ended - rank.began for rank in self._ranks)
        rate = len(self._ranks) * self._steps * self._reader.batch_size / now if now else 0.0
        busy = {
            "metadata": max(queue.busy(now) for queue in self._metadata),
            "storage": max(queue.busy(now) for queue in self._targets),
            "cores": max(queue.busy(now) for queue in self._cores),
        }
        utilisation = 100 * computed / running if computed else None
        return Simulated(len(self._ranks), now, rate, utilisation, busy)

    def _at(self, time: float, stage: "_Stage", rank: int, sample: int = 0) -> None:
        self._count += 1  # events at equal times run in order of creation
        heappush(self._events, (time, self._count, stage, rank, sample))

    def _claim(self, now: float, number: int) -> None:
        """Let a thread claim a sample, if one is left and the queue has space."""
        rank = self._ranks[number]
        if rank.taken == rank.samples:
            return
        # Without threads, the loop itself reads while it waits.
        if rank.claimed >= self._room or (self._reader.threads == 0 and not rank.waiting):
            rank.idle += 1
            return
        sample, rank.taken = rank.taken, rank.taken + 1
        rank.claimed += 1
        self._at(now, self._open if self._needs_metadata(sample) else self._read, number, sample)

    def _wake(self, now: float, number: int) -> None:
        """Let the idle threads of a rank try again."""
        rank = self._ranks[number]
        idle, rank.idle = rank.idle, 0
        for _ in range(idle):
            self._claim(now, number)

    def _needs_metadata(self, sample: int) -> bool:
        """Return whether a metadata server is accessed before this sample of a rank: before the first sample of
        each file, and before every sample if the workload looks samples up."""
        if self._reader.metadata_bytes or (self._dataset.format == "hdf5" and self._dataset.chunk_bytes):
            return True
        return sample % self._dataset.samples_per_file == 0 if not self._shared else sample == 0

    def _file(self, rank: int, sample: int) -> int:
        files = -(-self._ranks[rank].samples // self._dataset.samples_per_file)
        return rank * files + sample // self._dataset.samples_per_file

    def _open(self, now: float, rank: int, sample: int) -> None:
        file = 0 if self._shared else self._file(rank, sample)
        queue = self._metadata[file % len(self._metadata)]
        self._at(queue.serve(now, self._service.open_s), self._read, rank, sample)

    def _read(self, now: float, rank: int, sample: int) -> None:
        place = rank * self._ranks[rank].samples + sample if self._shared else self._file(rank, sample)
        queue = self._targets[place % len(self._targets)]
        completed = queue.serve(now, self._service.device_s) + self._service.latency_s
        self._at(completed, self._decode, rank, sample)

    def _decode(self, now: float, rank: int, sample: int) -> None:
        cores = self._cores[rank // self._system.ranks_per_node]
        self._at(cores.serve(now, self._service.decode_s), self._finish, rank, sample)

    def _finish(self, now: float, number: int, sample: int) -> None:
        self._ranks[number].ready += 1
        if self._ranks[number].waiting:
            self._begin(now, number)
        self._claim(now, number)

    def _begin(self, now: float, number: int) -> None:
        """Let the training loop take a batch and compute, or wait until there is a batch."""
        rank, batch = self._ranks[number], self._reader.batch_size
        rank.waiting = rank.ready < batch
        if rank.waiting:
            return
        rank.ready -= batch
        rank.claimed -= batch
        self._at(now + self._step, self._computed, number)
        self._wake(now, number)

    def _computed(self, now: float, number: int, sample: int) -> None:
        self._ranks[number].steps += 1
        if not self._barrier:
            return self._next(now, number)
        self._arrived += 1
        if self._arrived == len(self._ranks):
            self._arrived = 0
            for each in range(len(self._ranks)):
                self._next(now, each)

    def _next(self, now: float, number: int) -> None:
        rank, (first, last) = self._ranks[number], self._counted
        rank.began = now if rank.steps == first else rank.began
        rank.ended = now if rank.steps == last else rank.ended
        if rank.steps < self._steps:
            rank.waiting = True
            self._begin(now, number)
            if rank.waiting:
                self._wake(now, number)


_Stage = Callable[[float, int, int], None]
"""A function that handles an event: called with time, rank and sample."""
