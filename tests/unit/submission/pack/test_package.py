"""Packing: the result is checked with the official package checker, and is the same byte for byte."""

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import tarfile

import pytest
from helpers.packing import SYSTEM, golden, resnet_log, rules
from ranks.need import need

from mlhpc import cli
from mlhpc.submission.pack import implementation
from mlhpc.submission.pack.archive import unpack
from mlhpc.submission.pack.package import pack


@pytest.fixture(autouse=True)
def few_sources(monkeypatch):
    """``packed`` has the real ones; they may be edited meanwhile, and take time."""

    def copy(to):
        to.mkdir(parents=True)
        (to / "train.py").write_text("seed = 1\n")

    monkeypatch.setattr(implementation, "copy_sources", copy)


def official_package_checker(tree, scratch, usage, ruleset):
    """Its own command line, on a copy: it writes into the tree, and exits 0 whatever it finds."""
    shutil.copytree(tree, scratch / "copy")
    done = subprocess.run(
        [sys.executable, "-m", "mlperf_logging.package_checker", "copy", usage, ruleset],
        cwd=scratch, capture_output=True, text=True,
    )  # fmt: skip
    return done.stderr


def digest(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return [(str(p.relative_to(folder)), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]


def test_a_closed_set_is_packed_in_the_official_layout_and_accepted(packed, closed_set, tmp_path):
    assert "FOUND NO ERRORS" in official_package_checker(packed.tree, tmp_path, "hpc", "2.0.0")
    results = packed.tree / "results" / "cluster_n4" / "strong" / "cosmoflow"
    assert {p.name for p in results.iterdir()} == {f"result_{i}.txt" for i in range(1, 11)}
    logs = {(run / "run.log").read_bytes() for run in closed_set.iterdir()}
    assert {p.read_bytes() for p in results.iterdir()} == logs
    assert {p.name for p in packed.tree.iterdir()} == {"systems", "benchmarks", "results"}
    assert json.loads((packed.tree / "systems" / "cluster_n4.json").read_text()) == SYSTEM
    implementations = packed.tree / "benchmarks" / "cosmoflow" / "implementations"
    assert {p.name for p in (implementations / "cluster_n4").iterdir()} == {
        "README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh", "config.toml",
    }  # fmt: skip
    assert list(implementations.glob("mlhpc-*/src/mlhpc/cosmoflow/tf/train.py"))


def test_the_command_for_the_official_checker_is_printed(
    closed_set, system_file, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ["pack", closed_set, "--org", "Lab", "--system", system_file(), "--out", "tree"]
    assert cli.main([str(word) for word in words]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    python, *command = shlex.split(line.partition(": ")[2])
    assert line.startswith("official check: ") and python == "python"
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert "FOUND NO ERRORS" in done.stderr


def test_the_score_is_the_mean_without_the_fastest_and_the_slowest(packed, closed_set):
    times = sorted(
        json.loads((run / "result.json").read_text())["time_to_train_s"] for run in closed_set.iterdir()
    )
    assert packed.sets == [f"cosmoflow strong: 10 results; {sum(times[1:-1]) / 8 / 60:.4f} min"]


def test_the_archive_is_reproducible_byte_for_byte(closed_set, system_file, tmp_path):
    first = pack([closed_set], org="Lab", system_file=system_file(), out=tmp_path / "out")
    copy = tmp_path / "moved"
    shutil.copytree(closed_set, copy, copy_function=shutil.copyfile)  # other times
    again = pack([copy], org="Lab", system_file=system_file(), out=tmp_path / "elsewhere" / "out")
    assert again.archive.read_bytes() == first.archive.read_bytes()
    with tarfile.open(first.archive) as tar:
        members = tar.getmembers()
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    names = [m.name for m in members]
    assert names[0] == "Lab.sha256" and names[1:] == sorted(names[1:])


def test_pack_modifies_no_input_and_leaves_no_temporary_files(closed_set, system_file, tmp_path):
    before, system = digest(closed_set), system_file()
    out = tmp_path / "out"
    assert (
        cli.main(["pack", str(closed_set), "--org", "Lab", "--system", str(system), "--out", str(out)]) == 0
    )
    assert digest(closed_set) == before and json.loads(system.read_text()) == SYSTEM
    assert {p.name for p in out.iterdir()} == {"Lab", "Lab.tar.gz", "Lab.sha256"}
    assert not list((out / "Lab").rglob("scaling.json")) + list((out / "Lab").rglob("*.log"))


def test_instances_that_do_not_count_are_pruned(closed_set, system_file, tmp_path):
    runs = [golden(tmp_path / "weak", number, minutes=number / 10) for number in range(10)]
    runs.append(golden(tmp_path / "weak", 20, seed=1002))  # a seed that was there before
    runs.append(golden(tmp_path / "weak", 21, status="failed"))
    straggler = golden(tmp_path / "weak", 22, minutes=60)
    made = pack([closed_set], weak=[*runs, straggler], prune=[straggler], org="Lab",
                system_file=system_file(), out=tmp_path / "out")  # fmt: skip
    assert made.tree, made.findings
    folder = made.tree / "results" / "cluster_n4" / "weak" / "cosmoflow"
    assert {p.name for p in (folder / "pruned_results").iterdir()} == {f"result_{i}.txt" for i in (1, 2)}
    assert "pack/left-out" in rules(made.findings, "warning")
    assert len(list(folder.glob("result_*.txt"))) == 10
    assert "FOUND NO ERRORS" in official_package_checker(made.tree, tmp_path, "hpc", "2.0.0")
    # TTTa, from the runs themselves: last stop minus first start, of those that count.
    ends = [
        number * 6 + number / 1e3 + json.loads((run / "result.json").read_text())["time_to_train_s"]
        for number, run in enumerate(runs[:10])
    ]
    # 4 nodes of 4 accelerators in the description; the golden logs are of one node without any.
    assert f"(T, S, M', TTTa) = (16, 1, 10, {max(ends) / 60:.4f} min)" in made.sets[1]
    assert made.sets[0].startswith("cosmoflow strong: 10 results; ")


def test_resnet_goes_into_a_training_submission(system_file, tmp_path):
    logs = [resnet_log(tmp_path / f"r{number}.log", number) for number in range(5)]
    system = system_file(status="Available on-premise")
    made = pack(logs, org="Lab", system_file=system, out=tmp_path / "out")
    assert made.tree, made.findings
    assert {p.name for p in (made.tree / "results" / "cluster_n4" / "resnet").iterdir()} == {
        f"result_{i}.txt" for i in range(1, 6)
    }
    assert "FOUND NO ERRORS" in official_package_checker(made.tree, tmp_path, "training", "4.0.0")


def test_names_with_blanks_and_dots_are_fine(closed_set, system_file, tmp_path):
    system = system_file(system_name="My cluster v1.0 (4 nodes)")
    made = pack([closed_set], org="The Lab v. 2", system_file=system, out=tmp_path / "the out.d")
    assert made.tree, made.findings
    assert (made.tree / "results" / "My_cluster_v1.0_4_nodes" / "strong").is_dir()
    assert unpack(made.archive, tmp_path / "a b").name == "The Lab v. 2"


def test_unpacked_files_equal_the_packed_ones(packed, tmp_path):
    tree = unpack(packed.archive, tmp_path / "there")
    assert digest(tree) == digest(packed.tree)
    assert (tree / "benchmarks/cosmoflow/implementations/cluster_n4/run_and_time.sh").stat().st_mode & 0o100
    done = subprocess.run(["sha256sum", "-c", "--quiet", "Lab.sha256"], cwd=tmp_path / "there")
    assert done.returncode == 0


def test_the_scripts_pass_shellcheck_and_contain_no_local_paths(packed):
    need("shellcheck")
    folder = packed.tree / "benchmarks/cosmoflow/implementations/cluster_n4"
    subprocess.run(["shellcheck", *folder.glob("*.sh")], check=True)
    line = (folder / "run_and_time.sh").read_text().splitlines()[-1]
    assert line == 'exec mlhpc run cosmoflow --preset closed --data "$DATA" --stage "$STAGE" --out "$OUT"'
