"""The model against the published sets that it was not fitted to."""

import csv
import io
import statistics
from dataclasses import replace
from functools import cache
from importlib import resources

import pytest

from mlhpc.benchmarks.load import load
from mlhpc.errors import UserError
from mlhpc.perf.against import apart, baseline, compare, coverage, summaries_of, summary
from mlhpc.perf.calibration import calibration, communication, fit, kind_of, rate_of, roofline
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.published import parse, published

TEXT = resources.files("mlhpc.perf").joinpath("published.csv").read_text()
SETS = [row for row in published() if row.use != "blind"]
COMPARED = compare(SETS)
TEST = [c for c in COMPARED if c.row.use == "test"]


def test_there_are_44_sets_with_a_machine_each_seven_of_round_3_and_thirteen_blind():
    assert len(SETS) == 51
    assert len(published()) == 64
    assert len(TEST) == 20
    assert [row.round for row in published() if row.use == "seen"] == ["v3.0"] * 7
    assert {row.machine.family for row in published()} == {
        "A100",
        "V100",
        "P100",
        "A64FX",
        "RTX 5000",
        "Xeon Phi",
        "H100",
    }


def test_the_median_error_of_test_sets_is_within_a_quarter_and_not_above_the_baseline():
    own = summary([c.error for c in TEST])
    assert own.median <= 0.25
    both = [c for c in TEST if c.baseline is not None]
    assert len(both) >= 19
    model, guess = summary([c.error for c in both]), summary([c.baseline_error for c in both])
    assert model.median <= guess.median
    assert model.within >= guess.within


def test_the_baseline_is_the_median_of_the_others():
    row = next(c for c in COMPARED if c.row.system == "dgxa100_n256_pytorch")
    # PyTorch, DeepCAM, local batch 1, A100-SXM4-80GB: only the round before, 18.440
    assert row.baseline == pytest.approx(18.440)


def test_nothing_of_a_test_set_is_in_the_calibration():
    """Other rates in the test rows change no prediction."""
    rows = list(csv.DictReader(io.StringIO(TEXT)))
    for row in rows:
        if row["use"] == "test":
            row["train_samples_per_s_per_accel"] = str(float(row["train_samples_per_s_per_accel"]) * 7)
            row["epochs_to_converge_mean"] = "1"
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    for changed, original in zip(compare(list(parse(out.getvalue(), "x.csv"))), COMPARED, strict=True):
        assert changed.rate[0] == pytest.approx(original.rate[0])
        assert changed.epochs.ends == original.epochs.ends


def changed(use, factor):
    """The published sets with other rates and epochs in the rows of a ``use``."""
    return [
        replace(row, samples_per_s=row.samples_per_s * factor, epochs=(1.0, 1.0, 1.0))
        if row.use == use
        else row
        for row in published()
    ]


def test_nothing_is_fitted_to_a_set_of_round_3():
    """No prediction, interval or baseline of the others depends on them; they are not among those left out."""
    others = [c for c in COMPARED if c.row.is_early]
    again = [c for c in compare(changed("seen", 7.0)) if c.row.is_early]
    assert again == others
    for by in ("round", "accelerator"):
        assert apart(changed("seen", 7.0), by) == left_out(by)
        assert all(c.row.is_early for c in left_out(by))


def test_a_blind_set_keeps_the_prediction_that_was_committed_and_changes_no_other():
    """Whatever its result, and however the model has changed since."""
    blind = [row for row in published() if row.use == "blind"]
    for one in compare(changed("blind", 7.0)):
        if one.row.use == "blind":
            row = next(row for row in blind if row.where == one.row.where)
            assert (one.rate, one.epochs.ends) == row.committed
    assert [c for c in compare(changed("blind", 7.0)) if c.row.use != "blind"] == COMPARED
    lines = summaries_of(compare(published()))["blind, committed before the result was read"]
    assert any("of 13 sets" in line for line in lines)


@cache
def left_out(by):
    return apart(published(), by)


GROUP = {"round": lambda row: row.round, "accelerator": lambda row: row.machine.family}


@pytest.mark.parametrize("by", ["round", "accelerator"])
def test_a_set_is_predicted_without_its_round_or_its_accelerator(by):
    """As fitted to a file without these rows; whatever rates they have."""
    predicted = {c.row.where: c for c in left_out(by)}
    for group in {GROUP[by](row) for row in published() if row.is_early}:
        rest = [row for row in published() if GROUP[by](row) != group and row.is_early]
        alone = fit(rest)
        for row in published():
            if row.is_early and GROUP[by](row) == group and row.where in predicted:
                rate, efficiency = rate_of(row, row.machine, alone)
                assert predicted[row.where].rate[0] == pytest.approx(rate)
                assert group not in (efficiency.group[0], "v" + efficiency.group[1]), "of the group left out"
                assert predicted[row.where].baseline == baseline(row, [*rest, row], row.machine.family)
    # By round, sets of accelerators that only their round has are not among them.
    only = {
        row.where
        for row in published()
        if by == "round"
        and row.is_early
        and not any(
            other.round != row.round and other.machine.family == row.machine.family and other.use == "fit"
            and other.benchmark == row.benchmark
            for other in published()
        )
    }  # fmt: skip
    assert set(predicted) == {row.where for row in published() if row.is_early} - only


