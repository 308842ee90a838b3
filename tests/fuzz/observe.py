"""Fuzzed ``watch``, ``trace``, ``diff``, ``export`` and ``report --json`` of a run folder that others wrote."""

import json
import shutil
from io import StringIO
from pathlib import Path
from random import Random

from fuzz.pages import damaged_file, run_files
from rich.console import Console

from mlhpc.common.files.untrusted import finite
from mlhpc.errors import UserError
from mlhpc.observe import trace, watch
from mlhpc.observe.export import export
from mlhpc.observe.report_content import report_content
from mlhpc.record.differences import differences, print_differences


def observed_bytes(rng: Random) -> bytes:
    return damaged_file(rng, run_files())


def read_observed(data: bytes, scratch: Path) -> None:
    """Each command shows, writes or refuses; what it prints has no escapes, and what it writes is strict JSON."""
    name, _, content = data.partition(b"\n")
    damaged, good = scratch / "damaged", scratch / "good"
    for folder in (damaged, good):
        folder.mkdir(exist_ok=True)
        for file, whole in run_files().items():
            (folder / file).write_bytes(whole)
    (damaged / name.decode()).write_bytes(content)
    out = StringIO()
    console = Console(file=out, width=80)
    written, exported = scratch / "trace.json", scratch / "csv"
    written.unlink(missing_ok=True)
    shutil.rmtree(exported, ignore_errors=True)
    refused = 0
    for command in (
        lambda: watch.watch(damaged, 1.0, console, once=True),
        lambda: print_differences(differences(damaged, good), console),
        lambda: trace.write_trace(damaged, written),
        lambda: export(damaged, "csv", exported),
        lambda: json.dumps(finite(report_content([damaged])), allow_nan=False),
    ):
        try:
            command()
        except UserError:
            refused += 1
    assert "\x1b" not in out.getvalue()
    out.getvalue().encode()
    if written.exists():
        json.loads(written.read_bytes(), parse_constant=_not_json)
    if refused == 5:
        raise UserError("refused by all")


def _not_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


READERS = (("observed", observed_bytes, read_observed, (UserError,)),)
