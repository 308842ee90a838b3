"""Findings against sets of runs; the references are the official package checker and the rules."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import make_run
from golden.make_tree import Records, describe, make_set, records, write_log
from helpers.checked_sets import in_run, key, only, package_checker, rules, says, twice

from mlhpc.submission.check.check import check, check_sets
from mlhpc.submission.findings import grouped
from mlhpc.submission.report.compare import compare

SETS = [("cosmoflow", "strong"), ("deepcam", "strong"), ("deepcam", "weak"), ("resnet", None)]


def misses(made: Records) -> None:
    for record in made:
        if record["key"] in ("eval_error", "eval_accuracy"):
            record["value"] = 0.5
    key(made, "run_stop")["metadata"]["status"] = "aborted"


@pytest.mark.parametrize(("benchmark", "level"), SETS)
def test_a_good_set_passes_here_and_officially(benchmark: str, level: str | None, tmp_path: Path) -> None:
    make_set(tmp_path / "org", benchmark, level=level)
    checked = only(tmp_path)
    assert checked.passes and not rules(checked), checked.findings
    assert checked.complying == len(checked.results.logs)
    usage = ("training", "4.0.0") if level is None else ("hpc", "2.0.0")
    assert checked.rules == "_".join(usage)
    assert "FOUND NO ERRORS" in package_checker(tmp_path / "org", *usage)


# Rejections of package_checker, the rule that reports them, and the corresponding finding of our own.
Make = Callable[[Path], object]


def undescribed(tree: Path) -> None:
    make_set(tree, "deepcam")
    (tree / "systems" / "machine.json").unlink()


REJECTED: dict[str, tuple[Make, set[str]]] = {
    "four runs": (lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13]), {"package/runs"}),
    "six runs": (lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13, 14, 15]), {"package/runs"}),
    "four instances": (
        lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13], level="weak"), {"package/runs"}
    ),
    "equal seeds": (
        lambda tree: make_set(tree, "deepcam", edit=in_run(4, says("seed", 3))),
        {"package/seed", "set/seed"},
    ),
    "no seed": (lambda tree: make_set(tree, seed=None), {"package/seed"}),
    "a seed that is a word": (
        lambda tree: make_set(tree, edit=in_run(2, says("seed", "x"))), {"package/seed"}
    ),
    "too few epochs": (lambda tree: make_set(tree, "deepcam", epochs=11), {"package/rcp", "set/rcp"}),
    "no point": (
        lambda tree: make_set(tree, "deepcam", edit=lambda _, made: says("global_batch_size", 4096)(made)),
        {"package/rcp", "set/rcp"},
    ),
    "two runs missed": (
        lambda tree: make_set(tree, "deepcam", edit=lambda n, made: misses(made) if n in (2, 5) else None),
        {"package/compliance", "package/rcp", "set/converged", "hpc_2.0.0/eval_accuracy", "log/status"},
    ),
    "two batch sizes": (
        lambda tree: make_set(tree, "deepcam", edit=in_run(4, says("global_batch_size", 128))),
        {"package/crash", "set/settings", "set/rcp"},
    ),
    "another benchmark's log": (
        lambda tree: write_log(make_set(tree, "deepcam") / "result_4.txt", records("cosmoflow", seed=4)),
        {"package/crash", "set/benchmark", "set/settings", "set/rcp"},
    ),
    "missing fields": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, cooling=None, framework=None)),
        {"package/system"},
    ),
    "no division": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, division=None)),
        {"package/system", "package/crash"},
    ),
    "a number in the description": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, accelerators_per_node=4)),
        {"package/crash", "set/system"},
    ),
    "no description": (
        undescribed,
        {"set/system"},
    ),
    "a pattern for a name": (
        lambda tree: make_set(tree, "deepcam", system="machine[8]"),
        {"set/name", "package/runs", "package/crash"},
    ),
}  # fmt: skip


def described(tree: Path, **facts: Any) -> Path:
    return describe(tree, "machine", **{"number_of_nodes": "2", "accelerators_per_node": "4", **facts})


@pytest.mark.parametrize("name", REJECTED)
def test_rejections_of_package_checker_are_findings(name: str, tmp_path: Path) -> None:
    make, wanted = REJECTED[name]
    make(tmp_path / "org")
    checked = only(tmp_path)
    assert rules(checked) == wanted, grouped(checked.findings)
    assert not any(f.expected == "see the message" for f in checked.findings)  # every message is understood
    assert not any(f.actual.startswith("RCP") for f in checked.findings)  # "RCP found" is no reason
    assert all(f.where and f.actual and f.remedy for f in checked.findings)


@pytest.mark.parametrize("name", ["no seed", "two runs missed", "a number in the description"])
def test_package_checkers_command_line_rejects_the_same_sets(name: str, tmp_path: Path) -> None:
    REJECTED[name][0](tmp_path / "org")
    assert "FOUND NO ERRORS" not in package_checker(tmp_path / "org")


# Accepted by it, but refused or warned about by us.
PASSED: dict[str, tuple[Make, str, str]] = {
    "one run twice": (twice, "set/twice", "error"),
    "open runs in a closed system": (
        lambda tree: (make_set(tree, "deepcam", division="open"), described(tree)), "set/division", "error",
    ),
    "closed runs in an open system": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, division="open")), "set/division", "warning",
    ),
    "equal seeds in the open division": (
        lambda tree: make_set(tree, "deepcam", division="open", edit=in_run(4, says("seed", 3))),
        "set/seed", "error",
    ),
    "equal seeds of instances": (
        lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13, 14, 15], level="weak", division="open",
                              edit=in_run(6, says("seed", 3))),
        "set/seed", "warning",
    ),
    "two learning rates": (
        lambda tree: make_set(tree, "deepcam", edit=in_run(4, says("opt_lr", 0.002))),
        "set/settings", "error",
    ),
    "another machine than described": (
        lambda tree: (make_set(tree, "deepcam"), described(tree, number_of_nodes="3")),
        "set/system", "warning",
    ),
    "throughput alone": (lambda tree: make_set(tree, "deepcam", level="weak"), "set/throughput", "warning"),
    "an instance that missed": (
        lambda tree: make_set(tree, "deepcam", [10.0, 11, 12, 13, 14, 15], level="weak",
                              edit=in_run(6, misses)),
        "set/converged", "error",
    ),
    "a pruned log that does not comply": (
        lambda tree: write_log(make_set(tree, "deepcam", level="weak") / "pruned_results" / "result_1.txt",
                               records("deepcam", start_ms=1)[1:]),
        "hpc_2.0.0/cache_clear", "warning",
    ),
    "one key twice in a record": (
        lambda tree: double(make_set(tree, "deepcam") / "result_2.txt"), "log/repeated", "error",
    ),
}  # fmt: skip


def double(log: Path) -> None:
    log.write_text(log.read_text().replace('"value": 1024,', '"value": 512, "value": 1024,'))


@pytest.mark.parametrize("name", PASSED)
def test_problems_that_package_checker_misses_are_found(name: str, tmp_path: Path) -> None:
    make, rule, severity = PASSED[name]
    make(tmp_path / "org")
    checked = only(tmp_path)
    assert rule in rules(checked, severity)
    assert not any("package_checker" in f.source and f.severity == "error" for f in checked.findings)


def test_round_0_7_had_no_level_strong(tmp_path: Path) -> None:
    """Its folders are not seen by package_checker, which then finds no errors in them."""
    make_set(tmp_path / "org", "deepcam", [10.0, 11, 12, 13], level=None)
    assert "FOUND NO ERRORS" in package_checker(tmp_path / "org")
    assert rules(only(tmp_path)) == {"package/runs"}


@pytest.mark.parametrize("change", [misses, lambda made: made.pop()], ids=["missed", "killed"])
def test_one_run_may_miss_the_target(change: Callable[[Records], object], tmp_path: Path) -> None:
    """Olympic scoring, to which package_checker agrees: the run counts as the slowest."""
    make_set(tmp_path / "org", "deepcam", edit=in_run(3, change))
    checked = only(tmp_path)
    assert checked.passes and checked.score.minutes is not None
    assert rules(checked, "expected") and rules(checked, "warning") >= {"set/converged", "package/compliance"}
    assert checked.complying == 4
    assert "FOUND NO ERRORS" in package_checker(tmp_path / "org")


def test_a_run_that_met_the_target_and_does_not_comply_is_not_excused(tmp_path: Path) -> None:
    """The official tools drop it as if it were the slowest; its time may be the fastest."""
    make_set(tmp_path / "org", "deepcam", edit=in_run(3, lambda made: made.pop(0)))
    assert rules(only(tmp_path)) == {"hpc_2.0.0/cache_clear"}


@pytest.mark.parametrize(
    ("name", "written", "same"),
    [
        ("opt_base_learning_rate", "1e-3", True),  # the others log the number 0.001
        ("opt_learning_rate_warmup_factor", 1, True),  # 1.0
        ("opt_learning_rate_decay_boundary_epochs", [32.0, 64.0], True),  # [32, 64]
        ("opt_base_learning_rate", 0.0010001, False),
        ("opt_learning_rate_decay_boundary_epochs", [32, 65], False),
    ],
)
def test_settings_are_compared_as_numbers(name: str, written: Any, same: bool, tmp_path: Path) -> None:
    make_set(tmp_path / "org", "cosmoflow", edit=in_run(3, says(name, written)))
    assert ("set/settings" not in rules(only(tmp_path))) == same


def test_a_finding_shared_by_many_logs_is_reported_once(tmp_path: Path) -> None:
    make_set(tmp_path / "org", "deepcam", edit=lambda _, made: made.pop(0))
    same = [f for f in grouped(only(tmp_path).findings) if f.rule == "hpc_2.0.0/cache_clear"]
    assert [f.where for f in same] == ["result_1.txt, result_2.txt, result_3.txt and 2 more"]


def test_every_ruleset_can_be_checked(tmp_path: Path) -> None:
    """Staging before the run passes only HPC's 3.0.0. The closed values here are those of training 4.0.0."""

    def staged_before(number: int, made: Records) -> None:
        staging = [made.pop(made.index(key(made, name))) for name in ("staging_start", "staging_stop")]
        made[made.index(key(made, "init_stop")) : 0] = staging

    make_set(tmp_path / "org", "deepcam", edit=staged_before)
    make_set(tmp_path / "org", "resnet", level=None)
    for ruleset in ("1.0.0", "2.0.0", "3.0.0"):
        verdicts = {c.rules: c.passes for c in check_sets(tmp_path, ruleset)}
        assert verdicts.keys() == {f"hpc_{ruleset}", f"training_{ruleset}"}
        assert verdicts[f"hpc_{ruleset}"] == (ruleset == "3.0.0")
    assert {c.rules: c.passes for c in check_sets(tmp_path)} == {"hpc_2.0.0": False, "training_4.0.0": True}


