"""Which runs a set is measured over, and which sets are never put together."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from golden.make_run import make_run
from golden.make_tree import Records, make_set, records, write_log
from helpers.compare_logs import EVALUATED, SAMPLES, one, scaling_tree
from helpers.page import Page

from mlhpc import cli
from mlhpc.submission.report.compare import compare, letter
from mlhpc.submission.report.compare_page import page
from mlhpc.submission.report.entry import BEFORE_CLOCK, IN_CLOCK, NOT_LOGGED, OVER_ENDED
from mlhpc.submission.report.spread import spread


def rows(html: str, name: str) -> list[dict[str, Any]]:
    """The rows of a table, of all problems of the page."""
    links = [str(a["href"]) for _, a in Page(html).elements if a.get("download") == f"{name}.json"]
    return [row for link in links for row in json.loads(unquote(link.partition(",")[2]))]


# A set.


def test_a_set_is_measured_over_the_runs_in_its_score(tmp_path: Path) -> None:
    minutes = [20.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0]
    entry = one(make_set(tmp_path / "org", minutes=minutes, staging_minutes=1.0, epochs=8).parents[3])
    assert entry.score and entry.score.minutes == pytest.approx(14.5)  # 10 and 20 are dropped
    assert len(entry.runs) == 8 and entry.made_from == "closed, 8 runs"
    assert entry.time_s and entry.time_s.mean / 60 == pytest.approx(entry.score.minutes)
    assert sum(entry.parts_s.values()) / 60 == pytest.approx(entry.score.minutes)
    assert entry.scale == 8 and entry.unit == "accelerator"
    # 90% of an epoch trains, 10% evaluates.
    expected = [SAMPLES / (0.9 * (m - 1) * 60 / 8) / 8 for m in range(11, 19)]
    assert entry.train_rate and entry.train_rate.mean == pytest.approx(sum(expected) / 8, rel=1e-4)
    evaluated = [EVALUATED / (0.1 * (m - 1) * 60 / 8) / 8 for m in range(11, 19)]
    assert entry.eval_rate and entry.eval_rate.mean == pytest.approx(sum(evaluated) / 8, rel=1e-3)
    assert entry.budget_h == pytest.approx(14.5 / 60 * 8)
    # T_staging / T_epoch: one minute, against (m - 1) / 8 minutes.
    ratios = [8 / (m - 1) for m in range(11, 19)]
    assert entry.staging_in_epochs and entry.staging_in_epochs.mean == pytest.approx(
        sum(ratios) / 8, rel=1e-4
    )


def test_one_run_that_missed_is_named_and_not_measured(tmp_path: Path) -> None:
    def miss(number: int, made: Records) -> None:
        if number == 3:
            for record in made:
                if record["key"] == "eval_error":
                    record["value"] = 0.1246

    make_set(tmp_path / "org", edit=miss)
    comparison = compare([tmp_path])
    (entry,) = comparison.entries
    assert entry.missed == 1 and len(entry.runs) == 8
    assert entry.score and entry.score.minutes is not None
    assert "set/converged" in [finding.rule for _, finding in comparison.problems]
    assert "1 missed" in Page(page(comparison)).text


def test_without_a_score_the_runs_are_shown_but_no_score(tmp_path: Path) -> None:
    make_set(tmp_path / "org", minutes=[10.0, 12.0, 14.0])
    comparison = compare([tmp_path])
    (entry,) = comparison.entries
    assert entry.made_from == "closed, 3 runs: all runs that converged"
    assert not entry.is_closed_score
    text = Page(page(comparison)).text
    assert "no score 3 runs; a score requires 10 mean 12.00 of all runs that converged" in text
    # Three runs of closed settings are hollow in the figures: no closed result.
    assert [row["hollow"] for row in Page(page(comparison)).rows("a) ") if row.get("letter") == "A"] == [True]


def test_sets_with_different_targets_are_different_problems(tmp_path: Path) -> None:
    """Their epochs to the target are not the same quantity, in no chart and in no prediction."""
    for target in ("0.3", "0.4"):
        make_run(tmp_path / target / "run-1", settings=[f"target.value={target}"])
    titles = [group[0].title for group in compare([tmp_path]).by_problem]
    assert len(titles) == 2 and all(f"target 0.{n}" in title for n, title in zip("34", titles, strict=True))


def test_runs_that_never_converged_predict_nothing(tmp_path: Path) -> None:
    make_set(tmp_path / "org", minutes=[10.0, 12.0], reached=False)
    comparison = compare([tmp_path])
    assert comparison.entries[0].over.startswith("all runs that ended")
    assert comparison.predictions == ()
    text = Page(page(comparison)).text
    assert "target not met in 19" in text and "Prediction" not in text


def test_the_less_strict_division_counts(tmp_path: Path) -> None:
    make_set(tmp_path / "org", division="closed")
    description = tmp_path / "org" / "systems" / "machine.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps({**said, "division": "open"}))
    entry = one(tmp_path)
    assert entry.division == "open" and not entry.is_closed
    assert "the system description says open, the log closed" in entry.notes


def test_a_weak_set_shows_its_tuple(tmp_path: Path) -> None:
    make_set(tmp_path / "org", "deepcam", [10.0, 11.0, 12.0, 13.0, 14.0], level="weak")
    comparison = compare([tmp_path])
    assert comparison.entries[0].made_from == "closed, 5 throughput instances"
    assert comparison.entries[0].scale == 8  # of one instance, not of the system's 40
    assert "14.0000 TTTa; (T, S, M′) = (40, 8, 5)" in Page(page(comparison)).text


def test_throughput_instances_that_each_log_the_whole_machine_are_measured_by_their_share(
    tmp_path: Path,
) -> None:
    """A published set of 128 instances says S = T = 2048: its samples/s per unit would be 128 times too few."""

    def whole_machine(number: int, made: Records) -> None:
        for record in made:
            if record["key"] == "number_of_nodes":
                record["value"] = 10

    minutes = [10.0, 11.0, 12.0, 13.0, 14.0]
    make_set(tmp_path / "true" / "org", "deepcam", minutes, level="weak")
    make_set(tmp_path / "said" / "org", "deepcam", minutes, level="weak", edit=whole_machine)
    true, said = one(tmp_path / "true"), one(tmp_path / "said")
    assert (said.scale, said.nodes, said.train_rate) == (true.scale, true.nodes, true.train_rate)
    assert true.scale == 8 and any("counts 40 units" in note for note in said.notes)


def test_nodes_without_accelerators_count_processors(tmp_path: Path) -> None:
    make_set(tmp_path / "org", accelerators=0, nodes=6)
    description = tmp_path / "org" / "systems" / "machine.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps({**said, "host_processors_per_node": "2"}))
    entry = one(tmp_path)
    assert (entry.unit, entry.scale) == ("processor", 12)


# Sets that are never combined.


def test_a_folder_of_mixed_configurations_is_split(tmp_path: Path) -> None:
    for n, batch in enumerate((64, 64, 128), 1):
        made = records()
        for record in made:
            if record["key"] == "global_batch_size":
                record["value"] = batch
        write_log(tmp_path / f"result_{n}.txt", made)
    entries = compare([tmp_path]).entries
    assert [(e.batch, e.logs) for e in entries] == [(64, 2), (128, 1)]
    assert all("shown separately" in " ".join(e.notes) for e in entries)


def test_small_presets_are_separate_and_not_results(tmp_path: Path) -> None:
    make_set(tmp_path / "tree" / "org")
    for n in (1, 2, 3):
        make_run(tmp_path / "mine" / f"run-{n}", settings=["division=closed"] if n == 3 else ())
    comparison = compare([tmp_path / "mine", tmp_path / "tree"])
    official, *small = comparison.by_problem
    assert [e.org for e in official] == ["org"] and official[0].is_closed_score
    entries = [e for group in small for e in group]
    assert entries and all(e.official is False and not e.is_closed for e in entries)
    text = Page(page(comparison)).text
    *_, before, after = text.split("CosmoFlow · 16,384 training samples · preset smoke · target 0.308")
    assert after.startswith(" Not the official data set.")
    assert "CosmoFlow · 524,288 training samples Sets" in before
    assert "preset smoke" in after and "preset smoke" not in before
    html = page(comparison)
    assert html.count('<h2 class="chapter"') == len(comparison.by_problem) == 2
    anchors = [a["id"] for tag, a in Page(html).elements if tag in ("section", "h2") and a.get("id")]
    assert len(anchors) == len(set(anchors)) > 4
    links = [a["href"] for tag, a in Page(html).elements if tag == "a"]
    assert links[: len(anchors)] == [f"#{anchor}" for anchor in anchors]


def test_resumed_runs_are_separate_and_not_results(tmp_path: Path) -> None:
    def resume(number: int, made: Records) -> None:
        if number == 2:
            made.insert(0, {**made[0], "key": "resumed", "value": True})

    make_set(tmp_path / "org", edit=resume)
    whole, resumed = compare([tmp_path]).entries
    assert (whole.logs, resumed.logs) == (9, 1)
    assert resumed.score and resumed.score.why.startswith("resumed from a checkpoint")
    assert resumed.measured is None and resumed.made_from.endswith("which do not count")


def test_resumed_runs_have_rates_but_no_time_to_solution(tmp_path: Path, capsys) -> None:
    """Their clock covers only the last part: 2 minutes on 32 units, after 41 on 8, are no speed-up of 20."""

    def resume(number: int, made: Records) -> None:
        made.insert(0, {**made[0], "key": "resumed", "value": True})

    make_set(tmp_path / "org", minutes=[41.0] * 10, system="first", nodes=2)
    make_set(tmp_path / "org", minutes=[2.0] * 10, system="resumed", nodes=8, edit=resume)
    html = page(compare([tmp_path]))
    first, resumed = rows(html, "scaling")
    assert (first["speed-up"], first["time, min"]) == ("", 41.0)
    columns = ("epochs", "time, min", "speed-up", "efficiency", "budget, h · units")
    assert [resumed[column] for column in columns] == [""] * 5
    # 19 epochs in the minute without staging, 90% of it training, on 32 accelerators.
    assert resumed["training, samples/s per unit"] == pytest.approx(19 * SAMPLES / 54 / 32, rel=0.01)
    assert len(rows(html, "breakdown")) == 1
    assert cli.main(["report", str(tmp_path), "--json"]) == 0
    content = next(s for s in json.loads(capsys.readouterr().out)["sets"] if s["system"] == "resumed")
    assert [content[key] for key in ("time_s", "epochs", "parts_s", "energy_j")] == [None, None, {}, {}]


def test_sets_with_coarse_epochs_are_a_problem_of_their_own(tmp_path: Path) -> None:
    def coarse(number: int, made: Records) -> None:
        made.insert(0, {**made[0], "key": "coarse_epochs", "value": [8, 8]})

    make_set(tmp_path / "whole")
    make_set(tmp_path / "coarse", edit=coarse)
    groups = compare([tmp_path / "coarse", tmp_path / "whole"]).by_problem
    assert sorted([e.org for e in group] for group in groups) == [["coarse"], ["whole"]]
    assert [e.title.endswith("some epochs on coarser samples") for group in groups for e in group].count(
        True
    ) == 1


def test_sets_of_other_versions_are_marked_on_the_console_and_in_json(tmp_path: Path, capsys) -> None:
    for org, version in (("one", 1), ("same", 1), ("two", 2)):

        def versions(number: int, made: Records, version: int = version) -> None:
            for key, value in {"preset_version": version, "parts_version": 1}.items():
                made.insert(0, {**made[0], "key": key, "value": value})

        make_set(tmp_path / org, edit=versions)
    make_set(tmp_path / "unknown")
    assert cli.main(["report", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert cli.main(["report", str(tmp_path), "--json"]) == 0
    sets = {each["org"]: each for each in json.loads(capsys.readouterr().out)["sets"]}
    mark = f"not comparable with {sets['one']['letter']}: preset version 2, not 1"
    assert [org for org, each in sets.items() if any(note.startswith(mark) for note in each["notes"])] == [
        "two"
    ]
    assert printed.count("not comparable") == 1 and mark in printed


def test_sets_of_other_versions_predict_nothing(tmp_path: Path) -> None:
    """Their times are those of another workload: the fit of the others must not change."""

    def of(version: int, seconds: float) -> Callable[[int, Records], None]:
        def edit(number: int, made: Records) -> None:
            made.insert(0, {**made[0], "key": "preset_version", "value": version})
            for record in made:
                if record["key"] == "run_stop":
                    record["time_ms"] += 1000 * seconds

        return edit

    make_set(tmp_path / "all/one", edit=of(1, 0))
    alone = compare([tmp_path / "all"]).predictions
    make_set(tmp_path / "all/two", edit=of(2, 1000))
    marked = compare([tmp_path / "all"])
    assert [entry.comparable for entry in marked.entries].count(False) == 1
    assert alone and marked.predictions == alone


def test_a_version_that_the_first_set_does_not_state_is_compared_with_the_next_and_mixed_sets_say_so(
    tmp_path: Path,
) -> None:
    def of(**stated: int) -> Callable[[int, Records], None]:
        def edit(number: int, made: Records) -> None:
            for key, value in stated.items():
                made.insert(0, {**made[0], "key": f"{key}_version", "value": value})

        return edit

    def mixed(number: int, made: Records) -> None:
        of(data=1 + number % 2)(number, made)

    make_set(tmp_path / "a", edit=of(preset=1))
    make_set(tmp_path / "b", edit=of(preset=1, data=1))
    make_set(tmp_path / "c", edit=of(preset=1, data=2))
    entries = {entry.org: entry for entry in compare([tmp_path]).entries}
    assert [org for org, entry in entries.items() if not entry.comparable] in (["c"], ["b"])
    make_set(tmp_path / "other/d", edit=mixed)
    (both,) = compare([tmp_path / "other"]).entries
    assert any(note.startswith("data versions [1, 2] in one set") for note in both.notes)


def test_overlapped_staging_is_a_note_of_its_set(tmp_path: Path) -> None:
    def overlap(number: int, made: Records) -> None:
        made.insert(0, {**made[0], "key": "staging_overlap", "value": True})

    make_set(tmp_path / "org", edit=overlap)
    (entry,) = compare([tmp_path]).entries
    assert any("staging overlapped the first epoch" in note for note in entry.notes)


def test_a_path_inside_another_adds_no_duplicate_sets(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org")
    assert len(compare([tmp_path, folder, tmp_path / "org"]).entries) == 1


# Aborted runs, copies, staging in and outside the clock.


def test_an_aborted_run_is_excluded_from_all_means(tmp_path: Path) -> None:
    def abort(lines: Records) -> None:
        lines[-1]["metadata"]["status"] = "aborted"
        lines[-1]["time_ms"] -= 60_000

    for n in (1, 2, 3):
        make_run(tmp_path / f"run-{n}", status="failed", log=abort if n == 3 else lambda lines: None)
    comparison = compare([tmp_path])
    (entry,) = comparison.entries
    assert entry.over == OVER_ENDED and len(entry.runs) == 2 and entry.aborted == 1
    assert entry.time_s and entry.time_s.sd == pytest.approx(0)
    assert "1 of 3 runs aborted or without run_stop, excluded from all means" in Page(page(comparison)).text


def test_logs_that_cannot_be_read_are_not_called_aborted(tmp_path: Path) -> None:
    """The published sets of round 0.6, all of whose runs ended."""
    folder = make_set(tmp_path / "org", "deepcam")
    for log in folder.glob("result_*.txt"):
        log.write_text(':::MLL 1.5 run_stop: {"value": null, "metadata": {"status": "success"}}\n')
    (entry,) = compare([tmp_path]).entries
    assert entry.aborted == 0 and entry.made_from == "closed, 0 runs"
    assert "5 of 5 logs not readable, excluded from all means" in entry.notes


def test_runs_of_an_unknown_target_are_not_said_to_have_missed_it(tmp_path: Path) -> None:
    def of_oc20(number: int, made: Records) -> None:
        next(record for record in made if record["key"] == "submission_benchmark")["value"] = "oc20"

    folder = make_set(tmp_path / "org", "deepcam", edit=of_oc20)
    folder.rename(folder.with_name("oc20"))
    (entry,) = compare([tmp_path]).entries
    assert entry.made_from == "closed, 5 runs: all runs that ended normally; their target is not known"


def test_whole_batches_of_the_official_samples_are_the_official_data(tmp_path: Path) -> None:
    def fewer(number: int, made: Records) -> None:
        for record in made:
            if record["key"] == "train_samples":
                record["value"] = 121216
            if record["key"] == "global_batch_size":
                record["value"] = 128

    make_set(tmp_path / "a", "deepcam", system="s1")
    make_set(tmp_path / "b", "deepcam", system="s2", edit=fewer)
    comparison = compare([tmp_path])
    assert [e.official for e in comparison.entries] == [True, True]
    assert len(comparison.by_problem) == 1
    text = Page(page(comparison)).text
    assert "121,216 training samples logged: 121,266 without the last batch" in text
    assert "Not the official data set" not in text


def test_a_republished_set_is_a_copy_and_predicts_nothing(tmp_path: Path) -> None:
    tree = scaling_tree(tmp_path / "tree")
    shutil.copytree(tree, tmp_path / "again")
    comparison = compare([tree, tmp_path / "again"])
    assert [e.copy_of for e in comparison.entries] == ["", "", "A", "B"]
    assert comparison.predictions == compare([tree]).predictions
    read = Page(page(comparison))
    assert "10 of 10 logs are also in A: a copy, excluded from figures and predictions" in read.text
    assert {row["letter"] for row in read.rows("a) ") if "letter" in row} == {"A", "B"}


def test_scores_with_and_without_staging_are_distinguished(tmp_path: Path) -> None:
    def staged_before(number: int, made: Records) -> None:
        start = next(record for record in made if record["key"] == "run_start")
        moved = [record for record in made if record["key"].startswith("staging_")]
        for record in moved:
            made.remove(record)
            record["time_ms"] = start["time_ms"] - 1000
        made[made.index(start) : made.index(start)] = moved

    make_set(tmp_path / "a", system="s1")
    make_set(tmp_path / "b", system="s2", edit=staged_before)
    make_set(tmp_path / "c", system="s3", staging_minutes=0.0)
    comparison = compare([tmp_path])
    assert [e.staged for e in comparison.entries] == [IN_CLOCK, BEFORE_CLOCK, NOT_LOGGED]
    text = Page(page(comparison)).text
    assert "The scores of A include staging" in text and "Those of B do not" in text


# Figures that few runs cannot support, and columns derived from others.


@pytest.mark.parametrize(("runs", "shown"), [(2, False), (3, True)])
def test_a_deviation_needs_three_runs(runs: int, shown: bool, tmp_path: Path) -> None:
    make_set(tmp_path / "org", minutes=[10.0 + n for n in range(runs)])
    comparison = compare([tmp_path])
    assert ("\xa0±\xa0" in page(comparison)) == shown


def test_two_runs_span_their_own_range_and_three_the_interval_of_students_t() -> None:
    two, three = spread([10.0, 14.0]), spread([10.0, 12.0, 14.0])
    assert two and two.interval == pytest.approx((12, 10, 14))
    # t(0.975, 2 degrees of freedom) = 4.3027 (NIST/SEMATECH e-Handbook, 1.3.6.7.2)
    assert three and three.interval[2] == pytest.approx(12 + 4.3027 * 2 / math.sqrt(3), rel=1e-4)


def test_intervals_are_over_all_runs_that_converged(tmp_path: Path, capsys) -> None:
    """By hand: mean 3.522 min, standard deviation 2.622; the mean of the score, without the fastest and slowest,
    is 2.7233. t(0.975, 4 degrees of freedom) = 2.7764 (NIST/SEMATECH e-Handbook, 1.3.6.7.2): 3.522 ± 3.256."""
    make_set(tmp_path / "org", "deepcam", [1.35, 2.70, 2.72, 2.75, 8.09], staging_minutes=0.0)
    comparison = compare([tmp_path])
    (measured,) = (entry.measured for entry in comparison.entries)
    epochs = 13  # all of equal length
    assert measured and measured.epoch_s == pytest.approx(
        [m * 60 / epochs for m in (2.7233, 0.2664, 6.7776)], rel=1e-3
    )
    assert "2.7233 all that converged: 3.52 ± 2.62" in Page(page(comparison)).text
    assert cli.main(["report", str(tmp_path), "--json"]) == 0
    (content,) = json.loads(capsys.readouterr().out)["sets"]
    assert content["score_min"] == pytest.approx(2.7233, rel=1e-4)
    assert (content["runs"], content["time_s"].pop("n")) == (5, 5)
    ends = {"mean": 3.522 * 60, "low95": 0.2664 * 60, "high95": 6.7776 * 60}
    assert content["time_s"] == pytest.approx(ends, rel=1e-3)


def test_speed_up_and_efficiency_are_relative_to_the_smallest_set(tmp_path: Path) -> None:
    small, large = rows(page(compare([scaling_tree(tmp_path)])), "scaling")
    assert (small["speed-up"], small["efficiency"]) == (1.0, 1.0)
    assert large["speed-up"] == pytest.approx(41.0045 / 11.0045, rel=1e-4)
    assert large["efficiency"] == pytest.approx(large["speed-up"] / 4)


def test_an_own_preset_of_the_official_problem_shares_its_chart(tmp_path: Path) -> None:
    """Unless its network is another one."""
    sets = {"closed": [], "own": [], "small": ["network.conv_filters=2"]}
    for day, (name, settings) in enumerate(sets.items()):

        def log(made: Records, day: int = day) -> None:
            for record in made:
                record["time_ms"] += 86_400_000 * day

        config = make_run(tmp_path / name, preset="closed", settings=settings, log=log) / "config.toml"
        if name != "closed":
            config.write_text(config.read_text().replace('preset = "closed"', 'preset = "mine"'))
    titles = {e.path.name: e.title for e in compare([tmp_path / name for name in sets]).entries}
    assert titles["own"] == titles["closed"]
    assert titles["small"] == f"{titles['closed']} · network.conv_filters 2"


def test_systems_of_a_tree_with_different_processors_are_different_machines(tmp_path: Path) -> None:
    """As HoreKa and JUWELS Booster in round 1.0, with the same accelerators."""
    described = scaling_tree(tmp_path) / "org/systems/n8.json"
    facts = json.loads(described.read_text())
    described.write_text(json.dumps(facts | {"host_processor_model_name": "Intel(R) Xeon(R) 8368"}))
    comparison = compare([tmp_path])
    assert [row["speed-up"] for row in rows(page(comparison), "scaling")] == ["", ""]
    machines = {p.machine for p in comparison.predictions}
    assert {machine.endswith(", Intel Xeon 8368") for machine in machines} == {False, True}


def test_speed_up_is_only_of_sets_that_differ_in_size(tmp_path: Path) -> None:
    """Each set has the same time on two ranks as the base on one: a speed-up of 1 where nothing else differs."""
    settings = {"precision": "training.precision=mixed_bfloat16", "network": "network.conv_filters=2"}
    names = ("base", "same", "precision", "network", "cluster", "platform", "software", "version")
    for day, name in enumerate(names):

        def log(made: Records, day: int = day, name: str = name) -> None:
            made.insert(0, {**made[0], "key": "preset_version", "value": 2 if name == "version" else 1})
            for record in made:
                record["time_ms"] += 86_400_000 * day
                if record["key"] == "submission_platform" and name == "platform":
                    record["value"] = "Beta"

        def env(facts: dict[str, Any], name: str = name) -> None:
            # Names of two nodes of one system.
            facts["hostname"] = "x4102c5s2b0n0" if name == "base" else "x4305c1s0b0n1"
            facts["variables"] = {"SLURM_CLUSTER_NAME": "gamma" if name == "cluster" else "(null)"}
            if name == "software":
                facts["packages"]["tensorflow-cpu"] = "2.99"

        chosen = [settings[name]] if name in settings else []
        make_run(tmp_path / name, settings=chosen, ranks=2 - (name == "base"), log=log, env=env)
    comparison = compare([tmp_path / name for name in names])
    of = {entry.letter: entry.path.name for entry in comparison.entries}
    scaling = {of[row["set"].split()[0]]: (row["speed-up"], row["efficiency"])
               for row in rows(page(comparison), "scaling")}  # fmt: skip
    assert scaling == dict.fromkeys(names, ("", "")) | {"base": (1.0, 1.0), "same": (1.0, 0.5)}
    problems = [[entry.path.name for entry in group] for group in comparison.by_problem]
    assert ["network"] in problems and len(problems) == 2
    machines = [p.machine for p in comparison.predictions if p.measured_min is None]
    others = ("training.precision mixed_bfloat16", "gamma", "Beta")
    assert {machine.partition(">, ")[2] for machine in machines} == {"", *others}


def test_letters_continue_after_z() -> None:
    assert [letter(n) for n in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]
