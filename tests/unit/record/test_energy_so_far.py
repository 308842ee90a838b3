"""Energy while a run is running: sums of readings that were written by hand, on two nodes."""

import io
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from mlhpc.benchmarks import load
from mlhpc.common.energy.counters import STILL_S, Counters, Sum
from mlhpc.common.energy.meter import Meter
from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog
from mlhpc.observe.watch import watch
from mlhpc.record.progress import Follower


@dataclass
class Run:
    """A run of ranks 0 to 3 on two nodes, on which it is ``t`` s since the logs were opened, and whose clock has
    started at 5 s."""

    folder: Path
    t: float = 5.0
    ended: bool = False
    offsets: dict[int, float] = field(default_factory=lambda: {0: 0.0, 2: 0.7})

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "run.log").touch()
        (self.folder / "config.toml").write_text(load.dumps(load.load("cosmoflow", "smoke")))
        self.add(0, event="note", name="facts", ranks=4, nodes=2)
        for rank in range(4):
            self.add(rank, event="begin", name="run")

    def add(self, rank: int, **event: object) -> None:
        with (self.folder / f"events.rank{rank}.jsonl").open("a") as file:
            file.write(json.dumps({"t": self.t + self.offsets.get(rank, 0.0), **event}) + "\n")

    def read(self, rank: int, kind: str, joules: object, **mark: object) -> None:
        self.add(rank, event="energy", name=kind, joules=joules, nodes=2, **mark)

    def used(self, follower: Follower | None = None) -> dict[str, dict[str, object]]:
        now = (follower or Follower(self.folder)).look()
        return {kind: asdict(used) for kind, used in now.energy.items()}

    def panel(self, width: int = 80) -> str:
        text = io.StringIO()
        watch(self.folder, 1, Console(file=text, width=width), once=True)
        return text.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    for rank in (0, 2):
        made.read(rank, "accelerators", 0.0)
    return made


def test_a_run_without_counters_shows_no_energy(tmp_path: Path) -> None:
    made = Run(tmp_path / "run")
    assert made.used() == {} and "energy" not in made.panel()


def test_kinds_are_summed_over_nodes_and_never_with_each_other(run: Run) -> None:
    run.read(0, "node", 0.0)
    follower = Follower(run.folder)
    assert run.used(follower)["accelerators"]["watts"] is None, "of one reading there is no power"
    for t, first, second, node in ((15.0, 4000.0, 2000.0, 9000.0), (25.0, 9000.0, 3000.0, 19000.0)):
        run.t = t
        run.read(0, "accelerators", first)
        run.read(2, "accelerators", second)
        run.read(0, "node", node)
    expected = {
        "accelerators": {
            "joules": 12e3,
            "watts": pytest.approx(500.0 + 100.0),
            "nodes": 2,
            "of_nodes": 2,
            "at_least": False,
        },
        "node": {
            "joules": 19e3,
            "watts": pytest.approx(1000.0),
            "nodes": 1,
            "of_nodes": 2,
            "at_least": True,
        },
    }
    assert run.used(follower) == run.used() == expected
    panel = run.panel()
    assert "energy of accelerators: 12 kJ, now 600 W (2 nodes)\n" in panel
    assert "energy of whole nodes: at least 19 kJ, now 1 kW (1 of 2 nodes)\n" in panel


def test_a_node_whose_readings_stop_leaves_a_lower_bound_and_no_power(run: Run) -> None:
    for run.t in (15.0, 25.0):
        run.read(0, "accelerators", 100.0 * run.t)
        run.read(2, "accelerators", 100.0 * run.t)
    run.t = 45.0
    run.read(0, "accelerators", 4500.0)
    assert run.used()["accelerators"]["watts"], "a shared file system may show a node's events a little late"
    run.t = 60.0
    run.read(0, "accelerators", 6000.0)
    [used] = run.used().values()
    assert used == {"joules": 8500.0, "watts": None, "nodes": 2, "of_nodes": 2, "at_least": True}
    assert "energy of accelerators: at least 8.5 kJ (2 nodes)\n" in run.panel()


def test_a_node_with_counters_missing_makes_it_a_lower_bound(run: Run) -> None:
    run.t = 15.0
    run.read(0, "accelerators", 1000.0)
    run.read(2, "accelerators", 1000.0, incomplete=True)
    [used] = run.used().values()
    assert (used["at_least"], used["watts"]) == (True, pytest.approx(200.0))


def test_a_node_without_counters_makes_it_a_lower_bound_from_the_start_to_the_end(tmp_path: Path) -> None:
    made = Run(tmp_path / "run")
    for made.t, joules in ((5.0, 0.0), (15.0, 6000.0), (25.0, 12000.0)):
        made.read(0, "accelerators", joules)
    assert "energy of accelerators: at least 12 kJ, now 600 W (1 of 2 nodes)\n" in made.panel()
    [during] = made.used().values()
    figure = {
        "joules": 12e3,
        "source": "NVML",
        "counters": 4,
        "nodes": 1,
        "problems": ["1 of 2 nodes have no counter"],
    }
    made.add(0, event="end", name="run", seconds=20.0)
    made.add(0, event="note", name="energy", accelerators=figure)
    [after] = made.used().values()
    assert after == {**during, "watts": None} and after["at_least"]
    assert "energy of accelerators: at least 12 kJ (1 of 2 nodes)\n" in made.panel()


