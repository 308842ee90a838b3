"""Joules in addition to time: in report, score and comparison, on pages, in the terminal and as JSON."""

import json
from io import StringIO
from pathlib import Path

import pytest
from golden.make_run import make_run
from helpers.checked_sets import key
from helpers.page import Page
from helpers.report_runs import report_of
from rich.console import Console

from mlhpc import cli
from mlhpc.quantities import joules_text
from mlhpc.record.energy import Energy
from mlhpc.submission.check.console import print_score
from mlhpc.submission.report.compare import compare
from mlhpc.submission.report.compare_page import page as comparison_page
from mlhpc.submission.report.compare_table import print_comparison

LOST = "GPU 1 could not be read during the run (GPU is lost)"
OLD = {"source": "NVML", "joules": 81234.5, "counters": 4, "problems": []}
"""Of the first versions, which measured accelerators only."""


def figure(joules, source="NVML", problems=(), counters=4, nodes=1):
    return {
        "joules": joules,
        "source": source,
        "counters": counters,
        "nodes": nodes,
        "problems": list(problems),
    }


FIGURES = {
    "accelerators": figure(81_234.5),
    "processors": figure(20_500.0, "RAPL, packages and memory"),
    "node": figure(150_000.0, "Cray pm_counters", counters=1),
}


def run_with(folder: Path, energy) -> Path:
    return make_run(folder, result=lambda result: result.update(energy=energy))


def ten_runs(folder: Path, energy_of) -> Path:
    """A set with a score, whose runs have the energy ``energy_of(n)``."""
    for n in range(10):
        make_run(folder / f"run_{n}", epochs=5 + n, log=lambda lines, n=n: key(lines, "seed").update(value=n),
                 result=lambda result, n=n: result.update(seed=n, energy=energy_of(n)))  # fmt: skip
    return folder


