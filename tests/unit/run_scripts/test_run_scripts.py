"""The scripts of run_scripts/: short, sound, and every benchmark, preset, command and option they name
exists.

Batch systems are stood in for by programs that write down what they were asked to start; the command line
that they were given is then read by the real parser.
"""

import os
import re
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
from ranks.need import need

from mlhpc import cli
from mlhpc.benchmarks import load, registry

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "run_scripts"
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix in (".sh", ".sbatch", ".lsf")]
SITES = sorted(FOLDER.glob("sites/*.sh"))
# Those of one benchmark; what is for any has tests of its own.
SBATCH = [path for path in sorted(FOLDER.glob("*.sbatch")) if path.stem in registry.benchmarks()]
TEXTS = [*FILES, ROOT / "docs" / "sites.md", ROOT / "docs" / "packing.md"]


def name(path):
    return path.name


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_script_is_read_in_a_minute(path):
    assert len(path.read_text().splitlines()) <= 30
    assert max(map(len, path.read_text().splitlines())) <= 120


def test_shellcheck_finds_nothing():
    need("shellcheck")
    done = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def named(text):
    """Pairs of benchmark and preset that a text names; None where it names one of the two alone."""
    for match in re.finditer(
        r"mlhpc (?:run|data make|doctor|presets) ([a-z]\w+)(?: --preset (\w[\w-]*))?", text
    ):
        yield match[1], match[2]
    for match in re.finditer(r"\bBENCHMARK=(?:\$\{BENCHMARK:-)?([a-z]\w+)", text):
        yield match[1], None
    for match in re.finditer(r"run_scripts/([a-z]\w+)\.sbatch", text):
        if match[1] not in ("campaign", "study"):  # any benchmark's
            yield match[1], None
    for match in re.finditer(r"\bPRESET=(?:\$\{PRESET:-)?(\w[\w-]*)", text):
        yield None, match[1]


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_every_benchmark_and_preset_that_is_named_exists(path):
    text = path.read_text()
    pairs = list(named(text))
    here = {benchmark for benchmark, _ in pairs if benchmark} or {"cosmoflow"}
    for benchmark, preset in pairs:
        assert benchmark is None or benchmark in registry.benchmarks(), f"{path}: {benchmark}"
        if preset:
            of = [benchmark] if benchmark else here
            assert any(preset in load.presets(b) for b in of), f"{path}: {preset} is no preset of {of}"


def test_the_search_for_names_finds_them():
    found = set(named((FOLDER / "cosmoflow.sbatch").read_text()))
    assert {("cosmoflow", None), (None, "closed"), (None, "smoke")} <= found


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_every_file_that_is_named_exists(path):
    for file in re.findall(r"\b(?:run_scripts|docs|benchmarks)/[\w./-]+\w", path.read_text()):
        assert (ROOT / file).exists(), f"{path} names {file}"


# What is started.

STARTER = '#!/bin/bash\nprintf "%s\\n" "$(basename "$0")" "$@" >>"$CALLS"\necho - >>"$CALLS"\n'


