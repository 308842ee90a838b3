"""Scores against the official result_summarizer and scipy, and by hand where the official one has none."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from golden.make_tree import MISSED, Records, describe, make_set, records, write_log

from mlhpc.benchmarks.load import load
from mlhpc.record.mllog import Log, parse
from mlhpc.record.result import Target
from mlhpc.submission.check.official import summary
from mlhpc.submission.check.rulesets import rules_of
from mlhpc.submission.result_sets import result_sets
from mlhpc.submission.score.score import Strong, Weak, score_rules, score_run, score_strong, score_weak
from mlhpc.submission.score.set_score import score_set, set_findings


def known_rules(benchmark: str) -> tuple[Target, int]:
    rules = score_rules(benchmark)
    assert rules is not None
    return rules


COSMOFLOW, RUNS = known_rules("cosmoflow")


def log_of(tmp_path: Path, made: Records, name: str = "result_1.txt") -> Log:
    return parse(write_log(tmp_path / name, made))


def key(made: Records, name: str) -> dict[str, Any]:
    return next(record for record in made if record["key"] == name)


def logs_of(tmp_path: Path, minutes: list[float], **facts: Any) -> list[Log]:
    return [
        log_of(tmp_path, records(minutes=m, seed=n, **facts), f"result_{n}.txt")
        for n, m in enumerate(minutes, 1)
    ]


# Time to solution.


@pytest.mark.parametrize(
    ("benchmark", "level"), [("cosmoflow", "strong"), ("deepcam", "strong"), ("resnet", None)]
)
@pytest.mark.parametrize("missed", [None, 1, 3])
def test_the_score_is_that_of_the_official_summarizer(
    benchmark: str, level: str | None, missed: int | None, tmp_path: Path
) -> None:
    """Any times, and at most one run that does not converge: both drop it with the fastest."""
    draw = random.Random(f"{benchmark} {missed}")
    minutes = [round(draw.uniform(5, 50), 4) for _ in range(known_rules(benchmark)[1])]

    def miss(number: int, made: Records) -> None:
        if number == missed:
            for record in made:
                if record["key"] in ("eval_error", "eval_accuracy"):
                    record["value"] = MISSED[benchmark]

    make_set(tmp_path / "org", benchmark, minutes, level=level, edit=miss)
    (results,) = result_sets(tmp_path)
    score = score_set(results)
    assert isinstance(score, Strong) and score.minutes is not None
    assert score.minutes == pytest.approx(summary(results, rules_of(results.benchmark)), abs=5e-5)
    assert sum(run.converged for run in score.runs) == len(minutes) - (missed is not None)


def test_a_run_that_was_killed_counts_as_the_slowest(tmp_path: Path) -> None:
    def killed(number: int, made: Records) -> None:
        if number == 1:  # it would have been the fastest
            del made[-1]

    make_set(tmp_path / "org", edit=killed)
    (results,) = result_sets(tmp_path)
    score = score_set(results)
    assert score.minutes == pytest.approx(summary(results, rules_of(results.benchmark)), abs=5e-5)
    assert score.minutes == pytest.approx(sum(range(12, 20)) / 8)
    assert [(r.path.name, r.dropped) for r in score.runs if r.dropped] == [
        ("result_1.txt", "did not converge"),
        ("result_2.txt", "fastest"),
    ]


@pytest.mark.parametrize(
    ("minutes", "missed", "why"),
    [
        (RUNS, 2, "2 of 10 runs did not converge"),
        (RUNS - 1, 0, "9 runs"),
        (RUNS + 1, 0, "11 runs"),
        (0, 0, "0"),
    ],
)
def test_sets_that_have_no_score(minutes: int, missed: int, why: str, tmp_path: Path) -> None:
    logs = logs_of(tmp_path, [10.0 + n for n in range(minutes - missed)])
    logs += [log_of(tmp_path, records(reached=False), f"missed_{n}.txt") for n in range(missed)]
    score = score_strong(logs, COSMOFLOW, RUNS)
    assert score.minutes is score.without_staging_minutes is None
    assert score.why.startswith(why)


def test_convergence_depends_on_the_target_not_on_the_status(
    tmp_path: Path,
) -> None:
    """Both are in published results of round 0.7."""
    claimed = records(reached=False)
    key(claimed, "run_stop")["metadata"]["status"] = "success"
    assert not score_run(log_of(tmp_path, claimed), COSMOFLOW).converged
    silent = records()
    del key(silent, "run_stop")["metadata"]["status"]
    assert score_run(log_of(tmp_path, silent), COSMOFLOW).converged


@pytest.mark.parametrize(("value", "met"), [
    (0.124, True), (0.12400001, False), (1e-9, True), (0.0, False), (-0.12, False), (math.nan, False),
    (-math.inf, False), (True, False), (None, False), ("0.1", False), ([0.1], False), (10**400, False),
])  # fmt: skip
def test_values_that_meet_a_mean_absolute_error_of_0_124(value: Any, met: bool, tmp_path: Path) -> None:
    """A published set logs every error a second time with the sign flipped, which is not an error value."""
    made = records(epochs=1)
    key(made, "eval_error")["value"] = value
    assert score_run(log_of(tmp_path, made), COSMOFLOW).converged is met


@pytest.mark.parametrize(("value", "met"), [(0.82, True), (0.8199999, False), (1.0, True), (1.01, False)])
def test_values_that_meet_an_iou_of_0_82(value: float, met: bool, tmp_path: Path) -> None:
    made = records("deepcam", epochs=1)
    key(made, "eval_accuracy")["value"] = value
    assert score_run(log_of(tmp_path, made), known_rules("deepcam")[0]).converged is met


def test_the_run_ends_at_the_first_run_stop(tmp_path: Path) -> None:
    """Some systems continue training for a power measurement."""
    made = records(minutes=10, reached=False)
    later = [r for r in records(minutes=10, start_ms=key(made, "run_stop")["time_ms"]) if "_" in r["key"]]
    run = score_run(log_of(tmp_path, made + later), COSMOFLOW)
    assert (run.seconds, run.converged) == (600, False)


def test_epochs_count_from_one_however_they_are_logged(tmp_path: Path) -> None:
    """The TensorFlow reference of round 0.7 counts from 0."""
    made = records(epochs=7)
    assert score_run(log_of(tmp_path, made), COSMOFLOW).epochs_to_target == 7
    for record in made:
        if "epoch_num" in record["metadata"]:
            record["metadata"]["epoch_num"] -= 1
    assert score_run(log_of(tmp_path, made), COSMOFLOW).epochs_to_target == 7


@pytest.mark.parametrize(
    ("spans", "staged"),
    [
        ([], 0),
        ([(0, 60)], 60),
        ([(0, 30), (50, 60)], 40),
        ([(-40, -10)], 0),  # before run_start, as ruleset 3.0.0 allows: not in the run's time
        ([(-40, 20)], 20),
        ([(590, 700)], 10),
        ([(0, 30), (20, 60)], 60),
    ],
)
def test_staging_inside_the_run_is_subtracted_once(
    spans: list[tuple[float, float]], staged: float, tmp_path: Path
) -> None:
    made = records(minutes=10, staging_minutes=0)
    zero = key(made, "run_start")["time_ms"]
    for start, stop in spans:
        for name, at in (("staging_start", start), ("staging_stop", stop)):
            made.append({**key(made, "run_start"), "key": name, "time_ms": zero + round(at * 1e3)})
    run = score_run(log_of(tmp_path, made), COSMOFLOW)
    assert run.seconds == 600
    assert run.without_staging_s == 600 - staged


def test_a_clock_that_was_set_back_gives_no_score(tmp_path: Path) -> None:
    made = records()
    key(made, "run_stop")["time_ms"] = key(made, "run_start")["time_ms"] - 1
    run = score_run(log_of(tmp_path, made), COSMOFLOW)
    assert not run.converged and "set back" in run.why


def test_without_staging_other_runs_are_dropped(tmp_path: Path) -> None:
    """The slowest run is slow only because of its staging."""
    logs = [log_of(tmp_path, records(minutes=10.0 + n, staging_minutes=1, seed=n), f"{n}") for n in range(9)]
    logs.append(log_of(tmp_path, records(minutes=60, staging_minutes=55, seed=9), "9"))
    score = score_strong(logs, COSMOFLOW, RUNS)
    assert score.minutes == pytest.approx(sum(range(11, 19)) / 8)
    assert score.without_staging_minutes == pytest.approx(sum(range(9, 17)) / 8)


def test_the_spread_is_that_of_all_converged_runs(tmp_path: Path) -> None:
    minutes = [10.0, 11.5, 12.25, 30.0]
    logs = [*logs_of(tmp_path, minutes), log_of(tmp_path, records(reached=False), "missed.txt")]
    score = score_strong(logs, COSMOFLOW, 5)
    told = scipy.stats.t.interval(0.95, 3, scipy.stats.tmean(minutes), scipy.stats.sem(minutes))
    assert score.mean == pytest.approx(scipy.stats.tmean(minutes))
    assert score.spread == pytest.approx(scipy.stats.tstd(minutes))
    assert score.ci95 == pytest.approx(told)
    alone = score_strong(logs[:1], COSMOFLOW, 5)
    assert alone.mean == pytest.approx(10) and (alone.spread, alone.ci95) == (None, None)


# Throughput.


def weak_set(tmp_path: Path, minutes: list[float], **facts: Any) -> Weak:
    make_set(tmp_path / "org", "deepcam", minutes, level="weak", **facts)
    (results,) = result_sets(tmp_path)
    score = score_set(results)
    assert isinstance(score, Weak)
    return score


def test_throughput_is_that_of_the_official_summarizer(tmp_path: Path) -> None:
    def late(number: int, made: Records) -> None:
        for record in made:
            record["time_ms"] += 1000 * number

    score = weak_set(tmp_path, [30.0, 20.0, 25.0, 40.0, 10.0, 35.0], edit=late)
    (results,) = result_sets(tmp_path)
    assert score.minutes == pytest.approx(summary(results, rules_of(results.benchmark)), abs=5e-5)
    assert (score.T, score.S, score.M) == (48, 8, 6)
    # The first to start began at second 1; the last to end began at second 4 and ran for 40 minutes.
    assert score.minutes == pytest.approx(40 + 3 / 60)
    assert score.without_staging_minutes == pytest.approx(39 + 3 / 60)


def test_equal_seeds_and_missed_targets_do_not_count(tmp_path: Path) -> None:
    def edit(number: int, made: Records) -> None:
        if number == 6:
            key(made, "seed")["value"] = 1
        if number == 7:
            for record in made:
                if record["key"] == "eval_accuracy":
                    record["value"] = 0.1

    score = weak_set(tmp_path, [10.0, 11, 12, 13, 14, 90, 95], edit=edit)
    assert score.M == 5 and score.minutes == pytest.approx(14)
    assert [run.dropped for run in score.runs[5:]] == ["seed 1 repeated", "did not converge"]


def test_pruned_results_do_not_count_but_are_listed(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org", "deepcam", [10.0, 11, 12, 13, 14, 90], level="weak")
    (folder / "pruned_results").mkdir()
    (folder / "result_6.txt").rename(folder / "pruned_results" / "result_6.txt")
    (results,) = result_sets(tmp_path)
    score = score_set(results)
    assert isinstance(score, Weak)
    assert (score.T, score.M) == (48, 5) and score.minutes == pytest.approx(14)
    assert score.runs[-1].dropped == "pruned"


def test_without_a_description_the_scale_is_that_of_the_instances_that_ran_at_once(tmp_path: Path) -> None:
    """Six instances of two nodes with four accelerators in three waves: 2 · 2 · 4 units, not 6 · 2 · 4."""

    def made(number: int) -> Log:
        lines = records("deepcam", seed=number)
        for record in lines:
            record["time_ms"] += number // 2 * 3_600_000
        return log_of(tmp_path, lines, f"{number}")

    score = score_weak([made(number) for number in range(6)], *known_rules("deepcam"))
    assert (score.T, score.S, score.M) == (16, 8, 6)


def test_too_few_instances_or_different_scales_have_no_score(tmp_path: Path) -> None:
    logs = [log_of(tmp_path, records("deepcam", seed=n), f"{n}") for n in range(4)]
    target, needed = known_rules("deepcam")
    few = score_weak(logs, target, needed)
    assert (few.minutes, few.T, few.S, few.M) == (None, 32, 8, 4) and "5 are required" in few.why
    logs.append(log_of(tmp_path, records("deepcam", seed=4, nodes=3), "4"))
    assert "different scales: 8, 12" in score_weak(logs, target, needed).why


def test_targets_and_runs_are_those_of_the_official_package() -> None:
    """The compliance checker's own test, and the number of files that package_checker requires."""
    from mlperf_logging import benchmark_meta, compliance_checker

    folder = Path(compliance_checker.__file__).parent
    for benchmark in ("cosmoflow", "deepcam", "resnet"):
        target, runs = known_rules(benchmark)
        usage, rules = ("training", "training_4.0.0") if benchmark == "resnet" else ("hpc", "hpc_2.0.0")
        assert benchmark_meta.get_result_file_counts(usage)[benchmark] == runs
        text = (folder / rules / f"closed_{benchmark}.yaml").read_text()
        test = text[text.index("ATLEAST_ONE_CHECK") :].splitlines()[0].split('"')[1]
        for value in (target.value, target.value * 0.9999, target.value * 1.0001, 0.0, -0.1):
            assert bool(eval(test, {"v": {"value": value}})) is target.met_by(value), (benchmark, value)


