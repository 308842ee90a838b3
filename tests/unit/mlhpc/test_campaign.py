"""The runs of a campaign: seeds, order, repeats after an abort, and the score."""

import json
import statistics

import pytest
from helpers.campaign_site import Site

from mlhpc import cli
from mlhpc.benchmarks import load


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.common.ranks.local.sys.executable", str(site.python))
    monkeypatch.setenv("COLUMNS", "200")
    return site


def test_ten_runs_make_a_score(site, capsys):
    site.will(**{f"run_{n:02}": f"converged-{n + 3}" for n in range(1, 11)})
    assert site.run("--stage", site.folder / "stage", "--set", "training.max_epochs=16") == 0
    minutes = [
        json.loads((site.out / f"run_{n:02}" / "result.json").read_text())["time_to_train_s"] / 60
        for n in range(1, 11)
    ]
    assert site.record()["score"]["minutes"] == pytest.approx(
        statistics.mean(sorted(minutes)[1:-1]), rel=1e-6
    )
    assert site.record()["metric"] == "strong" and site.states() == ["converged"] * 10
    joules = [made["joules"] for made in site.record()["run_states"]]
    assert joules == [{"node": 100.0 * (n + 3)} for n in range(1, 11)]
    assert site.record()["joules"] == {"node": 850.0}  # without the fastest run and the slowest
    output = capsys.readouterr().out
    assert f"{statistics.mean(sorted(minutes)[1:-1]):.4f} min" in output
    assert "not in the score: fastest" in output and "not in the score: slowest" in output


def test_each_run_gets_its_own_seed_and_the_options_of_the_campaign(site):
    assert site.run("--runs", "3", "--stage", "stage", "--ranks", "2", "--set", "training.max_epochs=16") == 0
    calls = site.calls()
    seeds = [call["seed"] for call in calls]
    assert len(set(seeds)) == 3 and all(0 < seed < 2**31 for seed in seeds)
    assert [made["seed"] for made in site.record()["run_states"]] == seeds
    for call in calls:
        message = " ".join(call["words"])
        assert "-m mlhpc run cosmoflow --preset smoke --set training.max_epochs=16 --data" in message
        assert (
            "--evict --stage stage" in message
            and "--ranks 2" in message
            and f"--data {site.folder}/data" in message
        )


def test_a_campaign_continues_after_an_aborted_run_and_repeats_it_later(site, capsys):
    site.will(run_02="aborted")
    assert site.run("--runs", "4") == 1
    assert site.states() == ["converged", "aborted", "converged", "converged"]
    assert "the disk is full" in capsys.readouterr().out
    before = {name: (site.out / name / "result.json").stat().st_mtime_ns for name in ("run_01", "run_04")}
    site.will()
    assert site.run("--runs", "4") == 0
    assert [call["name"] for call in site.calls()] == ["run_01", "run_02", "run_03", "run_04", "run_02"]
    assert {name: (site.out / name / "result.json").stat().st_mtime_ns for name in before} == before
    assert (site.out / ".aborted" / "run_02-1" / "run.log").exists()
    assert site.record()["run_states"][1]["aborted"] == 1
    site.will()
    assert site.run("--runs", "5") == 0, "more runs are added to these"
    assert [call["name"] for call in site.calls()][5:] == ["run_05"]


def test_a_campaign_stops_when_no_score_is_possible(site, capsys):
    site.will(run_02="missed-8", run_03="missed-8")
    assert site.run() == 3
    assert [call["name"] for call in site.calls()] == ["run_01", "run_02", "run_03"]
    assert "run_02 and run_03 missed the target" in site.record()["stopped"]
    assert site.states()[3:] == ["to do"] * 7
    assert site.run() == 3, "and does not continue when started again"
    assert len(site.calls()) == 3 and "no score is possible" in capsys.readouterr().out


def test_one_missed_run_counts_as_the_slowest(site):
    site.will(run_04="missed-4")
    assert site.run() == 0
    whole = json.loads((site.out / "run_01" / "result.json").read_text())["time_to_train_s"] / 60
    assert site.record()["score"]["minutes"] == pytest.approx(whole, rel=1e-6)


