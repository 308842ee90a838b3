"""Rules before the run: what counts as closed, compared with the official checker's conditions."""

import copy
import json
import math
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import yaml
from mlperf_logging.compliance_checker import mlp_compliance

from mlhpc import cli
from mlhpc.benchmarks import load, registry, rules, setting_rules
from mlhpc.errors import UserError
from mlhpc.rules import document

ROOT = Path(__file__).parents[3]
BENCHMARKS = tuple(registry.benchmarks())
CLOSED = [(b, p) for b in BENCHMARKS for p in load.presets(b) if load.load(b, p).division == "closed"]
FIXED = [(b, key) for b in BENCHMARKS for key in load.definition_of(b)["closed_fixes"]]


NAMED = ("submission.org=Lab", "submission.platform=cluster")


def of(benchmark, settings=(), preset="closed", **known):
    """The names of the rules that a run violates."""
    run = load.load(benchmark, preset, (*NAMED, *settings))
    return [f.rule.removeprefix("rules/") for f in rules.findings(rules.RunContext(run, **known))]


def edited(benchmark, key):
    """The closed run with one setting changed to something else of its kind."""
    run = load.load(benchmark, "closed", NAMED)
    table, _, name = key.partition(".")
    value = getattr(getattr(run, table), name)
    changes = {
        bool: lambda: not value,
        int: lambda: value + 1,
        float: lambda: value + 0.25,
        str: lambda: value + "x",
        tuple: lambda: (*value[:-1], 7),
    }
    other = changes[type(value)]()
    facts = getattr(run, table).model_copy(update={name: other})
    return run.model_copy(update={table: facts})


@pytest.mark.parametrize(("benchmark", "preset"), CLOSED)
def test_a_closed_preset_violates_no_rule(benchmark, preset):
    assert of(benchmark, preset=preset) == []


@pytest.mark.parametrize(("benchmark", "key"), FIXED)
def test_every_fixed_setting_is_enforced_by_a_rule(benchmark, key):
    violations = rules.findings(rules.RunContext(edited(benchmark, key)))
    assert [(f.where, f.severity) for f in violations] == [(key, "error")]
    assert violations[0].expected and violations[0].actual and "division=open" in violations[0].remedy
    with pytest.raises(UserError, match=key):
        rules.enforce(rules.RunContext(edited(benchmark, key)))


@pytest.mark.parametrize(
    ("benchmark", "settings", "rule"),
    [
        ("cosmoflow", ["hyperparameters.opt_momentum=0.8"], "momentum"),
        ("cosmoflow", ["hyperparameters.opt_name=adam"], "optimizer"),
        ("cosmoflow", ["data.train_samples=1024"], "training-set"),
        ("cosmoflow", ["data.eval_samples=1024"], "evaluation-set"),
        ("cosmoflow", ["network.conv_kernel=2"], "network"),
        ("cosmoflow", ["network.input_mean=[1,1,1,1]", "network.input_spread=[1,1,1,1]"], "preprocessing"),
        ("cosmoflow", ["training.augment=true"], "preprocessing"),
        ("cosmoflow", ["training.framework=pytorch", "training.coarse_epochs=[4,4]"], "preprocessing"),
        ("cosmoflow", ["training.weights=w.safetensors"], "training-method"),
        ("cosmoflow", ["target.value=0.2"], "target"),
        ("cosmoflow", ["hyperparameters.opt_learning_rate_schedule=linear"], "schedule"),
        ("deepcam", ["hyperparameters.opt_eps=1e-8"], "epsilon"),
        ("deepcam", ["hyperparameters.opt_max_grad_norm=2.0"], "lamb"),
        ("deepcam", ["hyperparameters.opt_bias_correction=false"], "lamb"),
        ("deepcam", ["training.freeze_below=0.01"], "training-method"),
        ("deepcam", ["training.eval_steps=100"], "evaluation-frequency"),
        ("deepcam", ["network.width=0.5"], "network"),
    ],
)
def test_changing_a_fixed_setting_violates_its_rule(benchmark, settings, rule):
    assert of(benchmark, settings) == [rule]
    assert of(benchmark, [*settings, "division=open"]) == []


@pytest.mark.parametrize(
    ("benchmark", "settings"),
    [
        ("cosmoflow", ["global_batch_size=512", "opt_base_learning_rate=0.006", "dropout=0.0"]),
        ("cosmoflow", ["opt_weight_decay=0.01", "opt_learning_rate_warmup_epochs=0"]),
        ("deepcam", ["opt_name=AdamW", "opt_lr=0.01", "opt_betas=[0.8,0.99]", "batchnorm_group_size=4"]),
        ("deepcam", ["scheduler_type=cosine_annealing", "scheduler_t_max=9000", "opt_weight_decay=0"]),
    ],
)
def test_free_settings_may_be_changed(benchmark, settings):
    assert of(benchmark, [f"hyperparameters.{setting}" for setting in settings]) == []


