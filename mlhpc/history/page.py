"""The history of a system as one self-contained HTML page: charts of all runs with their parts, the changes of
performance, and the differences at each change."""

import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import altair as alt
import tomli_w

from mlhpc.benchmarks.load import loads
from mlhpc.common.pages import charts, plots
from mlhpc.common.pages.blocks import Cell, Columns, Details, Grid, Section, Table, number, table
from mlhpc.common.pages.html import render
from mlhpc.errors import UserError
from mlhpc.history.changes import FEWEST, Change, changes, smallest_step
from mlhpc.history.index import opened
from mlhpc.history.store import content_of
from mlhpc.quantities import count, digits, duration_text
from mlhpc.record.breakdown import PARTS
from mlhpc.record.differences import Difference, between, value_text
from mlhpc.record.environment import Environment
from mlhpc.record.result import Result
from mlhpc.record.run_directory import RunDirectory

Row = dict[str, Any]
ALARMING = {"time_to_train_s": "time to train", "samples_per_s": "throughput"}
"""The quantities whose changes are reported; changes of parts only explain them."""
SHOWN = 200
"""Maximum number of runs in a chart, which shows the newest."""


@dataclass(frozen=True)
class Alarm:
    """A change of the quantity ``figure``, with the last run before the change and the first run after it."""

    figure: str
    change: Change
    last_good: Row
    first_bad: Row

    @property
    def text(self) -> str:
        """The alarm in one line."""
        ratio = f"{self.change.ratio - 1:+.1%}"
        name, when = self.first_bad["name"][:12], self.first_bad["when"]
        return f"{self.first_bad['benchmark']}: {ALARMING[self.figure]} {ratio} from {name} ({when})"


@dataclass(frozen=True)
class Line:
    """A group of runs that reached their target, in order of time, all of the same benchmark, preset, size and
    versions."""

    title: str
    rows: tuple[Row, ...]

    @cached_property
    def alarms(self) -> tuple[Alarm, ...]:
        """The changes in the quantities of ``ALARMING``, in order of time."""
        found = []
        for figure in ALARMING:
            rows = [row for row in self.rows if row[figure] and row[figure] > 0]
            shifts = changes([row[figure] for row in rows])
            found += [Alarm(figure, shift, rows[shift.at - 1], rows[shift.at]) for shift in shifts]
        return tuple(sorted(found, key=lambda alarm: alarm.first_bad["when"] or ""))


