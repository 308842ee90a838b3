"""Packing: the result is checked with the official package checker, tar and sha256sum."""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from golden.make_run import START_MS, make_run
from ranks.need import need

from mlhpc import cli
from mlhpc.errors import UserError
from mlhpc.submission.pack import implementation
from mlhpc.submission.pack.archive import unpack
from mlhpc.submission.pack.package import pack

# The fields that mlperf-logging 4.1.68, system_desc_checker, requires, answered as a submitter would.
SYSTEM = {
    "submitter": "Lab", "division": "closed", "status": "onprem", "system_name": "cluster_n4",
    "number_of_nodes": "4", "host_processors_per_node": "2", "host_processor_model_name": "AMD EPYC 7742",
    "host_processor_core_count": "64", "host_processor_vcpu_count": "", "host_processor_frequency": "",
    "host_processor_caches": "", "host_processor_interconnect": "", "host_memory_capacity": "512 GB",
    "host_storage_type": "NVMe SSD", "host_storage_capacity": "1 x 960 GB", "host_networking": "4x HDR200",
    "host_networking_topology": "Dragonfly", "host_memory_configuration": "16 x 32 GB",
    "accelerators_per_node": "4", "accelerator_model_name": "NVIDIA A100",
    "accelerator_host_interconnect": "PCIe 4.0 x16", "accelerator_frequency": "",
    "accelerator_on-chip_memories": "", "accelerator_memory_configuration": "HBM2e",
    "accelerator_memory_capacity": "40 GB", "accelerator_interconnect": "12x 25GB/s NVLink",
    "accelerator_interconnect_topology": "", "cooling": "Liquid", "hw_notes": "",
    "framework": "TensorFlow 2.18.1", "other_software_stack": {"Python": "3.11.7"},
    "operating_system": "CentOS 8", "sw_notes": "",
}  # fmt: skip


@pytest.fixture
def system_file(tmp_path):
    def write(**changes):
        path = tmp_path / "my system.json"
        path.write_text(json.dumps(SYSTEM | changes))
        return path

    return write


def golden(out, number, *, seed=None, minutes=0, **options):
    """A run of the closed preset with its own seed, started ``minutes`` after the first."""
    seed = 1000 + number if seed is None else seed

    def log(lines):
        for line in lines:
            line["time_ms"] += round(minutes * 60e3) + number
            if line["key"] == "seed":
                line["value"] = seed
            if line["key"] == "submission_org":
                line["value"] = "Lab"

    return make_run(
        out / f"run {number}.x",
        preset="closed",
        epochs=19 + number % 3,
        log=log,
        result=lambda result: result.update(seed=seed),
        env=lambda env: env.update(
            command="mlhpc run cosmoflow --preset closed --data /data/x --stage=/tmp/s"
        ),
        **options,
    )


@pytest.fixture(scope="module")
def closed_set(tmp_path_factory):
    """Ten runs, as a campaign leaves them. Tests only read it."""
    out = tmp_path_factory.mktemp("campaign")
    for number in range(10):
        golden(out, number)
    return out