def test_a_campaign_of_a_small_preset_is_checked_run_by_run(tmp_path: Path) -> None:
    for n in range(3):
        make_run(tmp_path / f"run-{n}", epochs=5 + n, log=says("seed", n),
                 result=lambda result, n=n: result.update(seed=n))  # fmt: skip
    checked = only(tmp_path)
    assert checked.passes and rules(checked, "expected") == {"hpc_2.0.0/eval_error"}
    assert rules(checked, "warning") == {"set/runs"}  # three runs are not enough for a score
    (tmp_path / "run-1" / "env.json").unlink()
    assert ("run/files", "run-1/env.json") in {(f.rule, f.where) for f in check(tmp_path)}


def test_runs_of_a_score_have_the_same_settings_also_those_that_no_log_states(tmp_path: Path) -> None:
    def run(n: int, *settings: str) -> Path:
        return make_run(tmp_path / f"run-{n}", settings=settings, log=says("seed", n),
                        result=lambda result: result.update(seed=n))  # fmt: skip

    run(1), run(2, "submission.org=Lab")
    (run(3) / "config.toml").unlink()  # of a run of others, or damaged: not known to differ
    assert "set/settings" not in rules(only(tmp_path)) and len(compare([tmp_path]).entries) == 1
    run(4, "training.precision=mixed_bfloat16", "network.conv_kernel=2")
    different = {f.actual for f in only(tmp_path).findings if f.rule == "set/settings"}
    assert different == {"3 (3 runs), 2 (1 run)", "float32 (3 runs), mixed_bfloat16 (1 run)"}
    assert [entry.logs for entry in compare([tmp_path]).entries] == [3, 1]


