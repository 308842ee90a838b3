"""Machine files: their content; wrong ones are refused with the line number."""

import re

import pytest

from mlhpc.errors import UserError
from mlhpc.perf.machines import known, machine, parse

GOOD = """title = "a node"

[accelerator]
model = "X"
family = "V100"
per_node = 8
float32 = { value = "15.7 TFLOP/s", source = "data sheet" }
memory = { value = "16 GB", source = "data sheet" }
bandwidth = { value = "900 GB/s", source = "data sheet" }

[storage]
local = { value = "1 TB", source = "data sheet" }
"""


@pytest.mark.parametrize("name", known())
def test_every_figure_has_a_source_and_is_not_assumed(name):
    read = machine(name)
    assert read.figures.keys() == read.sources.keys()
    assert not [source for source in read.sources.values() if "assumed" in source]


def test_the_machines_of_the_issue_are_there():
    wanted = {"cori-gpu", "summit", "perlmutter", "juwels-booster", "fugaku", "dgx-h100", "h200", "gh200", "b200",
              "mi250x", "mi300a"}  # fmt: skip
    assert wanted <= set(known())


def test_only_nodes_without_gpus_compute_on_their_processors():
    assert {name for name in known() if machine(name).is_cpu} == {"cori-knl", "fugaku"}


def test_cori_gpu_is_the_machine_of_ibrahim_2021():
    """Section III-B: 15.7 and 125 TFLOP/s, 900 GB/s, 3.2 GB/s NVMe, 700 GB/s Lustre, 384 GB."""
    cori = machine("cori-gpu")
    figures = [
        cori.get(key) for key in ("accelerator.float32", "accelerator.float16", "accelerator.bandwidth")
    ]
    assert figures == [15.7e12, 125e12, 900e9]
    assert [cori.get(f"storage.{key}") for key in ("local_read", "shared_read")] == [3.2e9, 700e9]
    assert cori.node_network == 50e9


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (GOOD.replace('"16 GB"', '"16 GB/s"'), 8, "not a unit of bytes"),
        (GOOD.replace('"16 GB"', '"-16 GB"'), 8, "is impossible: expected 100 MB to 10 TB"),
        (GOOD.replace('"16 GB"', '"0 GB"'), 8, "is impossible: expected 100 MB to 10 TB"),
        (GOOD.replace('"16 GB"', '"16"'), 8, "not a number with a unit"),
        (GOOD.replace('"16 GB"', '"16 Gbit"'), 8, "not a unit of bytes"),
        (GOOD.replace('"16 GB"', '"nan GB"'), 8, "not a number with a unit"),
        (GOOD.replace('"900 GB/s"', '"900 PB/s"'), 9, "impossible"),
        (GOOD.replace('"900 GB/s"', '"900 B/s"'), 9, "impossible"),
        (GOOD.replace(', source = "data sheet" }\n\n', " }\n\n"), 9, "source is missing"),
        (GOOD + '\n[preparation]\ncosmoflow = { value = "56 MB/s", source = "measured" }\n',
         GOOD.count("\n") + 3, "host.cores is missing"),
        (GOOD.replace('bandwidth = { value = "900 GB/s", source = "data sheet" }', ""), 3, "bandwidth is missing"),
        (GOOD.replace("bandwidth =", "bandwith ="), 9, "did you mean 'bandwidth'"),
        (GOOD.replace("[storage]", "[storge]"), 11, "did you mean 'storage'"),
        (GOOD + '[efficiency]\nattention = { value = "0.3", source = "x" }\n', 14, "'efficiency.attention'"),
        (GOOD.replace("per_node = 8", "per_node = 0"), 6, "whole number above 0"),
        (GOOD.replace("per_node = 8", "per_node = true"), 6, "whole number above 0"),
        (GOOD.replace('model = "X"', 'model = ""'), 4, "not a text"),
        (GOOD.replace("per_node = 8", 'per_node = 8\nis_cpu = "yes"'), 7, "'yes' is not true or false"),
        (GOOD.replace("local =", "local_read ="), 12, "not a unit of bytes/s"),
        (GOOD.replace("per_node = 8", "per_node = 8\nfloat16 = 5"), 7, "write a figure as"),
        (GOOD + "shared = 1\n", 13, "write a figure as"),
        (GOOD.replace('"X"', "X"), 4, "invalid TOML"),
        (GOOD[GOOD.index("[storage]"):], 2, "accelerator.bandwidth is missing"),
        (GOOD.replace('title = "a node"\n', ""), 11, "title is missing"),
        ('network.latency = { value = "4 m", source = "x" }\n' + GOOD, 1, "not a unit of s"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_that_names_its_line(text, line, says):
    with pytest.raises(UserError) as refused:
        parse(text, "mine.toml", "mine")
    message = str(refused.value)
    assert says in message
    assert re.search(rf"line {line}\b", message), message
    assert "\n" not in message


def test_a_file_nested_beyond_all_measure_is_one_line():
    with pytest.raises(UserError, match=r"^mine\.toml: invalid TOML \(nested too deeply\)$"):
        parse("a = " + "[" * 5000, "mine.toml", "mine")


def test_figures_that_rule_each_other_out_are_refused():
    with pytest.raises(UserError, match=r"line 14.*local"):
        parse(GOOD.replace("local =", "shared_read_node =").replace("1 TB", "1 TB/s")
              + 'shared_read = { value = "1 GB/s", source = "x" }\n'
              + 'local_read = { value = "1 GB/s", source = "x" }\n', "mine.toml", "mine")  # fmt: skip


def test_an_unknown_machine_and_an_unreadable_file_are_told_apart(tmp_path):
    with pytest.raises(UserError, match="did you mean 'perlmutter'"):
        machine("perlmuter")
    with pytest.raises(UserError, match="cannot be read"):
        machine(str(tmp_path / "absent.toml"))
    (tmp_path / "mine.toml").write_text(GOOD)
    assert machine(str(tmp_path / "mine.toml")).name == "mine"


DRIVERS = [name for name in known() if "reports it" in machine(name).sources["accelerator.memory"]]


@pytest.mark.parametrize("name", DRIVERS)
def test_memory_that_a_driver_reports_is_the_product_s_in_gib(name):
    """Products count GiB as GB, and drivers keep up to 2%: 39.59 GiB of an A100 "40 GB", which are no 37.3 GiB."""
    there = machine(name)
    says = f"{there.facts['accelerator.model']}; {there.sources['accelerator.memory']}"
    product = int(re.search(r"(\d+) GB", says)[1])
    assert 0.98 * product <= there.figures["accelerator.memory"] / 2**30 <= product


def test_most_machines_have_the_memory_that_a_driver_reports():
    assert len(DRIVERS) >= 14
