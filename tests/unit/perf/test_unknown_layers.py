"""A layer that the models do not know, from any source, is reported in one line with its place."""

import re

import pytest
from golden.make_run import make_run

from mlhpc.errors import UserError
from mlhpc.perf.calibration import kind_of
from mlhpc.perf.machines import machine
from mlhpc.perf.networks.builder import Builder
from mlhpc.perf.networks.layer import Layer, Network
from mlhpc.record.run_directory import read
from mlhpc.submission.report.predicted import beside


def refusal(call, *arguments):
    with pytest.raises(UserError) as refused:
        call(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_of_a_kind_that_has_no_costs_names_network_and_layer():
    known = Layer("embedding", "dense", ((8,),), (8,), ())
    unknown = Layer("head 3", "attention", ((8,),), (8,), ())
    assert Network("transformer", (8,), (known,)).layers == (known,)
    assert refusal(Network, "transformer", (8,), (known, unknown)).startswith(
        "network transformer, layer 'head 3': unknown kind 'attention'; choose "
    )


def test_of_a_kind_that_no_published_set_has_names_network_and_layer():
    net = Builder("mlp", (64,))
    net.squared_error(net.dense("small", net.dense("large", net.input, 512), 4))
    assert refusal(kind_of, net.network()).startswith(
        "network mlp, layer 'large': most of its work is of kind 'dense'"
    )


def test_a_network_without_products_is_refused_by_name():
    net = Builder("nothing", (8, 8, 2))
    net.squared_error(net.relu("r", net.input))
    assert refusal(kind_of, net.network()).startswith("network nothing has no matrix products")


def test_in_the_settings_of_a_run_names_the_file_and_its_line(tmp_path):
    path = make_run(tmp_path / "run")
    config = path / "config.toml"
    text = config.read_text("utf-8")
    config.write_text(text.replace("[network]\n", "[network]\nattention_heads = 8\n"), "utf-8")
    line = text[: text.index("[network]")].count("\n") + 2
    says = refusal(beside, read(path), machine("dgx-a100"))
    assert re.match(rf"{re.escape(str(config))}: .*line {line}: network.attention_heads: ", says), says
