"""Refused packages: runs that fail their check, contradictions, secrets, existing files."""

import json
import shutil
from pathlib import Path

import pytest
from golden.make_run import make_run
from helpers.packing import SYSTEM, golden, resnet_log, rules

from mlhpc import cli
from mlhpc.errors import UserError
from mlhpc.submission.pack import implementation
from mlhpc.submission.pack.pack_rules import about_system
from mlhpc.submission.pack.package import pack
from mlhpc.submission.result_sets import result_sets


@pytest.fixture(autouse=True)
def few_sources(monkeypatch):
    """``packed`` has the real ones; they may be edited meanwhile, and take time."""

    def copy(to):
        to.mkdir(parents=True)
        (to / "train.py").write_text("seed = 1\n")

    monkeypatch.setattr(implementation, "copy_sources", copy)


def test_runs_that_fail_their_check_are_refused_without_despite_errors(
    closed_set, system_file, tmp_path, capsys
):
    # Nine good ones, and one that resumed: its clock did not see the first part.
    runs = sorted(closed_set.iterdir())[:9]
    bad = golden(tmp_path / "bad", 11, resumed=True)
    argv = ["pack", *map(str, [*runs, bad]), "--org", "Lab", "--system", str(system_file()),
            "--out", str(tmp_path / "out")]  # fmt: skip
    assert cli.main(argv) == 1
    assert not (tmp_path / "out").exists()
    assert "run/resumed" in capsys.readouterr().out
    assert cli.main([*argv, "--despite-errors"]) == 1
    assert (tmp_path / "out" / "Lab" / "results").is_dir()


def test_one_run_may_miss_its_target_and_two_may_not(closed_set, system_file, tmp_path):
    runs = sorted(closed_set.iterdir())
    missed = [golden(tmp_path, number, status="failed") for number in (12, 13)]
    where = {"org": "Lab", "system_file": system_file()}
    one = pack([*runs[:9], missed[0]], out=tmp_path / "one", **where)
    assert one.tree and "run/status" in rules(one.findings, "expected")
    two = pack([*runs[:8], *missed], out=tmp_path / "two", **where)
    assert two.tree is None and "package/compliance" in rules(two.findings)


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda runs, tmp: [*runs[:9], golden(tmp, 14, seed=1003)], "package/seed"),
        (lambda runs, tmp: runs[:9], "package/runs"),
        (lambda runs, tmp: [*runs[:9], shutil.copytree(runs[3], tmp / "twin")], "set/twice"),
        (lambda runs, tmp: [*runs[:9], golden(tmp, 15, settings=["training.max_epochs=77"])], "set/settings"),
        (lambda runs, tmp: [*runs[:9], cut(golden(tmp, 16))], "package/crash"),
    ],
)  # fmt: skip
def test_an_inconsistent_set_is_refused(closed_set, system_file, tmp_path, spoil, rule):
    runs = spoil(sorted(closed_set.iterdir()), tmp_path)
    made = pack(runs, org="Lab", system_file=system_file(), out=tmp_path / "out")
    assert rule in rules(made.findings)
    assert made.tree is None and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("cpu", "refused"), [(None, False), ("AMD EPYC 7742", True)])
def test_sets_of_two_machines_are_not_packed_with_one_description(closed_set, tmp_path, cpu, refused):
    """The runs of the first set record another processor; one that records none is not known to differ."""
    run = golden(tmp_path / "weak", 1)
    env = json.loads((run / "env.json").read_text())
    (run / "env.json").write_text(json.dumps(env | {"cpu": cpu}))
    sets = [*result_sets(closed_set), *result_sets(run)]
    expected = {f.expected for f in about_system(SYSTEM, Path("system.json"), "Lab", sets)}
    assert ("the same processors in all sets" in expected) is refused


def cut(run):
    log = run / "run.log"
    log.write_bytes(log.read_bytes()[:-40])
    return run


