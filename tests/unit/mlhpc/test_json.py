"""The output of ``--json`` agrees with the printed text of the same command (docs/reference/json.md)."""

import json
import re
from pathlib import Path

import pytest
from golden.make_run import make_run
from helpers.doctor_nodes import spoiled

from mlhpc import cli
from mlhpc.benchmarks import load, registry
from mlhpc.common.data import manifest
from mlhpc.common.ranks.world import Solo

DOCUMENT = (Path(__file__).parents[3] / "docs/reference/json.md").read_text()


def both(capsys, *words: str) -> tuple[str, dict]:
    """The printed text without breaks, and the JSON, of the command ``words``."""
    status = cli.main([*words])
    text = " ".join(capsys.readouterr().out.split())
    assert cli.main([*words, "--json"]) == status
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1 and content["command"] == words[0]
    return text, content


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    for n in range(3):
        make_run(tmp_path / "runs" / f"run_{n}", epochs=5 + n, status="failed" if n == 2 else "success")
    return tmp_path / "runs"


def test_check(campaign: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text, content = both(capsys, "check", str(campaign))
    (checked,) = content["sets"]
    assert checked["verdict"] in text and not content["passes"]
    assert all(finding["rule"] in text and finding["remedy"] in text for finding in checked["findings"])
    errors = sum(finding["severity"] == "error" for finding in checked["findings"])
    assert f"{errors} error" in text


def test_score(campaign: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text, content = both(capsys, "score", str(campaign))
    (scored,) = content["sets"]
    assert scored["no_score"] in text and scored["score_min"] is None
    assert all(f"{run['seconds'] / 60:.4f}" in text for run in scored["runs"])
    assert f"target: {scored['target']['metric']} {scored['target']['value']:g}" in text
    assert " yes " not in text, "no run is in a score that does not exist"


def test_report_of_a_run(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    run = make_run(tmp_path / "run")
    text, content = both(capsys, "report", str(run))
    assert f"{content['time_to_train_s']:.1f} s" in text and content["verdict"] in text
    assert all(f"{part['seconds']:.2f} {part['share']:.1%}" in text for part in content["parts"])


def test_report_of_many(campaign: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text, content = both(capsys, "report", str(campaign))
    (entry,) = content["sets"]
    assert f"{entry['runs']}/{entry['logs']}" in text and entry["no_score"] in text


def test_doctor(capsys, monkeypatch) -> None:
    """Of a node whose clock and memory are to be warned of."""
    monkeypatch.setenv("COLUMNS", "300")
    node = spoiled(clock_synchronised=False, stage__is_ram=True)
    monkeypatch.setattr("mlhpc.doctor.command.gather_nodes", lambda *_: [node])
    text, content = both(capsys, "doctor")
    assert {check["name"] for check in content["checks"] if check["status"] == "warn"} >= {"clock", "staging"}
    for check in content["checks"]:
        line = f"{check['status']} {check['name']} {check['detail']}"
        assert line in text and check["remedy"] in text
    warnings = sum(check["status"] == "warn" for check in content["checks"])
    assert text.endswith(f"{'ready' if content['ready'] else 'not ready'} for a run; {warnings} warnings")


def test_presets_and_list(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text, content = both(capsys, "presets")
    assert all(preset in text for presets in content["presets"].values() for preset in presets)
    text, content = both(capsys, "list")
    assert [each["name"] for each in content["benchmarks"]] == list(registry.benchmarks())
    assert all(codec in text for each in content["benchmarks"] for codec in each["codecs"])


def test_rules(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "700")
    text, content = both(capsys, "rules", "cosmoflow")
    assert all(rule["rule"] in text and rule["requirement"] in text for rule in content["rules"])
    assert all(f"{key} {allowed}" in text for key, allowed in content["free"].items())
    words = ("rules", "cosmoflow", "--preset", "closed", "--set", "submission.org=Lab")
    text, content = both(capsys, *words)
    assert content["verdict"] in text and len(content["findings"]) == 1


@pytest.mark.parametrize("benchmark", [each.name for each in registry.BUILT_IN])
def test_every_setting_is_explained(benchmark: str, capsys) -> None:
    for preset in load.presets(benchmark):
        assert cli.main(["presets", benchmark, preset, "--json"]) == 0
        settings = json.loads(capsys.readouterr().out)["settings"]
        assert [s["key"] for s in settings if not s["meaning"]] == []
        assert load.load(benchmark, preset).target.value == next(
            s["value"] for s in settings if s["key"] == "target.value"
        )


def test_a_dry_run_counts_steps_and_writes_nothing(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "cosmoflow", "--dry-run", "--set", "hyperparameters.global_batch_size=32"]
    words += ["--set", "data.train_samples=2048"]
    assert cli.main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["settings"]["data"]["train_samples"] == 2048
    assert content["steps_per_epoch"] == 64 and content["data"]["exists"] is False
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert "64 steps per epoch" in text and "does not exist" in text
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*words, "--ranks", "3"]) == 2, "what would stop the run stops its dry run"


@pytest.mark.parametrize("benchmark", [each.name for each in registry.BUILT_IN])
def test_a_dry_run_counts_what_the_run_takes_of_its_data_set(benchmark: str, tmp_path: Path, capsys) -> None:
    """Here all of ResNet-50's images, and less than there is of the others; too few are refused as by the run."""
    data, sizes = tmp_path / "data", {"train": 8, "validation": 4}
    for folder, size in sizes.items():
        (data / folder / "c0").mkdir(parents=True)
        for n in range(size):
            (data / folder / "c0" / f"{n}.jpg").write_bytes(bytes(1000))
    manifest.index(data, {"benchmark": benchmark, "samples": sizes}, Solo(), 1)
    taken = 8 if benchmark == "resnet50" else 4
    words = ["run", benchmark, "--dry-run", "--json", "--data", str(data), "--stage", str(tmp_path / "stage")]
    words += ["--set", "hyperparameters.global_batch_size=4", "--set", "data.eval_samples=4"]
    assert cli.main([*words, "--set", f"data.train_samples={taken}"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["data"]["files"], content["data"]["bytes"]) == (taken + 4, 1000 * (taken + 4))
    assert content["staging"]["bytes_per_node"] >= 1000 * (taken + 4)
    assert cli.main([*words, "--set", "data.train_samples=16"]) == 2
    assert "train" in (error := capsys.readouterr().err) and error.count("\n") == 1
    other = next(each.name for each in registry.BUILT_IN if each.name != benchmark)
    assert (
        cli.main(["run", other, *words[2:]]) == 2
        and f"is a data set for {benchmark}" in capsys.readouterr().err
    )


def test_a_dry_run_of_cut_samples_counts_groups_of_ranks(capsys) -> None:
    words = ["run", "cosmoflow", "--dry-run", "--json", "--ranks", "4"]
    words += ["--set", "training.framework=pytorch", "--set", "training.spatial=[2,1,1]"]
    assert cli.main([*words, "--set", "hyperparameters.global_batch_size=16"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["local_batch_size"], content["ranks_per_sample"], content["memory"]) == (8, 2, None)


def test_the_document_has_every_key(campaign: Path, tmp_path: Path, capsys) -> None:
    """Each key that is printed stands in docs/reference/json.md, in the section of its command."""
    run = str(make_run(tmp_path / "run"))
    lines = [["check", str(campaign)], ["score", str(campaign)], ["report", run], ["report", str(campaign)]]
    lines += [["diff", run, run], ["list"], ["presets"], ["presets", "cosmoflow", "smoke"]]
    lines += [["doctor"], ["rules", "cosmoflow"], ["watch", run, "--once"], ["run", "cosmoflow", "--dry-run"]]
    for words in lines:
        cli.main([*words, "--json"])
        section = re.search(rf"## `{words[0]}`\n(.*?)(?=\n## |\Z)", DOCUMENT, re.DOTALL)
        assert section, words[0]
        keys = json.loads(capsys.readouterr().out).keys() - {"schema", "mlhpc", "command"}
        assert {key for key in keys if f"`{key}`" not in section[1]} == set(), words
