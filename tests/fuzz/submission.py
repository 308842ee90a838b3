"""Readers of ``mlhpc.submission``: logs, run folders, system descriptions, archives, the official tools."""

import atexit
import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutate import HOSTILE, damaged_bytes, damaged_value, write
from golden.make_run import make_run
from golden.make_tree import describe, make_set, records, write_log
from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from mlhpc.errors import UserError
from mlhpc.record.mllog import parse
from mlhpc.record.phases import phases
from mlhpc.record.run_directory import read
from mlhpc.submission.check.log_rules import bare_log_rules, log_rules
from mlhpc.submission.check.official import official_findings
from mlhpc.submission.check.run_rules import run_rules
from mlhpc.submission.findings import print_findings
from mlhpc.submission.pack.archive import unpack, write_archive
from mlhpc.submission.pack.leaks import Names, leaks
from mlhpc.submission.result_sets import result_sets
from mlhpc.submission.score.score import instance_scale, score_rules, score_run
from mlhpc.submission.score.set_score import score_set, set_findings
from mlhpc.submission.system import description

# Logs.


def log_bytes(rng: Random) -> bytes:
    """A log with hostile values in a few records, as JSON or with damaged bytes."""
    benchmark = rng.choice(("cosmoflow", "deepcam", "resnet"))
    made: list[Any] = records(benchmark, epochs=3)
    for _ in range(rng.choice((0, 1, 1, 3))):
        index = rng.randrange(len(made))
        made[index] = damaged_value(rng, made[index])
    if rng.random() < 0.3:
        made.insert(rng.randrange(len(made)), made[rng.randrange(len(made))])
    text = "".join(f":::MLLOG {json.dumps(record)}\n" for record in made).encode()
    return damaged_bytes(rng, text) if rng.random() < 0.5 else text


def read_log(data: bytes, scratch: Path) -> None:
    path = scratch / "result_1.txt"
    write(path, data)
    log = parse(path)
    for record in log.records:
        assert record.key.isprintable(), record
        json.dumps([record.value, record.metadata]).encode()
    findings = [*log_rules(log), *bare_log_rules(log)]
    for name in ("cosmoflow", "deepcam"):
        rules = score_rules(name)
        assert rules
        run = score_run(log, rules[0])
        assert not run.converged or (run.seconds or 0) > 0
    instance_scale(log)
    if parts := phases(log):
        assert abs(parts.total - (log.time_to_train_s or 0.0)) <= 1e-6 * max(1.0, abs(parts.total))
    (results,) = result_sets(path)
    findings += set_findings(results, score_set(results))
    _print(findings)


def _print(findings: list[Any]) -> None:
    out = StringIO()
    print_findings(findings[:3], Console(file=out, width=100))
    assert "\x1b" not in out.getvalue()
    out.getvalue().encode()


# The official tools.

_opened: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str):
        _opened.append(arguments[0])


@cache
def _install_watch() -> None:
    with (
        tempfile.TemporaryDirectory() as scratch
    ):  # what is opened when it is first used is not the log's doing
        good = write_log(Path(scratch) / "good.txt", records("deepcam", epochs=1))
        official_findings(parse(good), "hpc_2.0.0")
    sys.addaudithook(_watch)  # it cannot be removed; it does nothing while ``_opened`` is None


def official_bytes(rng: Random) -> bytes:
    """A log whose division, benchmark, optimizer or scheduler is hostile: they name the rule files."""
    benchmark = rng.choice(("cosmoflow", "deepcam", "resnet"))
    made: list[Any] = records(benchmark, epochs=1)
    keys = ("submission_division", "submission_benchmark", "opt_name", "scheduler_type")
    for record in made:
        if record["key"] in keys and rng.random() < 0.5:
            record["value"] = rng.choice(HOSTILE)
    text = "".join(f":::MLLOG {json.dumps(record)}\n" for record in made).encode()
    return damaged_bytes(rng, text) if rng.random() < 0.3 else text


def read_officially(data: bytes, scratch: Path) -> None:
    """No file is opened but the log and the package's own rule files."""
    global _opened
    _install_watch()
    path = scratch / "result_1.txt"
    path.write_bytes(data)
    log = parse(path)
    folder = Path(mlp_compliance.__file__).parent
    _opened = []
    try:
        findings = official_findings(log, "hpc_2.0.0")
        opened = _opened
    finally:
        _opened = None
    for name in opened:
        # A module that is imported when it is first used, and the places where Python looks for it.
        if name.endswith((".py", ".pyc", ".so")) or name in sys.path:
            continue
        inside = Path(os.path.abspath(name)).relative_to(folder).parts if name != str(path) else ("", "")
        assert len(inside) == 2 and (name == str(path) or name.endswith(".yaml")), name
    _print(findings)


# Run folders and trees.


@cache
def _run_directory() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch) / "run", epochs=2)
        return {path.name: path.read_bytes() for path in run.iterdir()}


