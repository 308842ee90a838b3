"""Predicted and measured times, in the terminal and on the page."""

import math
from io import StringIO
from pathlib import Path

import pytest
from golden.make_run import make_run
from helpers.page import Page
from rich.console import Console

from mlhpc.benchmarks.load import load
from mlhpc.errors import UserError
from mlhpc.perf.machines import machine, parse
from mlhpc.perf.prediction.model import Model
from mlhpc.record.run_directory import read
from mlhpc.submission.report.predicted import _predicted, beside, predicted_table
from mlhpc.submission.report.report import report, report_on

# The part of a machine file that no test here is about.
ACCELERATOR = """[accelerator]
model = "X"
family = "X"
per_node = 1
float32 = { value = "1 TFLOP/s", source = "x" }
memory = { value = "64 GB", source = "x" }
bandwidth = { value = "50 GB/s", source = "x" }
"""


def test_every_part_stands_beside_its_prediction_with_the_ratio(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    out = StringIO()
    path = report(run, Console(file=out, width=200), machine="dgx-a100")
    page, terminal = Page(path.read_text("utf-8")), " ".join(out.getvalue().split())
    for text in (page.text, terminal):
        assert "DGX A100 80 GB" in text
        assert "Training steps" in text and "no model" in text
        assert "limits" in text
    compared = beside(read(run), machine("dgx-a100"))
    assert compared.parts[0].label == "Staging"
    measured = sum(part.measured or 0 for part in compared.parts)
    assert measured == pytest.approx(93.246, abs=0.01)
    step = next(part for part in compared.parts if part.label == "Training steps")
    assert step.measured is not None and step.predicted is not None
    assert step.ratio == pytest.approx(step.measured / step.predicted[0])
    assert step.predicted[1] < step.predicted[0] < step.predicted[2]


@pytest.mark.parametrize(("is_cpu", "processors"), [("true", 1), ("false", 2)])
def test_the_ranks_of_a_node_share_its_processor_but_not_a_gpu(tmp_path: Path, is_cpu, processors) -> None:
    """8 epochs of 16384 samples: either half of them on each of two GPUs, or all on one processor."""
    text = f"""title = "mine"
{ACCELERATOR}is_cpu = {is_cpu}
[links]
peers = {{ value = "100 GB/s", source = "x" }}
[efficiency]
convolution_3d = {{ value = "0.5", source = "no launches: a step is in proportion to its samples" }}
"""
    given = parse(text, "mine.toml", "mine")
    run = read(make_run(tmp_path / "run", ranks=2))
    assert run.config is not None
    sample = Model(given, run.config).roofline / 0.5
    (training,) = (part for part in beside(run, given).parts if part.label == "Training steps")
    assert training.predicted is not None
    assert training.predicted[0] == pytest.approx(8 * 16384 * sample / processors, rel=0.05)


def test_as_many_evaluations_are_predicted_as_were_made(tmp_path: Path) -> None:
    """Eight, whether the settings ask for one after every epoch or, as ResNet-50's, every four."""
    result = read(make_run(tmp_path / "run")).result
    assert result is not None and len(result.epochs) == 8
    made = []
    for every in (1, 4):
        run = load("resnet50", "closed", ["division=open", f"training.epochs_between_evals={every}"])
        model = Model(machine("perlmutter"), run)
        made.append(_predicted(model, model.at(16), result, apart=False)["evaluation"])
    assert made[0] == pytest.approx(made[1])


def test_exchanges_stand_beside_those_of_the_epochs_that_were_trained(tmp_path: Path) -> None:
    """Eight epochs, so seven exchanges: of 16384 samples of 16^3 x 4 numbers of 16 bits, 0.5 GiB,
    each of two nodes keeps a half and sends a quarter, 128 MiB at 25 GB/s of one network card."""

    def two_nodes(result):
        result["nodes"] = result["ranks"] = 2
        result["staging"]["mode"], result["breakdown_s"]["exchange"] = "shard", 0.3

    settings = ["data.gzip=false", "staging.mode=shard", "staging.exchange=true"]
    run = read(make_run(tmp_path / "run", settings=settings, result=two_nodes))
    compared = beside(run, machine("perlmutter"))
    (exchange,) = (part for part in compared.parts if part.label == "Exchange")
    assert exchange.measured == 0.3
    assert exchange.predicted == pytest.approx((7 * 2**27 / 25e9,) * 3)
    assert not any("in all" in note for note in compared.notes)


def test_a_run_that_waits_for_its_data_says_so_in_samples_per_second(tmp_path: Path) -> None:
    def slow(result):
        parts = result["breakdown_s"]
        parts["data_wait"], parts["step"] = 10.0, 60.0

    run = read(make_run(tmp_path / "run", result=slow))
    assert run.result is not None
    samples = sum(e.samples or 0 for e in run.result.epochs)
    says = beside(run, machine("dgx-a100")).measured
    rates = f"{samples / 70:,.0f} of {samples / 60:,.0f}"
    assert says == f"the input path limits: {rates} samples/s"


def test_a_part_without_a_range_says_that_it_has_no_interval_model(tmp_path: Path) -> None:
    """A staging rate of the machine's own, and waits: no interval of width zero is shown."""
    compared = beside(read(make_run(tmp_path / "run")), machine("dgx-a100"))
    rows = {cells[0].text: cells for cells in predicted_table(compared).rows}
    at = predicted_table(compared).head.index("interval")
    for part in compared.parts:
        shown = rows[part.label][at].text
        if not part.predicted:
            assert shown == ""
        elif part.predicted[1] == part.predicted[2]:
            assert shown == "no interval model"
        else:
            low, high = shown.split(" – ")
            assert low and high
    assert rows["Data wait"][at].text == "no interval model"
    assert " – " in rows["Training steps"][at].text


def test_without_a_machine_nothing_is_predicted(tmp_path: Path) -> None:
    out = StringIO()
    path = report(make_run(tmp_path / "run"), Console(file=out, width=200))
    assert "predicted" not in (path.read_text("utf-8") + out.getvalue()).lower()


def test_a_machine_is_for_one_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name)
    with pytest.raises(UserError, match="--machine requires a single run"):
        report_on([tmp_path], Console(file=StringIO()), machine="dgx-a100")