def official(benchmark):
    """The conditions of the official compliance checker on single values, by key."""
    ruleset, prefix = {"resnet50": ("training_4.0.0", "closed_resnet")}.get(
        benchmark, ("hpc_2.0.0", f"closed_{benchmark}")
    )
    conditions = {}
    for path in resources.files("mlperf_logging.compliance_checker").joinpath(ruleset).iterdir():
        if path.name.startswith(prefix):
            for entry in yaml.safe_load(path.read_text()):
                key = entry["KEY"]
                if isinstance(key.get("CHECK"), str) and "len(" not in key["CHECK"]:
                    conditions[key["NAME"]] = key["CHECK"]
    return conditions


TRIED = {
    int: [-1, 0, 1, 2, 64],
    float: [-1.0, -1e-05, 0.0, 5e-05, 0.0001, 0.00015, 0.25, 0.999, 1.0, 1.5, 0.0123],
    str: ["sgd", "lars", "Adam", "AdamW", "LAMB", "multistep", "cosine_annealing", "linear"],
}


@pytest.mark.parametrize(("benchmark", "at_least"), [("cosmoflow", 40), ("deepcam", 50), ("resnet50", 30)])
def test_free_settings_agree_with_the_official_checker(benchmark, at_least):
    conditions, free = official(benchmark), load.definition_of(benchmark)["closed_free"]
    run = load.load(benchmark, "closed", NAMED)
    tried = 0
    for name in conditions.keys() & free.keys():
        value = getattr(run.hyperparameters, name)
        for other in TRIED[type(value)]:
            facts = run.hyperparameters.model_copy(update={name: other})
            violations = rules.findings(rules.RunContext(run.model_copy(update={"hyperparameters": facts})))
            names = {"math": math, "is_integer": mlp_compliance.is_integer, "v": {"value": other}}
            try:
                passes = eval(conditions[name], names)
            except ValueError:  # the logarithm of what is not positive
                passes = False
            assert (violations == []) == passes, (name, other)
            tried += 1
    assert tried >= at_least


@pytest.mark.parametrize(
    ("factors", "violated"),
    [("[0.25]", []), ("[1.0]", ["free-hyperparameters"]), ("[0.0]", ["free-hyperparameters"])],
)
def test_decay_factors_are_restricted_by_the_rules_but_not_by_the_checker(factors, violated):
    run = load.load("cosmoflow", "closed", NAMED)
    update = {"opt_learning_rate_decay_factor": tuple(json.loads(factors))}
    facts = run.hyperparameters.model_copy(update=update)
    known = rules.RunContext(run.model_copy(update={"hyperparameters": facts}))
    assert [f.rule for f in rules.findings(known)] == [f"rules/{name}" for name in violated]


@pytest.mark.parametrize(("smoothing", "violated"), [(0.0, []), (0.1, []), (0.05, ["free-hyperparameters"])])
def test_label_smoothing_is_0_or_0_1(smoothing, violated):
    """MLPerf training rules, table of resnet's hyperparameters."""
    assert of("resnet50", [f"training.label_smoothing={smoothing}"]) == violated


@pytest.mark.parametrize(
    ("setting", "violated"),
    [("training.preprocessing=torchvision", ["preprocessing"]), ("training.sgd=pytorch", ["optimizer"])],
)
def test_torchvisions_preprocessing_is_open_division(setting, violated):
    assert of("resnet50", [setting]) == violated
    with pytest.raises(UserError, match='"mlperf", not'):
        rules.enforce(rules.RunContext(load.load("resnet50", "closed", [setting])))
    assert of("resnet50", ["division=open", setting]) == []


def test_the_momentum_of_lars_is_free_from_large_batches_on():
    words = ["hyperparameters.opt_name=lars", "hyperparameters.lars_opt_momentum=0.95"]
    assert of("resnet50", words) == ["momentum"]
    assert of("resnet50", [*words, "hyperparameters.global_batch_size=32768"]) == []


def test_a_hyperparameter_unknown_to_the_rules_is_not_free(monkeypatch):
    definition = copy.deepcopy(load.definition_of("cosmoflow"))
    del definition["closed_free"]["dropout"]
    monkeypatch.setattr(setting_rules, "definition_of", lambda benchmark: definition)
    assert of("cosmoflow") == ["free-hyperparameters"]


def test_a_small_preset_cannot_be_called_closed():
    with pytest.raises(UserError, match="not a closed run"):
        rules.enforce(rules.RunContext(load.load("cosmoflow", "smoke", ["division=closed"])))


