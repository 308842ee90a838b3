"""``mlhpc report``: shows one run, or a comparison of many, as tables in the terminal and as one HTML page."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.findings import Finding
from mlhpc.common.files.filesystem import require_new
from mlhpc.common.pages.html import write
from mlhpc.common.pages.terminal import print_facts, print_table
from mlhpc.errors import UserError
from mlhpc.perf.machines import machine as find_machine
from mlhpc.perf.what_if import Change, what_if
from mlhpc.quantities import bytes_text, count, digits, duration_text
from mlhpc.record.energy import energy_line, in_order
from mlhpc.record.environment import packages_of
from mlhpc.record.progress import Follower
from mlhpc.record.run_directory import RunDirectory, read, running
from mlhpc.submission.check.check import check_run
from mlhpc.submission.findings import passes, verdict
from mlhpc.submission.report.compare import compare
from mlhpc.submission.report.compare_page import page as comparison_page
from mlhpc.submission.report.compare_table import print_comparison, text
from mlhpc.submission.report.predicted import Beside, beside, predicted_table, what_if_table
from mlhpc.submission.report.run_page import breakdown_table, page
from mlhpc.submission.report.summary import (
    commit,
    data_rate,
    memory_text,
    no_score,
    parts,
    place,
    progress_facts,
    quality,
    rules_text,
    slow_epochs,
    slow_ranks,
    standing,
)

_PROBLEMS_SHOWN = 20


def report_on(
    paths: Sequence[Path],
    console: Console,
    out: Path | None = None,
    configurations: Sequence[tuple[int, int | None]] = (),
    machine: str | None = None,
    change: Change | None = None,
) -> Path | None:
    """For one run folder, :func:`report`; otherwise a comparison of all sets of runs below ``paths``, printed and,
    if ``out`` is set, written to that file. ``configurations``: the configurations to predict, as pairs (compute
    units, global batch size or None). For a single run, ``machine`` is the machine for which to predict the run,
    and ``change`` a change for which to recompute its time.

    Returns the path of the page; None if none was written. The page of a single run is written even if the
    terminal output is closed early.

    Raises:
        UserError: there are no runs; the page cannot be written, already exists, or would be among the
            logs.
    """
    first = paths[0]
    if len(paths) == 1 and ((first / "run.log").is_file() or (first / "result.json").is_file()):
        if configurations:
            raise UserError(
                "--predict requires several runs; pass the folder that contains them, or several paths"
            )
        return report(first, console, out=out, machine=machine, change=change)
    if machine or change:
        raise UserError(f"--{'machine' if machine else 'what-if'} requires a single run; pass its folder")
    if out:
        _refuse_inside(out, paths)
        require_new(out)
    comparison = compare(paths, configurations)
    if out:
        write(out, comparison_page(comparison))
    print_comparison(comparison, console)
    return out


def report(
    run_dir: Path,
    console: Console,
    ruleset: str | None = None,
    out: Path | None = None,
    machine: str | None = None,
    change: Change | None = None,
) -> Path:
    """Print a run, write its page to ``out`` (default: ``report.html`` in the run's folder), and return the path
    of the page.

    A run that was resumed, missed its target or does not pass the check gets no score.

    Raises:
        UserError: ``run_dir`` is not a run folder, or the page cannot be written.
    """
    run = read(run_dir)
    findings = [] if running(run) else check_run(run, ruleset)
    out = out or run_dir / "report.html"
    predicted = beside(run, find_machine(machine)) if machine else None
    changed = what_if(run, change) if change else None
    try:
        _print(run, findings, ruleset, console)
        if changed:
            print_table(what_if_table(changed), console)
            for note in changed.notes:
                console.print(text(note, "dim"))
        if predicted:
            _print_predicted(predicted, console)
        console.file.flush()  # print first: drawing the page takes seconds
    finally:  # even if the terminal output was closed
        write(out, page(run, findings, ruleset, predicted, changed))
    return out


def _refuse_inside(out: Path, paths: Sequence[Path]) -> None:
    """Raise UserError if ``out`` lies inside ``paths``: submission trees are only read, and a page among the
    user's logs would be packed with them."""
    folder = out.resolve().parent
    for path in paths:
        if path.is_dir() and (folder == path.resolve() or path.resolve() in folder.parents):
            raise UserError(f"{out} is inside {path}, one of the input folders; choose another --out")


def _print(run: RunDirectory, findings: Sequence[Finding], ruleset: str | None, console: Console) -> None:
    result = run.result
    reasons = no_score(run, findings)
    title = registry.title(run.benchmark) + (f", preset {run.preset}" if run.preset else "")
    console.print(text(title, "bold"))
    console.print(text(standing(run)))
    for name, problem in () if running(run) else run.problems[:_PROBLEMS_SHOWN]:
        console.print(text(f"{name} {problem}", "yellow"))
    if breakdown := parts(run):
        print_table(breakdown_table(breakdown), console)
    facts = _facts(run)
    if reasons:
        facts = {"time to train": f"no score{' yet' * bool(running(run))}: " + "; ".join(reasons), **facts}
    elif result:
        both = duration_text(result.time_to_train_s), duration_text(result.time_to_train_without_staging_s)
        facts = {"time to train": f"{both[0]}; without staging {both[1]}", **facts}
    if running(run) and run.log:
        now = Follower(run.path).look()
        facts = {"running": place(now), **progress_facts(now), **facts}
    if not running(run):
        facts["check"] = f"{rules_text(run, ruleset)}: {verdict(findings)}"
    bad = {"time to train"} if reasons else set()
    bad |= set() if passes(findings) else {"check"}
    rows = ((text(key, "dim"), text(value, "bold red" * (key in bad))) for key, value in facts.items())
    print_facts(rows, console)


def _print_predicted(comparison: Beside, console: Console) -> None:
    console.print(text(f"predicted for {comparison.machine}", "bold"))
    print_table(predicted_table(comparison), console)
    console.print(text(comparison.words))
    for note in comparison.notes:
        console.print(text(note, "dim"))


def _facts(run: RunDirectory) -> dict[str, str]:
    result, env = run.result, run.env
    facts = {}
    if result:
        facts[result.target.label] = f"{quality(result.target)}, {count(len(result.epochs), 'epoch')}"
        if slow := slow_ranks(run):
            facts["data wait"] = slow
        if speed := result.samples_per_s:
            facts["throughput"] = f"{digits(speed)} samples/s, median epoch"
        if (read_rate := data_rate(run)) is not None:
            facts["data rate"] = f"{bytes_text(read_rate, '/s')}, median epoch"
        if staging := result.staging:
            speed_of = f", {bytes_text(staging.bytes / staging.seconds, '/s')}" if staging.seconds else ""
            took = f"{bytes_text(staging.bytes)} in {duration_text(staging.seconds)}{speed_of}"
            facts["staged"] = f"{count(staging.files, 'file')}, {took}"
        if energy := energy_line(result.energy, result.trained_samples):
            facts["energy"] = energy
        if (used := in_order(result.energy).get("accelerators")) and used.usage:
            facts["accelerators"] = used.usage_text
        if slow := slow_epochs(run):
            facts["slow epochs"] = slow
        on = "an unknown number of nodes" if result.nodes is None else count(result.nodes, "node")
        facts["ranks"] = f"{result.ranks} on {on}, launched by {result.launcher}"
        facts["seed"] = str(result.seed)
    if env.cpu:
        accelerators = ", ".join(env.accelerators) or "no accelerators"
        cores = count(env.cores, "core") if env.cores else "cores not known"
        facts["hardware"] = f"{env.cpu}, {cores}, memory {memory_text(env.memory_gib)}, {accelerators}"
    if of_commit := commit(env):
        facts["commit"] = of_commit
    if packages := packages_of(run.benchmark, run.framework, env.packages):
        facts["packages"] = ", ".join(f"{name} {version}" for name, version in packages.items())
    if env.date:
        facts["date"] = env.date
    return facts
