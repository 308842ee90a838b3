"""Packs runs into a submission tree with the official layout.

Layout (MLPerf submission rules, "Directory structure", HPC and Training)::

    <org>/systems/<system>.json
    <org>/benchmarks/<benchmark>/implementations/mlhpc-<version>/…, <system>/README.md, setup.sh, …
    <org>/results/<system>/strong|weak/<benchmark>/result_<i>.txt       HPC
    <org>/results/<system>/weak/<benchmark>/pruned_results/…            HPC, throughput
    <org>/results/<system>/resnet/result_<i>.txt                        Training

Run folders are not modified. The tree is built in a temporary folder, checked (every run, every set with the
official package checker, names and secrets), and renamed to its final name if there are no errors.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.findings import Finding
from mlhpc.common.files.filesystem import require_new
from mlhpc.errors import UserError, shown
from mlhpc.quantities import count
from mlhpc.submission.check import official
from mlhpc.submission.check.check import check_set
from mlhpc.submission.check.rulesets import RULESETS, exist, rules_of
from mlhpc.submission.findings import passes
from mlhpc.submission.pack import implementation
from mlhpc.submission.pack.archive import CHECKSUMS, NAME, aside, move, write_archive
from mlhpc.submission.pack.leaks import leaks
from mlhpc.submission.pack.pack_rules import (
    about_sources,
    about_system,
    merged,
    names_of,
    one_data_format,
    own_target,
    runs_of,
)
from mlhpc.submission.result_set import PRUNED, Metric, ResultSet
from mlhpc.submission.result_sets import result_sets
from mlhpc.submission.score.score import Weak
from mlhpc.submission.score.set_score import has_own_target, score_set
from mlhpc.submission.system.description import read

LONGEST_NAME = 120
"""Maximum bytes of a name that is used as the name of a folder and in a file name; file systems allow 255."""


@dataclass(frozen=True)
class Packed:
    """The result of packing. ``archive`` and ``tree`` are None if there were errors. ``sets``: one line for each
    set of results, with its score. ``rules``: the rules that the official checkers applied, such as
    ``hpc_2.0.0``."""

    tree: Path | None
    archive: Path | None
    findings: list[Finding]
    sets: list[str]
    rules: str


def pack(
    paths: Sequence[Path],
    *,
    org: str,
    system_file: Path,
    out: Path,
    ruleset: str | None = None,
    weak: Sequence[Path] = (),
    prune: Sequence[Path] = (),
    despite_errors: bool = False,
) -> Packed:
    """Pack ``paths`` (run folders, campaigns, logs) as ``out/<org>`` and ``out/<org>.tar.gz``.

    Instances for the throughput metric are the runs in ``weak`` and the runs of throughput campaigns. Instances in
    ``prune``, and all but the first instance with the same seed, are put into ``pruned_results``; instances that
    did not converge are left out, since pruned logs must comply (MLPerf HPC training rules 3.0, "Throughput"). If
    there are errors, nothing is written, unless ``despite_errors``.

    Raises:
        UserError: a path contains no run, ``out`` already contains this submission, or HPC and Training are mixed.
    """
    _require_request(org, out, ruleset)
    fields = read(system_file)
    name = _system_name(fields, system_file)
    sets, left_out = _throughput_chosen(_sources(paths, weak), prune)
    _require_one_usage(sets, ruleset)
    rules = rules_of(sets[0].benchmark, ruleset)
    findings = [*about_system(fields, system_file, org, sets), *about_sources(sets), *left_out]
    for results in sets:
        # Seeds are also checked by package_checker, below.
        checked = check_set(results, ruleset).findings
        findings += [f for f in checked if not f.source.endswith("seed_checker")]
        findings += [*one_data_format(results), *own_target(results)]
    with aside(out) as part:
        tree = part / org
        _build(tree, name, fields, sets, ruleset)
        findings += leaks(tree, names_of(sets))
        for packed in result_sets(tree):
            problems = [
                *packed.problems,
                *official.package_findings(packed, rules_of(packed.benchmark, ruleset)),
            ]
            findings += [replace(f, where=f.where.replace(f"{part}/", "")) for f in problems]
        findings = merged(findings)
        lines = [_scored(replace(results, system_json=fields)) for results in sets]
        if not passes(findings) and not despite_errors:
            return Packed(None, None, findings, lines, rules)
        archive = write_archive(part, org)
        move(part, out, org, archive.name, f"{org}{CHECKSUMS}")
    return Packed(out / org, out / archive.name, findings, lines, rules)


def _require_request(org: str, out: Path, ruleset: str | None) -> None:
    _require_name(org)
    if ruleset is not None and ruleset not in RULESETS:
        raise UserError(f"no ruleset {ruleset!r}; choose from {', '.join(RULESETS)}")
    for target in (out / org, out / f"{org}.tar.gz", out / f"{org}{CHECKSUMS}"):
        require_new(target)


# What is packed ---------------------------------------------------------------------------------------------


def _sources(paths: Sequence[Path], weak: Sequence[Path]) -> list[ResultSet]:
    """The sets to pack, one per benchmark and metric, made of all runs in ``paths`` and ``weak``."""
    groups: dict[tuple[str, Metric], list[ResultSet]] = {}
    sources: dict[Path, Path] = {}
    for path in (*paths, *weak):
        for results in result_sets(path):
            if results.is_tree:
                raise UserError(f"{path} is already a submission tree; check it with mlhpc check")
            for log in results.log_paths:
                if earlier := sources.get(log.resolve()):
                    raise UserError(f"{log} is listed twice, in {earlier} and {path}; list every run once")
                sources[log.resolve()] = path
            metric: Metric = "weak" if path in weak else results.metric
            groups.setdefault((results.benchmark, metric), []).append(results)
    if not sources:
        raise UserError(f"{', '.join(map(str, paths))}: no log to pack; pass the --out folders of runs")
    return [_together(sets, metric) for (_, metric), sets in groups.items()]


def _together(sets: Sequence[ResultSet], metric: Metric) -> ResultSet:
    """Combine several sets into one. Raises UserError for a mixture of run folders and bare logs."""
    if len({bool(results.runs) for results in sets}) > 1:
        raise UserError(f"{sets[0].path}: run folders and log files cannot be packed together")
    return replace(
        sets[0],
        path=sets[0].path if len(sets) == 1 else sets[0].path.parent,
        metric=metric,
        log_paths=tuple(log for results in sets for log in results.log_paths),
        runs=tuple(run for results in sets for run in results.runs),
        problems=tuple(problem for results in sets for problem in results.problems),
    )


def _throughput_chosen(
    sets: Sequence[ResultSet], prune: Sequence[Path]
) -> tuple[list[ResultSet], list[Finding]]:
    """The sets with pruned instances separated from the others, and findings on instances that are left out."""
    pruned = {path.resolve() for path in prune}
    packed = {p.resolve() for results in sets for p in (*results.log_paths, *results.runs)}
    if pruned - packed:
        raise UserError(f"--prune {sorted(pruned - packed)[0]} is not one of the packed runs")
    chosen, findings = [], []
    for results in sets:
        if results.metric == "strong":
            chosen.append(results)
            continue
        paths_of_set = [p for p in results.log_paths if not {p.resolve(), p.parent.resolve()} & pruned]
        scored = score_set(replace(results, log_paths=tuple(paths_of_set))).runs
        dropped = {run.path: run for run in scored if run.dropped}
        failed = [path for path, run in dropped.items() if not run.converged]
        kept = [path for path in paths_of_set if path not in dropped]
        chosen.append(
            replace(
                results,
                log_paths=tuple(kept),
                pruned_paths=tuple(p for p in results.log_paths if p not in kept and p not in failed),
                runs=tuple(run for run in results.runs if run / "run.log" in kept),
            )
        )
        findings += [
            Finding("pack/left-out", "warning", str(path), "an instance that converged", dropped[path].why,
                    "not packed, because pruned logs must also comply")
            for path in failed
        ]  # fmt: skip
        # The time of such an instance is unknown: excluding it must be the submitter's decision.
        findings += [
            Finding("pack/left-out", "warning" if run.resolve() in pruned else "error", str(run),
                    "the log of every instance", "run.log is missing",
                    "not packed, because of --prune" if run.resolve() in pruned
                    else "restore the log, or exclude the instance with --prune")
            for run in results.runs if run / "run.log" not in results.log_paths
        ]  # fmt: skip
    without_strong = {r.benchmark for r in sets} - {r.benchmark for r in sets if r.metric == "strong"}
    findings += [
        Finding("pack/throughput", "warning", benchmark, "a time to solution in addition to throughput", "none",
                "pack both: throughput may not be reported alone (MLPerf HPC training rules 3.0)")
        for benchmark in sorted(without_strong)
    ]  # fmt: skip
    return chosen, findings


def _require_name(org: str) -> None:
    if not NAME.fullmatch(org) or len(org.encode()) > LONGEST_NAME:
        raise UserError(
            f"--org {shown(org)} must have at most {LONGEST_NAME} characters: letters, digits, spaces, . _ + -"
        )


def _system_name(fields: dict[str, Any], path: Path) -> str:
    """The folder name of a system: its name, with ``_`` instead of characters that are not allowed in a folder
    name."""
    name = re.sub(r"[^\w.+-]+", "_", str(fields.get("system_name", "")).strip()).strip("._")
    if not name:
        raise UserError(f"{path} has no system_name; fill it in (mlhpc doctor --system --set system_name=…)")
    if len(name.encode()) > LONGEST_NAME:
        raise UserError(
            f"{path}: system_name exceeds {LONGEST_NAME} bytes, too long for a folder name; shorten it"
        )
    return name


def _require_one_usage(sets: Sequence[ResultSet], ruleset: str | None) -> None:
    benchmarks = sorted({results.benchmark for results in sets})
    for benchmark in benchmarks:
        entry = registry.find_logged(benchmark)
        if entry is None or entry.mlperf_name is None:
            names = ", ".join(b.mlperf_name for b in registry.benchmarks().values() if b.mlperf_name)
            raise UserError(
                f"{benchmark or 'an unknown benchmark'} cannot be submitted; benchmarks are {names}"
            )
    for rules in {rules_of(benchmark, ruleset) for benchmark in benchmarks}:
        if not exist(rules):
            raise UserError(f"no rules {rules.replace('_', ' ')} in mlperf-logging; choose another --ruleset")
    if len({rules_of(benchmark, ruleset).split("_")[0] for benchmark in benchmarks}) > 1:
        raise UserError(
            f"{' and '.join(benchmarks)} belong to different suites, HPC and Training; pack them separately"
        )
    if any(r.metric == "weak" and rules_of(r.benchmark, ruleset).startswith("training_") for r in sets):
        raise UserError("Training has no throughput metric; omit --weak")


def _build(
    tree: Path, name: str, fields: dict[str, Any], sets: Sequence[ResultSet], ruleset: str | None
) -> None:
    (tree / "systems").mkdir(parents=True)
    text = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    (tree / "systems" / f"{name}.json").write_text(text, "utf-8")
    for results in sets:
        hpc = rules_of(results.benchmark, ruleset).startswith("hpc_")
        folder = tree / "results" / name / (results.metric if hpc else "") / results.benchmark
        for logs, where in ((results.log_paths, folder), (results.pruned_paths, folder / PRUNED)):
            for number, log in enumerate(logs, 1):
                where.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, where / f"result_{number}.txt")
    for benchmark in sorted({results.benchmark for results in sets}):
        implementations = tree / "benchmarks" / benchmark / "implementations"
        runs = {results.metric: runs_of(results) for results in sets if results.benchmark == benchmark}
        weak = runs.get("weak", [])
        implementation.copy_sources(implementations / implementation.name())
        implementation.write_scripts(implementations / name, benchmark, name, runs.get("strong", weak), weak)


def _scored(results: ResultSet) -> str:
    """A line about the set, with its score or the reason why there is none."""
    kept, left = len(results.log_paths), len(results.pruned_paths)
    head = f"{results.benchmark} {results.metric}: {count(kept, 'result')}" + (
        f", {left} pruned" if left else ""
    )
    own = ", with its own target: not an MLPerf result" * has_own_target(results)
    score = score_set(results)
    if score.minutes is None:
        return f"{head}; no score: {score.why}{own}"
    if isinstance(score, Weak):
        return f"{head}; (T, S, M', TTTa) = ({score.T}, {score.S}, {score.M}, {score.minutes:.4f} min){own}"
    return f"{head}; {score.minutes:.4f} min{own}"
