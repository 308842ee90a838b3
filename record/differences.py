"""Differences between runs other than in results: settings, environment, data, machine."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks.load import dotted
from mlhpc.common.pages.blocks import Table, table
from mlhpc.common.pages.terminal import say
from mlhpc.common.pages.text import printable
from mlhpc.errors import UserError
from mlhpc.record.environment import Environment, binding_text
from mlhpc.record.run_directory import RunDirectory, read

Kind = Literal["settings", "environment", "data", "machine"]

_MACHINE = frozenset({"hostname", "cpu", "cores", "memory_gib", "accelerators", "os", "binding", "nodes"})
"""The keys of env.json that describe a machine; all others, except ``data``, belong to the environment."""
_OF_EACH_RUN = frozenset({"date", "command"})
_OF_EACH_LAUNCH = re.compile(r"(^|_)(RANK|PORT|ADDR|HOSTNAME)$")
"""Matches variables that differ between any two launches: ranks, ports, addresses."""
_MOST_RUNS = 8
"""Maximum number of runs that a comparison page compares with the first run."""


class Entry(Protocol):
    """A set of runs in a comparison: its letter and the path of its runs."""

    @property
    def letter(self) -> str:
        """The letter that names the set."""

    @property
    def path(self) -> Path:
        """The path of the set's runs."""


class Difference(NamedTuple):
    """A key with different values in two runs; a value is None if the run does not have the key."""

    kind: Kind
    key: str
    a: Any
    b: Any


def differences(first: Path, second: Path) -> list[Difference]:
    """The differences between two run folders, ordered by kind. Raises UserError if either folder has neither
    settings nor environment."""
    return between(_readable(first), _readable(second))


def between(a: RunDirectory, b: RunDirectory) -> list[Difference]:
    """The differences between two runs, ordered by kind and, within a kind, in the order of the first run's
    files."""
    facts_a, facts_b = dict(_facts(a)), dict(_facts(b))
    if (a.config is None) != (b.config is None):  # settings cannot be compared: report that once
        for facts, run in ((facts_a, a), (facts_b, b)):
            _leave_settings_out(facts, run)
    differing = [
        Difference(kind, key, facts_a.get((kind, key)), facts_b.get((kind, key)))
        for kind, key in dict.fromkeys((*facts_a, *facts_b))
        if facts_a.get((kind, key)) != facts_b.get((kind, key))
    ]
    order: tuple[Kind, ...] = ("settings", "environment", "data", "machine")
    return sorted(differing, key=lambda difference: order.index(difference.kind))


def _leave_settings_out(facts: dict[tuple[Kind, str], Any], run: RunDirectory) -> None:
    for kind, key in list(facts):
        if kind == "settings" or key.startswith("data."):
            del facts[kind, key]
    facts["settings", "config.toml"] = "readable" if run.config else dict(run.problems).get("config.toml")


def print_differences(differing: Sequence[Difference], console: Console) -> None:
    """Print the differing keys of each kind, each followed by both values on separate lines, since the columns of
    a table would be too narrow for paths."""
    if not differing:
        console.print("no differences in settings, environment, data or machine")
    kind = ""
    for difference in differing:
        if difference.kind != kind:
            kind = difference.kind
            console.print(Text(kind, style="bold"))
        say(console, Text(f"  {printable(difference.key)}"))
        for letter, value in (("A", difference.a), ("B", difference.b)):
            say(console, Text.assemble((f"    {letter}  ", "dim"), value_text(value)))


def differences_table(entries: Sequence[Entry]) -> Table:
    """For a comparison page, the differences between the first run of the first set and the first run of every
    further set; sets that are not run folders are skipped."""
    readable = ((entry.letter, run) for entry in entries if (run := _first_run(entry.path)))
    runs = list(islice(readable, _MOST_RUNS + 1))
    rows = [
        (f"{runs[0][0]}, {letter}", each) for letter, run in runs[1:] for each in between(runs[0][1], run)
    ]
    return table(
        "differences",
        rows,
        {
            "sets": lambda row: row[0],
            "of": lambda row: row[1].kind,
            "what": lambda row: row[1].key,
            "first": lambda row: value_text(row[1].a),
            "second": lambda row: value_text(row[1].b),
        },
        text_columns=5,
    )


def _readable(path: Path) -> RunDirectory:
    run = read(path)
    if run.config is None and run.env == Environment():
        raise UserError(f"{path} has neither config.toml nor env.json; pass the --out folder of a run")
    return run


def _first_run(path: Path) -> RunDirectory | None:
    """The run at ``path`` or, if ``path`` is a campaign, its first run; None if there is no run."""
    folders = [path, *sorted(each for each in path.iterdir() if each.is_dir())] if path.is_dir() else []
    folder = next((each for each in folders if (each / "config.toml").is_file()), None)
    try:
        return read(folder) if folder else None
    except UserError:
        return None


def _facts(run: RunDirectory) -> Iterator[tuple[tuple[Kind, str], Any]]:
    for key, value in dotted(run.config.model_dump(mode="json", exclude_none=True) if run.config else {}):
        if key != "description":
            yield ("data" if key.startswith("data.") else "settings", key), value
    yield ("machine", "bindings"), binding_text(run.env.bindings) or None
    for name, value in run.env.model_dump(exclude_unset=True).items():
        kind: Kind = "machine" if name in _MACHINE else "data" if name == "data" else "environment"
        if name not in _OF_EACH_RUN and name != "bindings":
            for key, leaf in dotted({name: value}):
                if not (name == "variables" and _OF_EACH_LAUNCH.search(key.rpartition(".")[2])):
                    yield (kind, key), leaf
    if result := run.result:
        yield ("environment", "launcher"), result.launcher
        yield ("machine", "ranks"), result.ranks
        yield ("data", "codec"), result.data.codec if result.data else None
        staging = result.staging
        for key in ("files", "bytes", "mode", "target_filesystem", "target_is_ram"):
            yield ("data", f"staging.{key}"), getattr(staging, key) if staging else None
        yield ("data", "source_evicted"), result.source_evicted
        for what, number in (result.versions or {}).items():
            yield ("data", f"versions.{what}"), number


def value_text(value: Any) -> str:
    """``value``, from a difference, as printable text; "none" for None."""
    if value is None:
        return "none"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
