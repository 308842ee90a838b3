"""The implementation folder of a submission: it installs, and its scripts do what its README says."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden.make_run import make_run

import mlhpc
from mlhpc.record.environment import Environment
from mlhpc.record.run_directory import RunDirectory, read
from mlhpc.submission.pack import implementation

RECORD = """#!/bin/bash
printf '%s\\n' "$@" > "$RECORD"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``implementations/`` with the environment that setup.sh makes, whose mlhpc records its arguments."""
    program = tmp_path / "implementations" / implementation.name() / ".venv" / "bin" / "mlhpc"
    program.parent.mkdir(parents=True)
    program.write_text(RECORD)
    program.chmod(0o755)
    return tmp_path / "implementations"


def arguments(script: Path, **variables: str) -> list[str]:
    """What the script passes to mlhpc; the shell has no other mlhpc."""
    record = script.parent / "record"
    env = {"PATH": os.defpath, "RECORD": str(record), **variables}
    subprocess.run([script], env=env, cwd="/", check=True)
    return record.read_text().splitlines()


def test_the_scripts_use_the_environment_created_by_setup(folder: Path, tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", env=lambda env: env.update(command="mlhpc run cosmoflow --set a.b='x y'")
    )
    implementation.write_scripts(folder / "cluster", "cosmoflow", "cluster", [read(run)])
    script = folder / "cluster" / "run_and_time.sh"
    assert arguments(script, DATA="/d d", OUT="/o") == [
        "run", "cosmoflow", "--set", "a.b=x y", "--data", "/d d", "--out", "/o",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "expected", "sentence"),
    [
        (
            "smoke",
            ["data", "make", "cosmoflow", "--preset", "smoke", "--out", "/d"],
            "generates the data set",
        ),
        ("closed", ["data", "index", "/d"], "writes the manifest of the downloaded data set"),
    ],
)
def test_init_datasets_works_as_described_in_the_readme(
    preset: str, expected: list[str], sentence: str, folder: Path, tmp_path: Path
) -> None:
    run = read(make_run(tmp_path / "run", preset=preset))
    implementation.write_scripts(folder / "cluster", "cosmoflow", "cluster", [run])
    assert arguments(folder / "cluster" / "init_datasets.sh", DATA="/d") == expected
    assert sentence in (folder / "cluster" / "README.md").read_text()


@pytest.mark.parametrize(("batch", "files"), [(128, 0), (64, 2)])
def test_throughput_instances_of_other_settings_have_files_of_their_own(
    batch: int, files: int, folder: Path, tmp_path: Path
) -> None:
    def run(name: str, size: int) -> RunDirectory:
        setting = f"hyperparameters.global_batch_size={size}"
        command = f"mlhpc run cosmoflow --set {setting} --out {name} --seed {size}"
        packages = {"keras": "3.15.1", "numpy": f"2.0.{size}"}
        made = make_run(tmp_path / name, settings=[setting],
                        env=lambda env: env.update(command=command, packages=packages))  # fmt: skip
        return read(made)

    runs, weak = [run("strong", 128)], [run("weak", batch)]
    implementation.write_scripts(folder / "cluster", "cosmoflow", "cluster", runs, weak)
    here = folder / "cluster"
    assert "global_batch_size = 128\n" in (here / "config.toml").read_text()
    assert "hyperparameters.global_batch_size=128" in arguments(here / "run_and_time.sh", DATA="d", OUT="o")
    assert len(list(here.glob("*_weak.*"))) == files
    readme = (here / "README.md").read_text()
    assert ("config_weak.toml" in readme and "run_and_time_weak.sh" in readme) is bool(files)
    assert [line for line in readme.splitlines() if "numpy" in line] == sorted(
        {"- numpy 2.0.128", f"- numpy 2.0.{batch}"}
    )
    if files:
        assert "global_batch_size = 64\n" in (here / "config_weak.toml").read_text()
        script = here / "run_and_time_weak.sh"
        assert "hyperparameters.global_batch_size=64" in arguments(script, DATA="d", OUT="o")


def test_names_from_a_run_directory_are_quoted_in_the_scripts(folder: Path, tmp_path: Path) -> None:
    hostile = "x; touch pwned; $(touch pwned) `touch pwned`"
    run = read(make_run(tmp_path / "run"))
    assert run.result
    changed = run.result.model_copy(update={"preset": hostile, "benchmark": hostile})
    run = dataclasses.replace(run, result=changed, env=Environment(command=f"mlhpc run {hostile}"))
    implementation.write_scripts(folder / "cluster", "cosmoflow", "cluster", [run])
    assert arguments(folder / "cluster" / "init_datasets.sh", DATA="/d")[2:5] == [
        hostile,
        "--preset",
        hostile,
    ]
    assert arguments(folder / "cluster" / "run_and_time.sh", DATA="/d", OUT="/o")[1] == hostile
    assert not list(tmp_path.rglob("pwned"))


def test_a_preset_that_is_not_a_name_is_a_damaged_result(tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run", result=lambda result: result.update(preset="$(touch pwned)")))
    assert run.result is None and "preset" in dict(run.problems)["result.json"]


def test_sources_of_an_installed_wheel_can_be_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "mlhpc"
    (package / "benchmarks").mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0"\n')
    (package / "benchmarks" / "__init__.py").write_text("")
    (package / "benchmarks" / "cosmoflow.toml").write_text("")
    (package.parent / "other.py").write_text("")
    monkeypatch.setattr(mlhpc, "__file__", str(package / "__init__.py"))
    implementation.copy_sources(tmp_path / "sources")
    assert not (tmp_path / "sources" / "other.py").exists()
    assert "pydantic==" in (tmp_path / "sources" / "constraints.txt").read_text()
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*command, "--target", tmp_path / "target", tmp_path / "sources"], check=True)
    assert (tmp_path / "target" / "mlhpc" / "benchmarks" / "cosmoflow.toml").is_file()
    assert (tmp_path / "target" / "bin" / "mlhpc").is_file()


def test_sources_of_a_checkout_without_git_include_all_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they lie in the implementation folder of an unpacked submission."""
    for name in (
        "setup.cfg",
        "mlhpc/__init__.py",
        "common/x.py",
        "docs/a.md",
        ".venv/bin/python",
        "tests/t.py",
    ):
        (tmp_path / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "top" / name).write_text("")
    (tmp_path / "top/mlhpc/common").symlink_to("../common")
    (tmp_path / "top/src").mkdir()
    (tmp_path / "top/src/mlhpc").symlink_to("../mlhpc")
    for source, copy in (("top/src/mlhpc", "to"), ("to/src/mlhpc", "again")):
        monkeypatch.setattr(mlhpc, "__file__", str(tmp_path / source / "__init__.py"))
        implementation.copy_sources(tmp_path / copy)
        files = [p for p in (tmp_path / copy).rglob("*") if p.is_file() or p.is_symlink()]
        assert {p.relative_to(tmp_path / copy).as_posix() for p in files} == {
            "setup.cfg", "src/mlhpc/__init__.py", "src/mlhpc/common/x.py", "docs/a.md"
        }  # fmt: skip
