"""The scripts of run_scripts/: short, sound, and every benchmark, preset, command and option they name
exists.

Batch systems are replaced by programs that record what they were asked to start; the command line
that they were given is then read by the real parser.
"""

import fcntl
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path

import pytest
from ranks.need import need

from mlhpc import cli
from mlhpc.benchmarks import load, registry
from mlhpc.common.ranks import launch
from mlhpc.run_processes import SRUN_WAIT_S

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "run_scripts"
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
SCRIPTS = [path for path in FILES if path.suffix in (".sh", ".sbatch", ".lsf", ".pbs")]
RECIPES = [
    path for path in FILES if path.relative_to(FOLDER).parts[0] in ("easybuild", "ramble", "reframe", "spack")
]
SITES = sorted(FOLDER.glob("sites/*.sh"))
TEXTS = [*FILES, ROOT / "docs/guide/sites.md", ROOT / "docs/guide/packing.md"]


def name(path):
    return path.name


@pytest.mark.parametrize("path", [path for path in FILES if path not in RECIPES], ids=name)
def test_scripts_are_short(path):
    assert len(path.read_text().splitlines()) <= 30
    assert max(map(len, path.read_text().splitlines())) <= 120


def test_shellcheck_finds_nothing():
    need("shellcheck")
    done = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def named(text):
    """Pairs of benchmark and preset that a text names; None where it names only one of the two."""
    for match in re.finditer(
        r"mlhpc (?:run|data make|doctor|presets) ([a-z]\w+)(?: --preset (\w[\w-]*))?", text
    ):
        yield match[1], match[2]
    for match in re.finditer(r"\bBENCHMARK=(?:\$\{BENCHMARK:-)?([a-z]\w+)", text):
        yield match[1], None
    for match in re.finditer(r"run_scripts/([a-z]\w+)\.sbatch", text):
        if match[1] not in ("run", "campaign", "study"):  # for any benchmark
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