@pytest.mark.parametrize(("by", "sets"), [("round", 38), ("accelerator", 44)])
def test_nine_of_ten_predictions_of_what_was_left_out_are_inside_their_interval(by, sets):
    compared = left_out(by)
    inside = [c.rate[1] <= c.row.samples_per_s <= c.rate[2] for c in compared]
    assert len(inside) == sets and 0.9 <= sum(inside) / len(inside) < 1
    counted = coverage([(c.rate, c.row.samples_per_s) for c in compared])
    assert (counted.inside, counted.of) == (sum(inside), sets)
    assert counted.width == pytest.approx(statistics.median(c.rate[2] / c.rate[1] for c in compared))
    # No interval wider than the factor that says so.
    factor = calibration().of_a_round if by == "round" else calibration().of_an_accelerator
    assert counted.width <= factor**2 * (1 + 1e-9)


def test_where_the_baseline_is_better_it_is_said():
    lines = summaries_of(COMPARED)
    model = statistics.median(abs(c.error) for c in left_out("round") if c.baseline)
    guess = statistics.median(abs(c.baseline_error) for c in left_out("round") if c.baseline)
    assert guess < model
    (said,) = [line for line in lines["each round left out in turn"] if "better" in line]
    assert said.startswith("the baseline is better: ") and f"{guess:.1%}" in said and f"{model:.1%}" in said
    assert any("the model is at least as good" in line for line in lines["test"])
    assert "no set has a baseline: none has comparable sets" in lines["each accelerator left out in turn"]
    assert any(line.startswith("throughput inside the interval: 7 of 7") for line in lines["seen"])


def test_the_bare_roofline_is_far_too_fast_for_cosmoflow():
    ratios = [
        1 / roofline(r.network, r.machine, "mixed_float16") / r.samples_per_s
        for r in published()
        if r.benchmark == "cosmoflow" and "A100" in r.model
    ]
    assert 6 < min(ratios) < 10 and 12 < max(ratios) < 48


def test_fit_sets_alone_in_their_group_are_met_exactly():
    alone = [
        c for c in COMPARED if c.row.use == "fit" and "(1 published set)" in c.how and c.row.spatial == 1
    ]
    assert len(alone) >= 8
    for c in alone:
        assert c.error == pytest.approx(0, abs=0.02)


def test_efficiencies_are_shares_of_a_limit():
    for value, sets, _ in calibration().efficiencies.values():
        assert 0 < value <= 1 and sets >= 1
    assert 1 < calibration().factor < 3


def test_layer_kinds():
    assert kind_of(network_of(load("cosmoflow", "closed"))) == "3-D convolution"
    assert kind_of(network_of(load("deepcam", "closed"))) == "2-D convolution"


def test_a_family_without_sets_gets_the_median_of_the_newest():
    """Of 2022 there are two generations of 2-D convolutions, whose mean it is."""
    newest = [e for (_, g, k), e in calibration().efficiencies.items() if g.endswith("2022") and k[0] == "2"]
    assert len(newest) == 2
    efficiency = calibration().efficiency("B200", "2-D convolution")
    assert efficiency.value == pytest.approx((newest[0][0] + newest[1][0]) / 2)
    assert efficiency.sets == newest[0][1] + newest[1][1]


def test_an_interval_for_eight_of_ten_sets_has_six_of_the_seven_of_round_3():
    """The sets are seen: they are among those that the model is fitted to."""
    recent = calibration().recent
    inside = 0
    for row in (row for row in published() if row.use == "seen"):
        efficiency = recent.efficiencies[kind_of(row.network)]
        assert efficiency.factor**2 <= 1.8
        bound = row.local_batch_size * roofline(row.network, row.machine, row.precision)
        reduce = communication(row.machine, 4 * row.network.parameters, row.accelerators)
        step = bound / efficiency.value + len(row.network.layers) * efficiency.launch + reduce
        inside += 1 / efficiency.factor <= row.step_s / step <= efficiency.factor
    assert inside >= 6


def test_round_3_does_not_change_the_prediction_for_others():
    without = fit([row for row in published() if row.use != "seen"])
    assert without.recent is None
    assert replace(calibration(), recent=None) == without


def test_a_family_without_sets_is_said_to_be_one():
    unknown = calibration().efficiency("B200", "3-D convolution")
    assert not unknown.exact and "all families" in unknown.how
    assert calibration().efficiency("A100", "3-D convolution").exact
    with pytest.raises(UserError, match="attention"):
        calibration().efficiency("A100", "attention")


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (lambda t: t.replace("train_samples_per_s_per_accel", "rate", 1), 1, "train_samples_per_s_per_accel"),
        (lambda t: t.replace(",48.336,", ",fast,"), 2, "not a number"),
        (lambda t: t.replace(",48.336,", ",-1,"), 2, "above 0"),
        (lambda t: t.replace("\ntest,", "\ntried,", 1), 3, "fit, test, seen or blind"),
        (lambda t: t.replace("juwelsbooster_gpu_n512_mxnet", "nowhere", 1), 3, "no machine file"),
        (
            lambda t: t.replace(",closed,cosmoflow,", ",closed,cosmoflop,", 1),
            2,
            "benchmark 'cosmoflop' has no performance model",
        ),
        (lambda t: t.replace(",256,1024,1024,", ",256,1024,0.5,", 1), 2, "expected a whole number"),
        (lambda t: t.replace("\nfit,", "\nfit," + "x" * 200_000, 1), 2, "invalid CSV"),
    ],
)
def test_a_wrong_csv_is_one_line_that_names_its_line(change, line, says):
    with pytest.raises(UserError, match=rf"mine.csv, line {line}: .*{says}") as refused:
        compare(list(parse(change(TEXT), "mine.csv")))
    assert "\n" not in str(refused.value)


def test_a_csv_without_rows():
    with pytest.raises(UserError, match="no rows"):
        parse(TEXT.splitlines()[0] + "\n", "mine.csv")
