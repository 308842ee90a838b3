"""mlhpc predict as a user meets it."""

import json
import re
import subprocess
import sys

import pytest
from helpers.page import Page

from mlhpc import cli


def output(capsys, *words: str) -> str:
    assert cli.main(["predict", *words]) == 0
    return capsys.readouterr().out


def test_the_table_of_one_prediction(capsys):
    out = output(capsys, "cosmoflow", "--preset", "closed-512", "--machine", "perlmutter", "--nodes", "128")
    for text in (
        "T_staging",
        "T_epoch",
        "epochs",
        "time to train",
        "low",
        "high",
        "limits",
        "Predicted, not measured",
    ):
        assert text in out


def test_json_is_what_is_printed(capsys):
    words = ("deepcam", "--preset", "closed-1024", "--machine", "dgx-a100", "--nodes", "64", "--json")
    record = json.loads(output(capsys, *words))
    value, low, high = record["time_to_train_s"]
    assert low < value < high
    assert record["accelerators"] == 512 and record["local_batch_size"] == 2


def test_without_nodes_there_is_a_row_for_each_power_of_two(capsys):
    words = ("cosmoflow", "--preset", "closed-512", "--machine", "perlmutter", "--json")
    nodes = [record["nodes"] for record in json.loads(output(capsys, *words))]
    assert nodes == [4 * 2**n for n in range(len(nodes))]  # 64 samples do not fit 40 GB
    assert len(nodes) > 8
    assert "shortest of all batch sizes" in output(capsys, *words[:-1])


def test_the_batch_may_be_another(capsys):
    words = ("cosmoflow", "--machine", "perlmutter", "--nodes", "32", "--batch", "256", "--json")
    assert json.loads(output(capsys, *words))["global_batch_size"] == 256


def test_the_errors_against_published_sets(capsys):
    record = json.loads(output(capsys, "--against", "published", "--json"))
    assert len(record["sets"]) == 44
    assert any("throughput" in line for line in record["summary"]["test"])
    assert "baseline" in output(capsys, "deepcam", "--against", "published")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "which benchmark"),
        (("cosmoflow",), "on which machine"),
        (("cosmoflow", "--machine", "perlmuter"), "did you mean 'perlmutter'"),
        (("cosmoflow", "--machine", "perlmutter", "--nodes", "0"), "--nodes 0"),
        (("cosmoflow", "--machine", "perlmutter", "--batch", "-3"), "--batch -3"),
        (("--against", "nowhere.csv"), "nowhere.csv: cannot be read"),
        (("resnet50", "--against", "published"), "no set of 'resnet50'"),
        (("deepcam", "--preset", "closed-2048", "--machine", "cori-gpu"), "largest that fits"),
    ],
)
def test_mistakes_are_one_line(capsys, words, says):
    assert cli.main(["predict", *words]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_the_page_shows_every_picture_and_the_papers_points(capsys, tmp_path):
    out = tmp_path / "page.html"
    words = (
        "cosmoflow",
        "--preset",
        "v07",
        "--machine",
        "cori-gpu",
        "--set",
        "training.precision=mixed_float16",
    )
    output(capsys, *words, "--out", str(out))
    page = Page(out.read_text("utf-8"))
    sections = ("Time to train against nodes", "Scaling", "Cost against batch", "Roofline", "Memory")
    for text in (*sections, "Predicted, not measured", "data sheet, NVIDIA V100"):
        assert text in page.text
    specs = out.read_text("utf-8")
    assert "paper 000: sample from NVMe" in specs and "corigpu_n64_tf1.15.0" in specs
    # Figure 4: samples bind at every batch, and what a V100 at its peak would take; figure 8: its two ratios.
    assert (
        "What is highest binds: samples from a batch of 1 on. At its peak an accelerator would take"
        in page.text
    )
    assert "paper 000: not staged, 1 nodes, 2 times as long as staged" in specs
    assert "paper 000: not staged, 4 nodes, 1.15 times as long as staged" in specs
    assert re.search(
        r"The update of all weights \(sgd\) comes on top once a step: [\d.]+ GFLOP and", page.text
    )


def test_a_page_does_not_overwrite_what_is_none(capsys, tmp_path):
    out = tmp_path / "thesis.html"
    out.write_text("mine")
    words = ["predict", "cosmoflow", "--machine", "perlmutter", "--preset", "closed-512", "--nodes", "128"]
    assert cli.main([*words, "--out", str(out)]) == 2
    assert out.read_text() == "mine"


def test_a_prediction_imports_nothing_heavy():
    code = (
        "import sys; from mlhpc import cli; "
        "cli.main('predict cosmoflow --preset closed-512 --machine perlmutter --nodes 128 --json'.split()); "
        "heavy = {'numpy', 'torch', 'tensorflow', 'pandas', 'altair', 'scipy', 'matplotlib', 'mlperf_logging'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
