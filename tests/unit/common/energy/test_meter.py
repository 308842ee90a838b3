"""The energy of a run by what was measured: from counters in trees of sysfs and in Slurm to the run's record."""

import json
import sys
import threading
import time

import pytest
from helpers.energy_trees import CRAY_EX, SERVER, booted, count, pm_counters, powercap
from helpers.scontrol import Scontrol
from helpers.thread_world import on_ranks

from mlhpc.common.energy.counters import Counters
from mlhpc.common.energy.meter import Meter, counters_of_node, meter_of
from mlhpc.common.host import accelerators
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)


def events_of(folder, rank=0):
    return [json.loads(line) for line in (folder / f"events.rank{rank}.jsonl").read_text().splitlines()]


def note_of(folder):
    notes = [event for event in events_of(folder) if (event["event"], event["name"]) == ("note", "energy")]
    return {k: v for k, v in notes[0].items() if k not in ("t", "event", "name")} if notes else None


def recorded(folder, *counters, during=lambda: None):
    """The figures of a run with ``counters``, in which ``during`` happens; None where there are none."""
    with RunLog(folder, Solo(), Meter(Solo(), counters)) as log:
        with log.span("init"):
            pass
        with log.span("run", sync=True):
            during()
            log.metric("eval_error", 0.1, epoch=1)
        log.finish("success")
    assert events_of(folder)[-1]["name"] == "finish"
    return note_of(folder)


def test_each_kind_that_a_node_has_is_a_figure_of_its_own(tmp_path):
    root = pm_counters(powercap(tmp_path / "sys", SERVER), CRAY_EX)

    def during():
        for number, zone in enumerate(SERVER):
            count(root, zone, 1_000_000 * (2 + number))  # 1 + 2 + 3 + 4 J
        pm_counters(root, CRAY_EX | {"energy": 9025})

    (root / "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw").write_text("280000000\n")
    (root / "sys/cray/pm_counters/power_cap").write_text("2000 W 1700000000000000 us\n")
    note = recorded(tmp_path, *counters_of_node(None, root), during=during)
    assert [0 < figure.pop("longest_gap_s") < 60 for figure in note.values()] == [True, True]
    assert note == {
        "processors": {"joules": 10.0, "source": "RAPL, packages and memory", "counters": 4, "nodes": 1,
                       "problems": [], "readings": 2, "caps_w": [280.0]},
        "node": {"joules": 25.0, "source": "Cray pm_counters", "counters": 1, "nodes": 1, "problems": [],
                 "readings": 2, "caps_w": [2000.0]},
    }  # fmt: skip


def test_what_was_counted_so_far_is_recorded_from_the_start_to_the_stop(tmp_path):
    root = powercap(tmp_path / "sys", SERVER)
    recorded(tmp_path, *counters_of_node(None, root), during=lambda: count(root, "intel-rapl:0", 8_000_000))
    read = [event for event in events_of(tmp_path) if event["event"] == "energy"]
    assert [(event["name"], event["joules"]) for event in read] == [("processors", 0.0), ("processors", 7.0)]


def test_counters_are_read_while_a_run_runs():
    """From a thread, until they are stopped: a counter of RAPL wraps within minutes."""
    readings, told, enough = [], [], threading.Event()

    def read():
        readings.append(3.0 * len(readings))
        if len(readings) > 20:
            enough.set()
        return readings[-1]

    measuring = Meter(Solo(), [Counters("processors", "RAPL", {"package-0": read})], every_s=0.005)
    measuring.start(lambda measured, joules, whole: told.append((measured, joules)))
    assert enough.wait(60)
    measuring.halt()
    number = len(readings)
    time.sleep(0.05)
    assert len(readings) == number
    assert told == [("processors", 3.0 * n) for n in range(number)]


def test_a_run_that_fails_leaves_no_thread(tmp_path):
    root = powercap(tmp_path / "sys", SERVER)
    with (
        pytest.raises(RuntimeError),
        RunLog(tmp_path, Solo(), Meter(Solo(), counters_of_node(None, root))) as log,
        log.span("run", sync=True),
    ):
        assert "energy" in [thread.name for thread in threading.enumerate()]
        raise RuntimeError("loss is NaN")
    assert "energy" not in [thread.name for thread in threading.enumerate()]
    assert note_of(tmp_path) is None


def test_a_run_without_counters_has_no_such_record(tmp_path, capsys):
    assert recorded(tmp_path, *counters_of_node(None, tmp_path)) is None
    assert capsys.readouterr().err == ""


