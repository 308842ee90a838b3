"""The gate: intervals against other implementations, and verdicts on runs with a known change."""

import json
import random
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from golden.make_run import make_run
from scipy import stats

from mlhpc import cli
from mlhpc.errors import UserError
from mlhpc.history.gate import gate, paired_ratio, ratio_interval
from mlhpc.history.gate import tested as one_test
from mlhpc.history.gating import rules_of
from mlhpc.history.health import health
from mlhpc.history.store import put
from mlhpc.history.tables import gate_lines
from mlhpc.record.history import HistoryRecord, RunFigures

RULES = {"time_to_train_s": 0.05}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLHPC_HISTORY", str(tmp_path / "store"))
    return tmp_path / "store"


def runs(factor: float, number: int, seed: int, *, wait: float = 0.0, spread: float = 0.02, **row) -> list:
    """Records of runs of 100 s, of which 20 are data wait, with a change in all or in the data wait."""
    draw = random.Random(seed)
    rows = []
    for _ in range(number):
        step, waited = 80 * factor * draw.gauss(1, spread), 20 * factor * draw.gauss(1, spread) + wait
        figures = {"time_to_train_s": step + waited, "epochs": 10, "epoch_s": (step + waited) / 10,
                   "parts_s": {"step": step, "data_wait": waited}, "reached": True}  # fmt: skip
        keys = ("settings", "framework", "status", "system", "machine", "ranks", "nodes", "accelerators",
                "global_batch_size", "mlhpc", "commit")  # fmt: skip
        known = {"benchmark": "cosmoflow", "preset": "smoke", "kind": "run", "versions": "parts 1, preset 1"}
        rows.append(({**dict.fromkeys(keys), **known, **row}, [figures]))
    return rows


def test_the_ratio_of_pairs_is_that_of_scipys_paired_test() -> None:
    draw = np.random.default_rng(1)
    below = draw.lognormal(4, 0.5, 10)
    above = 0.9 * below * draw.lognormal(0, 0.05, 10)
    test = stats.ttest_rel(np.log(above), np.log(below)).confidence_interval(0.95)
    middle = stats.gmean(above) / stats.gmean(below)
    values = above.tolist(), below.tolist()
    assert paired_ratio(*values) == pytest.approx((middle, np.exp(test.low), np.exp(test.high)))
    unpaired = ratio_interval(*values)
    assert unpaired and unpaired[2] - unpaired[1] > 5 * (np.exp(test.high) - np.exp(test.low))


def test_the_interval_is_welchs() -> None:
    draw = np.random.default_rng(1)
    one, two = np.exp(draw.normal(1.1, 0.1, 7)).tolist(), np.exp(draw.normal(1, 0.3, 12)).tolist()
    interval = stats.ttest_ind(np.log(one), np.log(two), equal_var=False).confidence_interval(0.95)
    ratio, inverse = ratio_interval(one, two), ratio_interval(two, one)
    assert ratio is not None and inverse is not None
    assert ratio[1:] == pytest.approx(np.exp(interval), rel=1e-6)
    _, low, high = inverse
    assert (1 / high, 1 / low) == pytest.approx(np.exp(interval), rel=1e-6)


def test_the_interval_covers_the_truth() -> None:
    draw = random.Random(2)
    hits = 0
    for _ in range(400):
        one, two = ([draw.lognormvariate(mu, 0.05) for _ in range(n)] for mu, n in ((0.1, 5), (0.0, 20)))
        _, low, high = ratio_interval(one, two) or (0, 0, 0)
        hits += low <= np.exp(0.1) <= high
    assert 360 <= hits <= 396  # of 400, 95% and a share of it for chance


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (0.9, 0), (1.2, 1), (1.05, 3)])
def test_verdicts(factor: float, status: int) -> None:
    assert gate(runs(factor, 8, 1), runs(1.0, 30, 2), RULES).status == status