def test_a_log_of_an_unknown_benchmark_has_no_score(tmp_path: Path) -> None:
    made = records()
    key(made, "submission_benchmark")["value"] = "oc20"
    (results,) = result_sets(write_log(tmp_path / "a.log", made))
    score = score_set(results)
    assert score.minutes is None and "'oc20'" in score.why


# Sets that claim more than they contain.


def test_the_scale_of_an_instance_is_at_most_its_share_of_the_system(tmp_path: Path) -> None:
    """Published logs of 128 instances that ran at the same time each log all 2048 units as their own."""
    score = weak_set(tmp_path, [10.0, 11, 12, 13, 14], nodes=8)  # T of the description: 8 · 4 · 5
    assert (score.T, score.S) == (160, 32)
    tree = tmp_path / "all"
    make_set(tree, "deepcam", [10.0, 11, 12, 13, 14], level="weak", nodes=40)
    describe(tree, "machine", number_of_nodes="40", accelerators_per_node="4")
    (results,) = result_sets(tree)
    whole = score_set(results)
    assert isinstance(whole, Weak) and (whole.T, whole.S) == (160, 32)
    assert whole.minutes == pytest.approx(14)
    (finding,) = [f for f in set_findings(results, whole) if f.rule == "set/scale"]
    assert finding.severity == "error" and "at most 32 units" in finding.expected