def run_bytes(rng: Random) -> bytes:
    """The name of a file of a run folder, a newline, and its damaged content."""
    name = rng.choice(("result.json", "env.json", "config.toml", "campaign.json"))
    good = _run_directory().get(name, b'{"metric": "weak", "score": {"T": 8}}')
    if name.endswith(".json") and rng.random() < 0.7:
        good = json.dumps(damaged_value(rng, json.loads(good))).encode()
    return name.encode() + b"\n" + (damaged_bytes(rng, good) if rng.random() < 0.5 else good)


def read_run(data: bytes, scratch: Path) -> None:
    name, _, content = data.partition(b"\n")
    folder = scratch / "campaign"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "run").mkdir(parents=True)
    for file, good in _run_directory().items():
        (folder / "run" / file).write_bytes(good)
    place = folder if name == b"campaign.json" else folder / "run"
    (place / name.decode()).write_bytes(content)
    run = read(folder / "run")
    findings = list(run_rules(run, "2.0.0", "strong"))
    for results in result_sets(folder):
        findings += set_findings(results, score_set(results))
    _print(findings)
    json.dumps(
        [run.env.model_dump(), run.result.model_dump() if run.result else None], allow_nan=True
    ).encode()


@cache
def _tree() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-tree-"))
    atexit.register(shutil.rmtree, folder)
    make_set(folder / "org", "deepcam", epochs=1)
    return folder


@cache
def _description() -> bytes:
    return describe(_tree() / "org", "machine").read_bytes()


def description_bytes(rng: Random) -> bytes:
    changed = json.dumps(damaged_value(rng, json.loads(_description()))).encode()
    return damaged_bytes(rng, changed) if rng.random() < 0.5 else changed


def read_description(data: bytes, scratch: Path) -> None:
    path = _tree() / "org/systems/machine.json"
    path.write_bytes(data)
    (results,) = result_sets(_tree())
    _print([*results.problems, *set_findings(results, score_set(results))])
    description.read(path)


# Archives and leaks.


@cache
def _archive() -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        for n in range(3):
            path = Path(scratch) / "made/Lab/results" / f"result_{n}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(Random(n).randbytes(700))
        return write_archive(Path(scratch) / "made", "Lab").read_bytes()


def archive_bytes(rng: Random) -> bytes:
    """A damaged archive, half of them with the damage below the compression, so that it reaches tarfile; some with
    files in deep folders."""
    if rng.random() < 0.02:
        return _deep_archive(rng)
    if rng.random() < 0.5:
        return damaged_bytes(rng, _archive())
    return gzip.compress(damaged_bytes(rng, gzip.decompress(_archive())), 1)


def _deep_archive(rng: Random) -> bytes:
    """An archive whose last file is far down, half of them with the wrong checksum."""
    name, content = "Lab/" + "a/" * rng.randrange(5, 2000) + "f", b"1"
    checked = content if rng.random() < 0.5 else b"2"
    sums = f"{hashlib.sha256(checked).hexdigest()}  {name}\n".encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as tar:
        for each, data in (("Lab.sha256", sums), (name, content)):
            member = tarfile.TarInfo(each)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()[:4] + bytes(4) + packed.getvalue()[8:]  # without the time


def read_archive(data: bytes, scratch: Path) -> None:
    """What is unpacked is what was packed; of what is refused nothing is left."""
    path, to = scratch / "Lab.tar.gz", scratch / "to"
    path.write_bytes(data)
    try:
        tree = unpack(path, to)
        for n in range(0 if (tree / "a").exists() else 3):  # there is a deep one, whole
            assert (tree / "results" / f"result_{n}.txt").read_bytes() == Random(n).randbytes(700)
    except UserError as error:
        assert not to.exists() and "\n" not in str(error)
        raise
    finally:
        shutil.rmtree(to, ignore_errors=True)


def leak_bytes(rng: Random) -> bytes:
    parts = (
        b"password",
        b"=",
        b"token ",
        b"://",
        b"@",
        b"eyJ",
        b".",
        b"-----BEGIN ",
        b"\x00",
        b"\xff",
        b"n0",
        b" ",
    )
    return b"".join(rng.choice(parts) * rng.choice((1, 2, 50)) for _ in range(rng.randrange(60)))


def read_leaks(data: bytes, scratch: Path) -> None:
    (scratch / "file.txt").write_bytes(data)
    _print(leaks(scratch, Names(frozenset({"n0"}), frozenset({"jane"}))))


READERS = (
    ("mllog", log_bytes, read_log, (UserError,)),
    ("official", official_bytes, read_officially, (UserError,)),
    ("run_directory", run_bytes, read_run, (UserError,)),
    ("system_description", description_bytes, read_description, (UserError,)),
    ("archive", archive_bytes, read_archive, (UserError,)),
    ("leaks", leak_bytes, read_leaks, (UserError,)),
)
