"""The sdist has everything, and the wheel built from it works where there is no checkout and no framework."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterable
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from golden.make_run import make_run
from helpers.requirements import required
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
NOT_IN_THE_WHEEL = (".ci", "tests", "examples", "docs/evidence/")


def build(what: str, source: Path, out: Path) -> Path:
    """Build ``sdist`` or ``wheel`` of ``source`` with the setuptools of this environment, without a network."""
    code = f"from setuptools import build_meta; print(build_meta.build_{what}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return out / done.stdout.split()[-1]


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name and os.path.lexists(ROOT / name)}


def files() -> set[str]:
    return {name for name in tracked() if not (ROOT / name).is_symlink()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist of the tracked files, its content, and the wheel built from that."""
    folder = tmp_path_factory.mktemp("built")
    for name in tracked():  # a build writes into its source folder
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "tree" / name, follow_symlinks=False)
    sdist = build("sdist", folder / "tree", folder)
    (folder / "sdist").mkdir()
    subprocess.run(["tar", "-xf", sdist, "-C", folder / "sdist"], check=True)
    (source,) = (folder / "sdist").iterdir()
    return {"source": source, "wheel": build("wheel", source, folder)}


def install(wheel: Path, folder: Path) -> None:
    """Create an environment in ``folder`` with the wheel and none of its dependencies."""
    venv.create(folder, with_pip=False, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin/python"))
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)


