"""What goes under ``benchmarks/<benchmark>/implementations`` of a submission: this suite's sources, and for
the system a README and three scripts that make the results again.

Names of the files: MLPerf submission rules, "Directory structure", Training.
"""

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlhpc
from mlhpc.benchmarks import registry
from mlhpc.benchmarks.load import dumps
from mlhpc.submission.logs.run_directory import RunDirectory

LEFT_OUT = ("tests", ".ci", ".github")
"""Folders of the checkout that no run needs."""


def name() -> str:
    return f"mlhpc-{mlhpc.__version__}"


def copy_sources(to: Path) -> None:
    """The sources that this process runs from, into the new folder ``to``: of a checkout what git knows, as
    it lies there; of an installation the package."""
    package = Path(mlhpc.__file__).parent
    top, files = package.parent, _known_to_git(package.parent)
    if not files:
        files = [
            p.relative_to(top) for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts
        ]
    for file in sorted(files):
        if file.parts[0] not in LEFT_OUT and (top / file).is_file():
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(top / file, to / file)  # with its mode: scripts stay executable


def _known_to_git(top: Path) -> list[Path]:
    if not (top / "setup.cfg").is_file() or not (top / ".git").exists():
        return []
    try:
        done = subprocess.run(
            ["git", "-C", str(top), "ls-files", "-z"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [Path(line) for line in done.stdout.split("\0") if line]


def write_scripts(to: Path, benchmark: str, system: str, runs: Sequence[RunDirectory]) -> None:
    """README.md, setup.sh, init_datasets.sh and run_and_time.sh for ``runs``, and their configuration, into
    the new folder ``to``. Of logs without a run directory nothing is known but that they are there."""
    to.mkdir(parents=True)
    run = next((r for r in runs if r.config), None)
    preset = run.preset if run and run.preset else "closed"
    ours = run.benchmark if run else registry.our_name(benchmark)
    if run and run.config:
        (to / "config.toml").write_text(dumps(run.config), "utf-8")
    official = bool(run and run.config and run.config.data.official)
    files = {
        "setup.sh": _setup(ours),
        "init_datasets.sh": _init_datasets(ours, preset, official),
        "run_and_time.sh": _run_and_time(ours, preset, run.env if run else {}),
        "README.md": _readme(ours, system, preset, runs),
    }
    for file, text in files.items():
        (to / file).write_text(text, "utf-8")
        (to / file).chmod(0o755 if file.endswith(".sh") else 0o644)


def _setup(benchmark: str) -> str:
    return f"""#!/bin/bash
# One-time configuration: the environment. docs/dependencies.md of the suite says how Horovod is built.
set -euo pipefail
cd "$(dirname "$0")/../{name()}"
python3 -m venv .venv
.venv/bin/pip install -c constraints.txt -e '.[{benchmark}]'
"""


def _init_datasets(benchmark: str, preset: str, official: bool) -> str:
    makes = (
        'mlhpc data index "$DATA"  # the published data set, as it was downloaded'
        if official
        else f'mlhpc data make {benchmark} --preset {preset} --out "$DATA"'
    )
    return f"""#!/bin/bash
# One-time, for the data set: DATA is its folder on the file system that all nodes share.
set -euo pipefail
: "${{DATA:?}}"
{makes}
"""


def _run_and_time(benchmark: str, preset: str, env: dict[str, Any]) -> str:
    words = list(_words(str(env.get("command", "")), benchmark, preset))
    stage = ' "${STAGE:?}"' if "--stage" in words else ""
    return f"""#!/bin/bash
# One run, one process a rank: srun ./run_and_time.sh. DATA: the data set; STAGE: storage of the node;
# OUT: the folder for the results.
set -euo pipefail
: "${{DATA:?}}" "${{OUT:?}}"{stage}
exec {" ".join(words)}
"""


_PLACES = {"--data": '"$DATA"', "--stage": '"$STAGE"', "--out": '"$OUT"'}


def _words(command: str, benchmark: str, preset: str) -> Iterator[str]:
    """The command of the run, with the places left to the environment and the seed to the clock."""
    try:
        said = shlex.split(command)
    except ValueError:
        said = []
    if said[:2] != ["mlhpc", "run"]:
        said = ["mlhpc", "run", benchmark, "--preset", preset]
    flags = [part for word in said[3:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    yield from ("mlhpc", "run", benchmark)
    places = ["--data", "--out"]
    while flags:
        flag = flags.pop(0)
        value = [flags.pop(0)] if flags and not flags[0].startswith("--") else []
        if flag == "--stage":
            places.insert(1, flag)
        elif flag not in ("--data", "--out", "--seed", "--ranks", "--resume"):
            yield from map(shlex.quote, (flag, *value))
    for flag in places:
        yield from (flag, _PLACES[flag])


def _readme(benchmark: str, system: str, preset: str, runs: Sequence[RunDirectory]) -> str:
    commits = sorted({str(run.env.get("commit")) for run in runs if run.env.get("commit")})
    packages = {k: v for run in runs for k, v in run.env.get("packages", {}).items()}
    versions = "\n".join(f"- {package} {version}" for package, version in sorted(packages.items()))
    return f"""# {benchmark} on {system}

The sources are in `../{name()}`; made with commit {", ".join(commits) or "unknown"}, preset `{preset}`
(`config.toml` has every setting).

1. `setup.sh` makes the environment.
2. `DATA=/shared/{benchmark} ./init_datasets.sh` writes the manifest of the data set.
3. `DATA=... STAGE=... OUT=... srun ./run_and_time.sh` is one run. OUT/run.log is a `result_<i>.txt`; the
   seed is drawn anew for every run, and logged.

`run_scripts/` of the sources has the batch scripts and what differs between sites. Staging is inside the
clock: `docs/timing.md` of the suite.

{versions}
"""