def test_the_part_that_moved_is_named_and_epochs_apart() -> None:
    found = gate(runs(1.0, 8, 1, wait=15.0), runs(1.0, 30, 2), RULES)
    verdicts = {test.metric: test.verdict for test in found.tests}
    assert verdicts == {"time_to_train_s": "slower", "epochs": "pass", "epoch_s": "slower"}
    part, seconds = found.moved[0]
    assert part == "data_wait" and seconds == pytest.approx(15.0, abs=1.0)


def test_the_number_of_further_runs_decides() -> None:
    few, baseline = runs(1.03, 3, 1, spread=0.05), runs(1.0, 200, 2, spread=0.05)
    test = next(test for test in gate(few, baseline, RULES).tests if test.counts)
    assert test.verdict == "undecided" and test.further
    values, logs = np.array(test.new), np.log(test.new)

    def decided(more: int) -> bool:
        """With runs that have the same mean and deviation of logarithms as those there are."""
        n = len(logs) + more
        error = np.var(logs, ddof=1) / n + np.var(np.log(test.baseline), ddof=1) / 200
        middle = logs.mean() - np.log(test.baseline).mean()
        freedom = error**2 / ((np.var(logs, ddof=1) / n) ** 2 / (n - 1) +
                              (np.var(np.log(test.baseline), ddof=1) / 200) ** 2 / 199)  # fmt: skip
        half = stats.t.ppf(0.975, freedom) * error**0.5
        return bool(middle + half < np.log(1.05) or middle - half > np.log(1.05))

    assert decided(test.further) and not decided(test.further - 1) and len(values) == 3


def test_one_further_run_decides_where_many_would_not() -> None:
    """By SciPy's t and Welch's formula, the upper end is 1.0510 now, 1.0456 with one further run (2.23 degrees of
    freedom), 1.0595 with ten (1.34) and 1.0859 with a thousand (1.00)."""
    test = one_test("time_to_train_s", (102.0, 103.0), (100.0, 101.0), {"time_to_train_s": 0.05})
    assert (test.verdict, test.further) == ("undecided", 1)


@pytest.mark.parametrize(
    "new", [{"versions": "parts 2, preset 1"}, {"benchmark": "deepcam"}, {"preset": "mini"}], ids=str
)
def test_other_definitions_are_refused(new: dict) -> None:
    with pytest.raises(Exception, match="cannot be compared"):
        gate(runs(1.0, 5, 1, **new), runs(1.0, 5, 2), RULES)


def test_other_machines_and_unknown_versions_are_marked() -> None:
    found = gate(runs(1.0, 5, 1, machine="H100", versions=None), runs(1.0, 5, 2, machine="A100"), RULES)
    assert any("H100 against A100" in mark for mark in found.marks)
    assert any("without versions" in mark for mark in found.marks)


def test_emulated_runs_are_compared_only_with_emulated_runs(tmp_path: Path, capsys) -> None:
    """The trained runs of the baseline are as fast as the new run; the emulated ones read data three times as
    fast."""

    def emulated(result: dict, seed: int) -> None:
        result.update(status="emulated", seed=seed, time_to_train_s=None, emulation={"step_s": 0.1})
        for epoch in result["epochs"]:
            epoch["samples_per_s"] *= 3

    trained = [make_run(tmp_path / f"trained{n}", result=lambda r, n=n: r.update(seed=n)) for n in range(3)]
    quick = [make_run(tmp_path / f"quick{n}", result=partial(emulated, seed=n)) for n in range(2)]
    assert cli.main(["history", "add", *map(str, (*trained[:2], quick[0]))]) == 0
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmetric = "samples_per_s"\ntolerance = "1%"\n')
    words = ["--baseline", "last=3", "--rules", str(rules), "--json"]
    for new, size in ((trained[2], 2), (quick[1], 1)):
        capsys.readouterr()
        assert cli.main(["history", "gate", str(new), *words]) in (0, 3)
        tests = json.loads(capsys.readouterr().out)["tests"]
        assert [(len(t["baseline"]), t["ratio"][0]) for t in tests if t["counts"]] == [(size, 1.0)]
    assert cli.main(["history", "gate", *map(str, (trained[2], quick[1])), *words]) == 2
    assert "emulated runs cannot be compared" in capsys.readouterr().err


