"""Which sets are found below a path, for any layout and names."""

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from golden.make_run import make_run
from golden.make_tree import Records, describe, make_set, records, write_log

from mlhpc.errors import UserError
from mlhpc.submission.result_set import ResultSet
from mlhpc.submission.result_sets import result_sets


def told(sets: list[ResultSet]) -> list[tuple[str | None, str | None, str, str, int]]:
    return [(s.org, s.system, s.benchmark, s.metric, len(s.logs)) for s in sets]


def problems(sets: list[ResultSet]) -> list[tuple[str, str]]:
    return [(f.rule, f.severity) for s in sets for f in s.problems]


@pytest.mark.parametrize("above", ["", "v1.0", "rounds/v1.0"])
@pytest.mark.parametrize("level", ["strong", None])
@pytest.mark.parametrize(
    ("org", "system"), [("org", "machine"), ("Fujitsu+RIKEN 2", "node v1.0 (8x A100).n16")]
)
def test_a_set_is_found_from_every_folder_above_it(
    above: str, level: str | None, org: str, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_set(tmp_path / above / org, system=system, level=level)
    for start in (tmp_path, tmp_path / above / org, folder.parent, folder):
        (of_folder,) = result_sets(start)
        assert told([of_folder]) == [(org, system, "cosmoflow", "strong", 10)]
        assert (of_folder.path, of_folder.problems) == (folder, ())
        assert of_folder.system_json and of_folder.system_json["system_name"] == system
    monkeypatch.chdir(folder)
    assert told(result_sets(Path("."))) == [(org, system, "cosmoflow", "strong", 10)]


def test_all_sets_of_many_submitters_are_found(tmp_path: Path) -> None:
    make_set(tmp_path / "v2" / "b", system="m10")
    make_set(tmp_path / "v2" / "b", "deepcam", system="m10")
    make_set(tmp_path / "v2" / "b", "deepcam", system="m2", level="weak")
    make_set(tmp_path / "v1" / "a", "resnet", level=None)
    assert told(result_sets(tmp_path)) == [
        ("a", "machine", "resnet", "strong", 5),
        ("b", "m2", "deepcam", "weak", 5),
        ("b", "m10", "cosmoflow", "strong", 10),
        ("b", "m10", "deepcam", "strong", 5),
    ]


def test_result_2_comes_before_result_10(tmp_path: Path) -> None:
    (of_folder,) = result_sets(make_set(tmp_path / "org"))
    assert [log.path.name for log in of_folder.logs] == [f"result_{n}.txt" for n in range(1, 11)]


def test_pruned_results_belong_to_their_set(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org", "deepcam", level="weak")
    write_log(folder / "pruned_results" / "result_1.txt", records("deepcam"))
    (of_folder,) = result_sets(tmp_path)
    assert (len(of_folder.logs), len(of_folder.pruned), of_folder.problems) == (5, 1, ())


def test_logs_in_an_implementation_are_not_results(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org")
    brought = tmp_path / "org" / "benchmarks" / "cosmoflow" / "implementations" / "x" / "result_1.txt"
    write_log(brought, records())
    assert [s.path for s in result_sets(tmp_path)] == [folder]


def test_one_foreign_log(tmp_path: Path) -> None:
    path = write_log(tmp_path / "slurm 12.out", records("deepcam"))
    (of_folder,) = result_sets(path)
    assert told([of_folder]) == [("org", None, "deepcam", "strong", 1)]


def test_a_bare_folder_of_logs_is_described_by_the_logs(tmp_path: Path) -> None:
    for n in (1, 2):
        write_log(tmp_path / "results" / "mine" / f"result_{n}.txt", records("deepcam", seed=n))
    (of_folder,) = result_sets(tmp_path)
    assert told([of_folder]) == [("org", None, "deepcam", "strong", 2)]
    assert not of_folder.is_tree and of_folder.problems == ()


def test_a_run_and_a_campaign(tmp_path: Path) -> None:
    for n in (1, 2, 10):
        make_run(tmp_path / "campaign" / f"run.{n} a", settings=["target.value=0.25"])
    (run,) = result_sets(tmp_path / "campaign" / "run.1 a")
    assert (run.benchmark, run.preset, len(run.logs), len(run.runs)) == ("cosmoflow", "smoke", 1, 1)
    (campaign,) = result_sets(tmp_path)
    assert [path.name for path in campaign.runs] == ["run.1 a", "run.2 a", "run.10 a"]
    assert (campaign.metric, campaign.target and campaign.target.value) == ("strong", 0.25)


def test_runs_of_different_presets_are_different_sets(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", preset="closed")
    make_run(tmp_path / "c")
    make_run(tmp_path / "d", settings=["target.value=0.2"])
    sets = result_sets(tmp_path)
    assert [[path.name for path in s.runs] for s in sets] == [["a", "c"], ["b"], ["d"]]


def test_campaign_json_may_declare_throughput(tmp_path: Path) -> None:
    make_run(tmp_path / "one" / "a")
    (tmp_path / "one" / "campaign.json").write_text('{"metric": "weak"}')
    make_run(tmp_path / "two" / "a")
    told = {"metric": "weak", "score": {"T": 16, "S": 8}}
    (tmp_path / "two" / "campaign.json").write_text(json.dumps(told))
    make_run(tmp_path / "weak" / "a")
    sets = result_sets(tmp_path)
    assert [(s.metric, s.total_scale) for s in sets] == [("weak", None), ("weak", 16), ("weak", None)]


def test_a_run_that_was_killed_belongs_to_its_campaign(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (make_run(tmp_path / "b") / "result.json").unlink()
    (campaign,) = result_sets(tmp_path)
    assert len(campaign.runs) == len(campaign.logs) == 2


@pytest.mark.parametrize("place", ["results", "results/machine", "results/machine/strong/cosmoflow"])
def test_an_empty_folder_in_a_tree_is_a_finding(place: str, tmp_path: Path) -> None:
    describe(tmp_path / "org", "machine")
    (tmp_path / "org" / place).mkdir(parents=True)
    sets = result_sets(tmp_path)
    assert told(sets)[0][0] == "org" and [len(s.logs) for s in sets] == [0]
    assert ("set/empty", "error") in problems(sets)


@pytest.mark.parametrize("text", [None, "", "{", "division: {}", "[]", "[" * 100_000, '"x"', "\udcff"])
def test_a_system_description_that_cannot_be_read_is_a_finding(text: str | None, tmp_path: Path) -> None:
    make_set(tmp_path / "org")
    path = tmp_path / "org" / "systems" / "machine.json"
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    sets = result_sets(tmp_path)
    assert told(sets) == [("org", "machine", "cosmoflow", "strong", 10)]
    assert problems(sets) == [("set/system", "error")] and sets[0].system_json is None
    assert not re.search("Expecting|char", sets[0].problems[0].actual)  # words of Python's json


def test_other_files_among_the_results_are_reported(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "org")
    (folder / "scaling.json").write_text("{}")
    (folder / "result_11.txt.bak").write_text("")
    (folder / "package_checker_params").write_text("rcp-bypass")
    (of_folder,) = result_sets(tmp_path)
    assert len(of_folder.logs) == 10
    assert {f.rule: f.actual for f in of_folder.problems}["set/files"] == "result_11.txt.bak"
    assert problems([of_folder]) == [("set/files", "warning"), ("set/bypass", "warning")]


def test_a_path_without_a_run_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty has no run\.log"):
        result_sets(tmp_path / "empty")
    with pytest.raises(UserError, match="nowhere does not exist"):
        result_sets(tmp_path / "nowhere")


def test_the_scale_of_a_system_is_its_accelerators_or_its_nodes(tmp_path: Path) -> None:
    make_set(tmp_path / "org")
    for nodes, accelerators, scale in (("4", "8", 32), ("512", "0", 512), ("", "", None), ("4", None, None)):
        describe(tmp_path / "org", "machine", number_of_nodes=nodes, accelerators_per_node=accelerators)
        assert result_sets(tmp_path)[0].total_scale == scale


def test_only_logs_are_read(tmp_path: Path) -> None:
    """A cyclic link, a folder named like a log, a dangling link."""
    folder = make_set(tmp_path / "org")
    (folder / "result_11.txt").mkdir()
    (folder / "result_12.txt").symlink_to("nowhere")
    (tmp_path / "org" / "results" / "again").symlink_to(tmp_path / "org" / "results")
    assert [(s.path, len(s.logs)) for s in result_sets(tmp_path)] == [(folder, 10)]


def test_the_memory_for_a_set_is_that_for_one_of_its_logs(tmp_path: Path) -> None:
    """Counted in what Python allocates, which is the same on every machine: about four times the size of one log
    while it is read, and a few percent of it afterwards."""

    def many(number: int, made: Records) -> None:
        last = made.pop()
        made += [dict(made[-1], key="tracked_stats", value=n) for n in range(2000)] + [last]

    def peak_of(result_set: ResultSet) -> int:
        tracemalloc.start()
        try:
            assert len(result_set.condensed) == len(result_set.log_paths)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    make_set(tmp_path / "one" / "org", "deepcam", [10.0], edit=many)
    make_set(tmp_path / "eight" / "org", "deepcam", [10.0 + n for n in range(8)], edit=many)
    (one,), (eight,) = result_sets(tmp_path / "one"), result_sets(tmp_path / "eight")
    size = one.log_paths[0].stat().st_size
    single = peak_of(one)
    assert single < 8 * size
    assert peak_of(eight) < 2 * single