def test_the_search_for_names_works():
    names = set(named((FOLDER / "run.sbatch").read_text()))
    assert {("cosmoflow", None), (None, "closed")} <= names


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
    for tool in ("srun", "jsrun", "mpiexec", "mlhpc"):
        (tools / tool).write_text(STARTER)
        (tools / tool).chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("batch1\n" + "a01n01\n" * 42 + "a01n02\n" * 42)
    nodes = tmp_path / "nodes"
    nodes.write_text("x4001\nx4002\n")

    def start(script, *words, status=0, **more):
        env = {
            "PATH": f"{tools}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "HOME": str(tmp_path),
            "USER": "somebody", "SLURM_JOB_ID": "77", "LSB_JOBID": "88", "LSB_DJOB_HOSTFILE": str(hosts),
            "PBS_JOBID": "99.head", "PBS_O_WORKDIR": str(tmp_path), "PBS_NODEFILE": str(nodes),
            "SCRATCH": str(tmp_path / "scratch"), "MEMBERWORK": str(tmp_path / "work"),
            # Modules are shell functions where they are.
            "BASH_FUNC_module%%": "() { :; }", **more,
        }  # fmt: skip
        (tmp_path / "calls").write_text("")
        # A virtual environment in the checkout would come before the stand-ins.
        (tmp_path / "run_scripts").unlink(missing_ok=True)
        (tmp_path / "run_scripts").symlink_to(FOLDER)
        done = subprocess.run(["bash", script, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        (tmp_path / "stdout").write_text(done.stdout)
        (tmp_path / "stderr").write_text(done.stderr)
        assert done.returncode == status, done.stderr
        return [call.split("\n") for call in (tmp_path / "calls").read_text().split("\n-\n")[:-1]]

    return start


def understood(call):
    """The options of the mlhpc command in ``call``, as the command line parses them; unknown ones are errors."""
    words = call[call.index("mlhpc") + 1 :]
    options, unknown = cli._parser().parse_known_args(words)
    assert not unknown, unknown
    return options


SLURM_SITES = [site for site in SITES if site.stem not in ("summit", "aurora")]


@pytest.mark.parametrize("site", SLURM_SITES, ids=name)
@pytest.mark.parametrize("benchmark", sorted(registry.benchmarks()))
def test_the_batch_script_starts_one_run_of_any_benchmark_at_every_site(run, benchmark, site):
    more = {"MLHPC_SITE": site.stem, "PRESET": "closed-test", "SLURM_CPUS_PER_TASK": "8"}
    [call] = run(FOLDER / "run.sbatch", "--evict", BENCHMARK=benchmark, **more)
    assert call[0] == "srun"
    options = understood(call)
    assert options.benchmark == benchmark and options.preset == "closed-test" and options.evict
    # Folders differ between jobs, and data sets between benchmarks.
    assert "77" in str(options.stage) and "77" in str(options.out)
    assert benchmark in str(options.data) and "closed-test" in str(options.data)


@pytest.mark.parametrize("site", SLURM_SITES, ids=name)
def test_paths_from_the_environment_override_those_of_the_site(run, site):
    paths = {"DATA": "/d", "STAGE": "/s", "OUT": "/o"}
    [call] = run(FOLDER / "run.sbatch", BENCHMARK="cosmoflow", MLHPC_SITE=site.stem, **paths)
    options = understood(call)
    assert (str(options.data), str(options.stage), str(options.out)) == ("/d", "/s", "/o")


@pytest.mark.parametrize("script", ["run", "campaign", "study"])
def test_srun_passes_on_the_environment_of_a_job_that_sbatch_gave_none(run, script, tmp_path):
    """With sbatch --export=NONE srun inherits SLURM_EXPORT_ENV=NONE, and ranks would not even find mlhpc."""
    for tool in ("srun", "mlhpc"):
        (tmp_path / "bin" / tool).write_text(
            '#!/bin/bash\necho "$SLURM_EXPORT_ENV" >>"$CALLS"\necho - >>"$CALLS"\n'
        )
    calls = run(FOLDER / f"{script}.sbatch", BENCHMARK="deepcam", PRESET="mini", SLURM_EXPORT_ENV="NONE")
    assert calls == [["ALL"]]


@pytest.mark.parametrize("script", ["run", "campaign", "study"])
def test_the_first_line_of_the_output_says_what_runs_on_which_data(run, script, tmp_path):
    run(FOLDER / f"{script}.sbatch", BENCHMARK="deepcam", PRESET="mini", DATA="/d", OUT="/o")
    first = (tmp_path / "stdout").read_text().splitlines()[0]
    for part in ("job 77", "site local", "deepcam", "preset mini", "data /d", "results /o"):
        assert part in first


@pytest.mark.parametrize("script", ["run", "campaign", "study"])
def test_without_its_variables_a_script_stops_instead_of_running_something_else(run, script, tmp_path):
    """As after ``sbatch --export=NONE``."""
    assert run(FOLDER / f"{script}.sbatch", status=1) == []
    assert "--export=BENCHMARK=" in (tmp_path / "stderr").read_text()


def attempt(folder, status=None, saved=False):
    """What a run left in ``folder``."""
    folder.mkdir()
    (folder / "events.rank0.jsonl").touch()
    if status:
        (folder / "result.json").write_text(json.dumps({"status": status}, indent=1))
    if saved:
        (folder / "checkpoint.npz").touch()


def test_a_chain_of_jobs_continues_a_run_from_its_last_checkpoint(run, tmp_path):
    out = tmp_path / "out"
    chain = {"BENCHMARK": "cosmoflow", "OUT": str(out), "RESUME": "1"}

    def resumed():
        [call] = run(FOLDER / "run.sbatch", "--evict", **chain)
        options = understood(call)
        assert options.out == out and not out.exists() and options.evict
        return options.resume and options.resume.name

    assert resumed() is None, "the first job of the chain"
    attempt(out)
    assert resumed() is None and (tmp_path / "out.1").is_dir(), "killed before its first checkpoint"
    attempt(out, "aborted", saved=True)
    assert resumed() == "out.2"
    attempt(out, "aborted")
    assert resumed() == "out.2" and (tmp_path / "out.3").is_dir(), "the third part had saved nothing yet"
    assert resumed() == "out.2", "a job that ended before its run had a folder"
    attempt(out, "aborted")
    (out / "checkpoint.npz.part").touch()
    assert resumed() == "out.2", "killed while it wrote a checkpoint"
    attempt(out, "aborted", saved=True)
    chain["OUT"] += "/"
    [call] = run(FOLDER / "run.sbatch", **chain)
    assert understood(call).resume == tmp_path / "out.5"


@pytest.mark.parametrize(("status", "exits"), [("success", 0), ("failed", 3)])
def test_a_chain_of_jobs_leaves_a_run_that_has_ended(run, tmp_path, status, exits):
    attempt(tmp_path / "out", status, saved=True)
    chain = {"BENCHMARK": "cosmoflow", "OUT": str(tmp_path / "out"), "RESUME": "1"}
    assert run(FOLDER / "run.sbatch", status=exits, **chain) == []
    assert "nothing to continue" in (tmp_path / "stdout").read_text() and (tmp_path / "out").is_dir()


def test_a_chain_of_jobs_leaves_a_run_that_is_running(run, tmp_path):
    attempt(tmp_path / "out", saved=True)
    chain = {"BENCHMARK": "cosmoflow", "OUT": str(tmp_path / "out"), "RESUME": "1"}
    with open(tmp_path / "out" / "events.rank0.jsonl") as events:
        fcntl.flock(events, fcntl.LOCK_SH)
        assert run(FOLDER / "run.sbatch", status=2, **chain) == []
    assert "is still running; submit this with --dependency=afterany" in (tmp_path / "stderr").read_text()
    assert (tmp_path / "out").is_dir()


def test_a_heterogeneous_job_is_refused(run, tmp_path):
    assert run(FOLDER / "run.sbatch", status=2, BENCHMARK="cosmoflow", SLURM_HET_SIZE="2") == []
    assert "heterogeneous jobs are not supported" in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize(
    "wrap", ["apptainer exec --nv mlhpc.sif", "--container-image=mlhpc.sqsh", "numactl --localalloc"]
)
def test_a_launch_wrapper_goes_between_srun_and_mlhpc(run, wrap):
    [call] = run(FOLDER / "run.sbatch", BENCHMARK="cosmoflow", STAGE="/s", LAUNCH_WRAP=wrap)
    assert call[: call.index("mlhpc")] == ["srun", "--wait=120", "--kill-on-bad-exit=0", *wrap.split()]
    understood(call)


def test_only_a_stage_that_the_site_named_after_the_job_is_removed_by_the_script(run):
    """A folder of the user may hold more than this job's files, whatever digits are in its name."""
    wrapper = "run_scripts/rank.sh"
    assert wrapper in run(FOLDER / "run.sbatch", BENCHMARK="cosmoflow")[0]
    for stage in ("/local/mlhpc-77", "/local/scratch77", "/local"):
        assert wrapper not in run(FOLDER / "run.sbatch", BENCHMARK="cosmoflow", STAGE=stage)[0]


def test_srun_waits_until_the_roll_call_has_named_a_missing_rank():
    limit = inspect.signature(launch.call_roll).parameters["timeout_s"].default
    assert limit < SRUN_WAIT_S
    assert f"srun --wait={SRUN_WAIT_S} " in (FOLDER / "run.sbatch").read_text()


@pytest.mark.parametrize("script", ["campaign", "study"])
def test_only_jobs_that_can_continue_are_requeued_and_append_to_their_output(script):
    assert "#SBATCH --no-requeue\n" in (FOLDER / "run.sbatch").read_text()
    text = (FOLDER / f"{script}.sbatch").read_text()
    assert "#SBATCH --requeue\n" in text and "#SBATCH --open-mode=append\n" in text


JOBS = sorted(FOLDER.glob("*.sbatch"))


@pytest.mark.parametrize("path", JOBS, ids=name)
def test_jobs_have_whole_nodes_and_git_ignores_their_output(path):
    text = path.read_text()
    assert "#SBATCH --exclusive\n" in text
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    outputs = re.findall(r"(?:#SBATCH --output=| -o )(\S+)", text)
    assert outputs
    for output in outputs:
        assert any(fnmatch(output, pattern) for pattern in ignored), output


@pytest.mark.parametrize(
    "path", [*JOBS, *(ROOT / f"docs/guide/{page}.md" for page in ("campaigns", "sites", "studies"))], ids=name
)
def test_every_task_of_a_job_array_has_an_output_of_its_own(path):
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if "sbatch" in line and "--array=" in line:
            assert re.search(r" -o \S*%A_%a", line), line


def test_the_doctor_of_the_page_on_sites_gets_the_folders_of_the_site(run, tmp_path):
    """Line after line as somebody types them, with every variable set before it is used."""
    section = (ROOT / "docs/guide/sites.md").read_text().partition("## 3. ")[2]
    typed = re.search(r"((?:    .+\n)+)", section)[1].replace("MLHPC_SITE=mine", "MLHPC_SITE=slurm")
    (tmp_path / "typed.sh").write_text(f"set -eu\n{typed}")
    (tmp_path / "bin" / "salloc").write_text(STARTER)
    (tmp_path / "bin" / "salloc").chmod(0o755)
    allocation, call = run(tmp_path / "typed.sh")
    assert (allocation[0], call[0]) == ("salloc", "srun")
    options = understood(call)
    assert options.benchmark == "cosmoflow" and "77" in str(options.stage) and "77" in str(options.out)
    assert options.data == tmp_path / "scratch" / "data" / "cosmoflow-closed"


def rank(stage, *command):
    env = os.environ | {"STAGE": str(stage)}
    return subprocess.Popen([FOLDER / "rank.sh", *command], env=env, stdout=subprocess.PIPE, text=True)


def test_the_last_rank_on_a_node_removes_the_stage_and_every_exit_status_is_kept(tmp_path):
    stage = tmp_path / "mlhpc-77"
    stage.mkdir()
    (stage / "data").write_text("terabytes")
    last = rank(stage, "sh", "-c", "echo ready; read -r line </dev/null; sleep 60")
    assert last.stdout.readline() == "ready\n"
    assert rank(stage, "sh", "-c", "exit 7").wait(timeout=30) == 7
    assert (stage / "data").exists(), "another rank of this node still reads it"
    last.terminate()
    assert last.wait(timeout=30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == [], "neither the stage nor the lock is left"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_script_reaches_the_rank(tmp_path, sent):
    """proctrack/cgroup and --signal=USR1@30 signal only the script; the rank reports the signal."""
    program = (
        "import signal, sys; got = lambda number, frame: sys.exit(128 + number);"
        "signal.signal(signal.SIGTERM, got); signal.signal(signal.SIGUSR1, got);"
        "print('ready', flush=True); signal.pause()"
    )
    started = rank(tmp_path / "mlhpc-77", sys.executable, "-c", program)
    assert started.stdout.readline() == "ready\n"
    started.send_signal(sent)
    assert started.wait(timeout=30) == 128 + sent


def test_a_rank_closes_its_log_before_its_stage_is_removed(tmp_path):
    stage = tmp_path / "mlhpc-77"
    stage.mkdir()
    code = "trap 'ls $STAGE; exit 5' TERM; touch $STAGE/data; echo ready; while :; do sleep 0.1; done"
    process = rank(stage, "bash", "-c", code)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=30)[0] == "data\n" and process.returncode == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "trap", ["a held lock", "a file for a lock", "a link", "a link to a folder", "writable"]
)
def test_another_user_of_the_node_can_neither_hang_a_job_nor_lead_it_elsewhere(tmp_path, trap):
    """The lock was /tmp/mlhpc-JOB.lock, whose name everyone can guess."""
    shared, stage, elsewhere = tmp_path / "tmp", tmp_path / "tmp" / "mlhpc-77", tmp_path / "elsewhere"
    shared.mkdir()
    elsewhere.mkdir()
    beside = Path(f"{stage}.lock")
    with open(tmp_path / "held", "w") as held:
        match trap:
            case "a held lock":
                os.link(tmp_path / "held", beside)
                fcntl.flock(held, fcntl.LOCK_EX)
            case "a file for a lock":
                beside.mkdir()
            case "a link":
                beside.symlink_to(elsewhere / "made")
            case "a link to a folder":
                stage.symlink_to(elsewhere)
            case "writable":
                stage.mkdir()
                stage.chmod(0o777)
        started = rank(stage, "true")
        assert started.wait(timeout=30) == (2 if trap in ("a link to a folder", "writable") else 0)
    assert list(elsewhere.iterdir()) == []


def test_a_stage_of_another_user_is_refused(tmp_path, monkeypatch):
    """Only root can make one: for others, a folder of root stands for it."""
    stage = tmp_path / "mlhpc-77" if os.geteuid() == 0 else Path("/usr")
    if os.geteuid() == 0:
        stage.mkdir(mode=0o755)
        os.chown(stage, 65534, 65534)
    started = rank(stage, "true")
    assert started.wait(timeout=30) == 2


@pytest.mark.parametrize("script", ["job.sh", "aurora.pbs", "summit.lsf"])
def test_jobs_draw_a_secret_that_nobody_can_look_up(script):
    text = (FOLDER / script).read_text()
    drawn = re.search(r"^MLHPC_TOKEN=.*$\nexport MLHPC_TOKEN$", text, re.MULTILINE)
    code = f"{drawn[0]}\nenv | grep ^MLHPC_TOKEN="
    tokens = {subprocess.check_output(["bash", "-euc", code], text=True).strip() for _ in range(2)}
    assert len(tokens) == 2 and all(re.fullmatch(r"MLHPC_TOKEN=[0-9a-f]{32}", token) for token in tokens)


def test_mpiexec_starts_one_rank_per_tile(run):
    [call] = run(FOLDER / "aurora.pbs", "--evict", BENCHMARK="deepcam", PRESET="closed-test")
    told = dict(zip(call[1:9:2], call[2:9:2], strict=False))
    assert call[0] == "mpiexec" and told["-n"] == "24" and told["--ppn"] == "12" and told["--depth"] == "8"
    options = understood(call)
    assert options.benchmark == "deepcam" and options.evict and "99.head" in str(options.stage)


@pytest.mark.parametrize("benchmark", sorted(registry.benchmarks()))
def test_jsrun_starts_one_resource_set_per_compute_node(run, benchmark, tmp_path):
    [call] = run(FOLDER / "summit.lsf", BENCHMARK=benchmark, PRESET="closed")
    told = dict(zip(call[1::2], call[2::2], strict=False))
    assert call[0] == "jsrun" and told["--nrs"] == "2" and told["--tasks_per_rs"] == "6"
    assert told["--bind"] == "packed:7"
    options = understood(call)
    assert options.benchmark == benchmark and str(options.stage) == "/mnt/bb/somebody/mlhpc-88"


def test_laptop_sh_generates_data_once_runs_and_reports(run, tmp_path):
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


def test_both_recipes_build_the_same_images():
    docker = (FOLDER / "containers" / "Dockerfile").read_text()
    apptainer = (FOLDER / "containers" / "mlhpc.def").read_text()
    base = dict(re.findall(r"^FROM (\S+) AS (\w+)$", docker, re.MULTILINE))
    assert sorted(base.values()) == ["pytorch", "tensorflow"]
    bases = {framework: image for image, framework in base.items()}
    assert f"FRAMEWORK=pytorch\n    BASE={bases['pytorch']}\n" in apptainer
    assert f"FRAMEWORK=tensorflow --build-arg BASE={bases['tensorflow']} " in apptainer
    for text in (docker, apptainer):
        assert "bash run_scripts/containers/install.sh" in text


def installed_extras(framework):
    """The extras that install.sh installs for a framework."""
    text = (FOLDER / "containers" / "install.sh").read_text()
    branch = re.search(rf"^  {framework}\)(.*?);;$", text, re.MULTILINE | re.DOTALL)[1]
    return {extra for extras in re.findall(r"'\.\[([\w,-]+)\]'", branch) for extra in extras.split(",")}


def test_an_image_has_one_framework_and_one_cuda():
    """TensorFlow's wheels bring cuDNN and NCCL of CUDA 12, PyTorch's those of CUDA 13, to the same paths."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    requirements = setup["options.extras_require"]
    for framework, other in (("tensorflow", "torch"), ("pytorch", "tensorflow")):
        extras = installed_extras(framework)
        assert extras and extras <= set(requirements)
        assert not any(other in requirements[extra] for extra in extras)
        assert extras >= {"nvidia", "codecs"}  # energy counters; encoded data sets
    assert installed_extras("pytorch") >= {"deepcam", "resnet50", "cosmoflow-pytorch", "dali"}
    pinned = (ROOT / "constraints.txt").read_text()
    assert re.search(r"^horovod==", pinned, re.MULTILINE)


def test_the_recipe_does_nothing_without_a_framework(tmp_path):
    env = {"PATH": str(tmp_path)}  # nothing that it calls is found there
    script = FOLDER / "containers" / "install.sh"
    for words in ([], ["jax"]):
        done = subprocess.run(["/bin/bash", script, *words], env=env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (2, "install.sh: pass tensorflow or pytorch\n")


def test_scripts_called_directly_are_executable():
    for path in (FOLDER / "laptop.sh", FOLDER / "rank.sh", FOLDER / "containers" / "install.sh"):
        assert os.access(path, os.X_OK)
