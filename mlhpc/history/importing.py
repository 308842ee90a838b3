"""Converts results of other programs to records: trees of MLLOG files (one record per set of runs) and ReFrame's
database."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mlhpc.common.files.untrusted import clean, parse_json, printable
from mlhpc.errors import UserError
from mlhpc.history.reading import json_records, node_record, records_below, same
from mlhpc.record.energy import whole_joules
from mlhpc.record.fields import first_problem
from mlhpc.record.history import HistoryRecord, RunFigures, time_text

if TYPE_CHECKING:
    from mlhpc.submission.report.entry import Entry

_SQLITE = b"SQLite format 3\0"
_REFRAME_SCHEMA = "1.0"
"""The schema version of ReFrame 4.7 and later (reframe/frontend/reporting/storage.py)."""
_LARGEST_SESSION = 2**28


def all_records(path: Path, system: str | None) -> Iterator[HistoryRecord]:
    """The records of all results at ``path``, of whatever kind. Raises UserError if there are none."""
    if not path.exists():
        raise UserError(f"{path} does not exist; pass a run, a folder of runs, a tree of logs or a database")
    try:
        if path.is_file() and _begins(path) == _SQLITE:
            yield from reframe(path, system)
        elif path.is_file() and path.suffix == ".json":
            yield from json_records(path, system)
        elif path.is_file() and path.suffix == ".toml":
            yield node_record(path, system)
        else:
            own = list(records_below(path, system)) if path.is_dir() else []
            yield from own or mllog_sets(path, system)
    except ValidationError as error:
        raise UserError(f"{path} has values that are not valid in a record: {first_problem(error)}") from None


def _begins(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(len(_SQLITE))


def mllog_sets(path: Path, system: str | None) -> Iterator[HistoryRecord]:
    """A record for each set of runs of one configuration at or below ``path``. Raises UserError for a log that
    cannot be read."""
    from mlhpc.submission.report.measure import entries_of
    from mlhpc.submission.result_sets import result_sets

    for results in result_sets(path):
        starts = [record.time_ms for log in results.logs if (record := log.first("run_start"))]
        prints = sorted(filter(None, (log.fingerprint for log in results.logs)))
        for entry in entries_of(results):
            yield _set_record(entry, time_text(min(starts) / 1e3 if starts else None), prints, system)


def _set_record(entry: "Entry", when: str | None, prints: list[str], system: str | None) -> HistoryRecord:
    from mlhpc.submission.report.entry import OVER_CONVERGED, OVER_SCORED

    runs = (
        RunFigures(
            time_to_train_s=run.phases.total,
            time_to_train_without_staging_s=run.phases.total - run.phases.staging,
            epochs=run.epochs or None,
            epoch_s=run.phases.steady_epoch_s,
            samples_per_s=run.phases.train_rate,
            parts_s=run.phases.parts(),
            joules=whole_joules(run.energy),
            reached=entry.over in (OVER_SCORED, OVER_CONVERGED),
        )
        for run in entry.of_all.whole_runs
    )
    score = entry.score.minutes if entry.score else None
    return HistoryRecord(
        kind="result set",
        **same(entry, "benchmark", "preset", "division", "org", "machine", "nodes"),
        system=system or entry.system,
        when=when,
        status="scored" if score is not None else "not scored",
        accelerators=entry.scale if entry.unit == "accelerator" else 0,
        global_batch_size=entry.batch,
        runs=tuple(runs),
        figures={} if score is None else {"score_s": score * 60},
        versions=dict(entry.versions),
        content={"logs": prints, "notes": list(entry.notes), **same(entry, "software", "metric")},
    )


def reframe(path: Path, system: str | None) -> Iterator[HistoryRecord]:
    """A record for each test case in ReFrame's SQLite database that has performance values. Raises UserError if
    the database cannot be read."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            schema = (db.execute("SELECT schema_version FROM metadata").fetchone() or [_REFRAME_SCHEMA])[0]
            if schema != _REFRAME_SCHEMA:
                raise UserError(f"{path}: ReFrame schema {schema} is not supported, only {_REFRAME_SCHEMA}")
            sessions = "SELECT uuid, json_blob FROM sessions ORDER BY session_start_unix"
            for session, blob in db.execute(sessions):
                yield from _reframe_session(str(session), str(blob)[:_LARGEST_SESSION], system)
    except sqlite3.Error as error:
        raise UserError(f"{path}: not a readable ReFrame database ({error})") from None


def _reframe_session(session: str, blob: str, system: str | None) -> Iterator[HistoryRecord]:
    try:
        report = clean(parse_json(blob))
        for n, run in enumerate(report["runs"]):
            for m, case in enumerate(run["testcases"]):
                if record := _reframe_case(f"{session}:{n}:{m}", case, system):
                    yield record
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        name = printable(session)[:40]
        raise UserError(f"ReFrame session {name} cannot be read ({error!r:.100})") from None


def _reframe_case(uuid: str, case: dict[str, Any], system: str | None) -> HistoryRecord | None:
    """The record of a test case; None for a case without performance values. ``perfvalues`` maps
    ``system:partition:name`` to a list that begins with the value and its reference and ends with the unit, such
    as ``s``."""
    figures: dict[str, float] = {}
    for name, (value, *_, unit) in (case.get("perfvalues") or {}).items():
        key = f"{name.rpartition(':')[2]}_{unit}".replace("/", "_per_").replace("%", "percent")
        if isinstance(value, int | float):
            figures[key] = float(value)
    if not figures:
        return None
    total, result = figures.get("time_to_train_s"), str(case.get("result"))
    return HistoryRecord(
        kind="reframe",
        benchmark="".join(c if c.isalnum() or c in "_.+-" else "_" for c in str(case["name"]))[:100],
        system=system or f"{case.get('system')}:{case.get('partition')}",
        when=time_text(case.get("job_completion_time_unix")),
        status=result,
        runs=(RunFigures(time_to_train_s=total, reached=result == "pass"),),
        figures=figures,
        content={"reframe": uuid, "environ": case.get("environ"), "nodes": case.get("job_nodelist")},
    )
