"""Common problems: a closed pipe, files of other versions, runs being written, names with markup."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from golden.make_run import make_run
from helpers.page import Page

from mlhpc import cli
from mlhpc.common.data import manifest
from mlhpc.common.ranks.world import Solo
from mlhpc.run import warn_of_launcher

EVIL = """<img src=x onerror=alert(1)> "double" 'single' &amp; </script>"""


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["presets", "cosmoflow", "smoke", "--explain"],
        ["completion", "bash"],
        ["report", "RUN"],
        ["report", "RUN", "--json"],
        ["check", "RUN"],
        ["score", "RUN"],
        ["diff", "RUN", "RUN"],
        ["watch", "RUN"],
        ["watch", "RUN", "--once", "--json"],
        ["rules", "cosmoflow"],
        ["doctor"],
        ["run", "cosmoflow", "--dry-run"],
        ["predict", "cosmoflow", "--machine", "perlmutter"],
        ["io", "list"],
        ["run", "--help"],
        ["-V"],
    ],
    ids=" ".join,
)
def test_a_closed_pipe_ends_a_command_without_a_word(words: list[str], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    command = [sys.executable, "-m", "mlhpc", *(str(run) if word == "RUN" else word for word in words)]
    # As users have it: with PYTHONUNBUFFERED argparse would see, and ignore, the closed pipe.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    assert process.stdout and process.stderr
    process.stdout.close()  # before anything is written
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1
    assert (run / "report.html").exists() == (words == ["report", "RUN"]), "the page is written all the same"


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A locale without any character beyond ASCII, which Python does not replace by UTF-8."""


@pytest.mark.parametrize(
    ("words", "env"),
    [(["score", "RUN"], ASCII), (["report", "RUN"], {"PYTHONIOENCODING": "ascii"}), (["doctor"], ASCII)],
)
def test_output_that_takes_only_ascii_replaces_characters_and_keeps_the_status(words, env, tmp_path) -> None:
    run = make_run(tmp_path / "r\N{LATIN SMALL LETTER U WITH DIAERESIS}n")
    command = [sys.executable, "-m", "mlhpc", *(str(run) if word == "RUN" else word for word in words)]
    plain, ascii_ = (
        subprocess.run(command, capture_output=True, env=os.environ | added | {"COLUMNS": "200"})
        for added in ({"PYTHONUTF8": "1"}, env)
    )
    assert not plain.stdout.isascii()
    assert ascii_.returncode == plain.returncode
    assert ascii_.stdout.isascii() and b"Traceback" not in ascii_.stderr
    assert len(ascii_.stdout.splitlines()) == len(plain.stdout.splitlines())


@pytest.mark.parametrize("words", [["--help"], ["nonsense"], ["report", "RUN"]], ids=" ".join)
def test_a_closed_stream_is_not_the_next_file_opened(words: list[str], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    command = [sys.executable, "-m", "mlhpc", *(str(run) if word == "RUN" else word for word in words)]
    usual = subprocess.run(command, capture_output=True).returncode
    for closed in (">&-", "<&- >&- 2>&-"):
        ended = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True)
        assert ended.returncode == usual and b"Traceback" not in ended.stderr
    assert {file: file.read_bytes() for file in before} == before


