"""The figures of the papers: quotes, verdicts, and values that come out again."""

import json
from collections import Counter

import pytest
from helpers.paper_words import known, quotes, windows, words
from helpers.papers_page import ROOT, document, rows_of

from mlhpc.cli import main
from mlhpc.iobench.report.similarity import cosine
from mlhpc.papers import run
from mlhpc.papers.expressions import evaluate
from mlhpc.papers.registry import Figure, registry
from mlhpc.papers.verdict import Measured, judge

FIGURES = {figure.name: figure for figure in registry().figure}
SHIPPED = {name: measured for name, measured in run.stored(ROOT / "nowhere").items() if name in FIGURES}
AGREEING = [name for name, measured in SHIPPED.items() if judge(FIGURES[name], measured).word == "agrees"]


def changed(figure, **values):
    return figure.model_copy(update=values)


def test_every_figure_with_data_is_there():
    counts = Counter(figure.paper for figure in registry().figure)
    assert list(counts.values()) == [11, 11, 8, 11, 14] and list(counts) == list(registry().papers)
    assert len(FIGURES) == 55
    needs = Counter(figure.needs for figure in registry().figure)
    assert needs["device"] <= 18 and needs["cluster"] <= 12
    assert all(figure.full or not figure.needs for figure in registry().figure), (
        "no command at the paper's size"
    )


# Words as digests


def test_every_quote_is_in_its_paper():
    digests = known()
    for paper, quote in quotes():
        assert len(words(quote)) >= 3, quote
        assert windows(paper, quote) <= digests, f"{paper}: {quote}"


def test_a_quote_with_a_changed_number_is_not():
    digests = known()
    for paper, quote in quotes():
        parts = words(quote)
        parts[-1] = f"{parts[-1]}7"
        assert not windows(paper, " ".join(parts)) <= digests, quote


@pytest.mark.parametrize("figure", registry().figure, ids=lambda figure: figure.name)
def test_a_printed_number_stands_in_its_quote(figure):
    for number in figure.number:
        forms = {
            f"{number.printed:g}",
            f"{number.printed:,g}",
            f"{number.printed:.2f}",
            f"{number.printed:.1f}",
        }
        forms.add(f"{number.printed:,.0f}")
        forms.add(f"{number.printed:.0f}")
        assert any(form in number.quote for form in forms), (number.printed, number.quote)


# Verdicts


def figure_of(**values):
    number = {"name": "n", "printed": 10.0, "quote": "is 10 times", "ours": "1", "tolerance": 0.1}
    trend = {"says": "more", "test": "1 < 2"}
    given = {
        "paper": "dlio",
        "label": "Figure 0",
        "shows": "",
        "quotes": ("a",),
        "number": [number],
        "trend": [trend],
    }
    return Figure.model_validate(given | values)


def measured_of(value=10.0, trend=True):
    basis = figure_of().basis
    return Measured(paper="dlio", label="Figure 0", basis=basis, numbers={"n": value}, trends={"more": trend})


@pytest.mark.parametrize(
    ("values", "measured", "word"),
    [
        ({}, measured_of(), "agrees"),
        ({}, measured_of(10.99), "agrees"),
        ({}, measured_of(11.01), "contradicted"),
        ({}, measured_of(None), "contradicted"),
        ({}, measured_of(trend=False), "contradicted"),
        ({}, None, "not run"),
        ({"modelled": True}, measured_of(), "modelled"),
        ({"modelled": True}, measured_of(99.0, trend=False), "modelled"),
        ({"needs": "device"}, measured_of(), "needs a device"),
        ({"needs": "cluster"}, None, "needs a cluster"),
        ({"kind": "picture"}, measured_of(), "trend"),
        ({"trend": [{"says": "less", "test": "2 < 1"}]}, measured_of(), "not run"),
    ],
)
def test_verdicts(values, measured, word):
    assert judge(figure_of(**values), measured).word == word


def test_numbers_that_are_not_compared_make_no_agreement():
    beside = {"name": "n", "printed": 10.0, "quote": "is 10 times", "ours": "1"}
    assert judge(figure_of(number=[beside]), measured_of()).word == "trend"
    alone = figure_of(number=[beside], trend=[])
    measured = measured_of().model_copy(update={"basis": alone.basis, "trends": {}})
    assert judge(alone, measured).word == "not run"


@pytest.mark.parametrize("name", AGREEING)
def test_a_changed_printed_number_leaves_agreement(name):
    figure, measured = FIGURES[name], SHIPPED[name]
    compared = [number for number in figure.number if number.tolerance is not None]
    assert compared
    for number in compared:
        other = number.model_copy(update={"printed": number.printed * (1 + 3 * number.tolerance) + 1})
        figures = tuple(other if each is number else each for each in figure.number)
        assert judge(changed(figure, number=figures), measured).word == "contradicted"


def test_values_of_all_figures_that_need_nothing_are_shipped():
    missing = [
        name
        for name, figure in FIGURES.items()
        if not figure.needs and judge(figure, SHIPPED.get(name)).word == "not run"
    ]
    assert missing == []
    assert len(AGREEING) >= 5


@pytest.mark.parametrize("name", ["dlio-figure-8", "architectural-requirements-table-i"])
def test_a_stored_verdict_comes_out_again(name, tmp_path):
    figure, before = FIGURES[name], SHIPPED[name]
    after = run.Runner(tmp_path / "out", tmp_path).measure(figure, lambda count: None)
    assert (after.numbers, after.trends) == (before.numbers, before.trends)
    assert run.stored(tmp_path / "out")[name] == after
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"{name}.json"]


