"""Twelve cells of the matrix of injected delays (tests/perf/data_wait.py): the parts that a run reports are those
that an event simulation makes of the delays, whichever rank, loader and framework they hit. They sleep most of the
time: two run at once.
"""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from helpers.slow_reads import Call, Cell, library, make_data, run, tolerance, truth

from mlhpc.perf.what_if import Change, what_if
from mlhpc.record.events import read_events
from mlhpc.record.run_directory import read
from mlhpc.submission.report.summary import slow_epochs

pytestmark = pytest.mark.slow  # two minutes

CELLS = [
    Cell("cosmoflow", 2),
    Cell("cosmoflow", 2, slow="alternating", framework="tensorflow"),
    Cell("cosmoflow", 2, where="staging"),
    Cell("cosmoflow", 1, where="evaluation", framework="tensorflow"),
    Cell("cosmoflow", 2, spatial=True),
    Cell("cosmoflow", 2, packed=True),
    Cell("deepcam", 4),
    Cell("deepcam", 2, slow="random", loader="dali"),
    Cell("deepcam", 2, where="steps"),
    Cell("deepcam", 2, slow="alternating", passes=4),
    Cell("resnet50", 2, loader="workers", workers=2),
    Cell("resnet50", 2, where="evaluation", slow="all"),
]


class Runs:
    """Each cell's run: its result, its calls and its folder. Two run at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = {name: make_data(name, folder / name) for name in {cell.benchmark for cell in CELLS}}
        self._pool = ThreadPoolExecutor(2)
        self._first: dict[Cell, Future[Any]] = {}
        for cell in CELLS:
            self._submit(cell)

    def _run(self, cell: Cell, name: str) -> tuple[dict[str, Any], list[Call], Path]:
        folder = self._folder / name
        folder.mkdir()
        return *run(cell, self._data[cell.benchmark], folder), folder

    def _submit(self, cell: Cell) -> Future[Any]:
        self._first[cell] = self._pool.submit(self._run, cell, f"{len(self._first)}")
        return self._first[cell]

    def first(self, cell: Cell) -> tuple[dict[str, Any], list[Call], Path]:
        return (self._first.get(cell) or self._submit(cell)).result()

    def alone(self, cell: Cell) -> tuple[dict[str, Any], list[Call], Path]:
        """Once more, beside no other of these runs."""
        wait(self._first.values())
        return self._run(cell, f"alone {list(self._first).index(cell)}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    library()
    return Runs(tmp_path_factory.mktemp("delays"))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_parts_are_those_of_the_injected_delays(cell, runs):
    """A processor that is busy with something else adds to a run's parts, but not to every run's."""
    try:
        _compare(cell, *runs.first(cell))
    except AssertionError:
        _compare(cell, *runs.alone(cell))


def _compare(cell: Cell, result: dict[str, Any], calls: list[Call], folder: Path) -> None:
    expected, parts = truth(cell, calls, result["emulation"]["eval_step_s"]), result["breakdown_s"]
    assert sum(call.seconds for call in calls) > 10
    for part in ("staging", "data_wait", "step", "evaluation"):
        simulated = getattr(expected, part)
        assert (parts[part] or 0.0) == pytest.approx(simulated, abs=tolerance(simulated)), part
    waits = result["data_wait"]
    assert waits["eval_s"] == pytest.approx(expected.eval_data_wait, abs=tolerance(expected.eval_data_wait))
    # They add up to the run, which the delays made longer.
    events = read_events(folder / "run" / "events.rank0.jsonl")
    (total,) = (e["seconds"] for e in events if (e["event"], e["name"]) == ("end", "run"))
    assert sum(seconds or 0.0 for seconds in parts.values()) == pytest.approx(total)
    if cell.slow == "one" and cell.where == "reads":
        assert waits["of"] == "all ranks" and waits["ranks"][0]["rank"] == min(1, cell.ranks - 1)
        assert waits["ranks"][0]["train_s"] == pytest.approx(max(expected.lost), rel=0.1)


@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam", "resnet50"])
@pytest.mark.parametrize("where", ["reads", "staging"])
def test_a_run_on_slow_storage_says_how_long_it_takes_on_storage_twice_as_fast(runs, where, benchmark):
    slow, fast = (Cell(benchmark, 2, where=where, slow="all", seconds=seconds) for seconds in (12.0, 6.0))
    for attempt in (runs.first, runs.alone):
        slow_run, fast_run = (attempt(cell)[2] / "run" for cell in (slow, fast))
        (case,) = what_if(read(slow_run), Change(storage=2)).cases
        measured = sum(seconds or 0.0 for seconds in read(fast_run).result.breakdown_s.values())
        if case.total_s == pytest.approx(measured, rel=0.1):
            return
    pytest.fail(f"recomputed {case.total_s:.2f} s, measured {measured:.2f} s")


@pytest.mark.parametrize(
    "cell",
    [
        Cell("cosmoflow", 1, where="file", seconds=6),
        Cell("cosmoflow", 2, where="file", slow="all", seconds=12, framework="tensorflow"),
        Cell("deepcam", 2, where="file", slow="all", passes=2, seconds=12),
        Cell("resnet50", 1, where="file", loader="workers", seconds=6),
    ],
    ids=lambda cell: cell.name,
)
def test_a_slow_file_is_among_those_named_in_the_report(runs, cell):
    result, calls, folder = runs.first(cell)
    (name,) = {Path(call.path).name for call in calls}
    batches = result["data_wait"]["batches"]
    assert [batch["epoch"] for batch in batches[:2]] in ([1, 2], [2, 1])
    assert all(any(name in sample for sample in batch["samples"]) for batch in batches[:2])
    assert all(batch["seconds"] > 2 for batch in batches[:2])  # of an injected delay of 3
    words = slow_epochs(read(folder / "run"))
    assert f"rank {batches[0]['rank']}" in words and name in words