@pytest.mark.parametrize(
    ("changes", "severity"),
    [({"division": "open"}, "error"), ({"number_of_nodes": 4}, "error"), ({"cooling": ""}, "warning"),
     ({"submitter": "Another"}, "warning")],
)  # fmt: skip
def test_a_description_that_contradicts_the_logs_is_found(
    closed_set, system_file, tmp_path, changes, severity
):
    made = pack([closed_set], org="Lab", system_file=system_file(**changes), out=tmp_path / "out")
    assert "pack/system" in rules(made.findings, severity)
    assert (made.tree is None) == (severity == "error")


def test_a_field_that_is_missing_is_named(closed_set, system_file, tmp_path):
    path = system_file()
    path.write_text(json.dumps({key: value for key, value in SYSTEM.items() if key != "cooling"}))
    made = pack([closed_set], org="Lab", system_file=path, out=tmp_path / "out")
    assert any(f.rule == "pack/system" and "cooling" in f.actual for f in made.findings)
    assert made.tree is None


def test_runs_to_an_own_target_are_not_a_submission(system_file, tmp_path):
    for number in range(10):
        make_run(tmp_path / "runs" / f"run {number}", preset="smoke", epochs=8 + number)
    made = pack(
        [tmp_path / "runs"], org="Lab", system_file=system_file(division="open"), out=tmp_path / "out"
    )
    (said,) = [f for f in made.findings if f.rule == "pack/target"]
    assert said.severity == "error" and "0.124" in said.expected and "smoke" in said.actual
    assert made.tree is None


@pytest.mark.parametrize(("told", "severity"), [(False, "error"), (True, "warning")])
def test_an_instance_without_a_log_is_refused_unless_pruned(
    told, severity, closed_set, system_file, tmp_path
):
    runs = [golden(tmp_path / "weak", number) for number in range(11)]
    (runs[3] / "run.log").unlink()
    made = pack([closed_set], weak=runs, prune=[runs[3]] if told else [], org="Lab",
                system_file=system_file(), out=tmp_path / "out")  # fmt: skip
    said = [f for f in made.findings if f.rule == "pack/left-out" and str(runs[3]) in f.where]
    assert [f.severity for f in said] == [severity] and "run.log is missing" in said[0].actual
    assert (made.tree is not None) == told


def test_hpc_and_training_are_not_mixed(closed_set, system_file, tmp_path):
    log = resnet_log(tmp_path / "r.log", 0)
    with pytest.raises(UserError, match="pack them separately"):
        pack([closed_set, log], org="Lab", system_file=system_file(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("org", ["", "../up", ".hidden", "a/b", "Lab[1]", 300 * "a", 70 * "ü" * 2])
def test_an_organisation_that_is_not_a_folder_name_is_refused(closed_set, system_file, tmp_path, org):
    with pytest.raises(UserError, match="--org"):
        pack([closed_set], org=org, system_file=system_file(), out=tmp_path / "out")


def test_a_system_name_that_is_too_long_for_a_folder_is_refused(closed_set, system_file, tmp_path):
    with pytest.raises(UserError, match="system_name exceeds"):
        pack([closed_set], org="Lab", system_file=system_file(system_name=300 * "a"), out=tmp_path / "out")


def test_existing_files_are_not_overwritten(packed, closed_set, system_file):
    with pytest.raises(UserError, match="already exists"):
        pack([closed_set], org="Lab", system_file=system_file(), out=packed.tree.parent)


def test_a_secret_in_a_log_prevents_packing(closed_set, system_file, tmp_path):
    bad = golden(tmp_path, 17)
    with (bad / "run.log").open("a") as log:
        log.write("export HF_TOKEN=hf_" + "a1B2c3D4" * 5 + "\n")
    made = pack(
        [*sorted(closed_set.iterdir())[:9], bad], org="Lab", system_file=system_file(), out=tmp_path / "o"
    )
    assert made.tree is None and rules(made.findings) == {"pack/secret"}


def test_the_sources_of_the_suite_contain_no_secret(packed):
    assert rules(packed.findings) == set()
    assert "pack/name" not in rules(packed.findings, "warning")


def test_pack_reports_an_unwritable_folder(closed_set, system_file, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        pack([closed_set], org="Lab", system_file=system_file(), out=Path(tmp_path / "file" / "out"))
