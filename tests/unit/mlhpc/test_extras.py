"""Without an extra, every command either works or says in one line what to install."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from helpers.requirements import ROOT, required, setup_cfg
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlhpc import errors
from mlhpc.benchmarks import registry

# Imports find no package but those that come with mlhpc itself.
LEAN = """
import json, os, sys
from importlib.machinery import PathFinder
HIDDEN = set(json.loads(os.environ["HIDDEN"]))
class Lean:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [Lean if finder is PathFinder else finder for finder in sys.meta_path]
from mlhpc import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@cache
def hidden() -> str:
    """The packages of this environment, by the names that are imported, that ``pip install mlhpc`` does not
    bring."""
    there = required() | {"mlhpc"}
    imported = metadata.packages_distributions()
    return json.dumps(
        [p for p, of in imported.items() if not there & {canonicalize_name(name) for name in of}]
    )


def lean(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LEAN, *map(str, words)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")} | {"HIDDEN": hidden()}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("words", "what", "extra"),
    [
        ("run cosmoflow", "run", "submission"),
        ("campaign cosmoflow --out o", "campaign", "submission"),
        ("check .", "check", "submission"),
        ("score .", "score", "submission"),
        ("pack . --org Lab --system s.json --out o", "pack", "submission"),
        ("predict cosmoflow --machine dgx-a100 --nodes 4", "predict", "submission"),
        ("data make cosmoflow --preset smoke --out o", "data make", "submission"),
        ("data make deepcam --preset smoke --out o", "data make", "deepcam"),
        ("data make resnet50 --preset smoke --out o", "data make", "resnet50"),
        ("data convert cosmoflow . o", "data convert", "cosmoflow"),
        ("report .", "report", "pages"),
        ("predict deepcam --machine dgx-a100 --nodes 4 --out o.html", "predict", "pages"),
        ("profile deepcam", "profile", "pages"),
        ("io report .", "io report", "pages"),
        ("tune cosmoflow --out o", "tune", "tune"),
    ],
)
def test_a_missing_extra_is_one_line(words: str, what: str, extra: str, tmp_path: Path) -> None:
    done = lean(tmp_path, *words.split())
    needs, _, command = done.stderr.partition(": ")[2].partition(": ")
    assert (done.returncode, needs, done.stdout) == (2, f"{what} needs mlhpc[{extra}]", "")
    assert done.stderr.count("\n") == 1
    *pip, option, source = shlex.split(command)
    assert pip[-2:] == ["pip", "install"] and shutil.which(pip[0]) and option == "-e"
    folder, named = source.removesuffix("]").split("[")
    assert Path(folder).samefile(ROOT) and named in setup_cfg()["options.extras_require"]
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_the_i_o_emulation_needs_none(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(
        'name = "w"\n[dataset]\nformat = "npz"\nfiles = 4\nsample_bytes = 1000\n[reader]\nbatch_size = 2\n'
    )
    for words in (
        "io list", "io list cosmoflow", "io size --memory 64G --accelerators 8", "io generate w.toml --data d",
        "io run w.toml --data d --out r", "io check r --memory 1G",
    ):  # fmt: skip
        done = lean(tmp_path, *words.split())
        assert done.returncode == (1 if "check" in words else 0) and not done.stderr.count("needs"), (
            done.stderr
        )
    assert json.loads((tmp_path / "r/result.json").read_text())["epochs"]


@pytest.mark.parametrize("words", ["list", "doctor", "rules", "presets", "scripts --out o", "data verify o"])
def test_so_do_commands_that_prepare(words: str, tmp_path: Path) -> None:
    done = lean(tmp_path, *words.split())
    assert "needs mlhpc[" not in done.stderr and "Traceback" not in done.stderr
    if words in ("list", "doctor"):  # these name what is missing
        assert "submission" in done.stdout and "not installed" in done.stdout


def test_the_doctor_is_not_ready_where_no_run_can_start(tmp_path: Path) -> None:
    done = lean(tmp_path, "doctor")
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("fail")]
    assert {"TensorFlow", "PyTorch", "extra"} <= set(failed), done.stdout
    assert done.returncode == 1 and "\nnot ready for a run" in done.stdout


def test_no_message_names_a_package_that_is_on_no_index() -> None:
    """What to install is said by ``errors.install``, everywhere."""
    folders = [path for path in ROOT.iterdir() if (path / "__init__.py").is_file()]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        assert "install 'mlhpc" not in path.read_text() and "install mlhpc[" not in path.read_text(), path


def test_extras_are_those_of_the_package() -> None:
    """Training needs no extra but the benchmark's, tuning one more; an extra that a message names brings the
    package."""
    extras = setup_cfg()["options.extras_require"]

    def named(extra: str) -> set[str]:
        names = {name for listed in re.findall(r"mlhpc\[(.+)\]", extras[extra]) for name in listed.split(",")}
        return names.union(*map(named, names))

    of_frameworks = {f.extra for b in registry.BUILT_IN for f in b.frameworks.values()}
    for extra in (*of_frameworks, "cosmoflow-gpu"):
        assert set(errors.EXTRAS) - {"tune"} <= named(extra)
    for extra, packages in errors.EXTRAS.items():
        brought = {Requirement(line).name.replace("-", "_") for line in extras[extra].split("\n")[1:]}
        assert {name.removesuffix("_python") for name in brought} == set(packages)
