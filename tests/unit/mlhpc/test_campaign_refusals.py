"""What a campaign refuses or warns of before its first run."""

import json

import pytest
from helpers.campaign_site import Site

from mlhpc.benchmarks import load
from mlhpc.campaign.placement import check_placement
from mlhpc.campaign.record import Campaign
from mlhpc.errors import UserError


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.setattr("mlhpc.common.ranks.local.sys.executable", str(site.python))
    monkeypatch.setenv("COLUMNS", "200")
    return site


def samples(count):
    return json.dumps({"version": 1, "facts": {"samples": {"train": count}}, "files": []})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data.rename(data.parent / "elsewhere"), "mlhpc data make cosmoflow"),
        (lambda data: (data / "train").rmdir(), "contains no files"),
        (lambda data: (data / "manifest.json").write_text("{"), "manifest.json"),
        (lambda data: (data / "manifest.json").write_text(samples(5)), "5 samples, but 16,384 are needed"),
    ],
)
def test_an_unusable_data_set_is_refused_before_the_first_run(site, capsys, spoil, message):
    spoil(site.folder / "data")
    assert site.run("--runs", "2") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not site.calls() and not site.out.exists()


def test_a_closed_campaign_with_too_few_runs_warns(site, capsys):
    closed = ["--preset", "closed", "--runs", "2"]
    site.will(run_01="aborted", run_02="aborted")
    assert site.run(*closed) == 1
    assert "--runs: 10 runs, not 2" in capsys.readouterr().out


def test_a_closed_campaign_is_checked_against_the_rules_before_its_first_run(site, capsys):
    words = ["--preset", "closed", "--set", "hyperparameters.opt_momentum=0.8"]
    assert site.run(*words) == 2
    facts = {"version": 1, "facts": {"dtype": "float16"}, "files": []}
    (site.folder / "data" / "manifest.json").write_text(json.dumps(facts))
    assert site.run("--preset", "closed") == 2
    error = capsys.readouterr().err
    assert "opt_momentum" in error and "dtype int16, not float16" in error
    assert not site.calls() and not site.out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runs", "0"], "--runs: 0 is not"),
        (["--instances", "-1"], "--instances: -1 is not"),
        (["--ranks", "-2"], "--ranks: -2 is not"),
        (["--runs", "3", "--number", "4"], "1 to 3"),
        (["--instances", "4", "--runs", "3"], "must not exceed --runs 3"),
        (["--instances", "2", "--number", "1"], "--number"),
        (["--seed", "7"], "--seed"),
    ],
)
def test_a_mistake_is_a_one_line_error_and_leaves_no_files(site, capsys, words, message):
    assert site.run(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not site.out.exists()


def test_a_folder_that_cannot_be_created_is_a_one_line_error(site, capsys):
    site.out.write_text("a file")
    assert site.run("--runs", "1") == 2
    error = capsys.readouterr().err
    assert str(site.out) in error and error.count("\n") == 1


def test_a_campaign_started_on_every_rank_is_refused(site, capsys, monkeypatch):
    for name, value in {"MLHPC_RANK": "0", "MLHPC_SIZE": "2", "MLHPC_TOKEN": "x"}.items():
        monkeypatch.setenv(name, value)
    assert site.run("--runs", "1") == 2
    assert "start it only once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("instances", "ranks", "nodes", "tasks", "fits"),
    [
        (2, 0, 2, 2, True),
        (4, 0, 2, 2, False),  # two would wait for the other two
        (4, 1, 2, 4, True),
        (4, 2, 2, 4, False),
        (2, 2, 2, 2, False),
        (3, 2, 2, 6, False),  # three tasks per node, and one node gets two instances
        (3, 2, 2, 8, True),
        (1, 3, 2, 2, False),
        (1, 2, 2, 2, True),
    ],
)
def test_instances_that_cannot_run_at_the_same_time_in_a_job_are_refused(
    instances, ranks, nodes, tasks, fits, tmp_path
):
    run = load.load("cosmoflow", "smoke")
    campaign = Campaign(run, (), tmp_path, None, tmp_path, instances, instances, ranks, nodes)
    env = {"SLURM_JOB_NODELIST": f"n[0-{nodes - 1}]", "SLURM_NTASKS": str(tasks)}
    if fits:
        check_placement(campaign, True, env)
    else:
        with pytest.raises(UserError, match=rf"exceed this job's {tasks} tasks on 2 nodes"):
            check_placement(campaign, True, env)


def test_a_closed_campaign_without_a_submitter_warns_before_its_first_run(site, capsys):
    site.will(run_01="aborted", run_02="aborted")
    assert site.run("--preset", "closed", "--runs", "2") == 1
    output = capsys.readouterr().out
    for key in ("submission.org", "submission.platform"):
        assert output.index(f"{key}: the submitter's, not unnamed") < output.index("starting run_01 of 2")
    named = ["--set", "submission.org=Lab", "--set", "submission.platform=Cluster"]
    site.run("--preset", "closed", "--runs", "2", *named, "--out", site.folder / "named")
    assert "unnamed" not in capsys.readouterr().out
    site.will()
    assert site.run("--runs", "1", "--out", site.folder / "open") == 0
    assert "unnamed" not in capsys.readouterr().out, "an open run is not submitted"