def page(store: Path, system: str, where: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """The HTML of the page about ``system``, to be written to ``folder``, and a line of text for each change.
    Raises UserError if the system has no runs."""
    with opened(store) as index:
        chosen = ["kind=run", f"system={system}", *where]
        rows = [json.loads(row) for row in index.rows(chosen)]
        records = quote(os.fsencode(os.path.relpath(store, folder)))
        present = {path.name for path in store.glob("*.json")}  # packed records have no file of their own
        files = [f"{row['name']}.json" for row in rows]
        links = [f"{records}/{file}" if file in present else "" for file in files]
        lines = _lines([{**row, "link": link} for row, link in zip(rows, links, strict=True)])
        notes = [note for note in index.notes("annotation") if note["system"] == system]
    if not lines:
        raise UserError(f"no run of system {system!r} in this store; mlhpc history list shows the systems")
    alarms = [alarm.text for line in lines for alarm in line.alarms]
    runs = sum(len(line.rows) for line in lines)
    html = render(
        title=f"History of {system}",
        eyebrow="mlhpc training benchmarks",
        heading=system,
        subtitle="history",
        meta=f"{count(runs, 'run')} that reached the target · {count(len(alarms), 'change')}",
        blocks=[section for line in lines for section in _sections(line, notes, store)],
        foot="Changes: a CUSUM of logarithms against earlier runs (docs/guide/history.md).",
    )
    return html, alarms


def _lines(rows: Sequence[Row]) -> list[Line]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["status"] == "success" and row["time_to_train_s"]:
            nodes = row["nodes"] and f"{count(row['nodes'], 'node')}, {count(row['ranks'] or 0, 'rank')}"
            version = row["versions"] and f"versions {row['versions']}"
            title = " · ".join(filter(None, (row["benchmark"], row["preset"], nodes, version)))
            groups.setdefault(title, []).append(row)
    return [Line(title, tuple(own)) for title, own in sorted(groups.items())]


def _sections(line: Line, notes: Sequence[Row], store: Path) -> Iterator[Section]:
    step = smallest_step([row["time_to_train_s"] for row in line.rows])
    noise = f"Changes are looked for from {FEWEST} runs on."
    if step is not None:
        noise = f"The noise of these runs can show steps of {step:.1%} of the time, mostly within 12 runs."
    about = f"{noise} Red: a change. Grey: an annotation. Dashed: the mean before the last change."
    yield Section(line.title, about, (Grid((_times(line, notes), _rates(line)), 1), _alarm_table(line)))
    pairs = {(alarm.last_good["name"], alarm.first_bad["name"]): alarm for alarm in line.alarms}
    details = [_details(alarm, store) for alarm in pairs.values()]
    columns = {"when": lambda note: note["when"], "annotation": lambda note: note["text"]}
    annotations = table("annotations", notes, columns, text_columns=2)
    tables = Details("Annotations", (annotations,)), Details("Runs", (_runs_table(line),))
    about = "Between the last run before each change and the first one after it; then all records."
    yield Section(f"{line.title}: records", about, (*details, *tables))


def _label(n: int, row: Row) -> str:
    return f"{n + 1} {(row['when'] or '')[:10]}"


def _times(line: Line, notes: Sequence[Row]) -> charts.Figure:
    numbered = list(enumerate(line.rows))[-SHOWN:]
    rows, marks = [], []
    for n, row in numbered:
        for part, (title, _) in PARTS.items():
            if (seconds := row.get(f"{part}_s")) and seconds > 0:
                says = f"{row['name'][:12]}, {row['when']}, {title}, {duration_text(seconds)}"
                rows.append({"x": _label(n, row), "y": seconds, "part": title, "says": says})
    changed = {alarm.first_bad["name"] for alarm in line.alarms}
    for colour, chosen in ((charts.BAD, changed), (charts.SOFT, _noted(line, notes))):
        at = [{"x": _label(n, row), "says": row["name"][:12]} for n, row in numbered if row["name"] in chosen]
        if at:
            marks.append(charts.chart_of(at, x=plots.BY_COLUMN).mark_rule(color=colour[0], strokeWidth=2))
    before = _before(line)
    level = statistics.fmean(row["time_to_train_s"] for row in before)
    marks += plots.limits([(level, "baseline")], alt.Y("y:Q"))
    drawn = {row["part"] for row in rows}
    colours = {title: charts.PARTS[part][0] for part, (title, _) in PARTS.items() if title in drawn}
    what = f"Time to train of {count(len(numbered), 'run')} by part, {count(len(changed), 'change')}"
    axes = ("run", "seconds")
    return plots.columns(rows, what, titles=axes, colours=colours, over=marks, title="Time to train")


def _noted(line: Line, notes: Sequence[Row]) -> set[str]:
    """The names of the first runs after each annotation in ``notes``."""
    after = (next((r for r in line.rows if (r["when"] or "") >= note["when"]), None) for note in notes)
    return {row["name"] for row in after if row}


def _before(line: Line) -> Sequence[Row]:
    """The runs between the last two changes of the time to train (with one change, all runs before it; without
    changes, all runs)."""
    changed = [alarm.change.at for alarm in line.alarms if alarm.figure == "time_to_train_s"]
    begin = changed[-2] if len(changed) > 1 else 0
    return line.rows[begin : changed[-1]] if changed else line.rows


def _rates(line: Line) -> charts.Figure:
    rows = [
        {"x": n + 1, "y": row["samples_per_s"], "series": "samples/s",
         "says": f"{row['name'][:12]}, {row['when']}, {digits(row['samples_per_s'])} samples/s"}
        for n, row in list(enumerate(line.rows))[-SHOWN:]
        if row["samples_per_s"]
    ]  # fmt: skip
    scale = alt.Scale(zero=False, nice=False)
    y = alt.Y("y:Q", title="samples/s", scale=alt.Scale(zero=False))
    base = charts.chart_of(rows, x=alt.X("x:Q", title="run", scale=scale), y=y)
    what = f"Throughput of {count(len(rows), 'run')}, median over the epochs of each"
    return plots.lines(base, what, series=["samples/s"], size=30, title="Throughput")


def _alarm_table(line: Line) -> Table:
    columns: Columns[Alarm] = {
        "figure": lambda alarm: ALARMING[alarm.figure],
        "from": lambda alarm: _when(alarm.first_bad),
        "last before": lambda alarm: _record(alarm.last_good),
        "first after": lambda alarm: _record(alarm.first_bad),
        "change": lambda alarm: number(alarm.change.ratio - 1, "{:+.1%}".format),
        "certain after": lambda alarm: count(alarm.change.found - alarm.change.at + 1, "run"),
    }
    return table("changes", line.alarms, columns, text_columns=4)


def _record(row: Row) -> Cell:
    return Cell(row["name"][:12], value=row["name"], link=row["link"])


def _when(row: Row) -> str:
    return (row["when"] or "not known").replace("T", " ").removesuffix(":00Z").removesuffix("Z")


def _details(alarm: Alarm, store: Path) -> Details:
    pair = [_run_of(store, row["name"]) for row in (alarm.last_good, alarm.first_bad)]
    rows: Sequence[Difference] = between(*pair)
    columns = {
        "of": lambda row: row.kind,
        "what": lambda row: row.key,
        "last before": lambda row: value_text(row.a),
        "first after": lambda row: value_text(row.b),
    }
    name = f"Differences at {_when(alarm.first_bad)}"
    found = table("differences", rows, columns, text_columns=4)
    none = table("differences", ["none in settings, environment, data and machine"], {"of": str})
    return Details(name, (found if rows else none,), open=True)


def _run_of(store: Path, name: str) -> RunDirectory:
    """The run in a record, as it would be read from its folder; parts that this version cannot read are None."""
    content = json.loads(content_of(store, name))["content"]

    def read(key: str, parse: Callable[[Any], Any]) -> Any:
        try:
            return parse(content[key])
        except (KeyError, ValueError, UserError):
            return None

    config = read("config", lambda settings: loads(tomli_w.dumps(settings)))
    environment = read("environment", Environment.model_validate) or Environment()
    return RunDirectory(Path(name[:12]), None, read("result", Result.model_validate), config, environment, ())


def _runs_table(line: Line) -> Table:
    columns: Columns[Row] = {
        "when": _when,
        "record": _record,
        "time to train, s": lambda row: number(row["time_to_train_s"], digits),
        "epochs": lambda row: number(row["epochs"], digits),
        "s/epoch": lambda row: number(row["epoch_s"], digits),
        "samples/s": lambda row: number(row["samples_per_s"], digits),
        "J/sample": lambda row: number(row["joules_per_sample"], digits),
    }
    return table("runs", line.rows[::-1], columns, text_columns=2)
