"""Which counters make up the energy of a run: of machines, of accelerators seen by ranks, of nodes in Slurm; and
how a run starts and ends with them."""

import json
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from helpers.energy_trees import SERVER, booted, powercap
from helpers.scontrol import Scontrol
from helpers.thread_world import on_ranks

from mlhpc.common.energy.counters import Counters
from mlhpc.common.energy.meter import Meter, counters_of_node, meter_of
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog
from mlhpc.errors import Terminated


def test_several_nodes_of_a_launcher_on_one_machine_count_once(tmp_path, monkeypatch):
    """Two torchrun agents on a host, or two containers of one: nodes 0 and 1 share the counters of machine 0."""
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    roots = [booted(powercap(tmp_path / f"m{n}", SERVER), f"boot {n}") for n in range(2)]

    def one(world):
        told = []
        measuring = meter_of(world, False, roots[world.node // 2])
        measuring.start(lambda measured, joules, whole: told.append(measured))
        return json.dumps([measuring.stop(), bool(told)])

    results = [json.loads(result) for result in on_ranks(3, 2, one)]
    figures, warnings = results[0][0]
    assert (figures["processors"]["counters"], figures["processors"]["nodes"], warnings) == (8, 2, [])
    assert [rank for rank, (_, told) in enumerate(results) if told] == [0, 4]


def seen_by_ranks(monkeypatch, tmp_path, devices):
    """The figures and warnings of a run on one machine whose rank r sees ``devices[r]``."""
    own = threading.local()
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    monkeypatch.setattr("mlhpc.common.energy.meter.vendor_here", lambda: "nvidia")
    monkeypatch.setattr(
        "mlhpc.common.energy.meter.accelerator_counters",
        lambda vendor, root: Counters(
            "accelerators", "NVML", {name: lambda: 5.0 for name in own.sees}, devices=tuple(own.sees)
        ),
    )

    def one(world):
        own.sees = devices[world.rank]
        measuring = meter_of(world, accelerators=True, root=tmp_path)
        measuring.start(lambda measured, joules, whole: None)
        return measuring.stop()

    return on_ranks(1, len(devices), one)[0]


def test_the_first_rank_of_each_node_lists_its_accelerators_for_the_others(monkeypatch, tmp_path):
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    roots = [booted(tmp_path / f"m{node}", f"boot {node}") for node in range(2)]
    listed = []

    def tools():
        listed.append(threading.get_ident())
        return "nvidia"

    monkeypatch.setattr("mlhpc.common.energy.meter.vendor_here", tools)
    monkeypatch.setattr("mlhpc.common.energy.accelerators.vendor_here", tools)
    nvml = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 4, nvmlDeviceGetHandleByIndex=lambda n: n,
        nvmlDeviceGetTotalEnergyConsumption=lambda n: 5000, nvmlDeviceGetUUID=lambda n: f"GPU-{n}",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    def one(world):
        measuring = meter_of(world, accelerators=True, root=roots[world.node])
        measuring.start(lambda measured, joules, whole: None)
        return [measuring.stop(), threading.get_ident()]

    results = on_ranks(2, 4, one)
    figures, warnings = results[0][0]
    assert (figures["accelerators"]["counters"], figures["accelerators"]["nodes"], warnings) == (8, 2, [])
    assert sorted(listed) == sorted(results[rank][1] for rank in (0, 4))


def test_where_the_first_rank_finds_no_accelerator_nobody_looks_again(monkeypatch, tmp_path):
    """A vendor's tool that hangs takes 30 s each."""
    listed = []
    monkeypatch.setattr("mlhpc.common.energy.meter.vendor_here", lambda: listed.append(1))
    monkeypatch.setattr("mlhpc.common.energy.accelerators.vendor_here", lambda: listed.append(2))
    root = booted(tmp_path / "m", "boot")
    on_ranks(1, 4, lambda world: meter_of(world, accelerators=True, root=root))
    assert listed == [1]


def test_accelerators_that_the_reading_rank_cannot_see_are_said_to_be_missing(monkeypatch, tmp_path):
    """srun --gpus-per-task: each rank has a cgroup with its own GPU."""
    one_each = [[f"GPU-{rank}"] for rank in range(4)]
    energy, [warning] = seen_by_ranks(monkeypatch, tmp_path, one_each)
    assert energy["accelerators"]["counters"] == 1
    assert energy["accelerators"]["problems"][0].startswith("1 of 4 devices counted: ")
    assert "covers only 1 counter: 1 of 4 devices counted" in warning


def test_accelerators_that_only_other_ranks_see_are_missed_too(monkeypatch, tmp_path):
    energy, [warning] = seen_by_ranks(monkeypatch, tmp_path, [[], ["a"], ["b"], ["a", "b"]])
    assert energy["accelerators"]["joules"] is None
    assert warning.startswith("no energy figure for the accelerators: 0 of 2 devices counted")


def test_accelerators_that_all_ranks_see_are_complete(monkeypatch, tmp_path):
    energy, warnings = seen_by_ranks(monkeypatch, tmp_path, [["a", "b", "c", "d"]] * 4)
    assert (energy["accelerators"]["counters"], energy["accelerators"]["problems"], warnings) == (4, [], [])


class Asked:
    """Slurm, which takes a while to answer."""

    def __init__(self, order):
        self.order = order

    def start(self):
        time.sleep(0.3)
        self.order.append("Slurm")


def test_no_node_reads_its_counters_before_slurm_has_answered():
    order = []

    def read():
        order.append("counter")
        return 1.0

    def one(world):
        slurm = Asked(order) if world.rank == 0 else None
        measuring = Meter(world, [Counters("processors", "RAPL", {"package-0": read})], slurm)
        measuring.start(lambda measured, joules, whole: None)
        measuring.halt()

    assert on_ranks(2, 1, one) == [None, None]
    assert order == ["Slurm", "counter", "counter"]


class PerThread(dict):
    """An environment in which each thread has its own variables."""

    own = threading.local()

    def get(self, name, default=None):
        return getattr(self.own, "variables", {}).get(name, default)


def test_the_nodes_of_all_ranks_are_asked_for_at_once(tmp_path, monkeypatch):
    """From each node's own SLURMD_NODENAME to one figure: 300 J and 500 J."""
    slurm = Scontrol(tmp_path)
    monkeypatch.setenv("PATH", str(slurm.bin), prepend=":")
    now = time.time()
    slurm.show({"n7": (100, now), "n8": (200, now)})
    monkeypatch.setattr("mlhpc.common.energy.meter.os", SimpleNamespace(environ=PerThread()))
    monkeypatch.setattr("mlhpc.common.energy.slurm.MOST_OUTSIDE", 1e9)  # the run is short

    def one(world):
        PerThread.own.variables = {"SLURMD_NODENAME": f"n{7 + world.node}"}
        measuring = meter_of(world, False, booted(tmp_path / f"m{world.rank}", f"boot {world.node}"))
        measuring.start(lambda measured, joules, whole: None)
        world.barrier()
        if world.rank == 0:
            slurm.show({"n7": (400, now), "n8": (700, now)})
        world.barrier()
        return measuring.stop()

    figures, warnings = on_ranks(2, 2, one)[0]
    assert figures["node"].pop("longest_gap_s") < 60
    assert figures["node"] == {
        "joules": 800.0, "source": "Slurm, ipmi", "counters": 2, "nodes": 2, "problems": [], "readings": 2,
        "caps_w": [],
    }  # fmt: skip
    assert warnings == []


def test_a_driver_that_blocks_does_not_hold_up_the_end_of_a_run():
    answers, asked, calls = threading.Event(), threading.Event(), []

    def read():
        calls.append(1)
        if len(calls) > 1:
            asked.set()
            answers.wait(60)
        return 1.0

    reads = Counters("accelerators", "NVML", {"GPU 0": read})
    measuring = Meter(Solo(), [reads], every_s=0.001, halt_s=0.05)
    measuring.start(lambda measured, joules, whole: None)
    assert asked.wait(60)
    energy, [warning] = measuring.stop()
    assert len(calls) == 2, "the reading in progress has not ended, and none was begun beside it"
    answers.set()
    assert energy["accelerators"]["joules"] is None
    assert warning == "no energy figure for the accelerators: a counter did not answer within 50 ms"


def test_a_run_that_ends_before_its_clock_starts_leaves_no_thread(tmp_path):
    """SIGTERM comes while the ranks wait for each other to start."""

    class Waiting(Solo):
        def barrier(self):
            if "energy" in [thread.name for thread in threading.enumerate()]:
                raise Terminated("SIGTERM", 143)

    world = Waiting()
    counters = counters_of_node(None, powercap(tmp_path / "sys", SERVER))
    with (
        pytest.raises(Terminated),
        RunLog(tmp_path, world, Meter(world, counters)) as log,
        log.span("run", sync=True),
    ):
        pass
    assert "energy" not in [thread.name for thread in threading.enumerate()]
