"""mlhpc predict as a user calls it."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from helpers.page import Page

from mlhpc import cli
from mlhpc.benchmarks.load import load
from mlhpc.perf.machines import machine
from mlhpc.perf.prediction.accelerator import accelerator
from mlhpc.perf.prediction.model import Model
from mlhpc.perf.prediction.page import page


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


def test_json_of_one_prediction_has_what_a_sample_costs(capsys):
    plain = ("--set", "data.gzip=false", "--set", "data.train_samples=49152", "--set", "staging.mode=shard")
    words = ("cosmoflow", "--machine", "cori-gpu", "--nodes", "4", "--batch", "32", *plain, "--json")
    record = json.loads(output(capsys, *words))
    sample = record["sample"]
    # Ibrahim et al. 2021, section V-C; PCIe is shared by two GPUs. Table II's FLOPs are 1.38 times the count.
    assert sample["gaps"] == {"host": 2 * 56.25, "network": 72.0, "local": 2250.0}
    assert 247 / (sample["flops"] / 2**30) == pytest.approx(1.38, abs=0.005)
    assert sample["stored"] == 128**3 * 4 * 2 and sample["input_elements"] == 128**3 * 4
    assert dict(sample["memory"])[1] == record["memory_bytes"]
    # Half the batch, twice the share of the gradients; nothing is faster from the shared file system.
    reduced = [cost["all_reduce"] for _, cost in sample["costs"]]
    assert all(a == pytest.approx(2 * b) for a, b in pairwise(reduced))
    assert sample["unstaged_step_s"] >= record["step_s"][0] * 0.999


def test_without_nodes_there_is_a_row_for_each_power_of_two(capsys):
    words = ("cosmoflow", "--preset", "closed-512", "--machine", "perlmutter", "--json")
    nodes = [record["nodes"] for record in json.loads(output(capsys, *words))]
    assert nodes == [4 * 2**n for n in range(len(nodes))]  # 64 samples leave no 1 GiB of 40 GB
    assert len(nodes) > 8
    assert "shortest time over all batch sizes" in output(capsys, *words[:-1])


WITHOUT_NETWORK = """title = "two nodes that nobody has connected"
nodes = 2

[accelerator]
model = "X"
family = "A100"
per_node = 4
float32 = { value = "19.5 TFLOP/s", source = "x" }
memory = { value = "40 GB", source = "x" }
bandwidth = { value = "1555 GB/s", source = "x" }

[storage]
local = { value = "20 TB", source = "x" }
"""


def test_a_table_says_why_it_ends_before_the_machine_does(capsys, tmp_path):
    """For lack of a figure, or of memory for a larger share of the batch; not if the machine has no more nodes."""
    file = tmp_path / "two.toml"
    file.write_text(WITHOUT_NETWORK)
    out = output(capsys, "deepcam", "--preset", "open", "--batch", "8", "--machine", str(file))
    assert re.search(r"note: not on 2 nodes: \S+two.toml, line \d+: network.bandwidth is missing", out)
    out = output(capsys, "deepcam", "--preset", "closed-2048", "--machine", "perlmutter")
    assert "note: not on 32 nodes: systems/perlmutter.toml, line" in out
    assert out.count("note: not on") == 1  # 2048 of them would be more than there are


def test_the_batch_may_be_another(capsys):
    words = ("cosmoflow", "--machine", "perlmutter", "--nodes", "32", "--batch", "256", "--json")
    assert json.loads(output(capsys, *words))["global_batch_size"] == 256


@pytest.mark.parametrize("passes", [1, 2])
def test_the_largest_batch_that_fits_is_printed_and_is_the_largest(capsys, passes):
    """In the terminal, in --json and in the refusal of a larger one; four accelerators a node."""
    run = ("deepcam", "--machine", "perlmutter", "--preset", "open")
    if passes > 1:
        run += ("--set", f"hyperparameters.gradient_accumulation_frequency={passes}")
    one = ("--nodes", "1", "--batch")
    record = json.loads(output(capsys, *run, *one, str(4 * passes), "--json"))
    largest = record["largest_batch_that_fits"]
    full = json.loads(output(capsys, *run, *one, str(4 * passes * largest), "--json"))
    assert full["largest_batch_that_fits"] == largest > 1
    assert record["memory_bytes"] < full["memory_bytes"] <= 39.59 * 2**30
    says = f"the largest batch that fits an accelerator's 42.5 GB is {largest}"
    for words in (one, ("--batch",)):
        assert says in " ".join(output(capsys, *run, *words, str(4 * passes)).split())
    assert cli.main(["predict", *run, *one, str(4 * passes * (largest + 1))]) == 2
    assert f"the largest that fits is {largest};" in capsys.readouterr().err


def test_the_errors_against_published_sets(capsys):
    record = json.loads(output(capsys, "--against", "published", "--json"))
    assert len(record["sets"]) == 64
    assert any("throughput" in line for line in record["summary"]["test"])
    assert "baseline" in output(capsys, "deepcam", "--against", "published")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no benchmark named"),
        (("cosmoflow",), "no machine named"),
        (("cosmoflow", "--machine", "perlmuter"), "did you mean 'perlmutter'"),
        (("cosmoflow", "--machine", "perlmutter", "--nodes", "0"), "--nodes: 0 is not"),
        (("cosmoflow", "--machine", "perlmutter", "--batch", "-3"), "--batch: -3 is not"),
        (("--against", "nowhere.csv"), "nowhere.csv cannot be read"),
        (("blobs", "--against", "published"), "no measured set for 'blobs'"),
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
    shown = Page(out.read_text("utf-8"))
    sections = ("Time to train against nodes", "Scaling", "Cost against batch", "Roofline", "Memory")
    for text in (*sections, "Predicted, not measured", "data sheet, NVIDIA V100"):
        assert text in shown.text
    specs = out.read_text("utf-8")
    assert "Ibrahim et al. 2021: sample from NVMe" in specs and "corigpu_n64_tf1.15.0" in specs
    # Figure 4: samples bind at every batch, and what a V100 at its peak would take; figure 8: its two ratios.
    assert (
        "The highest cost is the bottleneck: samples from a batch of 1 on. At its peak an accelerator would handle"
        in shown.text
    )
    assert "Ibrahim et al. 2021: not staged, 1 node, 2 times as long as staged" in specs
    assert "Ibrahim et al. 2021: not staged, 4 nodes, 1.15 times as long as staged" in specs
    assert "staged, 1 node, data in node-local storage" in specs  # shards: a copy has no room there
    assert re.search(
        r"The update of all weights \(sgd\) is added once per step: [\d.]+ .FLOP and", shown.text
    )


@pytest.mark.parametrize(("name", "copies"), [("perlmutter", False), ("dgx-a100", True)])
def test_the_page_draws_what_is_staged_where_there_is_room_for_it(name, copies):
    """1.67 TB in the 256 GB of a node, or in its 2 TB."""
    run = load("cosmoflow", "closed-512", ["training.precision=mixed_float16"])
    specs = page(Model(machine(name), run), 128)
    assert "staged in shards, 128 nodes, data in host memory" in specs
    assert ("staged, replicated, 128 nodes, data in host memory" in specs) is copies
    assert copies or "staged, replicated" not in specs


def test_the_page_names_the_largest_batch_beyond_those_drawn():
    """ResNet-50 on an A100 of 80 GB: 512 images fit and 1024 do not, the curve ends at 256."""
    model = Model(machine("dgx-a100"), load("resnet50", "closed"))
    *_, memory = accelerator(model, model.at(1).tier)
    assert memory.about.startswith("The largest power of two that fits is 512, excluding 1.07 GB ")


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