def test_a_run_whose_loss_diverged_has_missed_and_is_not_repeated(site):
    site.will(run_01="aborted")
    assert site.run("--runs", "2") == 1
    nan = '{"t": 1, "event": "metric", "name": "train_loss", "value": NaN, "epoch": 1}\n'
    with (site.out / "run_01" / "events.rank0.jsonl").open("a") as events:
        events.write(nan)
    site.will()
    site.run("--runs", "2")
    assert site.states() == ["missed", "converged"] and len(site.calls()) == 2


def test_two_runs_in_a_row_without_a_result_stop_a_campaign(site):
    site.will(**{f"run_{n:02}": "aborted" for n in range(2, 6)})
    assert site.run("--runs", "5") == 1
    assert [call["name"] for call in site.calls()] == ["run_01", "run_02", "run_03"]
    assert "2 runs in a row" in site.record()["stopped"]


def test_a_run_aborted_by_a_lost_rank_says_which_rank(site):
    site.will(run_01="aborted")
    assert site.run("--runs", "1") == 1
    loss = {"rank": 3, "hostname": "n1", "phase": "epoch 2", "reason": "x"}
    loss |= {"t": 1, "event": "lost", "name": "rank"}
    (site.out / "run_01" / "events.rank0.jsonl").write_text(json.dumps(loss) + "\n")
    result = json.loads((site.folder / "converged-8" / "result.json").read_text())
    assert result["energy"]["node"]["joules"]
    (site.out / "run_01" / "result.json").write_text(json.dumps(result | {"status": "aborted"}))
    site.will(run_01="hangs")
    campaign = site.start("--runs", "2", "--number", "2")
    campaign.communicate(timeout=60)
    state = site.record()["run_states"][0]
    assert state["why"] == "rank 3 on n1 was lost in phase 'epoch 2': x"
    assert state["joules"] == {}  # of a part of a training


def test_a_requeued_campaign_says_so(site, capsys, monkeypatch):
    site.will(run_02="aborted")
    site.run("--runs", "3")
    assert "requeued by" not in capsys.readouterr().out
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    site.will()
    assert site.run("--runs", "3") == 0
    assert "requeued by Slurm, restart 1: 2 of 3 runs are done" in capsys.readouterr().out


@pytest.mark.parametrize(("outcome", "status"), [("converged-8", 0), ("missed-8", 3), ("aborted", 1)])
def test_the_exit_status_tells_a_missed_target_from_a_failure(site, outcome, status):
    site.will(run_01=outcome)
    assert site.run("--runs", "1") == status
    assert site.run("--runs", "2", "--number", "1") == status, "a task of a job array"


def test_runs_with_other_settings_are_not_mixed(site, capsys):
    assert site.run("--runs", "1") == 0
    assert site.run("--runs", "2", "--set", "hyperparameters.global_batch_size=32") == 2
    error = capsys.readouterr().err
    assert "hyperparameters.global_batch_size = 16, not with 32" in error and error.count("\n") == 1


def test_the_table_of_a_batch_job_keeps_every_digit(site, capsys, monkeypatch):
    """The output of a job is not a terminal, and rich assumes 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    site.will(run_02="missed-8")
    site.run("--runs", "2")
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines() if " 1.5541 " in line]
    assert [row[:2] for row in rows] == [["run_01", "converged"], ["run_02", "missed"]]
    assert [int(row[2]) for row in rows] == [call["seed"] for call in site.calls()]
    best = 1.13 * load.load("cosmoflow", "smoke").target.value  # as make_run has it
    assert f"{best:.4g}" in output  # the note may wrap: a seed has nine or ten digits


def test_aborted_attempts_are_not_scored(site, capsys):
    """Nothing else in the folder of a campaign counts as a set of runs."""
    site.will(run_02="aborted")
    site.run("--runs", "3")
    site.will()
    site.run("--runs", "3")
    capsys.readouterr()
    cli.main(["score", str(site.out)])
    output = capsys.readouterr().out
    assert [output.count(name) for name in ("run_01", "run_02", "run_03")] == [1, 1, 1], output
