"""Benchmarks of other packages: found by entry point, refused in one line when something is wrong."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from mlhpc.benchmarks import load, registry
from mlhpc.errors import UserError


@pytest.fixture
def entry(monkeypatch):
    """Makes an object the only entry point of the group."""

    def install(thing: object) -> None:
        module = SimpleNamespace(THING=thing)
        monkeypatch.setitem(__import__("sys").modules, "other_package", module)
        points = [EntryPoint("thing", "other_package:THING", registry.GROUP)]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
        registry.benchmarks.cache_clear()

    yield install
    registry.benchmarks.cache_clear()


def test_a_benchmark_with_a_duplicate_name_is_refused(entry):
    entry(registry.COSMOFLOW)
    with pytest.raises(UserError, match=r"'thing' of package .*: the name 'cosmoflow' is already in use"):
        registry.find("deepcam")


def test_an_entry_point_that_is_not_a_benchmark_is_refused(entry):
    entry({"name": "thing"})
    with pytest.raises(UserError, match="other_package:THING is not an mlhpc Benchmark"):
        registry.find("deepcam")


def test_a_benchmark_that_does_not_load_is_named_with_its_error(entry, monkeypatch):
    entry(None)
    broken = [EntryPoint("thing", "no_such_package:THING", registry.GROUP)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: broken)
    with pytest.raises(UserError, match=r"'thing' cannot be loaded .*no_such_package.*uninstall"):
        registry.find("deepcam")


@pytest.mark.parametrize("benchmark", registry.BUILT_IN, ids=lambda benchmark: benchmark.name)
def test_every_reference_of_the_built_in_benchmarks_resolves(benchmark):
    """Without importing a framework: only that the module exists and names the object."""
    from importlib.util import find_spec
    from pathlib import Path

    references = [benchmark.settings, benchmark.make_data.function, benchmark.show, benchmark.select]
    references += [
        f"{framework.trainer}:{name}"
        for framework in benchmark.frameworks.values()
        for name in ("check", "train")
    ]
    references += [benchmark.convert.function] if benchmark.convert else []
    if bench := benchmark.loader_bench:
        references += [f"{bench.module}:{name}" for name in ("epoch", "files_of")]
    for reference in references:
        module, _, name = reference.partition(":")
        spec = find_spec(module)
        assert spec and spec.origin, reference
        text = Path(spec.origin).read_text()
        assert f"def {name}(" in text or f"class {name}(" in text, reference


def test_names_and_logged_names_map_to_each_other():
    assert registry.logged_name("resnet50") == "resnet" and registry.our_name("resnet") == "resnet50"
    assert registry.logged_name("openfold") == "openfold" and registry.title("resnet") == "ResNet-50"


def test_an_unknown_framework_is_a_one_line_error():
    assert load.load("cosmoflow", "smoke").training.framework == "tensorflow"
    with pytest.raises(UserError, match=r"no training.framework 'tensorflov'; did you mean 'tensorflow'"):
        load.load("cosmoflow", "smoke", ["training.framework=tensorflov"])
