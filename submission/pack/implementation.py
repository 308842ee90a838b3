"""The content of ``benchmarks/<benchmark>/implementations`` in a submission: this suite's sources, and for each
system a README and three scripts that reproduce the results.

The files' names are those of the MLPerf submission rules, "Directory structure", Training. Values from run
folders, which are untrusted, are quoted in scripts.
"""

import importlib.metadata
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlhpc
from mlhpc.benchmarks import registry
from mlhpc.benchmarks.load import dumps
from mlhpc.common.host.probe import output
from mlhpc.record.run_directory import RunDirectory

LEFT_OUT = ("tests", "build", "dist")
"""Folders of a checkout, besides hidden ones, that runs do not need."""


def name() -> str:
    """Name of the implementation's folder: the suite and its version."""
    return f"mlhpc-{mlhpc.__version__}"


def copy_sources(to: Path) -> None:
    """Copy the sources that this process runs from into the new folder ``to``, so that pip can install them: the
    files of a checkout (tracked by git if it is a repository), or an installed package with a pyproject.toml and a
    constraints.txt generated from its metadata, and a setup.py for its compiled part."""
    package = Path(mlhpc.__file__).resolve().parent
    top, sources = package.parents[package.parent.name == "src"], Path()
    if (top / "setup.cfg").is_file():
        files = _in_git(top) or _below(top)
        sources = Path("src")  # including folders to which the checkout only has links
    else:
        top = package.parent
        files = [p for p in _below(top, package.name)]
        _write_project(to)
    for file in sorted(files):
        if _is_left_out(file) or (top / file).is_symlink() or not (top / file).is_file():
            continue
        if file.parts[0] == package.name:
            target = to / sources / file
        elif (package / file.parts[0]).is_symlink():
            target = to / sources / package.name / file
        else:
            target = to / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(top / file, target)  # keeps the mode, so that scripts stay executable


def _is_left_out(file: Path) -> bool:
    return file.parts[0] in LEFT_OUT or (file.parts[0].startswith(".") and len(file.parts) > 1)


def _is_built(file: Path) -> bool:
    """Whether ``file`` was built by Python or the compiler for this machine."""
    return "__pycache__" in file.parts or file.suffix == ".so"


def _below(top: Path, folder: str = ".") -> list[Path]:
    return [
        p.relative_to(top)
        for p in (top / folder).rglob("*")
        if p.is_file() and not _is_built(p) and not _is_left_out(p.relative_to(top))
    ]


_SETUP_PY = """from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# optional: where there is no compiler, NumPy decodes and PyTorch computes CosmoFlow's gradients
decoders = Extension(
    "mlhpc.common.data.codecs._decode",
    ["mlhpc/common/data/codecs/_decode.c"],
    extra_compile_args=["-O3", "-ffp-contract=off"],
    optional=True,
)
checksums = Extension(
    "mlhpc.common.formats._crc32c", ["mlhpc/common/formats/_crc32c.c"], optional=True
)
gradients = [
    Extension(
        f"mlhpc.cosmoflow.cpu._pooled{processor}",
        ["mlhpc/cosmoflow/cpu/_pooled.c"],
        extra_compile_args=["-O3", "-fno-trapping-math", "-Wno-psabi", *options],
        optional=True,
    )
    for processor, options in (("", []), ("_avx2", ["-march=x86-64-v3"]), ("_avx512", ["-march=x86-64-v4"]))
]


class BuildInTurn(build_ext):  # the variants of a source share an object file
    def finalize_options(self):
        super().finalize_options()
        self.parallel = False


setup(ext_modules=[decoders, checksums, *gradients], cmdclass={"build_ext": BuildInTurn})
"""


def _write_project(to: Path) -> None:
    """Write pyproject.toml and constraints.txt from the metadata of a package that was installed from a wheel."""
    distribution = importlib.metadata.distribution("mlhpc")
    common: list[str] = []
    extras: dict[str, list[str]] = {}
    for requirement in distribution.requires or []:
        specifier, _, marker = requirement.partition(";")
        if extra := re.search(r"extra == ['\"]([\w-]+)['\"]", marker):
            rest = re.sub(r"(\s*\band\b)?\s*extra == ['\"][\w-]+['\"]", "", marker).strip()
            extras.setdefault(extra[1], []).append("; ".join(filter(None, (specifier.strip(), rest))))
        else:
            common.append(requirement)
    scripts = {e.name: e.value for e in distribution.entry_points if e.group == "console_scripts"}
    to.mkdir(parents=True)
    # JSON's strings and lists are valid TOML.
    lines = [
        "[build-system]", 'requires = ["setuptools"]', 'build-backend = "setuptools.build_meta"', "",
        "[project]", 'name = "mlhpc"', f"version = {json.dumps(distribution.version)}",
        f"dependencies = {json.dumps(common)}", "", "[project.optional-dependencies]",
        *(f"{extra} = {json.dumps(needs)}" for extra, needs in sorted(extras.items())), "",
        "[project.scripts]", *(f"{script} = {json.dumps(value)}" for script, value in scripts.items()), "",
        "[tool.setuptools.packages.find]", 'include = ["mlhpc*"]', "",
        "[tool.setuptools.package-data]", '"*" = ["*"]', "",
    ]  # fmt: skip
    (to / "pyproject.toml").write_text("\n".join(lines), "utf-8")
    (to / "setup.py").write_text(_SETUP_PY, "utf-8")
    names = {re.split(r"[^\w.-]", need, maxsplit=1)[0].lower() for need in distribution.requires or []}
    installed = {(d.name or "").lower(): d.version for d in importlib.metadata.distributions()}
    pins = [f"{need}=={installed[need]}\n" for need in sorted(names & installed.keys())]
    (to / "constraints.txt").write_text("".join(pins), "utf-8")


