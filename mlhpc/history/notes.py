"""Changes that people make to a history: they withdraw records and annotate events, both by adding records, and
export copies without names of hosts and users."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlhpc.errors import UserError
from mlhpc.history.index import opened
from mlhpc.history.store import contents, files, put
from mlhpc.quantities import count
from mlhpc.record.environment import without_number
from mlhpc.record.history import HistoryRecord, time_text

_PRIVATE = frozenset({"command", "data", "variables", "job", "org", "submission", "stage", "nodes_of"})
"""Keys that are omitted from the content of exported records, because any part of their values may contain
names."""
_HOSTS = frozenset({"hostname", "host", "node"})


def withdraw(store: Path, prefix: str, reason: str) -> str:
    """Withdraw the record whose name begins with ``prefix``, and return a confirmation in one line. Raises
    UserError unless there is exactly one, or if the store cannot be written."""
    with opened(store, quiet=True) as index:
        name = index.name_of(prefix)
    now = time_text(datetime.now(UTC).isoformat())
    put(store, HistoryRecord(kind="withdrawal", of=name, text=reason, when=now))
    return f"{name[:12]} withdrawn: {reason}"


def annotate(store: Path, system: str, text: str, when: str | None) -> str:
    """Record an event on ``system`` and return a confirmation in one line. Raises UserError for an invalid date,
    or if the store cannot be written."""
    at = time_text(when or datetime.now(UTC).isoformat())
    if at is None:
        raise UserError(
            f"--when {when} is not a date; write one such as 2026-11-26 or 2026-11-26T14:30:00+01:00"
        )
    name, _ = put(store, HistoryRecord(kind="annotation", system=system, text=text, when=at))
    return f"{name[:12]} {at} {system}: {text}"


def export(store: Path, where: Sequence[str], out: Path) -> str:
    """Copy the selected records to the new store ``out`` without the names of hosts and users: hosts are numbered,
    and paths, commands and environment variables are omitted. Returns a confirmation in one line. Raises UserError
    if ``out`` is not empty."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; choose a new folder")
    with opened(store) as index:
        chosen = {json.loads(row)["name"] for row in index.rows(where)}
    hosts: dict[str, str] = {}
    records: dict[str, Any] = {}
    for file in sorted(files(store)):
        for name, data in contents(store, file):
            if name in chosen and isinstance(data, bytes):
                records[name] = _stripped(json.loads(data), hosts)
    bases = sorted({str(without_number(host)) for host in hosts})
    systems = {base: f"system{number}" for number, base in enumerate(bases, 1)}
    for record in records.values():
        put(out, _without_names(record, hosts, systems))
    return f"{count(len(records), 'record')} in {out}, without names of hosts and users"


def _without_names(record: dict[str, Any], hosts: dict[str, str], systems: dict[str, str]) -> HistoryRecord:
    if record.get("system") in systems:
        record["system"] = systems[record["system"]]
    text = json.dumps(record)
    for host in sorted(hosts, key=len, reverse=True):  # also within longer texts
        text = re.sub(rf"(?<![\w.-]){re.escape(json.dumps(host)[1:-1])}(?![\w-])", hosts[host], text)
    return HistoryRecord.model_validate_json(text)


def _stripped(value: Any, hosts: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_stripped(each, hosts) for each in value]
    if not isinstance(value, dict):
        return "(path)" if isinstance(value, str) and value.startswith(("/", "~")) else value
    kept = {}
    for key, each in value.items():
        if key in _PRIVATE and not (key == "data" and not isinstance(each, str)):  # data: a table or version
            continue
        named = key in _HOSTS and isinstance(each, str)
        kept[key] = hosts.setdefault(each, f"node{len(hosts) + 1}") if named else _stripped(each, hosts)
    return kept