def test_similarities_are_those_of_the_suite():
    figure = FIGURES["dlio-figure-8"]
    for number, differences in zip(figure.number, figure.given.values(), strict=True):
        ours = evaluate(number.ours, {"given": figure.given})
        assert ours == pytest.approx(cosine(dict(enumerate(differences))), rel=1e-9), number.name


def test_the_page_is_that_of_the_shipped_values():
    page = (ROOT / "docs/papers.md").read_text()
    assert page == document(rows_of(ROOT / "nowhere")), "run: python tests/helpers/papers_page.py"


# Expressions, against Python


@pytest.mark.parametrize(
    "text",
    [
        "1 + 2 * 3 - 4 / 8",
        "-(2 - 5) > 2 and not 1 == 2",
        "[x['y'] for x in a if x['y'] > 1]",
        "sum([x * y for x, y in zip([1, 2], [3, 4])])",
        "1 < max(2, 3) <= 3 != 4",
        "'b' in 'abc' or 1 / 0",
        "a[0]['y'] in [1, 2]",
    ],
)
def test_expressions_mean_what_they_do_in_python(text):
    names = {"a": [{"y": 1}, {"y": 2}]}
    assert evaluate(text, names) == eval(text, dict(names))


def test_an_attribute_is_a_key():
    assert evaluate("a.b[0].c", {"a": {"b": [{"c": 5}]}}) == 5


@pytest.mark.parametrize(
    "text",
    [
        *(
            "__import__('os')",
            "(1).__class__",
            "a.__class__",
            "lambda: 1",
            "open('x')",
            "x := 1",
            "1 / 0",
            "b",
        ),
        *("9 ** 9", "max(*a)", ""),
    ],
)
def test_nothing_else_is_evaluated(text):
    with pytest.raises(ValueError):
        evaluate(text, {"a": {}})


@pytest.mark.parametrize("figure", registry().figure, ids=lambda figure: figure.name)
def test_expressions_use_only_what_their_figure_has(figure):
    """A name that no command, no list and no other expression has would be found only when the figure is run."""
    import ast

    from mlhpc.papers.expressions import FUNCTIONS

    texts = [
        *figure.let.values(),
        *(n.ours for n in figure.number if n.ours),
        *(t.test for t in figure.trend),
    ]
    for text in [*texts, *figure.curves.values()]:
        tree = ast.walk(ast.parse(text.strip(), mode="eval"))
        nodes = [node for node in tree if isinstance(node, ast.Name)]
        bound = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
        used = {node.id for node in nodes} - bound
        assert used <= {*FUNCTIONS, *figure.run, *figure.let, "given"}, text


# The command


def test_json_of_all(capsys, tmp_path):
    assert main(["papers", "--json", "--out", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert len(figures) == 55
    assert all({"paper", "label", "verdict", "printed", "ours", "command"} <= each.keys() for each in figures)
    assert all(len(each["printed"]) == len(each["ours"]) for each in figures)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dloi"], "no paper 'dloi'; did you mean 'dlio'?"),
        (["dlio", "Figure 81"], "no 'Figure 81' in dlio; did you mean 'Figure 8'?"),
        (["dlio", "Figure 8", "--all"], "--all runs every figure"),
        (
            ["mlperf-hpc", "Table 4", "--logs", "/nonexistent"],
            "git clone https://github.com/mlcommons/hpc_results_v0.7",
        ),
    ],
)
def test_errors_are_one_line(words, message, capsys, tmp_path):
    assert main(["papers", *words, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_damaged_values_are_named_and_ignored(capsys, tmp_path):
    (tmp_path / "dlio-figure-8.json").write_text('{"paper": "dlio"')
    assert main(["papers", "dlio", "--out", str(tmp_path)]) == 0
    streams = capsys.readouterr()
    assert "dlio-figure-8.json: no stored values of a figure, ignored" in streams.err
    assert "14 figures" in streams.out


def test_one_figure_with_its_page(capsys, tmp_path):
    assert main(["papers", "dlio", "figure 8", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("contradicted: 4 of 6 numbers")
    page = (tmp_path / "dlio-figure-8.html").read_text()
    assert "do not follow from their printed differences" in page


def test_a_command_that_fails_is_one_line(monkeypatch, capsys, tmp_path):
    broken = changed(FIGURES["dlio-figure-8"], run={"x": "mlhpc io list nothing"})
    monkeypatch.setattr(
        "mlhpc.papers.registry.registry", lambda: registry().model_copy(update={"figure": (broken,)})
    )
    assert main(["papers", "dlio", "Figure 8", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mlhpc: mlhpc io list nothing: ") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_misses_its_target_is_a_result(tmp_path):
    small = "--preset smoke --set data.train_samples=16 --set data.eval_samples=8"
    one_epoch = f"{small} --set training.framework=pytorch --set training.max_epochs=1 --data data"
    commands = {
        "make": f"mlhpc data make cosmoflow {small} --out data",
        "missed": f"mlhpc run cosmoflow {one_epoch} --out missed",
        "report": "mlhpc report missed --json",
    }
    figure = figure_of(run=commands, number=[], trend=[{"says": "n", "test": "report.status == 'failed'"}])
    assert run.Runner(tmp_path / "out", tmp_path).measure(figure, lambda count: None).trends == {"n": True}
