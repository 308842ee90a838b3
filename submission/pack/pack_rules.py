"""Rules for packing runs: the system description, a single configuration per set, MLPerf's target, and the sources
of the runs."""

import getpass
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.common.host.provenance import commit
from mlhpc.errors import shown
from mlhpc.record.run_directory import RunDirectory, read
from mlhpc.submission.pack import implementation
from mlhpc.submission.pack.leaks import Names
from mlhpc.submission.result_set import ResultSet
from mlhpc.submission.score.score import score_rules
from mlhpc.submission.score.set_score import has_own_target
from mlhpc.submission.system.description import OPTIONAL, REQUIRED


def runs_of(results: ResultSet) -> list[RunDirectory]:
    """The run folders of a set, each read from disk; empty for a set of bare logs."""
    return [read(run) for run in results.runs]


def _spatial(fields: dict[str, Any], path: Path, sets: Sequence[ResultSet]) -> Iterator[Finding]:
    """A finding if samples were divided among ranks but the system description does not say so."""
    configured = [run.config for results in sets for run in runs_of(results) if run.config]
    cuts = [cut for config in configured if prod(cut := getattr(config.training, "spatial", ())) > 1]
    notes = f"{fields.get('hw_notes', '')} {fields.get('sw_notes', '')}"
    if cuts and "spatial" not in notes.lower():
        remedy = f"mlhpc doctor --system --set sw_notes='spatial parallelism {list(cuts[0])}', or by hand"
        actual = f"nothing, but runs have training.spatial={list(cuts[0])}"
        yield Finding("pack/system", "warning", path.name, "spatial parallelism in sw_notes", actual, remedy)


def about_system(
    fields: dict[str, Any], path: Path, org: str, sets: Sequence[ResultSet]
) -> Iterator[Finding]:
    """Findings on missing fields of the system description, and on differences between description and logs."""

    def finding(severity: Severity, expected: str, actual: str, remedy: str) -> Finding:
        return Finding("pack/system", severity, path.name, expected, actual, remedy)

    names = (*REQUIRED, *OPTIONAL)
    fill = "fill them in: mlhpc doctor --system --set FIELD=VALUE, or by hand"
    if missing := [key for key in names if key not in fields]:
        yield finding("error", "every field of a description", f"without {', '.join(missing)}", fill)
    if empty := [key for key in REQUIRED if key in fields and not fields[key]]:
        expected = "a value in fields required by the rules"
        yield finding("warning", expected, f"empty: {', '.join(empty)}", fill)
    no_text = [
        key for key in names if not isinstance(fields.get(key, ""), str) and key != "other_software_stack"
    ]
    if no_text:
        remedy = "quote them: the official tools join the fields as text"
        yield finding("error", "text", ", ".join(f"{key} = {shown(fields[key])}" for key in no_text), remedy)
    if fields.get("submitter") not in (org, None, ""):
        remedy = "use the same name in --org and in the file"
        yield finding("warning", f"submitter {org}", str(fields["submitter"]), remedy)
    orgs = {str(log.value("submission_org")) for results in sets for log in results.condensed} - {org}
    if orgs:
        remedy = "run with --set submission.org=…; logs may not be edited, and a reviewer sees both names"
        actual = ", ".join(sorted(orgs))
        yield Finding("pack/org", "warning", "logs", f"submission_org {org}", actual, remedy)
    yield from _spatial(fields, path, sets)
    for key in ("accelerators", "processors"):
        of_sets = ((results.ran_on(log).get(key) for log in results.condensed) for results in sets)
        if len(models := {next(filter(None, models), "") for models in of_sets} - {""}) > 1:
            remedy = "pack the sets of each machine separately, each with its own description"
            yield finding("error", f"the same {key} in all sets", " and ".join(sorted(models)), remedy)
    for results in sets:
        divisions = sorted({str(log.value("submission_division")) for log in results.condensed})
        if divisions != [fields.get("division")]:
            expected = f"division {' and '.join(divisions)}, as in the logs of {results.benchmark}"
            remedy = "submit closed and open results separately, each with its own description"
            yield finding("error", expected, str(fields.get("division") or "none"), remedy)


def one_data_format(results: ResultSet) -> Iterator[Finding]:
    """Findings on runs of a set that read data in different formats, and a warning for the reviewer about a lossy
    format."""
    formats = {str(run.result.data) for run in runs_of(results) if run.result and run.result.data}
    if len(formats) > 1:
        remedy = "all runs of a score must read the same data set: pack the others separately"
        expected = "one format of the data set"
        yield Finding("pack/codec", "error", "result.json", expected, "; ".join(sorted(formats)), remedy)
    for label in sorted(formats):
        if "lossy" in label:
            remedy = "allowed in the open division; state it in the description"
            expected = "lossless data"
            yield Finding("pack/codec", "warning", "result.json", expected, f"data by {label}", remedy)


def own_target(results: ResultSet) -> Iterator[Finding]:
    """A finding on runs that do not have the official target. A submission requires it, although the official
    checker does not in the open division of some benchmarks."""
    rules = score_rules(results.benchmark)
    if has_own_target(results) and results.target and rules:
        official = rules[0]
        remedy = "a submission requires MLPerf's target: run the preset closed or open"
        expected = f"runs to the target {official.metric} {official.value:g}"
        actual = f"runs of preset {results.preset!r}, to {results.target.value:g}"
        yield Finding("pack/target", "error", f"{results.path.name}/", expected, actual, remedy)


def about_sources(sets: Sequence[ResultSet]) -> Iterator[Finding]:
    """A finding if the packed sources are not those that the runs used."""
    packed = commit()
    envs = [run.env for results in sets for run in runs_of(results)]
    commits = sorted({str(env.commit) for env in envs})
    changed = any(env.dirty for env in envs) or bool(packed["dirty"])
    if envs and commits == [str(packed["commit"])] and not changed:
        return
    actual, remedy = (
        "only logs, which do not contain the commit",
        "put the sources of the runs into implementations/",
    )
    if envs:
        actual = f"runs at {', '.join(c[:12] for c in commits)}, packed at {str(packed['commit'])[:12]}"
        actual += ", with uncommitted changes" * changed
        remedy = "check out the commit of the runs, and pack from there"
    expected = "the sources of the runs"
    yield Finding(
        "pack/sources", "warning", f"implementations/{implementation.name()}", expected, actual, remedy
    )


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with equal findings on several runs merged into one, which names the first place and the
    number of further places."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        places.setdefault(replace(finding, where=""), []).append(finding.where)
    return [replace(finding, where=f"{where[0]}{_more(len(where) - 1)}") for finding, where in places.items()]


def _more(count: int) -> str:
    return f" and {count} more place{'s' * (count > 1)}" if count else ""


def names_of(sets: Sequence[ResultSet]) -> Names:
    """The names of hosts and users in the runs and on this machine, which a submission should not publish."""
    envs = [run.env for results in sets for run in runs_of(results)]
    hosts = {node.hostname for env in envs for node in (env, *env.nodes)}
    try:
        users = {getpass.getuser()}
    except (KeyError, OSError):  # a container's user may have no name
        users = set()
    named = {str(host) for host in (*hosts, socket.gethostname()) if host}
    return Names(frozenset(named | {host.partition(".")[0] for host in named}), frozenset(users))
