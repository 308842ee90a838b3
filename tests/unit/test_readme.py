"""The front page: its length, and its results, which the suite computes from the times of the published runs.

tests/data/reference/published_runs.csv has one line per run, from ``mlhpc report LOG --json`` on the logs at
github.com/mlcommons/hpc_results_v0.7, _v2.0 (ad77f6c) and _v3.0 (dfea490): seconds from run_start to run_stop,
of which staging and first-epoch excess, and the number of epochs.
"""

import csv
import io
import re
import subprocess
from itertools import groupby
from pathlib import Path

import pytest
from golden.make_tree import START_MS, Records, make_set, records
from rich.console import Console

from mlhpc.perf.machines import known, machine
from mlhpc.perf.published import published
from mlhpc.submission.report.report import report_on

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
RUNS = list(csv.DictReader((ROOT / "tests/data/reference/published_runs.csv").open(encoding="utf-8")))
SETS = [list(runs) for _, runs in groupby(RUNS, lambda run: (run["benchmark"], run["system"]))]
TABLE = [line for line in README.split("## Results")[1].split("## ")[0].splitlines() if line.startswith("|")]
SHOWN = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE[2:]]
TITLES = (
    "Architectural Requirements for Deep Learning Workloads in HPC Environments",
    "MLPerf HPC: A Holistic Benchmark Suite for Scientific Machine Learning on HPC Systems",
    "Preprocessing Pipeline Optimization for Scientific Deep Learning Workloads",
    "A Quantitative Study of Deep Learning Training on Heterogeneous Supercomputers",
    "DLIO: A Data-Centric Benchmark for Scientific Deep Learning Applications",
)


def log_of(run: dict[str, str], number: int) -> Records:
    """A log of a run with this run's times and number of epochs; the excess comes before the first evaluation."""
    excess_ms = round(1e3 * float(run["first_epoch_excess_s"]))
    minutes, staging = float(run["seconds"]) / 60, float(run["staging_s"]) / 60
    per_node = int(run["accelerators_per_node"])
    made = records(
        run["benchmark"],
        minutes=minutes - excess_ms / 60e3,
        staging_minutes=staging,
        start_ms=START_MS + number * 86_400_000,
        seed=number,
        epochs=int(run["epochs"]),
        nodes=int(run["units"]) // (per_node or 1),
        accelerators=per_node,
    )
    first = next(n for n, record in enumerate(made) if record["key"] == "eval_start")
    for record in made[first:]:
        record["time_ms"] += excess_ms
    next(record for record in made if record["key"] == "global_batch_size")["value"] = int(run["batch"])
    return made


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[str]]:
    """What ``mlhpc report`` prints of each set: the columns of its row, by system and benchmark."""
    root = tmp_path_factory.mktemp("published")
    for runs in SETS:
        first = runs[0]

        def edit(number: int, made: Records, runs: list[dict[str, str]] = runs) -> None:
            made[:] = log_of(runs[number - 1], number)

        per_node = int(first["accelerators_per_node"])
        make_set(
            root / first["round"] / first["org"],
            first["benchmark"],
            [1.0] * len(runs),
            system=first["system"],
            level=None if first["round"] == "v0.7" else "strong",
            edit=edit,
            nodes=int(first["units"]) // (per_node or 1),
            accelerators=per_node,
        )
    out = io.StringIO()
    report_on([root], Console(file=out, width=200))
    rows = {}
    for part in re.split(r"^(?=CosmoFlow|DeepCAM)", out.getvalue().replace("\u00a0", " "), flags=re.M)[1:]:
        systems = dict(re.findall(r"^([A-Z]) \S+ · (\S+)  ", part, re.M))
        for letter, columns in re.findall(r"^ *([A-Z]) +(\d+/\d+ .*)$", part, re.M):
            rows[systems[letter], part.split()[0].lower()] = re.split(r" {2,}", columns.strip())
    return rows


@pytest.mark.parametrize(
    "runs, cells",
    list(zip(SETS, SHOWN, strict=False)),
    ids=[f"{runs[0]['system']}-{runs[0]['benchmark']}" for runs in SETS],
)
def test_each_published_result_is_what_the_suite_computes(
    runs: list[dict[str, str]], cells: list[str], printed: dict[tuple[str, str], list[str]]
) -> None:
    run = runs[0]
    logs, units, batch, score, staging, excess, epochs, _ = printed[run["system"], run["benchmark"]]
    assert [logs.split("/")[1], batch.replace(",", "")] == [str(len(runs)), run["batch"]]
    processors = f"{units} {run['model']}"
    assert cells[1:] == [run["name"], processors, cells[3], score, staging, excess, epochs]
    assert cells[0].lower() == run["benchmark"] and f"v{cells[3]}" <= run["round"]
    for row in published():  # computed from the same logs by another program
        same = (row.system, row.benchmark, row.round.strip("v")) == (
            run["system"],
            run["benchmark"],
            cells[3],
        )
        if same and row.total_s is not None:
            assert row.total_s == pytest.approx(60 * float(score), abs=0.004)


def test_the_table_has_the_three_kinds_of_machine_and_yours_without_a_measured_time() -> None:
    *shown, yours = SHOWN
    assert len(shown) == len(SETS)
    assert {"A64FX", "A100", "H100"} <= {cells[2].split()[1] for cells in shown}
    assert yours[1] == "your machine" and "`mlhpc predict`" in yours
    assert not re.search(r"\d", "".join(yours))


def test_round_3_0_is_shown_and_never_fitted() -> None:
    """Neither under its own name, nor under that of an earlier round, nor in a machine's figures."""
    third = {(run["system"], run["benchmark"]) for run in RUNS if run["round"] == "v3.0"}
    assert {benchmark for _, benchmark in third} == {"cosmoflow", "deepcam"}
    fitted = [row for row in published() if row.use == "fit"]
    assert {row.round for row in fitted} == {"v0.7", "v1.0", "v2.0"}
    assert not {(row.system, row.benchmark) for row in fitted} & third
    sources = [source for name in known() for source in machine(name).sources.values()]
    assert sources and not [s for s in sources if re.search(r"round 3|hpc_results_v3|\beos", s)]


def test_the_first_screen_has_what_a_newcomer_looks_for() -> None:
    lines = README.splitlines()
    assert len(lines) <= 130
    screen = "\n".join(lines[:60])
    for wanted in ("make demo", "make test", "pip install '.[deepcam]'", "H100", "Fugaku", "your machine"):
        assert wanted in screen, wanted
    assert "pip install 'mlhpc" not in README and "pip install mlhpc" not in README


def test_each_paper_is_named_once_in_the_list_of_papers() -> None:
    papers = README.split("## Papers")[1].split("\n## ")[0]
    flat = " ".join(README.split())
    for title in TITLES:
        assert title in " ".join(papers.split()) and flat.count(title) == 1


def test_no_paper_goes_by_a_number() -> None:
    """Authors and year, as the field does: numbers mean something only to those who have our list."""
    git = ["git", "ls-files", "-z", ":!tests"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    numbered = re.compile(r"papers?('s)?[\s#:*_-]*00\d", re.IGNORECASE)
    found = []
    for name in filter(lambda name: (ROOT / name).is_file(), listed.split("\0")):
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        found += [f"{name}: {match[0]}" for match in numbered.finditer(f"{name}\n{text}")]
    assert found == []