@pytest.fixture(scope="module")
def packed(closed_set, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    (folder / "system.json").write_text(json.dumps(SYSTEM))
    made = pack([closed_set], org="Lab", system_file=folder / "system.json", out=folder / "out")
    assert made.tree, made.findings
    return made


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


def rules(findings, severity="error"):
    return {finding.rule for finding in findings if finding.severity == severity}


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
    assert list(implementations.glob("mlhpc-*/cosmoflow/tf/train.py"))


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


def test_runs_that_fail_their_check_are_refused_without_despite_errors(
    closed_set, system_file, tmp_path, capsys
):
    # Nine good ones, and one that resumed: its clock did not see the first part.
    runs = sorted(closed_set.iterdir())[:9]
    bad = golden(tmp_path / "bad", 11, resumed=True)
    argv = ["pack", *map(str, [*runs, bad]), "--org", "Lab", "--system", str(system_file()),
            "--out", str(tmp_path / "out")]  # fmt: skip
    assert cli.main(argv) == 1
    assert not (tmp_path / "out").exists()
    assert "run/resumed" in capsys.readouterr().out
    assert cli.main([*argv, "--despite-errors"]) == 1
    assert (tmp_path / "out" / "Lab" / "results").is_dir()


def test_one_run_may_miss_its_target_and_two_may_not(closed_set, system_file, tmp_path):
    runs = sorted(closed_set.iterdir())
    missed = [golden(tmp_path, number, status="failed") for number in (12, 13)]
    where = {"org": "Lab", "system_file": system_file()}
    one = pack([*runs[:9], missed[0]], out=tmp_path / "one", **where)
    assert one.tree and "run/status" in rules(one.findings, "expected")
    two = pack([*runs[:8], *missed], out=tmp_path / "two", **where)
    assert two.tree is None and "package/compliance" in rules(two.findings)


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda runs, tmp: [*runs[:9], golden(tmp, 14, seed=1003)], "package/seed"),
        (lambda runs, tmp: runs[:9], "package/runs"),
        (lambda runs, tmp: [*runs[:9], shutil.copytree(runs[3], tmp / "twin")], "set/twice"),
        (lambda runs, tmp: [*runs[:9], golden(tmp, 15, settings=["training.max_epochs=77"])], "pack/config"),
        (lambda runs, tmp: [*runs[:9], cut(golden(tmp, 16))], "package/crash"),
    ],
)  # fmt: skip
def test_an_inconsistent_set_is_refused(closed_set, system_file, tmp_path, spoil, rule):
    runs = spoil(sorted(closed_set.iterdir()), tmp_path)
    made = pack(runs, org="Lab", system_file=system_file(), out=tmp_path / "out")
    assert rule in rules(made.findings)
    assert made.tree is None and not (tmp_path / "out").exists()


def cut(run):
    log = run / "run.log"
    log.write_bytes(log.read_bytes()[:-40])
    return run


@pytest.mark.parametrize(
    ("changes", "severity"),
    [({"division": "open"}, "error"), ({"number_of_nodes": 4}, "error"), ({"cooling": ""}, "warning"),
     ({"submitter": "Another"}, "warning")],
)  # fmt: skip
def test_a_description_that_contradicts_the_logs_is_found(
    closed_set, system_file, tmp_path, changes, severity
):
    made = pack([closed_set], org="Lab", system_file=system_file(**changes), out=tmp_path / "out")
    assert "pack/system" in rules(made.findings, severity)
    assert (made.tree is None) == (severity == "error")


def test_a_field_that_is_missing_is_named(closed_set, system_file, tmp_path):
    path = system_file()
    path.write_text(json.dumps({key: value for key, value in SYSTEM.items() if key != "cooling"}))
    made = pack([closed_set], org="Lab", system_file=path, out=tmp_path / "out")
    assert any(f.rule == "pack/system" and "cooling" in f.actual for f in made.findings)
    assert made.tree is None


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


def test_runs_to_an_own_target_are_not_a_submission(system_file, tmp_path):
    for number in range(10):
        make_run(tmp_path / "runs" / f"run {number}", preset="smoke", epochs=8 + number)
    made = pack(
        [tmp_path / "runs"], org="Lab", system_file=system_file(division="open"), out=tmp_path / "out"
    )
    (said,) = [f for f in made.findings if f.rule == "pack/target"]
    assert said.severity == "error" and "0.124" in said.expected and "smoke" in said.actual
    assert made.tree is None


@pytest.mark.parametrize(("told", "severity"), [(False, "error"), (True, "warning")])
def test_an_instance_without_a_log_is_refused_unless_pruned(
    told, severity, closed_set, system_file, tmp_path
):
    runs = [golden(tmp_path / "weak", number) for number in range(11)]
    (runs[3] / "run.log").unlink()
    made = pack([closed_set], weak=runs, prune=[runs[3]] if told else [], org="Lab",
                system_file=system_file(), out=tmp_path / "out")  # fmt: skip
    said = [f for f in made.findings if f.rule == "pack/left-out" and str(runs[3]) in f.where]
    assert [f.severity for f in said] == [severity] and "run.log is missing" in said[0].actual
    assert (made.tree is not None) == told