def test_a_run_whose_accelerators_have_no_counters_says_why(tmp_path, capsys):
    missing = "NVML is not installed: pip install x"
    note = recorded(tmp_path, Counters("accelerators", "NVML", problems=(missing,)))
    assert note["accelerators"] == {
        "joules": None, "source": "NVML", "counters": 0, "nodes": 0, "problems": [missing],
        "readings": 0, "longest_gap_s": 0.0, "caps_w": [],
    }  # fmt: skip
    assert capsys.readouterr().err == f"no energy figure for the accelerators: {missing}\n"


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_counter_that_fails_during_a_run_is_named_and_ends_nothing(tmp_path, capsys, fails_at):
    """The others are still summed, and the record says that one is missing."""
    calls, steady = [], iter([5.0, 12.0])

    def read():
        calls.append(1)
        if len(calls) == fails_at:
            raise RuntimeError("GPU is lost")
        return 100.0 * len(calls)

    reads = {"GPU 0": lambda: next(steady), "GPU 1": read}
    note = recorded(tmp_path, Counters("accelerators", "NVML", reads))["accelerators"]
    problem = "GPU 1 could not be read during the run (RuntimeError: GPU is lost)"
    assert (note["joules"], note["counters"], note["problems"]) == (7.0, 1, [problem])
    said = f"the energy figure for the accelerators covers only 1 counter: {problem}\n"
    assert capsys.readouterr().err == said


def test_crays_counters_stand_in_for_those_that_cannot_be_read(tmp_path, monkeypatch):
    root = pm_counters(tmp_path, CRAY_EX)
    monkeypatch.setattr(accelerators, "installed", lambda: [accelerators.Accelerator("amd", "MI250X")])
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    by_kind = {counters.measured: counters for counters in counters_of_node("amd", root)}
    assert {kind: counters.source for kind, counters in by_kind.items()} == {
        "accelerators": "Cray pm_counters",
        "processors": "Cray pm_counters: cpu, memory",
        "node": "Cray pm_counters",
    }
    assert not any(counters.problems for counters in by_kind.values())
    powercap(root, SERVER)
    assert "RAPL, packages and memory" in [counters.source for counters in counters_of_node("amd", root)]


def run_on(folder, nodes, local_size, root_of, machine_of=str):
    """The figures of a run on ``nodes`` whose sysfs is ``root_of(node)``, on ``machine_of(node)``."""
    for node in range(nodes):
        booted(root_of(node), machine_of(node))

    def one(world):
        out = folder / "run"
        out.mkdir(exist_ok=True)
        with RunLog(out, world, meter_of(world, accelerators=False, root=root_of(world.node))) as log:
            with log.span("run", sync=True):
                if world.local_rank == 0 and (root_of(world.node) / "sys/class/powercap").exists():
                    count(root_of(world.node), "intel-rapl:0", 1_000_000 * (world.node + 2))
                world.barrier()
            log.finish("success")

    for result in on_ranks(nodes, local_size, one):
        assert result is None, result
    return note_of(folder / "run")


def test_one_rank_of_each_node_reads_and_nodes_are_added(tmp_path):
    roots = [powercap(tmp_path / f"n{node}", SERVER) for node in range(3)]
    figure = run_on(tmp_path, 3, 2, lambda node: roots[node])["processors"]
    assert (figure["joules"], figure["counters"], figure["nodes"]) == (1.0 + 2.0 + 3.0, 12, 3)
    readers = [
        rank for rank in range(6) if any(e["event"] == "energy" for e in events_of(tmp_path / "run", rank))
    ]
    assert readers == [0, 2, 4]


def test_a_figure_of_some_nodes_says_so(tmp_path, capsys):
    roots = [powercap(tmp_path / "n0", SERVER), tmp_path / "n1"]
    figure = run_on(tmp_path, 2, 1, lambda node: roots[node])["processors"]
    assert (figure["joules"], figure["nodes"], figure["problems"]) == (
        1.0,
        1,
        ["1 of 2 nodes have no counter"],
    )
    assert "the energy figure for the processors covers only 4 counters: 1 of 2" in capsys.readouterr().err


def test_slurm_counts_the_nodes_that_have_no_counter_of_their_own(tmp_path, monkeypatch):
    slurm = Scontrol(tmp_path)
    slurm.show({"n7": (100, time.time()), "n8": (100, time.time())})
    monkeypatch.setenv("PATH", str(slurm.bin), prepend=":")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    figure = run_on(tmp_path, 1, 2, lambda node: tmp_path)["node"]
    assert (figure["joules"], figure["source"]) == (None, "Slurm, ipmi")
    assert figure["problems"] == ["Slurm's energy samples are too infrequent for a run of 0 s on n7"]
    own = pm_counters(tmp_path / "again", {"energy": 7})
    assert run_on(tmp_path / "again", 1, 2, lambda node: own)["node"]["source"] == "Cray pm_counters"


@pytest.mark.parametrize("configured", ["acct_gather_energy/rapl", "acct_gather_energy/none"])
def test_slurms_counters_of_less_than_a_node_are_not_used(tmp_path, monkeypatch, configured):
    monkeypatch.setenv("PATH", str(Scontrol(tmp_path, plugin=configured).bin), prepend=":")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    assert run_on(tmp_path, 1, 1, lambda node: tmp_path) is None
