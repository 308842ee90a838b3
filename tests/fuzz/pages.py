"""Fuzzed pages: whatever is in a result tree, they are made, and nothing of it becomes markup.

Drawing takes nearly all of a page's time, so it is done for one input in 20. In the other pages a chart is its
data and its captions.
"""

import atexit
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import altair as alt
from fuzz.mutate import damaged_bytes, damaged_value
from golden.make_run import make_run
from golden.make_tree import make_set, records

from mlhpc.benchmarks import load
from mlhpc.common.pages import charts, plots
from mlhpc.errors import UserError
from mlhpc.record import run_directory
from mlhpc.submission.report import compare, compare_page, run_page, study, study_page

MARKUP = "\"'></script></style><fuzz-mark onload=alert(1)>"


class _Marks(HTMLParser):
    """Fails where text of a run has become an element or an attribute."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "fuzz-mark" and not any(name.startswith("on") for name, _ in attrs), (
            self.get_starttag_text()
        )


def require_harmless(html: str) -> None:
    html.encode()
    parser = _Marks()
    parser.feed(html)
    parser.close()


@contextmanager
def mostly_undrawn(data: bytes) -> Iterator[None]:
    if zlib.crc32(data) % 20 == 0:
        yield
        return
    with (
        patch.multiple(plots, stacked_bars=_undrawn, columns=_undrawn, lines=_undrawn),
        patch.object(charts.Figure, "svg", ""),
    ):
        yield


def _undrawn(rows: Any, alt_text: str, **options: Any) -> charts.Figure:
    caption = {key: options.pop(key) for key in ("title", "note") if key in options}
    values = rows.data.values if isinstance(rows, alt.Chart) else list(rows)
    return charts.Figure({"values": values, "options": repr(options)}, alt_text, **caption)


def damaged_json(rng: Random, good: Any) -> bytes:
    value = damaged_value(rng, good)
    text = json.dumps(value)
    if rng.random() < 0.3:  # markup in place of a string somewhere
        strings = [s for s in _strings(good) if s]
        text = text.replace(json.dumps(rng.choice(strings)), json.dumps(MARKUP), rng.choice((1, -1)))
    return damaged_bytes(rng, text.encode()) if rng.random() < 0.2 else text.encode()


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *_strings(list(value.values()))]
    return [s for item in value for s in _strings(item)] if isinstance(value, list) else []


def damaged_file(rng: Random, files: dict[str, bytes]) -> bytes:
    """The name of a file, a newline, and its damaged content."""
    name = rng.choice(sorted(files))
    good = files[name]
    if name.endswith(".json"):
        return name.encode() + b"\n" + damaged_json(rng, json.loads(good))
    if name.endswith(".jsonl"):
        lines = good.splitlines()
        index = rng.randrange(len(lines))
        lines[index] = damaged_json(rng, json.loads(lines[index]))
        return name.encode() + b"\n" + b"\n".join(lines)
    return name.encode() + b"\n" + damaged_bytes(rng, good)


@cache
def run_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch) / "run", epochs=2)
        return {path.name: path.read_bytes() for path in run.iterdir()}


def run_page_bytes(rng: Random) -> bytes:
    return damaged_file(rng, run_files())


def read_run_page(data: bytes, scratch: Path) -> None:
    name, _, content = data.partition(b"\n")
    folder = scratch / "run"
    folder.mkdir(exist_ok=True)
    for file, good in run_files().items():
        (folder / file).write_bytes(good)
    (folder / name.decode()).write_bytes(content)
    with mostly_undrawn(data):
        require_harmless(run_page.page(run_directory.read(folder), [], "2.0.0"))


def comparison_bytes(rng: Random) -> bytes:
    made: list[Any] = records("deepcam", epochs=2)
    for _ in range(rng.choice((1, 1, 3))):
        index = rng.randrange(len(made))
        made[index] = damaged_value(rng, made[index])
    text = "".join(f":::MLLOG {json.dumps(record)}\n" for record in made)
    if rng.random() < 0.5:
        text = text.replace(rng.choice(('"org"', '"machine"', '"closed"', '"onprem"')), json.dumps(MARKUP))
    return text.encode()


@cache
def _tree() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-tree-"))
    atexit.register(shutil.rmtree, folder)
    make_set(folder / "org", "deepcam", (10.0, 11.0), epochs=2)
    return folder


def read_comparison(data: bytes, scratch: Path) -> None:
    (_tree() / "org/results/machine/strong/deepcam/result_1.txt").write_bytes(data)
    with mostly_undrawn(data):
        require_harmless(compare_page.page(compare.compare([_tree()])))


@cache
def _study() -> dict[str, bytes]:
    """A study of two cells, with a run each."""
    files: dict[str, bytes] = {}
    for batch in (8, 16):
        given = [f"hyperparameters.global_batch_size={batch}", "study.steps=6", "study.warmup_steps=2"]
        run = load.load("cosmoflow", "smoke", given)
        steps, warm = run.study.steps, run.study.warmup_steps
        settings = {"batch": batch, "ranks": 1, "hyperparameters.global_batch_size": batch}
        cell = {"settings": settings, "data": "/data", "stage": None}
        events = [
            {"t": 0.0, "event": "note", "name": "facts", "ranks": 1},
            {"t": 1.0, "event": "begin", "name": "run"},
            {"t": 1.5, "event": "begin", "name": "train", "epoch": 1},
            {"t": 9.0, "event": "mark", "name": "warm", "waited": {"data_wait": 7.0}},
            {
                "t": 12.0,
                "event": "timed",
                "name": "data_wait",
                "seconds": 8.0,
                "epoch": 1,
                "count": steps + warm,
            },
            {"t": 12.0, "event": "end", "name": "train", "epoch": 1, "seconds": 10.5},
            {"t": 99.0, "event": "end", "name": "run", "seconds": 98.0},
        ]
        files |= {
            f"batch={batch}/cell.json": json.dumps(cell).encode(),
            f"batch={batch}/run-1/config.toml": load.dumps(run).encode(),
            f"batch={batch}/run-1/env.json": b'{"cpu": "a processor", "cores": 2, "commit": "0123456789abcdef"}',
            f"batch={batch}/run-1/events.rank0.jsonl": "\n".join(map(json.dumps, events)).encode(),
        }
    return files


def study_bytes(rng: Random) -> bytes:
    return damaged_file(rng, _study())


def read_study(data: bytes, scratch: Path) -> None:
    name, _, content = data.partition(b"\n")
    folder = scratch / "study"
    for file, good in _study().items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(good)
    (folder / name.decode()).write_bytes(content)
    with mostly_undrawn(data):
        require_harmless(study_page.page(study.read(folder)))


READERS = (
    ("run_page", run_page_bytes, read_run_page, (UserError,)),
    ("comparison", comparison_bytes, read_comparison, (UserError,)),
    ("study", study_bytes, read_study, (UserError,)),
)