@pytest.fixture(scope="module")
def elsewhere(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and the dependencies of this one; returns its Python."""
    folder = tmp_path_factory.mktemp("environment")
    install(built["wheel"], folder)
    # A folder named in a .pth file is searched, but its own .pth files, the editable install's, are not read.
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def lean(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires without any extra; returns its Python."""
    folder = tmp_path_factory.mktemp("lean")
    install(built["wheel"], folder)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    for name in required():
        for top in {file.parts[0] for file in metadata.files(name) or () if file.parts[0] != ".."}:
            if not (packages / top).exists() and top != "__pycache__":
                (packages / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    return folder / "bin" / "python"


def run(python: Path, cwd: Path, *words: object, status: int = 0) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLURM"))}
    command = [str(python.with_name("mlhpc")), *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status == 2 else done.stdout


def requirements(lines: Iterable[str]) -> set[Requirement]:
    return {Requirement(line) for line in lines}


def wanted_extras() -> dict[str, set[Requirement]]:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return {
        name: requirements(needs.split("\n")[1:]) for name, needs in setup["options.extras_require"].items()
    }


def packaged(name: str) -> str:
    """The path of a tracked file in the package, or "" for one that is in none of its folders."""
    if name.startswith("mlhpc/"):
        return name
    linked = (ROOT / "mlhpc" / name.split("/")[0]).is_symlink()
    return f"mlhpc/{name}" if linked else ""


def test_the_sdist_has_every_tracked_file_once(built: dict[str, Path]) -> None:
    assert not any(path.is_symlink() for path in built["source"].rglob("*"))
    unpacked = {p.relative_to(built["source"]).as_posix() for p in built["source"].rglob("*") if p.is_file()}
    wanted = {f"src/{packaged(name)}" if packaged(name) else name for name in files()}
    assert wanted - unpacked == {".gitignore"}
    more = {name for name in unpacked - wanted if ".egg-info/" not in name and not name.startswith("build/")}
    assert more == {"PKG-INFO", "setup.cfg"} - wanted  # build/ is the wheel's


def test_the_wheel_has_code_settings_scripts_and_docs(built: dict[str, Path]) -> None:
    with ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        described = wheel.read(metadata).decode()
    in_folders = {name for name in files() if "/" in name and not name.startswith(NOT_IN_THE_WHEEL)}
    wanted = {name if name.startswith("mlhpc/") else f"mlhpc/{name}" for name in in_folders}
    assert wanted - names == set()
    assert not [name for name in names if name.startswith("mlhpc/docs/evidence")]
    assert "mlhpc/py.typed" in names and any(name.endswith("/LICENSE") for name in names)
    assert all(name.startswith(("mlhpc/", "mlhpc-")) for name in names), "nothing else lands in site-packages"
    for field in ("Classifier: Typing :: Typed", "Project-URL: ", "Requires-Python: ", "# mlhpc\n"):
        assert field in described


def test_the_installed_wheel_is_what_runs(elsewhere: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [elsewhere, "-c", "import mlhpc.common; print(mlhpc.common.__file__)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()).is_relative_to(elsewhere.parents[1])


def test_commands_before_a_run(elsewhere: Path, tmp_path: Path) -> None:
    listed = json.loads(run(elsewhere, tmp_path, "list", "--json"))
    assert listed["sites"] == sorted(path.stem for path in (ROOT / "run_scripts" / "sites").glob("*.sh"))
    assert [len(benchmark["presets"]) > 1 for benchmark in listed["benchmarks"]] == [True] * 3
    assert run(elsewhere, tmp_path, "rules") == (ROOT / "docs/reference/rules.md").read_text()
    assert "closed" in run(elsewhere, tmp_path, "presets")
    assert "ready" in json.loads(run(elsewhere, tmp_path, "doctor", "--json"))
    assert run(elsewhere, tmp_path, "predict", "cosmoflow", "--machine", "perlmutter", "--nodes", 16)
    assert run(elsewhere, tmp_path, "io", "list")


def test_without_extras_the_i_o_emulation_runs_and_others_say_what_to_install(
    lean: Path, tmp_path: Path
) -> None:
    workload = ["mlperf_unet3d", "--data", "d"]
    for setting in ("dataset.files=4", "dataset.sample_bytes=1e5", "dataset.sample_bytes_stdev=0",
                    "reader.batch_size=1", "train.epochs=1", "train.computation=0.01"):  # fmt: skip
        workload += ["--set", setting]
    run(lean, tmp_path, "io", "generate", *workload)
    run(lean, tmp_path, "io", "run", *workload, "--out", "r")
    assert json.loads((tmp_path / "r/result.json").read_text())["epochs"]
    run(lean, tmp_path, "io", "size", "--memory", "64G", "--accelerators", 8)
    run(lean, tmp_path, "list")
    for words in (["check", "r"], ["io", "report", "r"], ["data", "make", "cosmoflow"]):
        *_, wheel = shlex.split(run(lean, tmp_path, *words, status=2))
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(lean),
            "install",
            "--dry-run",
            "--no-deps",
            "--no-index",
        ]
        subprocess.run([*pip, "--force-reinstall", wheel], check=True)
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("d", "r")] == []


def test_scripts_and_docs_can_be_taken_along(elsewhere: Path, tmp_path: Path) -> None:
    run(elsewhere, tmp_path, "scripts", "--out", "work")
    assert os.access(tmp_path / "work/run_scripts/rank.sh", os.X_OK)
    pages = ("docs/guide/sites.md", "docs/images/report.png")
    for name in ("run_scripts/run.sbatch", "run_scripts/sites/slurm.sh", *pages):
        assert (tmp_path / "work" / name).read_bytes() == (ROOT / name).read_bytes()
    assert not (tmp_path / "work/docs/evidence").exists()
    run(elsewhere, tmp_path / "work", "doctor", "--site", "mine")
    assert (tmp_path / "work/run_scripts/sites/mine.sh").is_file()
    run(elsewhere, tmp_path, "scripts", "--out", "work", status=2)


def test_check_score_report_and_pack(elsewhere: Path, tmp_path: Path) -> None:
    """And what was packed can be installed, its compiled part included."""
    made = make_run(tmp_path / "run")
    assert json.loads(run(elsewhere, tmp_path, "check", made, "--json"))["passes"]
    assert json.loads(run(elsewhere, tmp_path, "score", made, "--json", status=1))["sets"]
    run(elsewhere, tmp_path, "report", made)
    assert "<table" in (made / "report.html").read_text()
    system = ["--system", "--out", "s.json", "--set", "number_of_nodes=1", "--set", "submitter=Lab"]
    run(elsewhere, tmp_path, "doctor", *system, "--set", "division=open", "--set", "cooling=air", status=1)
    (tmp_path / "s.json").write_text('{"system_name": "one"}')
    words = ["--org", "Lab", "--system", "s.json", "--out", "tree", "--despite-errors"]
    run(elsewhere, tmp_path, "pack", made, *words, status=1)
    (sources,) = tmp_path.glob("tree/Lab/benchmarks/*/implementations/mlhpc-*")
    assert not list(sources.rglob("*.so"))
    assert (sources / "mlhpc/run_scripts/run.sbatch").is_file() and (sources / "constraints.txt").is_file()
    extras = tomllib.loads((sources / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name: requirements(needs) for name, needs in extras.items()} == wanted_extras()
    again = build("wheel", sources, tmp_path)
    built = [name for name in ZipFile(again).namelist() if name.endswith(".so")]
    assert all(
        any(part in name for name in built) for part in ("_decode.", "_crc32c.", "_pooled.", "_pooled_")
    )