def slower(result: dict) -> None:
    result["time_to_train_s"] *= 1.5


def test_the_command_compares_folders_with_the_store(tmp_path: Path, store: Path, capsys) -> None:
    old = [make_run(tmp_path / f"old{n}", result=lambda r, n=n: r.update(seed=n)) for n in range(3)]
    assert cli.main(["history", "add", *map(str, old)]) == 0
    (tmp_path / "rules.toml").write_text('[[rule]]\nmetric = "epochs"\ntolerance = "1%"\n')
    new = str(make_run(tmp_path / "new", result=slower))
    capsys.readouterr()
    assert cli.main(["history", "gate", new, "--baseline", "last=3", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == 1
    assert cli.main(["history", "gate", str(old[0]), "--baseline", "last=3"]) == 0
    assert "gate: passed" in capsys.readouterr().out
    rules = str(tmp_path / "rules.toml")
    assert cli.main(["history", "gate", new, "--baseline", "last=3", "--rules", rules]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-run", "--baseline", "last=3"],
        ["last=1", "--baseline", "abcdef0123"],
        ["last=1", "--baseline", "system=other"],
        ["last=1", "--baseline", "last=3", "--tolerance", "-5%"],
        ["last=1", "--baseline", "last=3", "--tolerance", "5 apples"],
        ["last=1", "--baseline", "last=3", "--rules", "/dev/null"],
        ["last=1"],
        ["--nodes"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(store: Path, capsys, words: list[str]) -> None:
    figures = RunFigures(time_to_train_s=60.0, reached=True)
    put(store, HistoryRecord(kind="run", benchmark="cosmoflow", when="2026-01-01T00:00:00Z", runs=(figures,)))
    assert cli.main(["history", "gate", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("", "expected [[rule]] tables"),
        ("[[rule]]\nmetric = 'epochs'\n[[rule]]\ntolerance = '5%'", "expected [[rule]] tables"),
        ("rule = []", "has no rules"),
    ],
)
def test_what_is_wrong_with_rules_is_said(tmp_path: Path, rules: str, said: str) -> None:
    (tmp_path / "rules.toml").write_text(rules)
    with pytest.raises(UserError, match=re.escape(said)):
        rules_of(tmp_path / "rules.toml", "5%")


def test_a_slow_node_is_found(store: Path, capsys) -> None:
    for day in range(1, 4):
        for node in range(4):
            rate = 20e9 * (1 + 0.01 * ((3 * day + node) % 4)) * (0.7 if (node, day) == (2, 3) else 1)
            figures = {"storage.local_read": rate, "accelerator.bandwidth": 1e12 + day * 1e9 + node * 1e8}
            put(store, HistoryRecord(kind="node", node=f"n{node}", machine="A100", system="n", figures=figures,
                                     when=f"2026-01-0{day}T00:00:00Z"))  # fmt: skip
    assert cli.main(["history", "gate", "--nodes", "--tolerance", "10%", "--json"]) == 1
    nodes = {test["node"]: test for test in json.loads(capsys.readouterr().out)["tests"]}
    assert [name for name, node in nodes.items() if node["verdict"] == "slower"] == ["n2"]
    assert nodes["n2"]["metric"] == "storage.local_read" and nodes["n2"]["ratio"][0] == pytest.approx(
        1 / 0.7, abs=0.1
    )


def test_the_json_of_nodes_grows_with_their_number_not_its_square(store: Path, capsys) -> None:
    sizes = []
    for nodes in (range(20), range(20, 80)):
        for node in nodes:
            rate = {"accelerator.bandwidth": 1e12 + node * 1e9}
            put(store, HistoryRecord(kind="node", node=f"n{node:02}", machine="A100", figures=rate))
        assert cli.main(["history", "gate", "--nodes", "--json"]) in (0, 1, 3)
        sizes.append(len(capsys.readouterr().out))
    assert 3 * sizes[0] < sizes[1] < 4.5 * sizes[0]  # 80 nodes instead of 20; the square would be 16


def test_runs_of_a_campaign_that_missed_the_target_have_no_time_to_it() -> None:
    rows = runs(1.0, 3, 1)
    rows[2][1][0] |= {"time_to_train_s": 400.0, "reached": False}
    campaign = [({**rows[0][0], "kind": "campaign"}, [run for _, own in rows for run in own])]
    found = gate(campaign, runs(1.0, 30, 2), RULES)
    (time,) = (test for test in found.tests if test.metric == "time_to_train_s")
    assert len(time.new) == 2 and max(time.new) < 200
    assert any("1 new run missed the target" in mark for mark in found.marks)


def test_parts_of_runs_that_missed_the_target_move_nothing() -> None:
    """The runs that reached it are those of the baseline; the others trained twice as many epochs."""
    baseline, missed = runs(1.0, 4, 2), runs(2.0, 2, 3)
    for _, own in missed:
        own[0]["reached"] = False
    assert not any(change for _, change in gate(runs(1.0, 4, 2) + missed, baseline, RULES).moved)
    assert not gate(missed, baseline, RULES).moved
    (_, longer), *_ = gate(
        missed, [(row, [{**own[0], "reached": False}]) for row, own in baseline], RULES
    ).moved
    assert longer == pytest.approx(80, rel=0.1), "where no run reached it, all are compared"


def with_joules(rows: list, **joules: float) -> list:
    """``rows`` whose runs all used ``joules`` by kind of counter."""
    for _, own in rows:
        own[0] |= {"joules": joules, "joules_per_sample": {kind: j / 100 for kind, j in joules.items()}}
    return rows


def test_joules_are_compared_by_a_kind_of_counter_that_all_runs_have() -> None:
    """Equal energy of the accelerators; the new nodes also have a counter of their own, which reads twice that."""
    baseline = with_joules(runs(1.0, 4, 2), accelerators=1000.0)
    new = with_joules(runs(1.0, 4, 1), accelerators=1000.0, node=2000.0)
    rules = {"joules": 0.05, "joules_per_sample": 0.05}
    found = gate(new, baseline, rules)
    assert found.status == 0 and {t.ratio for t in found.tests if t.counts} == {(1.0, 1.0, 1.0)}
    assert any("accelerators, node against accelerators" in mark for mark in found.marks)
    found = gate(with_joules(new, node=2000.0), baseline, rules)
    assert found.status == 3 and not any(t.new or t.baseline for t in found.tests if t.counts)
    assert any("no kind of counter" in line for line in gate_lines(found))


def test_of_two_figures_of_a_node_on_one_day_the_worse_one_counts() -> None:
    def node(value: float, day: str) -> tuple:
        row = {"kind": "node", "machine": "A100", "node": "n1", "when": f"2026-01-{day}T00:00:00Z"}
        return {**row, "accelerator.bandwidth": value}, []

    (found,) = health(
        [*(node(100.0 + n / 10, f"0{n}") for n in range(1, 6)), node(100, "09"), node(50, "09")], 0.05
    ).tests
    assert (found.new, found.verdict) == ((50,), "slower")


def test_a_baseline_by_name_and_a_run_added_for_another_system(store: Path, tmp_path: Path, capsys) -> None:
    run = make_run(tmp_path / "new")
    assert cli.main(["history", "add", str(run), "--system", "X", "--store", str(store)]) == 0
    other = HistoryRecord.model_validate(
        json.loads(next(store.iterdir()).read_text()) | {"when": "2026-01-01T00:00:00Z"}
    )
    name, _ = put(store, other)
    for words in (["--baseline", "last=40", "--system", "X"], ["--baseline", f"name={name[:12]}"]):
        capsys.readouterr()
        assert cli.main(["history", "gate", str(run), *words, "--store", str(store), "--json"]) in (0, 3)
        tests = json.loads(capsys.readouterr().out)["tests"]
        assert len(tests[0]["baseline"]) == 1  # without itself
