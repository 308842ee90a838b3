"""Prints the output of ``mlhpc check`` and ``mlhpc score``."""

from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mlhpc.common.energy.counters import NAMES
from mlhpc.common.files.untrusted import printable
from mlhpc.common.pages.blocks import Cell, Table, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.quantities import count, joules_text, minutes
from mlhpc.record.energy import measured_in
from mlhpc.submission.check.check import SetCheck, check_sets
from mlhpc.submission.check.official import rcp_verdict, summary
from mlhpc.submission.check.rulesets import exist, without_rules
from mlhpc.submission.findings import print_findings, verdict
from mlhpc.submission.result_set import ResultSet
from mlhpc.submission.score.rcp import Comparison
from mlhpc.submission.score.score import SHARED_COUNTERS, RunScore, Strong, Weak, has_shared_counters
from mlhpc.submission.score.set_score import (
    compare_set,
    division_of,
    energies_in_set,
    has_own_target,
    scored_joules,
    target_of,
)

METRIC = {"strong": "time to solution (strong)", "weak": "throughput (weak)"}


def print_check(path: Path, ruleset: str | None, console: Console) -> int:
    """Print the findings on every set at ``path``, and the verdicts. A set counts once, together with its copies.

    Returns the exit status of ``mlhpc check``: 0 if everything passes, 1 if there are unexpected findings.
    """
    sets = passed = copies = 0
    good = True
    for checked in check_sets(path, ruleset):
        results = checked.results
        good &= checked.passes
        copies += checked.copy_of is not None
        if checked.copy_of is None:
            sets += 1
            passed += checked.passes
        if results.is_tree or len(results.log_paths) > 1 or sets + copies > 1:
            _heading(results, console)
            console.print(Text(_compliance(checked), style="dim"))
        print_findings(checked.findings, console)
    if sets + copies > 1:
        repeated = f"; {copies} more {'are copies' if copies > 1 else 'is a copy'} of them" if copies else ""
        line = f"\n{passed} of {sets} sets pass{repeated}"
        console.print(Text(line, style="bold green" if good else "bold red"))
    return 0 if good else 1


def print_score(path: Path, ruleset: str | None, console: Console) -> int:
    """Print, for every set at ``path``, its score, the runs from which the score is computed, and the verdict of
    the check.

    Returns the exit status of ``mlhpc score``: 0 if every set has a score and passes its check, otherwise 1.
    """
    good = True
    for checked in check_sets(path, ruleset):
        _heading(checked.results, console)
        if checked.score.runs:
            print_table(_runs(checked), console)
        for line in _lines(checked):
            say(console, line)
        good &= checked.passes and checked.score.minutes is not None
    return 0 if good else 1


def _compliance(checked: SetCheck) -> str:
    """The number of logs that pass the official compliance checker, as text."""
    if checked.complying is None:
        why = without_rules(checked.results.benchmark, checked.rules)
        return f"no rules: {why}, so the compliance checker was not run"
    logs = len(checked.results.log_paths)
    text = f"compliance checker, {checked.rules}: {checked.complying} of {logs} logs pass"
    if checked.excused:
        preset = f"preset {checked.results.preset}" if checked.results.preset else "its preset"
        only = "the others fail" if checked.excused == logs - checked.complying else f"{checked.excused} fail"
        only = "all fail" if checked.excused == logs else only
        text += f" ({only} only because {preset} has a target of its own: expected, and not an MLPerf result)"
    return text


def _heading(results: ResultSet, console: Console) -> None:
    heading = [results.org, results.system, results.benchmark or "unknown benchmark"]
    heading += [f"preset {results.preset}"] if results.preset else []
    division = division_of(results)
    facts = [METRIC[results.metric], f"{division} division"] if division else [METRIC[results.metric]]
    title = printable(" · ".join([*filter(None, heading), *facts]))
    say(console, Text("\n" + title, style="bold"))
    say(console, Text(printable(str(results.path)), style="dim"))


def _runs(checked: SetCheck) -> Table:
    scored = checked.score.minutes is not None
    energy = energies_in_set(checked.score)
    measured = measured_in(energy.values())

    def joules(kind: str, run: RunScore) -> str:
        value = energy[run.path].get(kind)
        return joules_text(value.whole_joules) if value else ""

    return table(
        "runs",
        checked.score.runs,
        {
            "run": lambda run: _name(checked.results, run.path),
            "minutes": lambda run: minutes(run.seconds),
            "without staging": lambda run: minutes(run.without_staging_s),
            "epochs": lambda run: "" if run.epochs_to_target is None else str(run.epochs_to_target),
            **{f"energy of {NAMES[kind]}": partial(joules, kind) for kind in measured},
            "in the score": lambda run: _part(run, scored),
        },
        prose=(4 + len(measured),),
    )


