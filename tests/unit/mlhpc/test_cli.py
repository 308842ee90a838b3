"""The command line as a user meets it: few options, pinned; mistakes are one line and status 2."""

import argparse
import subprocess
import sys

import pytest

from mlhpc import cli

OPTIONS = {
    "run": [
        *("--preset", "--set", "--data", "--stage", "--out", "--config", "--ranks", "--seed"),
        *("--evict", "--resume"),
    ],
    "campaign": [
        *("--preset", "--set", "--data", "--stage", "--out", "--ranks"),
        *("--runs", "--instances", "--number"),
    ],
    "study": [
        *("--preset", "--set", "--vary", "--data", "--stage", "--out"),
        *("--repeats", "--steps", "--warmup", "--number"),
    ],
    "data make": ["--preset", "--set", "--out", "--workers", "--raw"],
    "data convert": [
        *("--codec", "--workers", "--sample", "--plain", "--packer", "--validation"),
        *("--float16", "--max-error", "--error-of", "--to"),
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
    "data index": ["--workers"],
    "data verify": ["--workers"],
    "data show": ["--out"],
    "io run": [
        *(
            "--set",
            "--data",
            "--out",
            "--checkpoints",
            "--ranks",
            "--cache",
            "--null-steps",
            "--trace",
            "--json",
        ),
    ],
    "io generate": ["--set", "--data", "--ranks", "--workers"],
    "io size": ["--memory", "--accelerators", "--clients", "--json"],
    "io check": ["--memory"],
    "io report": ["--out"],
    "io observe": ["--out", "--below"],
    "io similarity": [],
    "io list": [],
    "rules": ["--ruleset", "--preset", "--set", "--data", "--stage"],
    "check": ["--ruleset"],
    "score": ["--ruleset"],
    "report": ["--out", "--predict", "--machine"],
    "weights": ["--out"],
    "predict": ["--preset", "--set", "--machine", "--nodes", "--batch", "--against", "--json", "--out"],
    "doctor": ["--data", "--stage", "--out", "--ranks", "--site", "--calibrate", "--system", "--set"],
    "profile": ["--preset", "--set", "--batch", "--steps", "--machine", "--trace", "--json", "--out"],
    "pack": ["--org", "--system", "--out", "--ruleset", "--weak", "--prune", "--despite-errors"],
    "unpack": [],
    "presets": [],
}


def commands(parser, prefix=""):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                nested = list(commands(sub, f"{prefix}{name} "))
                yield from nested or [(prefix + name, sub)]


def test_the_command_line_has_exactly_these_options():
    found = {
        name: [o for action in sub._actions for o in action.option_strings if o not in ("-h", "--help")]
        for name, sub in commands(cli._parser())
    }
    assert found == OPTIONS


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "cosmoflow", "--rnaks", "2"], "did you mean '--ranks'"),
        (["run", "cosmflow"], "did you mean 'cosmoflow'"),
        (["run", "cosmoflow", "--preset", "smok"], "did you mean 'smoke'"),
        (["run", "cosmoflow", "--set", "training.max_epoch=1"], "did you mean 'training.max_epochs'"),
        (["run", "cosmoflow", "--ranks", "two"], "--ranks"),
        (["run", "cosmoflow", "--ranks", "-1"], "--ranks -1"),
        (["run"], "BENCHMARK"),
        (["rum"], "did you mean 'run'"),
        (["run", "cosmoflow", "--preset", "closed", "--set", "network.targets=3"], "targets: 4, not 3"),
        (["campaign", "cosmoflow", "--preset", "smok"], "did you mean 'smoke'"),
        (["campaign", "cosmoflow", "--runs", "0"], "--runs 0"),
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
        (["data", "convert", "deepcam", "nowhere", "out", "--sample", "32"], "--sample is for cosmoflow"),
        (["data", "convert", "cosmoflow", "nowhere", "out", "--float16"], "--float16 is for deepcam"),
        (["data", "convert", "deepcam", "nowhere", "out", "--to", "lmdb"], "--to is for resnet50"),
        (["data", "convert", "resnet50", "nowhere", "out"], "needs --codec tfrecord, lmdb, raw"),
        (["data", "make", "resnet50", "--preset", "closed"], "ImageNet"),
        (["data", "bench", "cosmoflow", "nowhere"], "nowhere"),
        (["data", "bench", "cosmoflow", ".", "--loader", "thread"], "did you mean 'threads'"),
        (["data", "bench", "resnet50", ".", "--sample-dtype", "float16"], "there is no choice"),
        (["data", "bench", "deepcam", ".", "--workers", "two"], "--workers two: give a whole number"),
        (["data", "bench", "deepcam", "nowhere"], "nowhere"),
        (["data", "bench", "deepcam", "nowhere", "--batch", "0"], "--batch 0"),
        (["io", "run", "cosmic_tager"], "did you mean 'cosmic_tagger'"),
        (["io", "run", "ffn", "--data", "nowhere"], "nowhere"),
        (["io", "run", "ffn", "--set", "reader.thread=2"], "did you mean 'reader.threads'"),
        (["io", "run", "ffn", "--null-steps", "-1"], "--null-steps -1"),
        (["io", "generate", "ffn", "--workers", "0"], "--workers 0"),
        (["io", "generate", "l2hmc"], "nothing to generate"),
        (["io", "size", "--memory", "lots", "--accelerators", "8"], "--memory lots"),
        (["io", "size", "--memory", "1G", "--accelerators", "0"], "--accelerators 0"),
        (["io", "check", "nowhere", "--memory", "1G"], "nowhere"),
        (["io", "report", "nowhere"], "nowhere"),
        (["io", "similarity", "nowhere", "there"], "nowhere"),
        (["io", "observe", "--out", "here", "--below", "nowhere"], "no command"),
        (["io", "list", "nothing.toml"], "nothing.toml"),
    ],
)
def test_a_mistake_is_a_one_line_error_with_status_2(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("mlhpc: ") and error.count("\n") == 1
    assert said in error
    assert list(tmp_path.iterdir()) == [], "nothing half-written is left behind"


def test_debug_shows_the_traceback():
    command = [sys.executable, "-m", "mlhpc", "--debug", "run", "cosmoflow", "--preset", "smok"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "Traceback" in done.stderr


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(name.split()[0] in text for name in OPTIONS)