def _in_git(top: Path) -> list[Path]:
    listed = output("git", "-C", str(top), "ls-files", "-z") if (top / ".git").exists() else ""
    return [Path(line) for line in listed.split("\0") if line]


def write_scripts(to: Path, benchmark: str, system: str, runs: Sequence[RunDirectory]) -> None:
    """Write README.md, setup.sh, init_datasets.sh and run_and_time.sh for ``runs``, and their configuration, into
    the new folder ``to``. For logs without a run folder the scripts use the preset closed."""
    to.mkdir(parents=True)
    run = next((r for r in runs if r.config), None)
    preset = run.preset if run and run.preset else "closed"
    benchmark = run.benchmark if run else registry.our_name(benchmark)
    if run and run.config:
        (to / "config.toml").write_text(dumps(run.config), "utf-8")
    official = bool(run and run.config and run.config.data.official)
    files = {
        "setup.sh": _setup(benchmark),
        "init_datasets.sh": _init_datasets(benchmark, preset, official),
        "run_and_time.sh": _run_and_time(benchmark, preset, (run and run.env.command) or ""),
        "README.md": _readme(benchmark, system, preset, runs, official),
    }
    for file, text in files.items():
        (to / file).write_text(text, "utf-8")
        (to / file).chmod(0o755 if file.endswith(".sh") else 0o644)


def _setup(benchmark: str) -> str:
    return f"""#!/bin/bash
# One-time configuration: the environment. docs/reference/dependencies.md explains how to build Horovod.
set -euo pipefail
cd "$(dirname "$0")/../{name()}"
python3 -m venv .venv
.venv/bin/pip install -c constraints.txt -e {shlex.quote(f".[{benchmark}]")}
"""


def _environment() -> str:
    """Shell lines that put the environment made by setup.sh first in PATH; without it, the current one is used."""
    return f"""bin="$(cd "$(dirname "${{BASH_SOURCE[0]}}")/../{name()}" && pwd)/.venv/bin"
export PATH="$bin:$PATH"  # of setup.sh"""


def _init_datasets(benchmark: str, preset: str, official: bool) -> str:
    command = f'mlhpc data make {shlex.quote(benchmark)} --preset {shlex.quote(preset)} --out "$DATA"'
    if official:
        command = 'mlhpc data index "$DATA"  # the published data set, as downloaded'
    return f"""#!/bin/bash
# One-time configuration: the data set. DATA is its folder on the file system that all nodes share.
set -euo pipefail
: "${{DATA:?}}"
{_environment()}
{command}
"""


def _run_and_time(benchmark: str, preset: str, command: str) -> str:
    words = list(_words(command, benchmark, preset))
    stage = ' "${STAGE:?}"' if "--stage" in words else ""
    return f"""#!/bin/bash
# One run, one process per rank: srun ./run_and_time.sh. DATA: the data set; STAGE: node-local storage;
# OUT: the folder for the results.
set -euo pipefail
: "${{DATA:?}}" "${{OUT:?}}"{stage}
{_environment()}
exec {" ".join(words)}
"""


_PATHS = {"--data": '"$DATA"', "--stage": '"$STAGE"', "--out": '"$OUT"'}


def _words(command: str, benchmark: str, preset: str) -> Iterator[str]:
    """The command of the run, with paths from the environment and a new seed."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if words[:2] != ["mlhpc", "run"]:
        words = ["mlhpc", "run", benchmark, "--preset", preset]
    flags = [part for word in words[3:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    yield from ("mlhpc", "run", shlex.quote(benchmark))
    paths = ["--data", "--out"]
    while flags:
        flag = flags.pop(0)
        value = [flags.pop(0)] if flags and not flags[0].startswith("--") else []
        if flag == "--stage":
            paths.insert(1, flag)
        elif flag not in ("--data", "--out", "--seed", "--ranks", "--resume"):
            yield from map(shlex.quote, (flag, *value))
    for flag in paths:
        yield from (flag, _PATHS[flag])


def _readme(benchmark: str, system: str, preset: str, runs: Sequence[RunDirectory], official: bool) -> str:
    commits = sorted({run.env.commit for run in runs if run.env.commit})
    packages = {k: v for run in runs for k, v in run.env.packages.items()}
    versions = "\n".join(f"- {package} {version}" for package, version in sorted(packages.items()))
    writes = "writes the manifest of the downloaded data set" if official else "generates the data set"
    return f"""# {benchmark} on {system}

The sources are in `../{name()}`; commit of the runs: {", ".join(commits) or "unknown"}; preset `{preset}`
(`config.toml` has every setting).

1. `./setup.sh` creates the environment, which the other scripts then use.
2. `DATA=/shared/{benchmark} ./init_datasets.sh` {writes}.
3. `DATA=... STAGE=... OUT=... srun ./run_and_time.sh` is one run. OUT/run.log is a `result_<i>.txt`; the seed is
   random per run, and logged.

`run_scripts/` of the sources has the batch scripts and the settings of sites. Staging is inside the clock:
`docs/reference/timing.md` of the suite.

{versions}
"""
