"""The folder of a search: the same command continues, and other files are refused unchanged."""

import json
import shutil
from pathlib import Path

import optuna
import pytest

from mlhpc import cli

SURFACE = Path(__file__).parents[3] / "data/tune/large_batches.toml"


def tune(out, *more):
    words = ["--ranks", "1,4", "--batch", "16,64", "--budget", "6", "--pairs", "3", "--surface", SURFACE]
    return cli.main([str(word) for word in ["tune", "cosmoflow", *words, "--out", out, *more]])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    assert tune(out) == 0
    return out


def trials(out):
    storage = optuna.storages.journal.JournalFileBackend(str(out / "tune.journal"))
    return optuna.load_study(
        study_name="mlhpc tune", storage=optuna.storages.JournalStorage(storage)
    ).get_trials()


def test_optuna_reads_the_journal(whole):
    record = json.loads((whole / "tune.json").read_text())
    assert [t.params for t in trials(whole)] == [
        {key: run[key] for key in ("batch", "ranks", "rate", "schedule")} for run in record["runs"]
    ]
    values = [run["seconds"] if run["state"] == "converged" else None for run in record["runs"]]
    assert [t.value for t in trials(whole)] == values
    best = min(value for value in values if value)
    assert min(t.value for t in trials(whole) if t.state.name == "COMPLETE") == best


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 0.999])
def test_a_search_killed_at_any_moment_continues_with_nothing_lost_or_counted_twice(whole, share, tmp_path):
    data = (whole / "tune.journal").read_bytes()
    out = tmp_path / "out"
    out.mkdir()
    (out / "tune.journal").write_bytes(data[: round(share * len(data))])
    (out / "tune.journal.lock").symlink_to(out / "tune.journal")  # held by the killed process
    assert tune(out) == 0
    for name in ("tune.json", "best.toml"):
        ours, theirs = ((folder / name).read_text().replace(str(folder), "") for folder in (out, whole))
        assert ours == theirs
    assert len(trials(out)) == len(trials(whole))


def test_a_larger_budget_continues(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    before = json.loads((out / "tune.json").read_text())["runs"]
    assert tune(out, "--budget", "8") == 0
    after = json.loads((out / "tune.json").read_text())["runs"]
    assert after[: len(before)] == before and len(after) > len(before)


def refused(out, capsys, *more):
    """The message about a folder that stays as it is."""
    before = (out / "tune.journal").read_bytes()
    capsys.readouterr()
    assert tune(out, *more) == 2
    assert (out / "tune.journal").read_bytes() == before
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and said.out == ""
    return said.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seed", "2"], "contains a search with seed=1, not 2; choose another --out"),
        (["--batch", "16,32"], "contains a search with batches=[16, 64], not [16, 32]"),
        (
            ["--set", "training.max_epochs=9"],
            "contains a search with settings=[], not ['training.max_epochs=9']",
        ),
        (["--data", "elsewhere"], "contains a search with data='data/cosmoflow-smoke', not 'elsewhere'"),
        (["--preset", "mini"], "contains a search with preset='smoke', not 'mini'"),
    ],
)
def test_the_folder_of_another_search_is_refused(whole, tmp_path, capsys, more, said):
    out = shutil.copytree(whole, tmp_path / "out")
    assert said in refused(out, capsys, *more)


def test_a_foreign_journal_is_refused(whole, tmp_path, capsys):
    lines = (whole / "tune.journal").read_text().splitlines(keepends=True)
    for text, said in (
        ("not a journal\n", "tune.journal, line 1: not an entry of an Optuna journal"),
        ("".join([*lines[:9], lines[9][:20] + "\n", *lines[10:]]), "tune.journal, line 10: not an entry of"),
        ('{"op_code": 0}\n[]\n', "line 2: not an entry of an Optuna journal"),
        ("".join(lines[1:]), "contains another study; choose another --out"),
        ('{"op_code": 0}\n', "cannot be replayed"),
    ):
        out = tmp_path / "out"
        out.mkdir()
        (out / "tune.journal").write_text(text)
        assert said in refused(out, capsys)
        shutil.rmtree(out)


def test_a_folder_with_other_files_is_refused(tmp_path, capsys):
    (tmp_path / "run-001").mkdir()
    assert tune(tmp_path) == 2
    assert "contains other files, such as run-001; choose another --out" in capsys.readouterr().err
    assert not (tmp_path / "tune.journal").exists()


def test_another_study_of_optuna_is_refused(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    storage = optuna.storages.journal.JournalFileBackend(str(out / "tune.journal"))
    optuna.create_study(storage=optuna.storages.JournalStorage(storage), study_name="mine")
    assert "contains another study; choose another --out" in refused(out, capsys)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs = 3\n", "critical_batch: Field required"),
        (SURFACE.read_text().replace("noise = 0.1", "noise = -1"), "noise: Input should be greater"),
        (SURFACE.read_text().replace('"0.7"', '"0.8"'), "no schedule 0.7; add it"),
        (SURFACE.read_text() + "extra = 1\n", "extra: Extra inputs are not permitted"),
        ("epochs =", "Invalid value"),
    ],
)
def test_a_surface_that_is_none_is_one_line(text, said, tmp_path, capsys):
    path = tmp_path / "surface.toml"
    path.write_text(text)
    assert tune(tmp_path / "out", "--surface", path) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()