@pytest.mark.parametrize(("first", "second", "differ"), [
    ({"accelerators": ["NVIDIA A100"] * 4}, {"accelerators": ["NVIDIA V100"] * 4}, ["set/machine"]),
    ({"cpu": "EPYC 7742"}, {"cpu": "Xeon 6148"}, ["set/machine"]),
    ({"variables": {"SLURM_CLUSTER_NAME": "a"}}, {"variables": {"SLURM_CLUSTER_NAME": "b"}}, ["set/machine"]),
    ({"submission_platform": "a"}, {"submission_platform": "b"}, ["set/machine"]),
    ({"packages": {"tensorflow": "2.18.1"}}, {"packages": {"tensorflow": "2.19.0"}}, ["set/framework"]),
    # Not the same, but no evidence of two machines: an unused framework, host names, and what one did not record.
    ({"packages": {"tensorflow": "2.18.1", "torch": "2.6"}}, {"packages": {"tensorflow": "2.18.1"}}, []),
    ({"hostname": "n1"}, {"hostname": "n2"}, []),
    ({"accelerators": ["NVIDIA A100"] * 4, "cpu": None}, {"accelerators": [], "packages": {}}, []),
    ({"submission_platform": "a"}, {"submission_platform": "unnamed"}, []),
])  # fmt: skip
def test_a_score_is_of_one_machine_by_the_rule_that_divides_a_comparison(
    first: dict[str, Any], second: dict[str, Any], differ: list[str], tmp_path: Path
) -> None:
    for n, facts in enumerate((first, second, first)):
        platform = facts.get("submission_platform", "unnamed")

        def log(made: Records, n: int = n, platform: str = platform) -> None:
            says("seed", n)(made), says("submission_platform", platform)(made)
            for record in made:
                record["time_ms"] += 3_600_000 * n

        make_run(tmp_path / f"run-{n}", log=log, env=lambda env, facts=facts: env.update(facts),
                 result=lambda result, n=n: result.update(seed=n))  # fmt: skip
    checked, sets = only(tmp_path), [entry.logs for entry in compare([tmp_path]).entries]
    assert [f.rule for f in checked.findings if f.severity == "error"] == differ
    assert sets == ([2, 1] if differ else [3])


