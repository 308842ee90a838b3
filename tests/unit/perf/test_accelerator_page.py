"""Pictures of a step on one accelerator: all layers, every ceiling, the paper's points; a page that renders."""

import re

import pytest

from mlhpc.benchmarks.load import load
from mlhpc.common.pages.html import render
from mlhpc.perf.accelerator.ibrahim2021 import TABLE_II
from mlhpc.perf.accelerator.memory import memory_of
from mlhpc.perf.accelerator.roofline import V100, points
from mlhpc.perf.machines import machine
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.prediction.accelerator import accelerator, memory, roofline
from mlhpc.perf.prediction.model import Model

BENCHMARKS = tuple(TABLE_II)


def run_of(benchmark):
    return load(benchmark, "closed", ["division=open", "training.precision=mixed_float16"])


def drawn(figure, field):
    """The rows of ``figure`` that have ``field``."""
    return next(values for values in tables(figure.spec) if field in values[0])


def tables(spec):
    """All rows in a chart and its layers, table by table."""
    if "values" in spec.get("data", {}):
        yield spec["data"]["values"]
    yield from spec.get("datasets", {}).values()
    for layer in spec.get("layer", ()):
        yield from tables(layer)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_roofline_has_every_layer_that_computes_at_or_under_its_roof(benchmark):
    network = network_of(run_of(benchmark))
    figure = roofline(points(network, V100, "mixed_float16"), V100, TABLE_II[benchmark])
    rows = drawn(figure, "layer")
    computing = [
        layer.name for layer in network if any(part.flops + part.operations for part in layer.passes)
    ]
    assert [row["layer"] for row in rows if not row["kind"].startswith("Ibrahim")] == computing
    for row in rows:
        assert row["y"] <= min(125, row["x"] * 0.9) * 1.0001
        assert row["kind"] != "no matrix product" or row["y"] <= 15.7


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_roofline_has_the_papers_measured_point_and_its_limit(benchmark):
    row = TABLE_II[benchmark]
    figure = roofline(points(network_of(run_of(benchmark)), V100, "mixed_float16"), V100, row)
    measured, limit = (r for r in drawn(figure, "layer") if r["kind"].startswith("Ibrahim"))
    assert measured["x"] == pytest.approx(row.intensity)
    assert measured["y"] * 1e12 == pytest.approx(row.gif * 2**30 / row.seconds_per_sample)
    assert (limit["x"], limit["y"]) == (pytest.approx(row.intensity_limit), 125)


def test_roofline_has_three_ceilings_with_their_figures():
    figure = roofline(points(network_of(run_of("resnet50")), V100, "mixed_float16"), V100)
    labels = {row["roof"] for row in drawn(figure, "roof")}
    assert labels == {"tensor cores 125 TFLOP/s", "float32 15.7 TFLOP/s", "memory 900 GB/s"}


def test_series_of_a_figure_can_be_told_apart():
    """The palette has six colours and markers."""
    for benchmark in BENCHMARKS:
        network = network_of(run_of(benchmark))
        rows = drawn(roofline(points(network, V100, "mixed_float16"), V100, TABLE_II[benchmark]), "layer")
        assert len({row["kind"] for row in rows}) <= 6


def test_memory_has_the_papers_points_up_to_its_largest_batch():
    run, row = run_of("deepcam"), TABLE_II["deepcam"]
    figure = memory([memory_of(run, batch) for batch in (1, 2, 4, 8)], [("HBM", 16e9)], row)
    papers = {r["x"]: r["y"] for r in drawn(figure, "series") if r["series"].startswith("Ibrahim")}
    assert papers == {batch: pytest.approx(batch * 2.9 * 2**30 / 1e9) for batch in (1, 2, 4)}


def test_sections_render_as_a_page_with_their_tables():
    model = Model(machine("cori-gpu"), run_of("cosmoflow"))
    blocks = accelerator(model, model.at(1).tier)
    page = render(heading="h", blocks=blocks, foot="f")
    assert re.search(r"The largest power of two that fits is \d+, excluding 1.07 GB for libraries", page)
    assert re.search(r"Lower limit per training sample: [\d.]+ ms", page)
    (table,) = (block for block in blocks[-2].blocks if block.kind == "table")
    flops = sum(record["GFLOP"] for record in table.records)
    assert 1e9 * flops == pytest.approx(sum(p.flops for p in points(model.network, V100, "mixed_float16")))