def test_instances_one_after_another_have_the_whole_system(tmp_path: Path) -> None:
    def later(number: int, made: Records) -> None:
        for record in made:
            record["time_ms"] += number * 86_400_000

    tree = tmp_path / "org"
    make_set(tree, "deepcam", level="weak", nodes=40, edit=later)
    describe(tree, "machine", number_of_nodes="40", accelerators_per_node="4")
    (results,) = result_sets(tree)
    score = score_set(results)
    assert isinstance(score, Weak) and score.S == 160
    assert "set/scale" not in {f.rule for f in set_findings(results, score)}


def test_the_same_rule_ends_a_run_and_scores_it(tmp_path: Path) -> None:
    """The target that a run is trained to and the one that its log is scored by (D4)."""
    trained = load("cosmoflow", "closed").target
    scored = Target(metric=trained.metric, label=trained.label, value=trained.value)
    for value in (-0.2, -0.0, 0.0, 1e-9, 0.124, 0.1240001, 1.0, math.nan, math.inf, -math.inf):
        assert trained.met_by(value) is scored.met_by(value), value
    trained = load("deepcam", "closed").target
    scored = Target(metric=trained.metric, label=trained.label, value=trained.value)
    for value in (0.8199, 0.82, 1.0, 1.0001, 82.0, math.nan, math.inf):
        assert trained.met_by(value) is scored.met_by(value), value