def test_output_to_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "mlhpc", "list"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and "No space left" in ended.stderr


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A run whose config.toml has a setting that this version does not know."""
    run = make_run(tmp_path / "newer")
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("[training]", "[training]\nwarp_factor = 9"))
    return run


def one_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mlhpc: ") and error.count("\n") == 1
    return error


def test_a_run_with_the_settings_of_another_version_names_the_unknown_one(newer, capsys) -> None:
    error = one_line(capsys, "run", "cosmoflow", "--config", newer / "config.toml", "--dry-run")
    assert str(newer) in error and "training.warp_factor" in error


def test_resuming_a_run_of_another_version_names_the_unknown_setting(newer, capsys) -> None:
    config = np.array((newer / "config.toml").read_text())
    facts = {"epoch": 1, "seed": 1, "ranks": 1, "arrays": np.array([0, 0]), "config": config}
    np.savez(newer / "checkpoint.npz", **facts)  # type: ignore[arg-type]
    error = one_line(capsys, "run", "cosmoflow", "--resume", newer, "--dry-run")
    assert str(newer) in error and "training.warp_factor" in error and "another version" in error


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["network.conv_layers=6"], "multiple of 64"),
        (["training.framework=pytorch", "training.spatial=[32,1,1]"], "are thinner than a halo"),
        (["training.weights=absent.safetensors"], "training.weights=absent.safetensors does not exist"),
    ],
)
def test_a_dry_run_refuses_settings_that_the_run_would_refuse(capsys, wrong, named) -> None:
    words = [word for setting in wrong for word in ("--set", setting)]
    assert named in one_line(capsys, "run", "cosmoflow", "--preset", "smoke", "--dry-run", *words)


def test_a_report_of_a_run_of_another_version_says_what_it_could_not_read(newer, capsys) -> None:
    assert cli.main(["report", str(newer)]) == 0
    assert "another version" in capsys.readouterr().out
    assert "another version" in Page((newer / "report.html").read_text()).text


def test_settings_that_cannot_be_read_are_one_difference(newer, tmp_path, capsys) -> None:
    other = make_run(tmp_path / "other")
    assert cli.main(["diff", str(newer), str(other), "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["differences"]
    assert row["key"] == "config.toml" and "another version" in row["a"] and row["b"] == "readable"


@pytest.mark.parametrize("command", ["report", "check", "score", "watch", "diff", "trace"])
def test_a_run_that_is_being_written_is_read_as_far_as_it_goes(command: str, tmp_path: Path) -> None:
    """The last line of every file is incomplete, and result.json does not exist yet."""
    run = make_run(tmp_path / "run", epochs=3)
    (run / "result.json").unlink()
    for path in (run / "run.log", run / "events.rank0.jsonl", run / "env.json"):
        text = path.read_text()
        path.write_text(text[: -len(text.splitlines()[-1]) // 2])
    more = {"diff": [str(make_run(tmp_path / "other"))], "watch": ["--once"]}
    more["trace"] = ["--out", str(tmp_path / "trace.json")]
    assert cli.main([command, str(run), *more.get(command, [])]) in (0, 1)


def named_evil(folder: Path) -> Path:
    def result(facts) -> None:
        facts["launcher"] = facts["target"]["label"] = EVIL

    def log(lines) -> None:
        for line in lines:
            if line["key"] in ("submission_org", "submission_platform"):
                line["value"] = EVIL

    def env(facts) -> None:
        facts.update(hostname=EVIL, cpu=EVIL, commit=EVIL, command=EVIL, accelerators=[EVIL])
        facts["packages"][EVIL] = EVIL
        facts["nodes"] = [{"hostname": EVIL, "cpu": EVIL, "cores": 1, "memory_gib": 1.0}]

    return make_run(folder, result=result, log=log, env=env)


def test_names_with_markup_are_text_in_every_page(tmp_path: Path, capsys) -> None:
    run = named_evil(tmp_path / f"a {'<b>'} 'run'")
    assert cli.main(["report", str(run)]) == 0
    pages = [run / "report.html", tmp_path / "page.html"]
    other = make_run(tmp_path / "other", epochs=5)
    assert cli.main(["report", str(run), str(other), "--out", str(pages[1])]) == 0
    for path in pages:
        page = Page(path.read_text())
        assert EVIL in page.text
        assert "img" not in {tag for tag, _ in page.elements}
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert len([kind for kind, _ in page.scripts if kind is None]) == 2


def test_names_with_markup_survive_the_exports(tmp_path: Path, capsys) -> None:
    run = named_evil(tmp_path / "<b>'run'")
    assert cli.main(["trace", str(run), "--out", str(tmp_path / "trace.json")]) == 0
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["folder"] == str(run)
    assert cli.main(["export", str(run), "--to", "csv", "--out", str(tmp_path / "csv")]) == 0
    with (tmp_path / "csv" / "run.csv").open(newline="") as file:
        assert dict(csv.reader(file))["benchmark"] == "cosmoflow"
    capsys.readouterr()
    assert cli.main(["diff", str(run), str(make_run(tmp_path / "other")), "--json"]) == 1
    assert EVIL in [row["a"] for row in json.loads(capsys.readouterr().out)["differences"]]


def data_set(folder: Path, files: int = 3) -> Path:
    (folder / "train").mkdir(parents=True)
    for n in range(files):
        (folder / "train" / f"{n}.bin").write_bytes(bytes(5000 + n))
    manifest.index(folder, {}, Solo(), 1)
    return folder


def test_verifying_a_data_set_says_what_was_compared(tmp_path: Path, capsys) -> None:
    data = data_set(tmp_path / "data")
    assert cli.main(["data", "verify", str(data)]) == 0
    assert capsys.readouterr().out == f"{data}: 3 files, 15 kB, 3 checksums compared: no problems\n"
    (data / "train" / "1.bin").write_bytes(b"1" * 5001)
    assert cli.main(["data", "verify", str(data)]) == 1
    assert "checksum" in (lines := capsys.readouterr().out.splitlines())[0] and lines[1].endswith(
        ": 1 problem"
    )


@pytest.mark.parametrize(("ranks", "warned"), [(0, True), (1, True), (2, False)])
def test_a_run_in_a_batch_job_of_several_tasks_without_srun_is_warned(capsys, monkeypatch, ranks, warned):
    """As doctor warns; ``--ranks`` says that it is meant."""
    monkeypatch.setenv("SLURM_NTASKS", "16")
    warn_of_launcher(ranks)
    said = capsys.readouterr().err
    line = "mlhpc: warning: only one rank in a job of 16 tasks (SLURM_NTASKS); start with srun\n"
    assert said == line * warned