@pytest.mark.parametrize(
    ("known", "violated"),
    [
        ({"resumed": True}, ["from-the-start"]),
        ({"data_on": "tmpfs"}, ["data-not-in-memory"]),
        ({"data_on": "tmpfs", "ruleset": "3.0.0"}, ["data-not-in-memory"]),
        ({"data_on": "lustre"}, []),
        ({"data_on": "ext4"}, ["staging-is-timed"]),
        ({"data_on": "ext4", "ruleset": "3.0.0"}, []),
        ({"staged_before": True}, ["staging-is-timed"]),
        ({"staged_before": True, "ruleset": "1.0.0"}, ["staging-is-timed"]),
        ({"staged_before": True, "ruleset": "3.0.0"}, []),
        ({"evicted": False}, ["caches"]),
        ({"evicted": True}, []),
        ({"init_s": 1799.0}, []),
        ({"init_s": 1800.0}, ["init-time"]),
        ({"seeds": [1, 2, 3]}, []),
        ({"seeds": [1, 2, 1]}, ["seeds"]),
        ({"runs": 9}, ["number-of-runs"]),
        ({"runs": 10}, []),
        ({"facts": {"benchmark": "cosmoflow", "dtype": "int16", "gzip": True}}, []),
        ({"facts": {}}, []),
        ({"facts": {"dtype": "float16"}}, ["codec"]),
        ({"facts": {"codec": "lookup table", "lossy": False}}, []),
        ({"facts": {"codec": "differences", "lossy": True}}, ["codec"]),
        ({"facts": {"benchmark": "deepcam"}}, ["data-of-benchmark"]),
        ({"facts": {"simulation": {"grid": 128}}}, ["data-of-benchmark"]),
    ],
)
def test_rules_beyond_the_settings(known, violated):
    assert of("cosmoflow", **known) == violated


def test_a_float16_copy_of_deepcam_is_not_closed_and_a_float32_one_is():
    assert of("deepcam", facts={"dtype": "float16", "format": "npy"}) == ["codec"]
    assert of("deepcam", facts={"dtype": "float32", "format": "npy"}) == []


def test_a_closed_run_without_a_submitter_is_warned_before_it_starts():
    """Logs may not be edited afterwards, so packing would be too late."""
    run = load.load("cosmoflow", "closed", ["submission.org=Lab"])
    warnings = rules.enforce(rules.RunContext(run))
    assert [(f.severity, f.where) for f in warnings] == [("warning", "submission.platform")]
    assert "--set submission.platform=NAME" in warnings[0].remedy


def test_deepcam_needs_five_runs():
    assert of("deepcam", runs=4) == ["number-of-runs"] and of("deepcam", runs=5) == []
    assert (load.runs_of_a_score("deepcam"), load.runs_of_a_score("cosmoflow")) == (5, 10)


def test_warnings_let_a_run_start_and_errors_do_not():
    run = load.load("cosmoflow", "closed", NAMED)
    assert [
        f.severity for f in rules.enforce(rules.RunContext(run, evicted=False, runs=3, data_on="xfs"))
    ] == ["warning"] * 3
    with pytest.raises(UserError) as error:
        rules.enforce(rules.RunContext(run, resumed=True, staged_before=True))
    assert "\n" not in str(error.value) and "and 1 more" in str(error.value)


def test_every_rule_has_a_requirement_and_a_source():
    every = [rule for group in rules.RULES.values() for rule in group]
    assert len({rules.name_of(rule) for rule in every}) == len(every) > 20
    for rule in every:
        assert rules.requirement(rule).endswith("."), rule
        assert re.search(r'mlperf-logging, \S+\.yaml|rules.*, ".+"', rules.source(rule)), rule


def test_the_page_of_the_rules_is_up_to_date():
    page = ROOT / "docs/reference/rules.md"
    assert page.read_text("utf-8") == document(), "mlhpc rules > docs/reference/rules.md"


def test_rules_are_printed_and_checked_against_a_preset(capsys):
    assert cli.main(["rules", "deepcam", "--ruleset", "3.0.0"]) == 0
    told = capsys.readouterr().out
    assert "opt_max_grad_norm" in told and "not timed" in told and "5 runs" in told
    assert cli.main(["rules", "cosmoflow", "--preset", "closed"]) == 0
    assert cli.main(["rules", "cosmoflow", "--preset", "closed", "--set", "network.conv_filters=16"]) == 1
    told = capsys.readouterr().out
    assert "network.conv_filters" in told and "rules/network" in told
    assert cli.main(["rules", "cosmoflow", "--ruleset", "0.7"]) == 2
    assert "1.0.0, 2.0.0, 3.0.0" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--ranks", "2"]])
def test_a_run_that_is_not_closed_is_refused_before_anything_is_read_or_written(more, tmp_path):
    (tmp_path / "data").mkdir(mode=0o000)
    words = ["run", "cosmoflow", "--preset", "closed", "--set", "hyperparameters.opt_momentum=0.8"]
    words += ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), *more]
    done = subprocess.run(
        [sys.executable, "-m", "mlhpc", *words], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "hyperparameters.opt_momentum: 0.9, not 0.8" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