@pytest.mark.parametrize(("kind", "shown"), [("processors", False), ("node", False), ("accelerators", True)])
def test_counters_that_stand_still_have_no_figure(tmp_path: Path, kind: str, shown: bool) -> None:
    """As in the result: a processor or node draws power, idle too, while a GPU's driver may count in steps."""
    made = Run(tmp_path / "run")
    for made.t in (5.0, 16.0, 27.0):
        made.read(0, kind, 0.0)
        made.read(2, kind, 0.0)
    assert (f"energy of {kind}: 0 J, now 0 W (2 nodes)" in made.panel()) == bool(made.used()) == shown
    made.t = 38.0
    made.read(0, kind, 330.0)
    made.read(2, kind, 0.0)
    used = made.used()[kind]
    assert (used["joules"], used["nodes"], used["at_least"]) == (330.0, 2 if shown else 1, not shown)


def test_a_processor_that_stands_still_beside_another_is_recorded_as_missing(tmp_path: Path) -> None:
    """As in the note at the end, which leaves its counter out."""
    now, moving = [0.0], iter([0.0, 500.0, 900.0])
    reads = {"package 0": lambda: next(moving), "package 1": lambda: 7.0}
    meter = Meter(Solo(), [], every_s=3600.0)
    meter._sums = [Sum(Counters("processors", "RAPL", reads), clock=lambda: now[0])]
    told: list[tuple[float, bool]] = []
    meter.start(lambda measured, joules, whole: told.append((joules, whole)))
    now[0] = STILL_S + 1
    figures, _ = meter.stop()
    assert told == [(0.0, True), (500.0, False)]
    assert (
        figures["processors"]["counters"] == 1
        and "package 1 did not advance" in figures["processors"]["problems"][0]
    )


def test_at_the_end_the_figures_are_those_of_the_result(run: Run) -> None:
    figure = {"joules": 1234.5, "source": "NVML", "counters": 8, "nodes": 2, "problems": []}
    partial = {"joules": 70.0, "source": "RAPL", "counters": 1, "nodes": 1, "problems": ["x"]}
    none = {"joules": None, "source": "Slurm", "counters": 0, "nodes": 0, "problems": ["y"]}
    run.add(0, event="end", name="run", seconds=12.0)
    run.add(0, event="note", name="energy", accelerators=figure, processors=partial, node=none)
    run.add(0, event="note", name="finish", status="success")
    assert run.used() == {
        "accelerators": {"joules": 1234.5, "watts": None, "nodes": 2, "of_nodes": 2, "at_least": False},
        "processors": {"joules": 70.0, "watts": None, "nodes": 1, "of_nodes": 2, "at_least": True},
    }


def test_foreign_readings_are_left_out(run: Run) -> None:
    run.t = 15.0
    for joules in ("1", None, True, -5.0, float("nan"), 1e300):
        run.read(0, "accelerators", joules)
    run.read(0, "\x1b[2J", 5.0)
    run.add(0, event="note", name="energy", accelerators="none")
    assert run.used() == {}  # the note is of the end, and has no figure
    assert "\x1b" not in run.panel()


@pytest.mark.parametrize("problems", [(), ("GPU 1 has no counter",)])
def test_what_a_run_records_is_what_is_shown(tmp_path: Path, problems: tuple[str, ...]) -> None:
    """Its own log and meter, at the start of the run and in its middle."""
    counter = iter([100.0, 350.0])
    counters = Counters("accelerators", "NVML", {"GPU 0": lambda: next(counter)}, problems)
    (tmp_path / "config.toml").write_text(load.dumps(load.load("cosmoflow", "smoke")))
    with RunLog(tmp_path, Solo(), Meter(Solo(), [counters])) as log, log.span("run"):
        follower = Follower(tmp_path)
        [used] = follower.look().energy.values()
        assert (used.joules, used.watts, used.nodes, used.at_least) == (0.0, None, 1, bool(problems))
    [used] = follower.look().energy.values()
    assert (used.joules, used.nodes, used.at_least) == (250.0, 1, bool(problems))


def test_a_run_whose_processes_have_just_gone_uses_no_power(run: Run) -> None:
    for run.t in (15.0, 25.0):
        run.read(0, "accelerators", 100.0 * run.t)
        run.read(2, "accelerators", 100.0 * run.t)
    before = time.time() - 10
    for path in run.folder.glob("events*"):
        os.utime(path, (before, before))
    assert run.used()["accelerators"]["watts"], "in the events it is running"
    assert "gone" in (panel := run.panel())
    assert "energy of accelerators: at least 5 kJ (2 nodes)\n" in panel
