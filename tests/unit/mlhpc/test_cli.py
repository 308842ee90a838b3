"""The command line: a fixed list of options; mistakes are one line and status 2."""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from mlhpc import cli
from mlhpc.benchmarks import load
from mlhpc.commands.parser import natural, number, positive, positives, quantity, seed
from mlhpc.errors import UserError

OPTIONS = {
    "run": [
        *("--preset", "--set", "--hyperparameters-from", "--data", "--stage", "--out", "--config"),
        *("--ranks", "--bind", "--seed", "--evict", "--compute", "--resume", "--dry-run", "--json"),
    ],
    "campaign": [
        *("--preset", "--set", "--hyperparameters-from", "--data", "--stage", "--out", "--ranks"),
        *("--runs", "--instances", "--number"),
    ],
    "study": [
        *("--preset", "--set", "--vary", "--data", "--stage", "--out"),
        *("--repeats", "--steps", "--warmup", "--number", "--json"),
    ],
    "tune": [
        *("--preset", "--set", "--data", "--stage", "--out", "--batch", "--ranks", "--rate", "--schedule"),
        *("--machine", "--budget", "--pairs", "--seed", "--surface"),
    ],
    "data make": ["--preset", "--set", "--out", "--workers", "--raw"],
    "data convert": [
        *("--codec", "--archive", "--workers", "--sample", "--packer", "--validation"),
        *("--max-error", "--error-of"),
    ],
    "data bench": [
        "--samples",
        "--batch",
        "--workers",
        "--loader",
        "--sample-dtype",
        "--rounds",
        "--step-ms",
        "--json",
    ],
    "data plan": ["--files", "--file-bytes", "--nodes", "--ranks-per-node"],
    "data index": ["--workers"],
    "data verify": ["--workers"],
    "data show": ["--out", "--json"],
    "io run": [
        *(
            "--set",
            "--data",
            "--out",
            "--checkpoints",
            "--ranks",
            "--cache",
            "--null-steps",
            "--loader-cost",
            "--like",
            "--trace",
            "--json",
        ),
    ],
    "io generate": ["--set", "--data", "--ranks", "--workers"],
    "io calibrate": ["--out", "--json"],
    "io size": ["--memory", "--accelerators", "--clients", "--json"],
    "io check": ["--memory"],
    "io report": ["--out"],
    "io observe": ["--out", "--below", "--darshan"],
    "io workload-from": ["--below", "--out"],
    "io similarity": [],
    "io list": [],
    "io simulate": [
        *("--set", "--runs", "--ranks", "--targets", "--metadata"),
        *("--ranks-per-node", "--steps", "--json"),
    ],
    "io sweep": ["--set", "--vary", "--out", "--ranks", "--repeats", "--confirm", "--preset", "--json"],
    "list": ["--json"],
    "watch": ["--interval", "--once", "--json"],
    "diff": ["--json"],
    "trace": ["--out"],
    "export": ["--to", "--out"],
    "completion": [],
    "rules": [
        "--ruleset",
        "--preset",
        "--config",
        "--set",
        "--hyperparameters-from",
        "--data",
        "--stage",
        "--json",
    ],
    "check": ["--ruleset", "--json"],
    "score": ["--ruleset", "--acceptance", "--out", "--digest", "--json"],
    "report": ["--out", "--predict", "--machine", "--what-if", "--json"],
    "weights": ["--out"],
    "history add": ["--system", "--store"],
    "history list": ["--where", "--withdrawn", "--csv", "--json", "--store"],
    "history withdraw": ["--reason", "--store"],
    "history annotate": ["--system", "--when", "--store"],
    "history export": ["--out", "--where", "--store"],
    "history compact": ["--before", "--store"],
    "history gate": ["--baseline", "--tolerance", "--system", "--rules", "--nodes", "--json", "--store"],
    "history page": ["--out", "--where", "--store"],
    "scripts": ["--out"],
    "predict": [
        "--preset",
        "--set",
        "--machine",
        "--nodes",
        "--batch",
        "--against",
        "--what-if",
        "--json",
        "--out",
    ],
    "doctor": [
        *("--data", "--stage", "--out", "--ranks", "--json"),
        *("--site", "--calibrate", "--system", "--set"),
    ],
    "profile": [
        *("--preset", "--set", "--batch", "--batches", "--ranks", "--data"),
        *(
            "--steps",
            "--machine",
            "--device-model",
            "--counters",
            "--counted-steps",
            "--trace",
            "--json",
            "--out",
        ),
    ],
    "pack": ["--org", "--system", "--out", "--ruleset", "--weak", "--prune", "--despite-errors"],
    "unpack": [],
    "presets": ["--explain", "--json"],
    "papers": ["--all", "--logs", "--out", "--json"],
}


