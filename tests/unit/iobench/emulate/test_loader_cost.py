"""The cost of a loader: known costs are found again in the result, and known delays by the calibration."""

import json
import time

import pytest
from helpers.thread_world import on_ranks

from mlhpc.cli import main
from mlhpc.iobench.definition.schema import Dataset, LoaderCost, Reader, Workload
from mlhpc.iobench.emulate import loader_cost

WORKLOAD = """name = "small"
[dataset]
format = "binary"
files = 4
samples_per_file = 16
sample_bytes = 1000
[reader]
loader = "pytorch"
batch_size = 4
{reader}
[train]
computation = 0.01
"""


def run(tmp_path, reader="", *words):
    path, data, out = tmp_path / "w.toml", tmp_path / "data", tmp_path / "out"
    path.write_text(WORKLOAD.format(reader=reader))
    assert main(["io", "generate", str(path), "--data", str(data), "--workers", "1"]) == 0
    status = main(
        ["io", "run", str(path), "--data", str(data), "--out", str(out), "--null-steps", "0", *words]
    )
    return status, json.loads((out / "result.json").read_text()) if status == 0 else None


def test_what_the_loop_spends_lowers_the_utilisation_by_as_much(tmp_path):
    cost = "[reader.loader_cost]\nsteps = [[0.004, 0.01]]"  # as long as the computation
    _, result = run(tmp_path, cost)
    (epoch,) = result["epochs"]
    assert epoch["wait_s"] >= epoch["steps"] * 0.01
    assert result["au_dlio_percent"] <= 50.5
    counted, share = epoch["steps"] - 1, result["au_dlio_percent"] / 100

    def without(computed):
        return 100 * computed / (computed / share - counted * 0.01)

    # What is counted as computed is known but for the oversleep of the first step.
    computed = counted * 0.01
    bounds = without(computed + epoch["oversleep_s"]), without(computed)
    assert bounds[0] - 0.01 <= result["au_without_loader_percent"] <= bounds[1] + 0.01


def test_with_all_samples_in_memory_no_utilisation_without_the_loader_is_claimed(tmp_path):
    _, result = run(tmp_path, "load_all = true\n[reader.loader_cost]\nsteps = [[0.004, 0.01]]")
    assert result["au_without_loader_percent"] is None
    assert result["epochs"][0]["au_without_loader_percent"] is None
    assert result["au_dlio_percent"] is not None


def test_what_a_worker_spends_is_counted_for_each_sample(tmp_path):
    cost = "[reader.loader_cost]\nbatch = 0.02\nsample = 0.005\nper_mb = 5.0"
    _, result = run(tmp_path, cost)
    of_a_sample = 0.02 / 4 + 0.005 + 5.0 * 0.001
    assert result["reading"]["thread_s"]["preprocess_s"] >= 64 * of_a_sample


def test_the_cost_of_a_step_lies_on_lines_between_the_measured_sizes():
    dataset = Dataset(format="npz", files=1, sample_bytes=1_000_000)
    reader = Reader(loader_cost=LoaderCost(steps=((1, 0.001), (2, 0.003), (4, 0.004))))
    seconds = [reader.step_s(dataset, batch) for batch in (1, 2, 3, 4, 8)]
    assert seconds == pytest.approx([0.001, 0.003, 0.0035, 0.004, 0.006])
    assert Reader(handed_bytes=2_000_000).step_s(dataset, 1) == 0
    handed = Reader(handed_bytes=2_000_000, loader_cost=reader.loader_cost)
    assert handed.step_s(dataset, 1) == pytest.approx(0.003)


def test_known_delays_of_a_loader_are_measured(monkeypatch):
    monkeypatch.setattr(loader_cost, "STEPS", 3)
    monkeypatch.setattr(loader_cost, "REPEATS", 3)

    def batches(seconds):
        while True:
            time.sleep(seconds)
            yield [0]

    assert min(loader_cost._steps(batches(0.02))) >= 0.02
    assert min(loader_cost._worker(batches(0.02))) >= 0.02
    growth = loader_cost._growth([1.0, 1.2, 1.1], [3.0, 3.1, 3.4], 2.0)
    assert growth == pytest.approx((1.0, 0.95, 1.15))


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "No such file"), ("[]", "has no costs"), ("{}", "has no costs"), ('{"pytorch": 3}', "has no costs"),
     ('{"pytorch": {"batch": [-1], "sample": [0], "per_mb": [0], "steps": []}}', "has no costs")],
)  # fmt: skip
def test_a_file_without_the_costs_is_one_line(tmp_path, text, says, capsys):
    file = tmp_path / "costs.json"
    if text is not None:
        file.write_text(text)
    status, _ = run(tmp_path, "", "--loader-cost", str(file))
    assert status == 2 and not (tmp_path / "out").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and "io calibrate --out" in line


def test_the_costs_of_a_file_are_used_and_recorded(tmp_path):
    costs = {
        "batch": [0.001, 0, 1],
        "sample": [0, 0, 0],
        "per_mb": [0, 0, 0],
        "steps": [[0.1, [0.002, 0, 1]]],
    }
    (tmp_path / "costs.json").write_text(json.dumps({"pytorch": costs}))
    _, result = run(tmp_path, "", "--loader-cost", str(tmp_path / "costs.json"))
    assert result["workload"]["reader"]["loader_cost"]["steps"] == [[0.1, 0.002]]
    assert result["au_without_loader_percent"] > result["au_dlio_percent"]


def test_without_the_framework_the_run_goes_on_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(loader_cost.FRAMEWORKS, "pytorch", "no_such_package")
    status, result = run(tmp_path)
    assert status == 0 and result["au_without_loader_percent"] is None
    printed = capsys.readouterr()
    assert "no_such_package" in printed.err
    assert "the cost of the pytorch loader is not included" in " ".join(printed.out.split())
    monkeypatch.setattr(loader_cost, "FRAMEWORKS", {"pytorch": "no_such_package"})
    assert main(["io", "calibrate"]) == 2


def test_the_costs_of_a_file_reach_every_rank(tmp_path):
    costs = {
        "batch": [0.001, 0, 1],
        "sample": [0, 0, 0],
        "per_mb": [0, 0, 0],
        "steps": [[0.1, [0.002, 0, 1]]],
    }
    (tmp_path / "costs.json").write_text(json.dumps({"pytorch": costs}))
    workload = Workload(
        name="small",
        reader=Reader(loader="pytorch"),
        dataset=Dataset(format="binary", files=4, sample_bytes=1000),
    )
    found = on_ranks(2, 1, lambda world: loader_cost.with_cost(workload, tmp_path / "costs.json", world))
    assert [each.reader.loader_cost for each in found] == [LoaderCost(batch=0.001, steps=((0.1, 0.002),))] * 2