def resnet_log(path, number):
    """A closed LARS run at batch 4096, as the rules of training 4.0.0 want it (closed_resnet*.yaml)."""
    lines = []

    def record(t, key, value=None, **metadata):
        lines.append({"namespace": "", "time_ms": START_MS + t, "event_type": "", "key": key, "value": value,
                      "metadata": {"file": "train.py", "lineno": 1, **metadata}})  # fmt: skip

    record(0, "cache_clear", True)
    record(1, "init_start")
    for key, value in {
        "submission_benchmark": "resnet", "submission_org": "Lab", "submission_division": "closed",
        "submission_status": "onprem", "submission_platform": "cluster_n4", "seed": 7 + number,
        "global_batch_size": 4096, "opt_name": "lars", "lars_opt_base_learning_rate": 10.0,
        "lars_opt_end_learning_rate": 0.0001, "lars_opt_learning_rate_decay_poly_power": 2,
        "lars_opt_learning_rate_decay_steps": 13137, "lars_epsilon": 0.0,
        "lars_opt_learning_rate_warmup_epochs": 5, "lars_opt_momentum": 0.9, "lars_opt_weight_decay": 0.0002,
        "gradient_accumulation_steps": 1, "train_samples": 1281167, "eval_samples": 50000,
    }.items():  # fmt: skip
        record(2, key, value)
    record(3, "init_stop")
    record(4, "run_start")
    for epoch in range(1, 46):
        record(epoch * 60_000, "epoch_start", epoch_num=epoch)
        record(epoch * 60_000 + 50_000, "epoch_stop", epoch_num=epoch)
        if epoch % 4 == 1:
            record(epoch * 60_000 + 51_000, "eval_start", epoch_num=epoch)
            record(epoch * 60_000 + 52_000, "eval_stop", epoch_num=epoch)
            accuracy = 0.7593 if epoch == 45 else 0.3 + epoch / 100
            record(epoch * 60_000 + 52_000, "eval_accuracy", accuracy, epoch_num=epoch)
    record(46 * 60_000 + number * 1000, "run_stop", status="success")
    path.write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines))
    return path


def test_resnet_goes_into_a_training_submission(system_file, tmp_path):
    logs = [resnet_log(tmp_path / f"r{number}.log", number) for number in range(5)]
    system = system_file(status="Available on-premise")
    made = pack(logs, org="Lab", system_file=system, out=tmp_path / "out")
    assert made.tree, made.findings
    assert {p.name for p in (made.tree / "results" / "cluster_n4" / "resnet").iterdir()} == {
        f"result_{i}.txt" for i in range(1, 6)
    }
    assert "FOUND NO ERRORS" in official_package_checker(made.tree, tmp_path, "training", "4.0.0")


def test_hpc_and_training_are_not_mixed(closed_set, system_file, tmp_path):
    log = resnet_log(tmp_path / "r.log", 0)
    with pytest.raises(UserError, match="pack them separately"):
        pack([closed_set, log], org="Lab", system_file=system_file(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("org", ["", "../up", ".hidden", "a/b", "Lab[1]"])
def test_an_organisation_that_is_not_a_folder_name_is_refused(closed_set, system_file, tmp_path, org):
    with pytest.raises(UserError, match="--org"):
        pack([closed_set], org=org, system_file=system_file(), out=tmp_path / "out")


def test_existing_files_are_not_overwritten(packed, closed_set, system_file):
    with pytest.raises(UserError, match="already exists"):
        pack([closed_set], org="Lab", system_file=system_file(), out=packed.tree.parent)


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


# The scripts that go along, and what should not.


def test_the_scripts_pass_shellcheck_and_contain_no_local_paths(packed):
    need("shellcheck")
    folder = packed.tree / "benchmarks/cosmoflow/implementations/cluster_n4"
    subprocess.run(["shellcheck", *folder.glob("*.sh")], check=True)
    line = (folder / "run_and_time.sh").read_text().splitlines()[-1]
    assert line == 'exec mlhpc run cosmoflow --preset closed --data "$DATA" --stage "$STAGE" --out "$OUT"'


def test_a_secret_in_a_log_prevents_packing(closed_set, system_file, tmp_path):
    bad = golden(tmp_path, 17)
    with (bad / "run.log").open("a") as log:
        log.write("export HF_TOKEN=hf_" + "a1B2c3D4" * 5 + "\n")
    made = pack(
        [*sorted(closed_set.iterdir())[:9], bad], org="Lab", system_file=system_file(), out=tmp_path / "o"
    )
    assert made.tree is None and rules(made.findings) == {"pack/secret"}


def test_the_sources_of_the_suite_contain_no_secret(packed):
    assert rules(packed.findings) == set()
    assert "pack/name" not in rules(packed.findings, "warning")


def test_pack_reports_an_unwritable_folder(closed_set, system_file, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        pack([closed_set], org="Lab", system_file=system_file(), out=Path(tmp_path / "file" / "out"))
