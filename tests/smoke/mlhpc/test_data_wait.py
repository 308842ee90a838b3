"""Twelve cells of the matrix of injected delays (tests/perf/data_wait.py): the parts that a run reports are those
that an event simulation makes of the delays, whichever rank, loader and framework they hit. They sleep most of the
time: two run at once.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import pytest
from helpers.slow_reads import Cell, library, make_data, run, tolerance, truth

from mlhpc.record.events import read_events

pytestmark = pytest.mark.slow  # two minutes

TENSORFLOW = {"framework": "tensorflow"}
CELLS = [
    Cell("cosmoflow", 2),
    Cell("cosmoflow", 2, slow="alternating", **TENSORFLOW),
    Cell("cosmoflow", 2, where="staging"),
    Cell("cosmoflow", 1, where="evaluation", **TENSORFLOW),
    Cell("cosmoflow", 2, spatial=True),
    Cell("cosmoflow", 2, packed=True),
    Cell("deepcam", 4),
    Cell("deepcam", 2, slow="random", loader="dali"),
    Cell("deepcam", 2, where="steps"),
    Cell("deepcam", 2, slow="alternating", passes=4),
    Cell("resnet50", 2, loader="workers", workers=2),
    Cell("resnet50", 2, where="evaluation", slow="all"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The result and the calls of each cell, as soon as it has run."""
    folder = tmp_path_factory.mktemp("delays")
    library()
    data_of = cache(lambda benchmark: make_data(benchmark, folder / benchmark))
    for benchmark in {cell.benchmark for cell in CELLS}:
        data_of(benchmark)
    with ThreadPoolExecutor(2) as pool:
        started: dict[Cell, Future] = {}
        for number, cell in enumerate(CELLS):
            (folder / f"{number}").mkdir()
            started[cell] = pool.submit(run, cell, data_of(cell.benchmark), folder / f"{number}")
        yield lambda cell: (*started[cell].result(), folder / f"{CELLS.index(cell)}")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_parts_are_those_of_the_injected_delays(cell, runs):
    result, calls, folder = runs(cell)
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