@pytest.fixture
def run(tmp_path):
    """Runs a script with stand-ins for the batch system; returns what each was asked, in order."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("srun", "jsrun", "mlhpc"):
        (tools / tool).write_text(STARTER)
        (tools / tool).chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("batch1\n" + "a01n01\n" * 42 + "a01n02\n" * 42)

    def start(script, *words, **more):
        env = {
            "PATH": f"{tools}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "HOME": str(tmp_path),
            "USER": "somebody", "SLURM_JOB_ID": "77", "LSB_JOBID": "88", "LSB_DJOB_HOSTFILE": str(hosts),
            "SCRATCH": str(tmp_path / "scratch"), "MEMBERWORK": str(tmp_path / "work"),
            # Modules are shell functions where they are.
            "BASH_FUNC_module%%": "() { :; }", **more,
        }  # fmt: skip
        (tmp_path / "calls").write_text("")
        # A virtual environment in the checkout would come before the stand-ins.
        (tmp_path / "run_scripts").unlink(missing_ok=True)
        (tmp_path / "run_scripts").symlink_to(FOLDER)
        done = subprocess.run(["bash", script, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [call.split("\n") for call in (tmp_path / "calls").read_text().split("\n-\n")[:-1]]

    return start


def understood(call):
    """The options of the mlhpc command in ``call``, as the command line understands them: no unknown one."""
    words = call[call.index("mlhpc") + 1 :]
    options, unknown = cli._parser().parse_known_args(words)
    assert not unknown, unknown
    return options


@pytest.mark.parametrize("site", [s for s in SITES if s.stem != "summit"], ids=name)
@pytest.mark.parametrize("script", SBATCH, ids=name)
def test_a_batch_script_starts_one_run_at_every_site(run, script, site, tmp_path):
    [call] = run(script, "--evict", MLHPC_SITE=site.stem, PRESET="closed-test", SLURM_CPUS_PER_TASK="8")
    assert call[0] == "srun"
    options = understood(call)
    assert options.benchmark == script.stem and options.preset == "closed-test" and options.evict
    # One run's folders are not another's, and two benchmarks do not share data.
    assert "77" in str(options.stage) and "77" in str(options.out)
    assert script.stem in str(options.data) and "closed-test" in str(options.data)


@pytest.mark.parametrize("site", [s for s in SITES if s.stem != "summit"], ids=name)
def test_what_the_user_sets_counts_at_every_site(run, site):
    [call] = run(FOLDER / "cosmoflow.sbatch", MLHPC_SITE=site.stem, DATA="/d", STAGE="/s", OUT="/o")
    options = understood(call)
    assert (str(options.data), str(options.stage), str(options.out)) == ("/d", "/s", "/o")


@pytest.mark.parametrize("benchmark", sorted(registry.benchmarks()))
def test_jsrun_starts_one_set_a_node_on_the_compute_nodes(run, benchmark, tmp_path):
    [call] = run(FOLDER / "summit.lsf", BENCHMARK=benchmark, PRESET="closed")
    told = dict(zip(call[1::2], call[2::2], strict=False))
    assert call[0] == "jsrun" and told["--nrs"] == "2" and told["--tasks_per_rs"] == "6"
    assert told["--bind"] == "packed:7"
    options = understood(call)
    assert options.benchmark == benchmark and str(options.stage) == "/mnt/bb/somebody/mlhpc-88"


def test_the_laptop_makes_data_once_runs_and_reports(run, tmp_path):
    calls = run(FOLDER / "laptop.sh", "--ranks", "2")
    assert [call[1] for call in calls] == ["doctor", "data", "run", "check", "report"]
    for call in calls:
        understood(call)
    assert understood(calls[2]).ranks == 2
    data = tmp_path / "data" / "deepcam-mini"
    data.mkdir(parents=True)
    (data / "manifest.json").write_text("")
    calls = run(FOLDER / "laptop.sh", "deepcam", "mini")
    assert [call[1] for call in calls] == ["doctor", "run", "check", "report"]
    options = understood(calls[1])
    assert (options.benchmark, options.preset, options.data) == ("deepcam", "mini", Path("data/deepcam-mini"))


# Containers: they cannot be built here. What they name can be looked at.


def test_both_images_have_one_base_and_one_recipe():
    docker = (FOLDER / "containers" / "Dockerfile").read_text()
    apptainer = (FOLDER / "containers" / "mlhpc.def").read_text()
    base = re.search(r"^FROM (\S+)$", docker, re.MULTILINE)[1]
    assert f"Bootstrap: docker\nFrom: {base}\n" in apptainer
    for text in (docker, apptainer):
        assert "bash run_scripts/containers/install.sh" in text


def test_what_the_images_install_exists():
    text = (FOLDER / "containers" / "install.sh").read_text()
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = re.findall(r"\.\[([\w-]+)\]", text)
    assert extras and set(extras) <= set(setup["options.extras_require"])
    pinned = (ROOT / "constraints.txt").read_text()
    assert "constraints.txt" in text and re.search(r"^horovod==", pinned, re.MULTILINE)


def test_scripts_that_are_called_can_be():
    for path in (FOLDER / "laptop.sh", FOLDER / "containers" / "install.sh"):
        assert os.access(path, os.X_OK)
