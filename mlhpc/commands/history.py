"""The command ``mlhpc history``: add, list, withdraw, annotate, export, compact, gate, page."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlhpc.commands.parser import Commands, Parser, add_command, add_json, print_help, print_json
from mlhpc.errors import UserError

SHOWN = 30
"""Number of rows shown in a terminal: the newest."""


def add(commands: Commands) -> None:
    history = add_command(commands, "history", print_help, "results over years: compare, gate, find changes")
    actions = history.add_subparsers(title="commands", metavar="", parser_class=Parser)
    adding = add_command(actions, "add", _add, "add runs, studies, published logs, ReFrame databases")
    adding.add_argument("path", type=Path, nargs="+", metavar="PATH", help="runs, folders, logs, databases")
    adding.add_argument("--system", metavar="NAME", help="system (default: the cluster, or the host)")
    listing = add_command(actions, "list", _list, "list records, the newest last")
    _add_where(listing)
    listing.add_flag("--withdrawn", "also list withdrawn records")
    listing.add_flag("--csv", "print CSV")
    add_json(listing)
    withdraw = add_command(
        actions, "withdraw", _withdraw, "withdraw a record: it is kept, but no longer counts"
    )
    withdraw.add_argument("name", metavar="NAME", help="the record's name, or the beginning of it")
    withdraw.add_argument("--reason", required=True, metavar="TEXT", help="why")
    annotate = add_command(actions, "annotate", _annotate, "note an event, such as maintenance")
    annotate.add_argument("text", metavar="TEXT", help="what happened")
    annotate.add_argument("--system", required=True, metavar="NAME", help="the system")
    annotate.add_argument("--when", metavar="DATE", help="date in ISO 8601 (default: now)")
    export = add_command(actions, "export", _export, "copy records without the names of hosts and users")
    export.add_folder("--out", "a new store", required=True)
    _add_where(export)
    compact = add_command(actions, "compact", _compact, "pack the records of past years, one file per year")
    compact.add_count("--before", "pack years before this one (default: the current)", metavar="YEAR")
    gate = add_command(actions, "gate", _gate, "test new runs: 0 passed, 1 slower, 3 undecided")
    gate.add_argument("runs", nargs="*", metavar="RUN", help="folders, record names, or selections")
    gate.add_argument("--baseline", metavar="SELECTION|NAME", help="records, such as when>=2026-01,nodes=4")
    gate.add_argument("--tolerance", default="5%", metavar="SHARE", help="slowdown to accept (default: 5%%)")
    gate.add_argument("--system", help="system of the run folders (default: as for history add)")
    gate.add_argument("--rules", type=Path, metavar="FILE.toml", help="TOML file of metrics and tolerances")
    gate.add_flag("--nodes", "compare each node's newest machine file with all others of its model")
    add_json(gate)
    page = add_command(actions, "page", _page, "write a page on a system: time series, changes, causes")
    page.add_argument("system", metavar="SYSTEM", help="the system")
    page.add_out_file(".html", "the page", required=True)
    _add_where(page)
    for action in actions.choices.values():
        action.add_folder("--store", "folder of the history (default: $MLHPC_HISTORY)")


def _add_where(parser: Parser) -> None:
    parser.add_repeatable("--where", "KEY=VALUE", "select records by = != < <= > >=, * in text, or last=N")


def _store(options: argparse.Namespace) -> Path:
    store = options.store or os.environ.get("MLHPC_HISTORY")
    if not store:
        raise UserError("no store named; pass --store DIR, or set MLHPC_HISTORY")
    return Path(store)


def _where(options: argparse.Namespace) -> list[str]:
    from mlhpc.history.index import conditions

    return [each for text in options.where for each in conditions(text)]


def _add(options: argparse.Namespace) -> int:
    from mlhpc.history.importing import all_records
    from mlhpc.history.store import put
    from mlhpc.quantities import count

    store = _store(options)
    new = seen = 0
    for path in options.path:
        for record in all_records(path, options.system):
            name, is_new = put(store, record)
            new, seen = new + is_new, seen + 1
            known = "" if is_new else "(there already)"
            print(name[:12], record.kind, record.benchmark or "", known, flush=True)
    print(f"{store}: {seen} read, {count(new, 'new record')} added")
    return 0


def _list(options: argparse.Namespace) -> int:
    from mlhpc.history.index import opened

    if options.csv and options.json:
        raise UserError("--csv cannot be combined with --json")
    with opened(_store(options)) as index:
        rows = index.rows(_where(options), withdrawn=options.withdrawn)
    if options.json:
        print_json("history list", {}, rows)
    elif options.csv:
        _print_csv(rows)
    else:
        from rich.console import Console

        from mlhpc.history.tables import print_rows

        print_rows([json.loads(row) for row in rows[-SHOWN:]], len(rows), Console())
    return 0


def _print_csv(rows: Sequence[str]) -> None:
    from mlhpc.common.pages.blocks import csv_text

    records: list[dict[str, Any]] = [json.loads(row) for row in rows]
    head = list(dict.fromkeys(key for each in records for key in each))
    sys.stdout.write(csv_text(head, ([each.get(key) for key in head] for each in records)))


def _withdraw(options: argparse.Namespace) -> int:
    from mlhpc.history.notes import withdraw

    print(withdraw(_store(options), options.name, options.reason))
    return 0


def _annotate(options: argparse.Namespace) -> int:
    from mlhpc.history.notes import annotate

    print(annotate(_store(options), options.system, options.text, options.when))
    return 0


def _export(options: argparse.Namespace) -> int:
    from mlhpc.history.notes import export

    print(export(_store(options), _where(options), options.out))
    return 0


def _compact(options: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from mlhpc.history.index import opened
    from mlhpc.history.store import compact
    from mlhpc.quantities import count

    store = _store(options)
    with opened(store) as index:
        years = index.years()
    records, files = compact(store, years, (options.before or datetime.now(UTC).year) - 1)
    print(f"packed {count(records, 'record')} from {count(files, 'file')} into one file per year")
    return 0


def _gate(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from mlhpc.history.gate import gate
    from mlhpc.history.gating import baseline_of, measured, rules_of, tolerance_of
    from mlhpc.history.health import health
    from mlhpc.history.index import opened

    if not options.nodes and not (options.runs and options.baseline):
        raise UserError("nothing to compare; pass runs and --baseline, or --nodes")
    with opened(_store(options)) as index:
        if options.nodes:
            result = health(index.measured(["kind=node"]), tolerance_of(options.tolerance))
        else:
            rules = rules_of(options.rules, options.tolerance)
            new = [pair for text in options.runs for pair in measured(index, text, options.system)]
            result = gate(new, baseline_of(index, options.baseline, new), rules)
    if options.json:
        print_json("history gate", {"status": result.status, **asdict(result), "moved": dict(result.moved)})
    else:
        from rich.console import Console

        from mlhpc.history.tables import print_gate

        print_gate(result, Console())
    return result.status


def _page(options: argparse.Namespace) -> int:
    from mlhpc.common.pages.html import write
    from mlhpc.history.page import page

    html, alarms = page(_store(options), options.system, _where(options), options.out.parent)
    write(options.out, html)
    print(*alarms, options.out, sep="\n")
    return 1 if alarms else 0