def of_json(capsys, *words):
    cli.main([*map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_report_shows_each_kind_with_its_name_and_mean_power(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", FIGURES)
    seconds = json.loads((run / "result.json").read_text())["time_to_train_s"]
    page, text = report_of(run)
    for name, source, energy, joules in [
        ("accelerators", "NVML", "81.23 kJ", 81_234.5),
        ("processors", "RAPL, packages and memory", "20.5 kJ", 20_500.0),
        ("whole nodes", "Cray pm_counters", "150 kJ", 150_000.0),
    ]:
        watts = joules / seconds
        power = f"{watts / 1e3:.4g} kW" if watts >= 1000 else f"{watts:.4g} W"
        assert f"{name} {source} {energy} {power}" in page.text
        assert f"{name} {energy} ({source})" in text
    assert "The energy of whole nodes contains the others: do not add them." in page.text
    assert "whatever else ran there is in them" in page.text
    assert "251.7" not in page.text + text, "kinds are never added"


SAMPLED = {"readings": 132, "longest_gap_s": 0.93, "caps_w": [400.0, 700.0]}


def test_a_report_says_joules_per_sample_power_limits_and_what_the_power_rules_miss(tmp_path: Path) -> None:
    energies = {
        "accelerators": figure(81_234.5) | SAMPLED,
        "node": figure(150_000.0, "Slurm, ipmi", nodes=2) | {"readings": 2, "longest_gap_s": 93.2},
    }
    run = run_with(tmp_path / "run", energies)
    epochs = json.loads((run / "result.json").read_text())["epochs"]
    samples = sum(epoch["samples"] for epoch in epochs)
    page, text = report_of(run)
    assert f"accelerators 81.23 kJ (NVML), {joules_text(81_234.5 / samples)}/sample" in text
    assert "400 W, 700 W" in page.text
    assert "accelerators: below the measuring point, the power supply" in page.text
    assert "2 readings, not 60; a gap of 93.2 s; without the network" in page.text


def test_a_node_read_each_second_meets_the_power_rules() -> None:
    assert (
        Energy(joules=1.0, counters=1, source="Cray pm_counters", nodes=1, **SAMPLED).short_of_rules("node")
        == []
    )


@pytest.mark.parametrize(("energy", "on_page", "printed"), [
    (OLD, "accelerators NVML 81.23 kJ", "accelerators 81.23 kJ (NVML)"),
    ({"accelerators": figure(81_234.5, problems=[LOST])}, LOST, "accelerators incomplete (NVML)"),
    ({"accelerators": figure(None, problems=["NVML is not installed"], counters=0)}, "accelerators NVML no figure",
     "seed 1234"),
    ({"processors": figure(5.0, "RAPL", nodes=3)}, "4 on 3 nodes", "processors 5 J (RAPL)"),
])  # fmt: skip
def test_old_and_incomplete_figures_are_shown_as_what_they_are(
    tmp_path: Path, energy, on_page, printed
) -> None:
    page, text = report_of(run_with(tmp_path / "run", energy))
    assert on_page in page.text and printed in text


@pytest.mark.parametrize("energy", [None, {}, {"tachyons": figure(1.0)}])
def test_a_run_without_figures_has_no_word_about_energy(tmp_path: Path, energy) -> None:
    page, text = report_of(run_with(tmp_path / "run", energy))
    assert "Energy" not in page.text and "energy" not in text


@pytest.mark.parametrize("energy", [5, {"accelerators": 5}, {"node": figure(-1.0)}, {"node": figure("many")}])
def test_a_damaged_figure_is_a_damaged_result(tmp_path: Path, energy) -> None:
    run = run_with(tmp_path / "run", energy)
    assert "result.json" in report_of(run)[0].text
    assert of_score(tmp_path).count("kJ") == 0


def of_score(path: Path) -> str:
    out = StringIO()
    print_score(path, "2.0.0", Console(file=out, width=300))
    return " ".join(out.getvalue().split())


def test_a_score_shows_the_joules_of_each_run_beside_its_minutes(tmp_path: Path, capsys) -> None:
    def energy_of(n):
        if n == 9:
            return None
        problems = [LOST] if n == 8 else []
        return {
            "accelerators": figure(1000.0 * (n + 1), problems=problems),
            "processors": figure(None, problems=["readable only by root"]),
            "node": figure(5000.0 * (n + 1)),
        }

    runs = ten_runs(tmp_path / "runs", energy_of)
    text = of_score(runs)
    # The runs in the score are neither the fastest, run_0, nor the slowest, run_9; run_8 has no complete figure.
    mean = sum(5.0 * (n + 1) for n in range(1, 9)) / 8
    assert f"energy of a training, mean of the runs in the score: whole nodes {mean:g} kJ" in text
    assert of_json(capsys, "score", runs)["sets"][0]["energy_j"] == {"node": mean * 1e3}
    assert text.count("energy of") == 3 and "accelerators" in text and "processors" not in text
    scored = of_json(capsys, "score", runs)["sets"][0]["runs"]
    for n, run in enumerate(scored):
        whole = {"accelerators": 1000.0 * (n + 1), "processors": None, "node": 5000.0 * (n + 1)}
        assert run["energy_j"] == ({} if n == 9 else whole | ({"accelerators": None} if n == 8 else {}))
        minutes = (
            f"run_{n} {run['seconds'] / 60:.4f} {run['without_staging_s'] / 60:.4f} {run['epochs_to_target']}"
        )
        energy = {8: "incomplete 45 kJ", 9: ""}.get(n, f"{n + 1} kJ {5 * (n + 1)} kJ")
        assert " ".join(f"{minutes} {energy}".split()) in text


def test_a_comparison_shows_mean_joules_by_what_was_measured(tmp_path: Path, capsys) -> None:
    """Over the measured runs, which are those in the score: neither the fastest, run_0, nor the slowest, run_9; as
    JSON, with an interval, over all."""

    def energy_of(n):
        problems = [LOST] if n == 3 else []
        return {
            "accelerators": figure(1000.0 * n, problems=problems),
            "processors": figure(None, problems=["readable only by root"]),
            "node": figure(5.0, "Slurm, ipmi", problems=["no sample on n1"]),
        }

    runs = ten_runs(tmp_path / "runs", energy_of)
    mean = sum(1000.0 * n for n in range(1, 9) if n != 3) / 7
    comparison = compare([runs])
    out = StringIO()
    print_comparison(comparison, Console(file=out, width=300))
    printed = f"energy of a run, mean: accelerators {joules_text(mean)}, whole nodes incomplete"
    assert printed in " ".join(out.getvalue().split())
    page = Page(comparison_page(comparison))
    assert "set time, min accelerators, kJ whole nodes, kJ read with" in page.text
    assert (
        f"{mean / 1e3:.2f}\xa0±" in " ".join(page.texts)
        and "accelerators: NVML; whole nodes: Slurm, ipmi" in page.text
    )
    content = of_json(capsys, "report", runs)["sets"][0]["energy_j"]
    of_all = (0 + 1 + 2 + 4 + 5 + 6 + 7 + 8 + 9) * 1000 / 9
    assert content["accelerators"]["mean"] == pytest.approx(of_all) and content["accelerators"]["n"] == 9
    assert content["node"] is None and "processors" not in content


@pytest.mark.parametrize("nodes", [1, 4])
def test_concurrent_instances_have_energies_only_on_nodes_of_their_own(tmp_path: Path, capsys, nodes) -> None:
    """Twelve instances, four at a time, each recording 1 MJ of its node: on nodes of their own, a training took
    1 MJ. On a single node, all twelve took 3 MJ, 250 kJ each; their records cannot tell that from 12 MJ."""
    for n in range(12):

        def log(lines, n=n):
            key(lines, "seed").update(value=n)
            for line in lines:
                line["time_ms"] += n // 4 * 3_600_000

        make_run(tmp_path / f"weak/run_{n}", log=log, env=lambda env, n=n: env["nodes"][0].update(
            hostname=f"n{n % nodes}"), result=lambda result, n=n: result.update(seed=n, energy={
                "node": figure(1e6, "Cray pm_counters")}))  # fmt: skip
    own = {"node": 1e6} if nodes == 4 else {}
    text, content = of_score(tmp_path / "weak"), of_json(capsys, "score", tmp_path / "weak")["sets"][0]
    assert ("energy of a training, mean of the runs in the score: whole nodes 1 MJ" in text) == (nodes == 4)
    assert ("energy of a training: not known, since concurrent runs on a node" in text) == (nodes == 1)
    assert text.count("MJ") == (13 if nodes == 4 else 0)
    assert content["energy_j"] == own and [run["energy_j"] for run in content["runs"]] == [own] * 12
    (entry,) = of_json(capsys, "report", tmp_path / "weak")["sets"]
    assert ({kind: joules["mean"] for kind, joules in entry["energy_j"].items()}) == own
    assert any("energy of a training: not known" in note for note in entry["notes"]) == (nodes == 1)


def test_a_comparison_without_figures_has_no_such_section(tmp_path: Path) -> None:
    page = Page(comparison_page(compare([ten_runs(tmp_path / "runs", lambda n: None)])))
    assert "accelerators, kJ" not in page.text


def test_a_report_as_json_has_the_joules(tmp_path: Path, capsys) -> None:
    content = of_json(
        capsys, "report", run_with(tmp_path / "run", FIGURES | {"node": figure(7.0, problems=["x"])})
    )
    assert content["energy_j"] == {"accelerators": 81_234.5, "processors": 20_500.0, "node": None}
    assert of_json(capsys, "report", run_with(tmp_path / "old", OLD))["energy_j"] == {
        "accelerators": 81_234.5
    }


@pytest.mark.parametrize(("joules", "text"), [
    (0.5, "0.5 J"), (999.9, "999.9 J"), (81_234.5, "81.23 kJ"), (12_345_678.0, "12.35 MJ"), (3.6e9, "3.6 GJ"),
])  # fmt: skip
def test_joules_are_written_without_powers_of_ten(joules, text) -> None:
    assert joules_text(joules) == text
