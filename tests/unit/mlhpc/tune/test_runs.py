"""Searches with a stand-in for ``mlhpc run``: what it is asked to do, what becomes of its results."""

import json
import tomllib

import pytest
from helpers.campaign_site import Site

from mlhpc import cli
from mlhpc.benchmarks import load
from mlhpc.history.importing import all_records
from mlhpc.tune.runs import Runs
from mlhpc.tune.space import Axes, Config, Space


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    words = [str(site.python), "-m", "mlhpc"]
    monkeypatch.setattr("mlhpc.run_processes.program", lambda run: [*words, *run])
    monkeypatch.setenv("COLUMNS", "200")
    return site


def tune(site, *more):
    words = ["tune", "cosmoflow", "--data", site.folder / "data", "--out", site.out, "--pairs", "2"]
    return cli.main([str(word) for word in [*words, "--batch", "16,32", "--budget", "3", *more]])


def record(site):
    return json.loads((site.out / "tune.json").read_text())


def test_runs_have_the_settings_of_their_choice_and_a_seed_of_their_own(site, capsys):
    fast = {f"run-{n:03}": "converged-4" for n in range(2, 9)} | {
        f"winner-{n:02}": "converged-4" for n in (1, 2)
    }
    site.will(**fast)
    assert tune(site, "--set", "training.checkpoint_epochs=2", "--stage", "stage") == 0
    calls, runs = site.calls(), record(site)["runs"]
    search = [call for call in calls if call["name"].startswith("run-")]
    assert len(search) == len(runs) > 3
    for call, run in zip(search, runs, strict=True):
        words = call["words"]
        set_ = [words[n + 1] for n, word in enumerate(words) if word == "--set"]
        made = load.load("cosmoflow", "smoke", set_)
        assert made.training.checkpoint_epochs == 2
        assert made.hyperparameters.global_batch_size == run["batch"]
        assert made.training.max_epochs == round(24 * float(run["schedule"]))
        rate = 0.002 * run["rate"] * (run["batch"] / 16) ** 0.5
        assert made.hyperparameters.opt_base_learning_rate == pytest.approx(rate, rel=1e-4)
        assert "--evict" in words and words[words.index("--stage") + 1] == "stage"
    pairs = [(call["name"], call["seed"]) for call in calls if not call["name"].startswith("run-")]
    assert [name for name, _ in pairs] == ["winner-01", "default-01", "winner-02", "default-02"]
    seeds = [seed for _, seed in pairs]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert len({call["seed"] for call in search} | set(seeds)) == len(search) + 2
    # Of result.json: its seconds are the value, its epochs those of the run.
    first = json.loads((site.out / "run-001" / "result.json").read_text())
    assert (runs[0]["seconds"], runs[0]["epochs"]) == (first["time_to_train_s"], 8)
    ratio, low, high = record(site)["ratio"]
    assert 0.4 < low <= ratio <= high < 0.8
    assert "faster" in capsys.readouterr().out


def test_finished_runs_are_records_of_a_history(site):
    site.will(**{f"run-{n:03}": "converged-5" for n in range(2, 9)})
    assert tune(site) == 0
    made = list(all_records(site.out, None))
    assert len(made) == len(site.calls()) and {each.kind for each in made} == {"run"}


def test_a_run_that_ended_before_the_search_was_killed_is_not_repeated(site):
    assert tune(site) in (0, 3)
    before = [call["name"] for call in site.calls()]
    journal = site.out / "tune.journal"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"op_code":4' not in line))  # without its trials
    assert tune(site) in (0, 3)
    again = [call["name"] for call in site.calls()][len(before) :]
    assert before.count("run-001") == 1 and "run-001" not in again
    assert not [name for name in again if name.startswith("default")]


def test_a_default_that_cannot_run_ends_the_search_with_its_reason(site, capsys):
    site.will(**{"run-001": "aborted"})
    assert tune(site) == 2
    error = capsys.readouterr().err
    assert error.startswith("mlhpc: the default configuration failed: ") and error.count("\n") == 1
    site.will()
    assert tune(site) == 0  # it continues


def test_a_search_without_a_run_that_reaches_the_target_says_so(site, capsys):
    site.will(**{f"run-{n:03}": "missed-3" for n in range(1, 40)})
    assert tune(site) == 3
    assert "no configuration reached the target" in capsys.readouterr().out
    assert not (site.out / "best.toml").exists()


def test_a_run_that_cannot_win_is_stopped_and_its_stage_removed(site, monkeypatch):
    site.out.mkdir()
    site.will(slow="hangs")
    stage, removed = site.folder / "stage", []
    stage.mkdir()
    monkeypatch.setattr("mlhpc.tune.runs.remove", removed.append)
    space = Space("cosmoflow", "smoke", [], Axes())
    runs = Runs(space, site.folder / "data", stage, site.out, [])
    outcome = runs.run(Config(32, 1), "slow", 1, 0.3)
    assert (site.out / "slow" / "stopped cleanly").exists()
    assert (outcome.state, outcome.seconds, outcome.epochs) == ("stopped", 0.3, 1)
    assert removed == [stage]


def test_the_preset_is_the_winner_and_the_rules_read_it(site, capsys):
    site.will(**{f"run-{n:03}": "converged-4" for n in range(2, 9)})
    assert tune(site) == 0
    preset, winner = site.out / "best.toml", record(site)["winner"]
    tuned = tomllib.loads(preset.read_text())
    expected = load.load("cosmoflow", "smoke", winner["set"]).model_dump(mode="json", exclude_none=True)
    assert tuned == expected
    capsys.readouterr()
    assert cli.main(["rules", "cosmoflow", "--config", str(preset)]) == 0
    assert "these rules do not apply to the open division" in capsys.readouterr().out


def test_no_data_set_is_one_line_and_no_folder(tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["tune", "cosmoflow", "--data", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()
