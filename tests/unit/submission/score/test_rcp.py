"""The comparison with the reference, against the official RCP checker."""

from itertools import pairwise
from pathlib import Path

import pytest
from golden.make_tree import CLOSED, Records, make_set
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

from mlhpc.perf.epochs import reference_runs
from mlhpc.submission.check.check import check
from mlhpc.submission.check.official import rcp_verdict
from mlhpc.submission.result_sets import result_sets
from mlhpc.submission.score import rcp
from mlhpc.submission.score.score import RunScore
from mlhpc.submission.score.set_score import compare_set, score_set

SUITES = [
    *((f"hpc_{n}.0.0", "cosmoflow", 10) for n in (1, 2, 3)),
    *((f"hpc_{n}.0.0", "deepcam", 5) for n in (1, 2, 3)),
    ("training_4.0.0", "resnet", 5),
]


def runs(*epochs: float) -> list[RunScore]:
    return [RunScore(Path(f"{n}"), 1.0, 1.0, True, e) for n, e in enumerate(epochs)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("rules", "benchmark", "needed"), SUITES)
def test_points_reference_and_bound_are_those_of_the_official_checker(
    rules: str, benchmark: str, needed: int
) -> None:
    """At every reference batch size, between any two, below and above all."""
    official = RCP_Checker(*rules.split("_"), benchmark, False)
    points = reference_runs(benchmark, rules)
    assert [point.name for point in rcp.pruned(points)] == list(official.pruned_rcp_data)
    sizes = [point.batch_size for point in points]
    between = [(a + b) // 2 for a, b in pairwise(sizes)]
    for size in (*sizes, *between, min(sizes) // 2, max(sizes) * 2):
        record = official._find_rcp(size, "pruned_rcps")
        if record is None:
            low = official._find_top_min_rcp(size, "pruned_rcps")
            high = official._find_bottom_max_rcp(size, "pruned_rcps")
            if low and high:
                record = official._create_interp_rcp(size, low, high)[1]
            elif high:
                record = official._find_min_rcp("pruned_rcps")
        verdict = rcp.compare(runs(*[100.0] * needed), size, benchmark, rules, needed)
        assert verdict is not None
        if record is None:
            assert not verdict.passes and verdict.bound is None and "no reference above" in verdict.why
        else:
            assert verdict.reference == pytest.approx(record["RCP Mean"], abs=1e-9)
            assert verdict.bound == pytest.approx(record["Min Epochs"], abs=2e-4)  # it searches to 1e-4


@pytest.mark.parametrize(
    ("benchmark", "size", "epochs"),
    [
        ("cosmoflow", 512, (21, 22, 23)),
        ("cosmoflow", 256, (14, 15, 16)),  # between two points
        ("cosmoflow", 16, (3, 8)),  # below all
        ("cosmoflow", 4096, (50,)),  # above all
        ("deepcam", 1024, (11, 12, 13)),
        ("resnet", 4096, (34, 35)),
    ],
)
def test_verdicts_are_those_of_the_official_checker(
    benchmark: str, size: int, epochs: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CLOSED[benchmark], "global_batch_size", size)
    verdicts = set()
    for count in epochs:
        level = None if benchmark == "resnet" else "strong"
        make_set(tmp_path / str(count), benchmark, epochs=count, level=level)
        (results,) = result_sets(tmp_path / str(count))
        rules = "training_4.0.0" if benchmark == "resnet" else "hpc_2.0.0"
        ours = compare_set(results, score_set(results), rules)
        assert ours is not None
        passes, message = rcp_verdict(results, rules)
        assert ours.passes is passes, (count, ours, message)
        verdicts.add(passes)
    assert len(epochs) == 1 or verdicts == {True, False}  # the epochs chosen lie on both sides of the bound


def test_the_bound_is_where_p_is_five_percent() -> None:
    verdict = rcp.compare(runs(*[20.0] * 10), 512, "cosmoflow", "hpc_2.0.0", 10)
    assert verdict and verdict.bound is not None and verdict.reference is not None
    at_bound = rcp.compare(runs(*[verdict.bound] * 10), 512, "cosmoflow", "hpc_2.0.0", 10)
    at_reference = rcp.compare(runs(*[verdict.reference] * 10), 512, "cosmoflow", "hpc_2.0.0", 10)
    assert at_bound and at_bound.p_value == pytest.approx(0.05) and at_bound.distance == pytest.approx(0)
    assert at_bound.normalisation == pytest.approx(verdict.reference / verdict.bound)
    assert at_reference and at_reference.p_value == pytest.approx(0.5) and at_reference.normalisation == 1
    assert not verdict.passes and verdict.p_value is not None and verdict.p_value < 0.05
    assert verdict.distance is not None and verdict.distance < 0 and verdict.normalisation is None


def test_one_run_that_did_not_converge_is_the_slowest(tmp_path: Path) -> None:
    missed = RunScore(Path("m"), 1.0, 1.0, False, None)
    verdict = rcp.compare([*runs(20, 21, 23, 40), missed], 1024, "deepcam", "hpc_2.0.0", 5)
    assert verdict and verdict.epochs == pytest.approx((21 + 23 + 40) / 3)
    two = rcp.compare([*runs(20, 21, 23), missed, missed], 1024, "deepcam", "hpc_2.0.0", 5)
    assert two and not two.passes and two.epochs is None and "too few" in two.why


def test_the_bound_of_a_reference_without_spread_is_its_mean() -> None:
    """deepcam_ref_256: nine epochs in all of its runs."""
    bound, p_value = rcp.t_test(8.9, 9.0, 0.0, 8, 3)
    assert (bound, p_value) == (9.0, None)


@pytest.mark.parametrize("benchmark", ["oc21", "", "../hpc_2.0.0/rcps_cosmoflow", "a/b"])
def test_sets_without_a_reference_are_not_compared(benchmark: str) -> None:
    assert rcp.compare(runs(*[20.0] * 10), 512, benchmark, "hpc_2.0.0", 10) is None


def test_unequal_batch_sizes_are_not_compared() -> None:
    verdict = rcp.compare(runs(*[20.0] * 10), None, "cosmoflow", "hpc_2.0.0", 10)
    assert verdict and not verdict.passes and "different values of global_batch_size" in verdict.why
    assert verdict.epochs is None


def test_another_problem_is_not_compared(tmp_path: Path) -> None:
    """CosmoFlow of round 0.7 has 262 144 training samples and another network: it needs other epochs."""

    def earlier(number: int, made: Records) -> None:
        next(r for r in made if r["key"] == "train_samples")["value"] = 262144

    make_set(tmp_path / "org", "cosmoflow", epochs=5, edit=earlier)
    (results,) = result_sets(tmp_path)
    comparison = compare_set(results, score_set(results), "hpc_1.0.0")
    assert comparison and not comparison.applies and comparison.epochs is None
    assert "262144 training samples, not the reference's 524288" in comparison.why
    assert "set/rcp" not in {f.rule for f in check(tmp_path, "1.0.0")}


def test_a_set_that_drops_the_rest_of_a_batch_is_compared(tmp_path: Path) -> None:
    """Published DeepCAM sets log 121 216 of 121 266 samples."""

    def rounded(number: int, made: Records) -> None:
        next(r for r in made if r["key"] == "train_samples")["value"] = 121216

    make_set(tmp_path / "org", "deepcam", edit=rounded)
    (results,) = result_sets(tmp_path)
    comparison = compare_set(results, score_set(results), "hpc_2.0.0")
    assert comparison and comparison.applies and comparison.passes