OLD = {
    "0.5": ":::MLPv0.5.0 resnet {0}.1 (train.py:1) run_start\n:::MLPv0.5.0 resnet {0}.5 (train.py:9) run_stop\n",
    "0.6": ':::MLL {0}.1 run_start: {{"value": null, "metadata": {{}}}}\n'
    ':::MLL {0}.5 run_stop: {{"value": null, "metadata": {{"status": "success"}}}}\n',
}  # fmt: skip


def test_old_formats_are_one_finding_and_no_copies_of_one_another(tmp_path: Path) -> None:
    for system, form in (("alpha", "0.5"), ("beta", "0.6"), ("gamma", "0.6")):
        folder = make_set(tmp_path / "org", "resnet", system=system, level=None)
        for number, log in enumerate(sorted(folder.glob("result_*.txt"))):
            log.write_text(OLD[form].format(1560000000 + 90 * number + len(system)))
    for checked, form in zip(check_sets(tmp_path), ("0.5", "0.6", "0.6"), strict=True):
        assert checked.complying == 0 and checked.copy_of is None
        (found,) = grouped(checked.findings)
        assert found.rule == "training_4.0.0/log" and f"of round {form}" in found.actual
    beta = only(tmp_path / "org" / "results" / "beta" / "resnet", "0.6.0")
    assert any(f.rule == "training_0.6.0/cache_clear" for f in beta.findings)  # its own rules read the format


def test_the_official_tools_scaling_file_stays_and_its_factor_is_compared(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org", "deepcam", epochs=11)
    assert only(tmp_path).complying == 5
    for factor, wrong in ((1.01, True), ("x", True), (1.0, False)):
        (folder / "scaling.json").write_text(json.dumps({"scaling_factor": factor}))
        found = [f for f in only(tmp_path).findings if f.rule in ("set/scaling", "set/files")]
        assert [f.rule for f in found] == ["set/scaling"] * wrong
        assert all(str(factor) in f.actual and f.expected.endswith("1") for f in found)


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("status", "onprem", "Available on-premise"),
        ("status", "cloud", "Available cloud"),
        ("division", "Close", "closed"),
    ],
)
def test_a_field_with_allowed_values_names_what_is_there_and_what_to_write(
    field, value, meant, tmp_path
) -> None:
    make_set(tmp_path / "org", "resnet", level=None)
    describe(tmp_path / "org", "machine", **{"status": "Preview", field: value},
             number_of_nodes="2", accelerators_per_node="4")  # fmt: skip
    found = [f for f in only(tmp_path).findings if f.rule in ("package/system", "set/system")]
    (finding,) = found
    assert field in finding.expected and finding.actual == value and f"write {meant!r}" in finding.remedy


def test_a_test_of_the_official_checker_is_not_quoted_as_code(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org", "resnet", level=None)
    found = [f for f in only(folder, "1.1.0").findings if "initial" in f.rule or "other" in f.rule]
    assert not any("s['" in f.actual or "failed test" in f.actual for f in found), found
