"""The official tools run rule files: only their own, whatever a log says."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden.make_tree import Records, make_set, records, write_log
from mlperf_logging.compliance_checker import mlp_compliance

from mlhpc import cli
from mlhpc.record.mllog import parse
from mlhpc.submission.check.official import (
    official_findings,
    package_findings,
    rcp_verdict,
    seed_findings,
    summary,
)
from mlhpc.submission.check.official_guard import guarded
from mlhpc.submission.result_sets import result_sets

ROOT = Path(__file__).resolve().parents[4]
RULES_FOLDER = Path(mlp_compliance.__file__).parent
HOSTILE_RULES = """
- BEGIN:
    CODE: "import pathlib; pathlib.Path({witness!r}).write_text('ran')"
"""


def set_value(name: str, value: Any) -> Any:
    def edit(number: int, made: Records) -> None:
        next(record for record in made if record["key"] == name)["value"] = value

    return edit


@pytest.fixture
def hostile_tree(tmp_path: Path) -> tuple[Path, Path]:
    """A result tree whose logs name a rule file beside them as their division, and the file that it would
    write."""
    witness = tmp_path / "witness"
    tree = tmp_path / "org"
    planted = tree / "results" / "machine" / "planted_common.yaml"
    planted.parent.mkdir(parents=True)
    planted.write_text(HOSTILE_RULES.format(witness=str(witness)))
    up = os.path.relpath(planted, RULES_FOLDER / "hpc_2.0.0").removesuffix("_common.yaml")
    assert up.startswith("../")
    make_set(tree, edit=set_value("submission_division", up))
    return tree, witness


def test_without_the_guard_planted_rules_are_executed(hostile_tree: tuple[Path, Path]) -> None:
    """So that the tests below cannot pass because the attack is built wrongly."""
    tree, witness = hostile_tree
    log = tree / "results/machine/strong/cosmoflow/result_1.txt"
    try:
        checker = mlp_compliance.make_checker("hpc", "2.0.0", False, False)
        mlp_compliance.main(str(log), "hpc_2.0.0/common.yaml", checker)
    finally:
        mlp_compliance.enqueued_configs.clear()
    assert witness.read_text() == "ran"


@pytest.mark.parametrize("command", ["check", "score", "report"])
def test_no_command_executes_rules_in_a_result_tree(
    command: str, hostile_tree: tuple[Path, Path], tmp_path: Path
) -> None:
    tree, witness = hostile_tree
    out = ["--out", str(tmp_path / "page.html")] if command == "report" else []
    status = cli.main([command, str(tree), *out])
    assert not witness.exists()
    assert status == (0 if command == "report" else 1)


def test_check_and_report_of_one_log_do_not_execute_its_rules(hostile_tree: tuple[Path, Path]) -> None:
    tree, witness = hostile_tree
    log = tree / "results/machine/strong/cosmoflow/result_1.txt"
    cli.main(["check", str(log)])
    findings = official_findings(parse(log), "hpc_2.0.0")
    assert not witness.exists()
    (refused,) = [f for f in findings if f.rule == "hpc_2.0.0/rule_file"]
    assert refused.severity == "error" and "planted_common.yaml" in refused.actual


def test_pack_does_not_execute_rules_in_packed_files(
    hostile_tree: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlhpc.submission.pack import implementation
    from mlhpc.submission.pack.package import pack

    tree, witness = hostile_tree
    monkeypatch.setattr(implementation, "copy_sources", lambda to: to.mkdir(parents=True))
    logs = sorted((tree / "results/machine/strong/cosmoflow").glob("*.txt"))
    description = tree / "systems/machine.json"
    packed = pack(logs[:10], org="org", system_file=description, out=tmp_path / "out", despite_errors=True)
    assert packed.tree and not witness.exists()


def test_every_official_tool_refuses_the_rules_of_a_log(hostile_tree: tuple[Path, Path]) -> None:
    tree, witness = hostile_tree
    (results,) = result_sets(tree)
    assert summary(results, "hpc_2.0.0") is None
    rcp_verdict(results, "hpc_2.0.0")
    seed_findings(results.logs, "hpc_2.0.0")
    assert any(f.rule == "package/crash" for f in package_findings(results, "hpc_2.0.0"))
    assert not witness.exists()


@pytest.mark.parametrize(
    "name",
    [
        "/etc/hostname",
        "hpc_2.0.0/../../x/hpc_2.0.0/common.yaml",
        "hpc_2.0.0/closed_../common.yaml",
        "hpc_2.0.0/common.yaml\n",
        "hpc_2.0.0/common.yml",
        "hpc_2.0.0//common.yaml",
        "common.yaml",
        "hpc_2.0.0/sub/common.yaml",
    ],
)
def test_only_the_packages_own_rule_files_are_read(name: str) -> None:
    with guarded(), pytest.raises(Exception, match="rule file"):
        mlp_compliance.make_checker("hpc", "2.0.0", False, False).check_loglines(["line"], name)
    mlp_compliance.enqueued_configs.clear()


@pytest.mark.parametrize("ruleset", ["1.0.0", "2.0.0", "3.0.0"])
@pytest.mark.parametrize("division", ["open", "closed"])
def test_rules_that_include_themselves_terminate(ruleset: str, division: str, tmp_path: Path) -> None:
    """``closed_common.yaml`` includes ``closed_<benchmark>.yaml``: a benchmark "common" is a cycle."""
    made = records(division=division)
    next(r for r in made if r["key"] == "submission_benchmark")["value"] = "common"
    findings = official_findings(parse(write_log(tmp_path / "a.txt", made)), f"hpc_{ruleset}")
    assert f"hpc_{ruleset}/rule_file" in {f.rule for f in findings}


def test_the_guard_restores_the_tools() -> None:
    before, parser = mlp_compliance.ComplianceChecker.configured_checks, mlp_compliance.yaml
    with guarded():
        assert mlp_compliance.ComplianceChecker.configured_checks is not before
    assert mlp_compliance.ComplianceChecker.configured_checks is before
    assert mlp_compliance.yaml is parser


def test_the_second_log_parses_no_rule_file_again_and_gets_the_same_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = records()
    next(record for record in made if record["key"] == "global_batch_size")["value"] = "many"
    log = parse(write_log(tmp_path / "a.txt", made))
    first = official_findings(log, "hpc_2.0.0")
    monkeypatch.setattr(yaml, "load", lambda *_, **__: pytest.fail("parsed again"))
    assert official_findings(log, "hpc_2.0.0") == first
    assert "hpc_2.0.0/global_batch_size" in {finding.rule for finding in first}


def test_the_official_tools_are_called_in_one_file_and_only_under_guard() -> None:
    tools = {"compliance_checker", "package_checker", "rcp_checker", "result_summarizer"}
    users = set()
    for path in [*ROOT.glob("submission/**/*.py"), *ROOT.glob("mlhpc/**/*.py"), *ROOT.glob("common/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if any(tool in f"{module}.{name}" for name in names for tool in tools):
                users.add(path.relative_to(ROOT).as_posix())
    assert users == {"submission/check/official.py", "submission/check/official_guard.py"}