def test_a_run_that_did_not_end_has_no_prediction_and_leaves_no_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "result.json").unlink()
    with pytest.raises(UserError, match=r"--machine requires a run with config.toml"):
        report(run, Console(file=StringIO()), machine="dgx-a100")
    assert not (run / "report.html").exists()


def test_an_aborted_run_has_its_training_beside_it_and_no_word_on_what_limited_it(tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run", status="aborted", result=lambda r: r.update(breakdown_s=None)))
    compared = beside(run, machine("dgx-a100"))
    training = next(part for part in compared.parts if part.label == "Training")
    assert training.ratio and training.ratio > 0
    assert compared.measured.startswith("not known")


@pytest.mark.parametrize("apart", [True, False])
def test_the_first_epoch_of_a_run_that_was_not_staged_is_predicted_where_it_is_measured(tmp_path, apart):
    """A file system of 1 MB/s: the first epoch waits for all its bytes, the later ones have all in memory. With
    three epochs that is the first epoch's excess and no data wait; with fewer there is no such part."""
    text = f"""title = "mine"
{ACCELERATOR}[host]
memory = {{ value = "64 GB", source = "x" }}
memory_bandwidth = {{ value = "100 GB/s", source = "x" }}
[storage]
shared_read = {{ value = "1 MB/s", source = "x" }}
"""

    def short(result):
        result["breakdown_s"]["first_epoch_excess"] = None

    plain, change = ["data.gzip=false"], (lambda _: None) if apart else short
    run = read(make_run(tmp_path / "run", staged=False, settings=plain, result=change))
    rows = {part.label: part for part in beside(run, parse(text, "mine.toml", "mine")).parts}
    size = run.config.data.train_samples * math.prod(run.config.data.sample_shape) * 2
    reading = rows["First-epoch excess" if apart else "Data wait"].predicted
    assert reading[0] == pytest.approx(size / 1e6, rel=0.1)
    assert reading[1] <= reading[0] <= reading[2]
    if apart:
        assert rows["Data wait"].predicted[0] == 0
    else:
        assert rows["First-epoch excess"].predicted is None


def test_staging_on_one_machine_is_predicted_by_its_disk(tmp_path: Path) -> None:
    figures = "\n".join(f'{key} = {{ value = "{value}", source = "x" }}' for key, value in (
        ("local", "1 TB"), ("local_read", "2 GB/s"), ("local_write", "1 GB/s")))  # fmt: skip
    text = f"""title = "mine"
nodes = 1
{ACCELERATOR}[storage]
{figures}
"""
    run = read(make_run(tmp_path / "run"))
    assert run.result is not None and run.result.staging is not None
    staging = beside(run, parse(text, "mine.toml", "mine")).parts[0]
    assert staging.predicted is not None
    assert staging.predicted[0] == pytest.approx(run.result.staging.bytes / 1e9)


@pytest.mark.parametrize(
    ("read_once", "source", "seconds"),
    [(False, 2 * 128_450_560, 128.45056 / 5), (True, 128_450_560, 128.45056 / 2 / 1)],
)
def test_staging_to_two_nodes_is_predicted_from_what_each_read_and_passed_on(
    tmp_path: Path, read_once, source, seconds
) -> None:
    """Both hold all 128 MB. Read by both, at 5 MB/s each of a file system of 10 MB/s; read once, half of it goes
    to the other node, at 1 MB/s."""
    text = f"""title = "mine"
nodes = 2
{ACCELERATOR}[network]
bandwidth = {{ value = "1 MB/s", source = "x" }}
latency = {{ value = "4 us", source = "x" }}
[storage]
shared_read = {{ value = "10 MB/s", source = "x" }}
"""

    def on_two_nodes(result):
        result["nodes"] = 2
        result["staging"] |= {"bytes": 2 * 128_450_560, "source_bytes": source, "read_once": read_once}

    run = read(make_run(tmp_path / "run", ranks=2, result=on_two_nodes))
    staging = beside(run, parse(text, "mine.toml", "mine")).parts[0]
    assert staging.predicted is not None and staging.predicted[0] == pytest.approx(seconds)