def commands(parser, prefix=""):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                nested = list(commands(sub, f"{prefix}{name} "))
                yield from nested or [(prefix + name, sub)]


def test_the_command_line_has_exactly_these_options():
    options = {
        name: [o for action in sub._actions for o in action.option_strings if o not in ("-h", "--help")]
        for name, sub in commands(cli._parser())
    }
    assert options == OPTIONS


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "cosmoflow", "--rnaks", "2"], "did you mean '--ranks'"),
        (["--bogus"], "choose from: --debug"),  # the dashes of all options make none alike
        (["run", "cosmflow"], "did you mean 'cosmoflow'"),
        (["run", "cosmoflow", "--preset", "smok"], "did you mean 'smoke'"),
        (["run", "cosmoflow", "--set", "training.max_epoch=1"], "did you mean 'training.max_epochs'"),
        (["run", "cosmoflow", "--ranks", "two"], "--ranks"),
        (["run", "cosmoflow", "--ranks", "-1"], "--ranks: -1 is not"),
        (["run", "cosmoflow", "--ranks", "0"], "--ranks: 0 is not a whole number of 1 or more"),
        (["run"], "BENCHMARK"),
        (["rum"], "did you mean 'run'"),
        (["run", "cosmoflow", "--preset", "closed", "--set", "network.targets=3"], "targets: 4, not 3"),
        (["campaign", "cosmoflow", "--preset", "smok"], "did you mean 'smoke'"),
        (["campaign", "cosmoflow", "--runs", "0"], "--runs: 0 is not"),
        (["tune", "cosmoflow", "--batch", "16,x"], "--batch: x is not"),
        (["tune", "cosmoflow", "--rate", "0,1"], "--rate: 0 is not a number above 0"),
        (["tune", "cosmflow"], "did you mean 'cosmoflow'"),
        (
            ["tune", "cosmoflow", "--batch", "99999"],
            "--batch 99999: a batch of 99999 exceeds the 16384",
        ),
        (["rules", "cosmoflo"], "did you mean 'cosmoflow'"),
        (["rules", "cosmoflow", "--ruleset", "0.7.0"], "choose from 1.0.0, 2.0.0, 3.0.0"),
        (["check", "nowhere"], "nowhere"),
        (["score", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["data", "verify", "nowhere"], "nowhere"),
        (["data", "index", "nowhere"], "nowhere"),
        (["data", "show", "cosmoflow", "nowhere.tfrecord"], "nowhere.tfrecord"),
        (["data", "show", "deepcam", "nowhere.h5"], "nowhere.h5"),
        (["data", "show", "nowhere.h5", "nowhere"], "no benchmark"),
        (["pack", "nowhere", "--org", "Lab", "--system", "nowhere.json"], "nowhere.json"),
        (["unpack", "nowhere.tar.gz", "there"], "nowhere.tar.gz"),
        (["data", "make", "cosmoflow", "--preset", "closed"], "official"),
        (["data", "convert", "cosmoflow", "nowhere", "out"], "nowhere"),
        (["data", "convert", "deepcam", "nowhere", "out"], "nowhere"),
        (
            ["data", "convert", "deepcam", "nowhere", "out", "--sample", "32"],
            "--sample applies only to cosmoflow",
        ),
        (
            ["data", "convert", "cosmoflow", "nowhere", "out", "--max-error", "1"],
            "--max-error applies only to deepcam",
        ),
        (["data", "convert", "resnet50", "nowhere", "out"], "requires --codec tfrecord, lmdb, raw"),
        (["data", "make", "resnet50", "--preset", "closed"], "ImageNet"),
        (["data", "bench", "cosmoflow", "nowhere"], "nowhere"),
        (["data", "bench", "cosmoflow", ".", "--loader", "thread"], "did you mean 'threads'"),
        (["data", "bench", "resnet50", ".", "--sample-dtype", "float16"], "this benchmark has only one"),
        (["data", "bench", "deepcam", ".", "--workers", "two"], "--workers: two is not a whole number"),
        (["data", "bench", "deepcam", "nowhere"], "nowhere"),
        (["data", "bench", "deepcam", ".", "--step-ms", "inf"], "--step-ms: inf is not a finite number"),
        (["data", "bench", "deepcam", ".", "--loader", "foo"], "choose from: cached, dali, threads, workers"),
        (["data", "bench", "deepcam", "nowhere", "--batch", "0"], "--batch: 0 is not"),
        (["io", "run", "cosmic_tager"], "did you mean 'cosmic_tagger'"),
        (["io", "run", "ffn", "--data", "nowhere"], "nowhere"),
        (["io", "run", "ffn", "--set", "reader.thread=2"], "did you mean 'reader.threads'"),
        (["io", "run", "ffn", "--null-steps", "-1"], "--null-steps: -1 is not"),
        (["io", "generate", "ffn", "--workers", "0"], "--workers: 0 is not"),
        (["io", "generate", "l2hmc"], "nothing to generate"),
        (
            ["io", "size", "--memory", "lots", "--accelerators", "8"],
            "--memory: 'lots' is not a number with a unit",
        ),
        (["io", "size", "--memory", "1G", "--accelerators", "0"], "--accelerators: 0 is not"),
        (["io", "size", "--memory", "9" * 400, "--accelerators", "8"], "--memory"),
        (["profile", "cosmoflow", "--out", "prof"], "--out: prof must end in .html"),
        (["doctor", "--calibrate", "--out", "m"], "--out m must end in .toml"),
        (["io", "check", "nowhere", "--memory", "1G"], "nowhere"),
        (["io", "report", "nowhere"], "nowhere"),
        (["io", "similarity", "nowhere", "there"], "nowhere"),
        (["io", "observe", "--out", "here", "--below", "nowhere"], "no command"),
        (["io", "list", "nothing.toml"], "nothing.toml"),
        (["data", "plan", "--files", "9", "--file-bytes", "9", "--nodes", "9" * 12], "at most 100000000"),
        (["watch", "nowhere"], "nowhere"),
        (["diff", "nowhere", "there"], "nowhere"),
        (["trace", "nowhere", "--out", "t.json"], "nowhere"),
        (["export", "nowhere", "--to", "csv", "--out", "there"], "nowhere"),
        (["presets", "cosmoflow", "--explain"], "--explain requires a preset"),
        (["run", "cosmoflow", "--json"], "--json requires --dry-run"),
        (["data", "make", "cosmoflow", "--workers", "0"], "--workers: 0 is not a whole number of 1 or more"),
        (["data", "convert", "cosmoflow", "here", "there", "--workers", "-3"], "-3 is not a whole number"),
        (["data", "verify", "here", "--workers", "two"], "two is not a whole number"),
        (["run", "cosmoflow", "--hyperparameters-from", "nowhere"], "nowhere cannot be read: No such file"),
        (["run", "cosmoflow", "--ranks", "2", "--bind", "0"], "must list cores for each of the 2 ranks on"),
        (["run", "cosmoflow", "--bind", "near"], "'near' is not a core"),
        (["--debug", "run"], "BENCHMARK"),
    ],
)
def test_a_mistake_is_a_one_line_error_with_status_2(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("mlhpc: ") and error.count("\n") == 1
    assert said in error
    assert list(tmp_path.iterdir()) == [], "nothing half-written is left behind"


def test_a_dry_run_on_a_login_node_says_that_it_lacks_the_cores_of_a_sites_lists(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLHPC_BIND", "60000:60001")
    words = ["run", "cosmoflow", "--preset", "smoke", "--dry-run"]
    assert cli.main(words) == 0
    line = "MLHPC_BIND=60000:60001: local rank 0 cannot use core 60000"
    output = " ".join(capsys.readouterr().out.split())
    assert f"binding not on this machine: {line}" in output and "dry run: nothing was started" in output
    assert cli.main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["binding_problem"].startswith(line) and facts["cores_of_ranks"] is None
    assert cli.main([*words, "--bind", "60001"]) == 2, "an option is for this machine"
    assert "--bind 60001: local rank 0 cannot use" in capsys.readouterr().err


def test_debug_shows_the_traceback():
    command = [sys.executable, "-m", "mlhpc", "--debug", "run", "cosmoflow", "--preset", "smok"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "Traceback" in done.stderr


def test_help_shows_at_most_14_commands_and_names_all(capsys, monkeypatch):
    """In the order of the work, with a line each; the others in groups."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert cli.main([]) == 0 and capsys.readouterr().out == text
    stages, _, more = text.partition("\nmore:\n")
    shown = re.findall(r"^  (\w+) {2,}\S", stages, flags=re.M)
    assert len(shown) <= 14 and [shown.index(name) for name in ("run", "report", "study", "pack")] == sorted(
        shown.index(name) for name in ("run", "report", "study", "pack")
    )
    grouped = [
        w for line in more.split("\n\n")[0].splitlines() for w in re.split(r" {2,}", line)[2].split(", ")
    ]
    assert sorted(shown + grouped) == sorted({name.split()[0] for name in OPTIONS})
    lines = text.splitlines()
    assert len(lines) <= 43 and max(map(len, lines)) <= 80


def test_help_imports_no_library():
    """They would be most of its time."""
    code = "import sys; from mlhpc import cli; cli._parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "numpy", "pydantic", "multiprocessing"} & set(done.stdout.split())


def test_every_out_says_what_it_names():
    """A folder, or a file by its ending; a name of another kind is refused before anything is made."""
    for name, sub in commands(cli._parser()):
        for action in sub._actions:
            if "--out" not in action.option_strings:
                continue
            assert (
                action.metavar == "DIR" or action.metavar == "DIR|FILE" or action.metavar.startswith("FILE.")
            )
            if action.metavar.startswith("FILE."):
                assert action.type("a" + action.metavar.removeprefix("FILE")), name
                with pytest.raises(argparse.ArgumentTypeError, match="must end in"):
                    action.type("prof")


NUMBERS = ("-1", "0", "nan", "inf", "1e9999", "1.5", "two", "", "9" * 40)
LEAST = {natural: 0, seed: 0, number: -1, quantity: 1.5}
"""Not all are wrong for all options; what an option takes must be a number in the range of its kind."""


def test_every_number_is_validated_where_it_is_parsed():
    """No option of any command takes a number by ``int`` or ``float``, which accept -1, or NaN."""
    for name, sub in commands(cli._parser()):
        for action in sub._actions:
            assert action.type not in (int, float), f"{name} {action.option_strings}"
            if action.type in (positive, natural, seed, number, quantity, positives):
                for text in NUMBERS:
                    try:
                        values = action.type(text)
                    except argparse.ArgumentTypeError:
                        continue
                    for value in values if isinstance(values, list) else [values]:
                        assert math.isfinite(value) and value >= LEAST.get(action.type, 1)


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize("value", ["-1", "99999999999999999999", "nan", "1.5", str(2**31)])
def test_a_seed_that_no_framework_takes_is_refused_before_the_run_has_a_folder(
    value, dry, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    words = ["run", "cosmoflow", "--data", "data", "--out", "out", "--seed", value, *dry]
    assert cli.main(words) == 2
    assert f"--seed: {value} is not a whole number" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("benchmark", ["cosmoflow", "deepcam", "resnet50"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_setting_is_nan_or_infinite(benchmark, value):
    """Every setting that is a number, also those without bounds."""
    run = load.load(benchmark, "smoke")
    checked = 0
    for key, before in load.dotted(run.model_dump()):
        if isinstance(before, float):
            checked += 1
            with pytest.raises(UserError, match="finite number"):
                load.load(benchmark, "smoke", [f"{key}={value}"])
    assert checked > 3


def test_an_unknown_key_is_one_short_line(capsys):
    words = ["predict", "cosmoflow", "--machine", "perlmutter", "--set", "machine.storage.bandwidth=1"]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert len(error) < 250 and error.count("\n") == 1 and "training.*" in error


def test_every_command_has_an_example_that_parses(capsys):
    parser = cli._parser()
    for name, sub in commands(parser):
        (example,) = [line.strip() for line in sub.format_help().splitlines() if line.startswith("  mlhpc ")]
        assert example.startswith(f"mlhpc {name}")
        words = shlex.split(example.partition(" > ")[0])[1:]
        assert parser.parse_known_args(words)[0].command == sub.get_default("command")


def test_no_help_is_wider_than_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name, sub in commands(cli._parser()):
        assert max(map(len, sub.format_help().splitlines())) <= 80, name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for name in OPTIONS for word in name.split())
    if program := shutil.which(shell):
        subprocess.run([program, "-n", "/dev/stdin"], input=script, text=True, check=True)


def test_bash_completes_commands_and_options(tmp_path, capsys):
    """With the script as bash loads it."""
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    script = """
        source completion
        complete_last() {  # as bash does where Tab is pressed after these words
            local function=$(complete -p mlhpc | sed 's/.*-F \\([^ ]*\\).*/\\1/')
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            $function mlhpc "${@: -1}" "${@: -2:1}"
            echo "${COMPREPLY[@]}"
        }
        complete_last mlhpc wa
        complete_last mlhpc run cosmoflow --dry
        complete_last mlhpc completion ""
    """
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["watch", "--dry-run", "bash zsh fish"], done.stderr


def test_rulesets_of_hpc_are_understood_for_a_benchmark_that_has_its_own(capsys):
    assert cli.main(["rules", "resnet50", "--ruleset", "2.0.0"]) == 0
    assert "under ruleset 4.0.0" in capsys.readouterr().out
    assert cli.main(["rules", "resnet50", "--ruleset", "2.1.0"]) == 2


def test_a_picture_is_never_overwritten(tmp_path, capsys):
    out = tmp_path / "sample.png"
    out.write_text("kept")
    assert cli.main(["data", "show", "cosmoflow", "nowhere.tfrecord", "--out", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err and out.read_text() == "kept"


def test_a_bench_by_several_ranks_is_refused(tmp_path, capsys, monkeypatch):
    """Each would empty the page cache of the others between its rounds."""
    for name, value in {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert cli.main(["data", "bench", "cosmoflow", str(tmp_path)]) == 2
    assert "mpirun started 2 ranks of a command that runs as a single process" in capsys.readouterr().err


def test_presets_without_a_benchmark_lists_all(capsys):
    assert cli.main(["presets"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("cosmoflow", "deepcam", "resnet50", "closed-2048"))


@pytest.mark.parametrize("before", [None, "1"])
def test_quiet_is_for_one_call(monkeypatch, before):
    """A program that calls ``main`` twice sees the second run's output."""
    monkeypatch.delenv("MLHPC_QUIET", raising=False)
    if before:
        monkeypatch.setenv("MLHPC_QUIET", before)
    assert cli.main(["--quiet", "list", "--json"]) == 0
    assert os.environ.get("MLHPC_QUIET") == before


def test_the_lines_below_the_plan_explain_the_columns_of_its_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["data", "plan", "--files", "4096", "--file-bytes", "1e6", "--nodes", "4"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for column in ("per node", "source reads", "max ÷ mean", "node to node"):
        assert printed.count(column) >= 2, column