def _name(results: ResultSet, path: Path) -> str:
    if path.name == "run.log":
        return path.parent.name
    return f"{path.parent.name}/{path.name}" if path in results.pruned_paths else path.name


def _part(run: RunScore, scored: bool) -> Cell:
    if not run.converged:
        return Cell(f"no: {run.why}", tone="error")
    return (
        Cell(f"no: {run.dropped}", tone="warning") if run.dropped else Cell("yes" if scored else "no score")
    )


def _lines(checked: SetCheck) -> list[Text]:
    results, score = checked.results, checked.score
    lines = [_score(score, checked.passes)]
    if isinstance(score, Strong) and score.mean is not None:
        lines.append(_spread(score))
    if joules := scored_joules(score):
        used = ", ".join(f"{NAMES[kind]} {joules_text(value)}" for kind, value in joules.items())
        lines.append(Text(f"energy of a training, mean of the runs in the score: {used}"))
    elif has_shared_counters(score):
        lines.append(Text(f"energy of a training: {SHARED_COUNTERS}"))
    if rule := target_of(results):
        own = "; not the target of MLPerf: not an MLPerf result" if has_own_target(results) else ""
        lines.append(Text(f"target: {rule[0].metric} {rule[0].value:g}{own}"))
    lines.append(Text(_compliance(checked)))
    if results.is_tree and results.system_json is not None and exist(checked.rules):
        official = summary(results, checked.rules)
        official_minutes = "no score" if official is None else f"{official:.4f} min"
        lines.append(Text(f"official result_summarizer, {checked.rules}: {official_minutes}"))
    if division_of(results) == "closed" and (comparison := compare_set(results, score, checked.rules)):
        lines += _comparison(comparison, checked)
    style = "bold green" if checked.passes else "bold red"
    rules = checked.rules if exist(checked.rules) else "no rules"
    lines.append(Text(f"check, {rules}: {verdict(checked.findings)}", style=style))
    return lines


def _score(score: Strong | Weak, valid: bool) -> Text:
    if score.minutes is None or score.without_staging_minutes is None:
        return Text(f"no score: {score.why}", style="bold red")
    times = f"{score.minutes:.4f} min, without staging {score.without_staging_minutes:.4f} min"
    if isinstance(score, Weak):
        times = f"(T, S, M', TTTa) = ({score.T}, {score.S}, {score.M}, {score.minutes:.4f} min)"
        times += f", without staging {score.without_staging_minutes:.4f} min"
    if valid:
        return Text(f"score: {times}", style="bold green")
    return Text(f"not a valid score, since the set does not pass its check: {times}", style="bold yellow")


def _spread(score: Strong) -> Text:
    converged = sum(run.converged for run in score.runs)
    line = f"{count(converged, 'converged run')}: mean {score.mean:.4f} min"
    if score.spread is not None and score.ci95 is not None:
        line += f", standard deviation {score.spread:.4f}"
        line += f", 95% interval of the mean {score.ci95[0]:.4f} to {score.ci95[1]:.4f}"
    return Text(line)


def _comparison(comparison: Comparison, checked: SetCheck) -> list[Text]:
    lines = []
    if comparison.epochs is None or comparison.bound is None:
        lines.append(Text(f"reference convergence, {checked.rules}: {comparison.why}"))
    else:
        points = " and ".join(
            f"{p.name} (batch size {p.batch_size}, {p.mean:.2f} ± {p.spread:.2f} epochs, {len(p.epochs)} runs)"
            for p in comparison.points
        )
        p_value = "" if comparison.p_value is None else f", p = {comparison.p_value:.3g}"
        side = "above" if comparison.passes else "below"
        lines.append(Text(f"reference convergence, {checked.rules}: {comparison.how}: {points}"))
        lines.append(
            Text(
                f"  {comparison.epochs:.2f} epochs against {comparison.reference:.2f}; at least "
                f"{comparison.bound:.2f} pass, {abs(comparison.distance or 0.0):.2f} {side} that{p_value}"
            )
        )
        if comparison.normalisation is not None and comparison.normalisation > 1:
            lines.append(Text(f"  a review may multiply the score by {comparison.normalisation:.4f}"))
    passes, message = rcp_verdict(checked.results, checked.rules)
    message = printable(message)
    lines.append(Text(f"official rcp_checker, {checked.rules}: {'passes' if passes else 'fails'}: {message}"))
    return lines
