"""``mlhpc report``: a run, or a comparison of many, told as a table, and as one page to hand on."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlhpc.benchmarks import registry
from mlhpc.common.files.atomic import write_bytes
from mlhpc.errors import UserError, count
from mlhpc.submission.check.check import check_run
from mlhpc.submission.logs.findings import STYLES, Finding, passes, verdict
from mlhpc.submission.logs.run_directory import RunDirectory, read
from mlhpc.submission.report.compare import Comparison, compare
from mlhpc.submission.report.compare_page import page as comparison_page
from mlhpc.submission.report.run_page import page
from mlhpc.submission.report.summary import (
    data_rates,
    duration,
    no_score,
    packages_of,
    parts,
    plain,
    quality,
    rate,
    rules_text,
    size,
    standing,
    throughput,
    whole,
)

_FINDINGS_SHOWN = 5


def report_on(
    paths: Sequence[Path],
    console: Console,
    out: Path | None = None,
    asked: Sequence[tuple[int, int | None]] = (),
) -> Path:
    """One run directory: :func:`report`. Else a comparison of all sets of runs below ``paths``, printed and
    written to ``out`` (``comparison.html`` in the current folder); returns that path. ``asked``:
    configurations to predict, (compute units, global batch size or None).

    Raises:
        UserError: there is nothing to report on, or the page cannot be written, or would lie among the logs.
    """
    first = paths[0]
    if len(paths) == 1 and ((first / "run.log").is_file() or (first / "result.json").is_file()):
        if asked:
            raise UserError(
                "--predict is for a comparison: give the folder of several runs, or several paths"
            )
        return report(first, console, out=out)
    out = out or Path("comparison.html")
    _refuse_inside(out, paths)
    comparison = compare(paths, asked)
    _print_comparison(comparison, console)
    return _written(out, comparison_page(comparison))


def report(run_dir: Path, console: Console, ruleset: str = "2.0.0", out: Path | None = None) -> Path:
    """Prints what the run directory says and writes it to ``out`` (``report.html`` in it); returns that path.

    A run that was resumed, did not meet its target or does not pass its check gets no score.

    Raises:
        UserError: ``run_dir`` is no run directory, or the page cannot be written.
    """
    run = read(run_dir)
    findings = check_run(run, ruleset)
    _print(run, findings, ruleset, console)
    return _written(out or run_dir / "report.html", page(run, findings, ruleset))


def _written(path: Path, html: str) -> Path:
    try:
        if path.exists() and not path.read_bytes().startswith(html[:15].encode()):
            raise UserError(
                f"{path}: is there already and is no page of a report; say another --out FILE.html"
            )
        write_bytes(path, html.encode())
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); say another --out FILE.html"
        ) from None
    return path


def _refuse_inside(out: Path, paths: Sequence[Path]) -> None:
    """Trees of others are read alone, and a file among the logs of one's own would be packed with them."""
    place = out.resolve().parent
    for path in paths:
        if path.is_dir() and (place == path.resolve() or path.resolve() in place.parents):
            raise UserError(f"{out}: lies inside {path}, where nothing is written; say --out FILE elsewhere")


def _print(run: RunDirectory, findings: Sequence[Finding], ruleset: str, console: Console) -> None:
    result = run.result
    reasons = no_score(run, findings)
    title = registry.title(run.benchmark) + (f", preset {run.preset}" if run.preset else "")
    console.print(Text(title, style="bold"))
    console.print(Text(standing(run)))
    for name, what in run.problems:
        console.print(Text(f"{name} {what}", style="yellow"))
    if told := parts(run):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("where the time went")
        table.add_column("seconds", justify="right")
        table.add_column("share", justify="right")
        for part in told:
            if part.seconds is None:
                table.add_row(part.label, part.unknown, "")
            else:
                table.add_row(part.label, f"{part.seconds:.2f}", f"{part.share:.1%}")
        table.add_section()
        total = sum(part.seconds or 0.0 for part in told)
        table.add_row("sum, from run_start to run_stop", f"{total:.2f}", "100.0%")
        console.print(table)
    facts = _facts(run)
    if reasons:
        facts = {"time to train": "no score: " + "; ".join(reasons), **facts}
    elif result:
        both = duration(result.time_to_train_s), duration(result.time_to_train_without_staging_s)
        facts = {"time to train": f"{both[0]}; without staging {both[1]}", **facts}
    facts["check"] = f"{rules_text(run, ruleset)}: {verdict(findings)}"
    grid = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        bad = (key == "time to train" and reasons) or (key == "check" and not passes(findings))
        grid.add_row(Text(key, style="dim"), Text(value, style="bold red" if bad else ""))
    console.print(grid)


def _facts(run: RunDirectory) -> dict[str, str]:
    result, env = run.result, run.env
    facts = {}
    if result:
        facts[result.target.label] = f"{quality(result.target)}, {count(len(result.epochs), 'epoch')}"
        if speed := throughput(run):
            facts["throughput"] = f"{rate(speed)} samples/s, median epoch"
        if rates := sorted(data_rates(run).values()):
            facts["data rate"] = f"{size(rates[len(rates) // 2], '/s')}, median epoch"
        if staging := result.staging:
            speed_of = f", {size(staging.bytes / staging.seconds, '/s')}" if staging.seconds else ""
            took = f"{size(staging.bytes)} in {duration(staging.seconds)}{speed_of}"
            facts["staged"] = f"{count(staging.files, 'file')}, {took}"
        on = "nodes not told" if result.nodes is None else count(result.nodes, "node")
        facts["ranks"] = f"{result.ranks} on {on}, launched by {result.launcher}"
        facts["seed"] = str(result.seed)
    if env.get("cpu"):
        accelerators = ", ".join(map(str, env.get("accelerators") or [])) or "no accelerators"
        facts["hardware"] = (
            f"{env['cpu']}, {env.get('cores')} cores, {env.get('memory_gib')} GiB, {accelerators}"
        )
    if env.get("commit"):
        facts["commit"] = f"{env['commit']}{' with uncommitted changes' if env.get('dirty') else ''}"
    if packages := packages_of(run.benchmark, env.get("packages")):
        facts["packages"] = ", ".join(f"{name} {version}" for name, version in packages.items())
    if env.get("date"):
        facts["date"] = str(env["date"])
    return facts


def _print_comparison(comparison: Comparison, console: Console) -> None:
    for group in comparison.by_problem:
        console.print(Text(group[0].title, style="bold"))
        if group[0].official is False:
            console.print(Text("Not the official data set: no result of the benchmark.", style="yellow"))
        for e in group:
            what = ", ".join(text for text in (e.made_from, e.machine, e.software) if text)
            console.print(Text.assemble((f"{e.letter} ", "bold"), e.name, (f"  {what}", "dim")))
            if e.score is not None and e.score.why:
                console.print(Text(f"  no score: {e.score.why}", style="yellow"))
        measured = _grid("set", "runs", "units", "batch", "score", "staging", "excess", "epochs", "rate")
        for e in group:
            seconds = e.parts_s
            total = sum(seconds.values())
            shares = {key: f"{part / total:.1%}" if total else "" for key, part in seconds.items()}
            if e.excess_s is None and e.runs:
                shares["first_epoch_excess"] = "not known"
            measured.add_row(
                e.letter,
                f"{len(e.runs)}/{e.logs}",
                whole(e.scale),
                whole(e.batch),
                "none" if e.score is None or e.score.minutes is None else f"{e.score.minutes:.4f}",
                *(shares.get(key, "") for key in ("staging", "first_epoch_excess")),
                plain(e.epochs and e.epochs.mean),
                plain(e.train_rate and e.train_rate.mean),
            )
        console.print(measured)
        new = [p for p in comparison.predictions if p.problem == group[0].problem and p.measured_min is None]
        if new:
            predicted = _grid("prediction for", "units", "batch", "min", "range")
            for p in new:
                said, time = p.prediction, p.prediction.seconds
                predicted.add_row(
                    Text(f"{p.org}, {p.machine}, {p.division}"),
                    whole(said.units),
                    whole(said.batch),
                    plain(time.value / 60),
                    f"{plain(time.low / 60)} to {plain(time.high / 60)}",
                )
            console.print(predicted)
    told = "score: minutes; staging, first epoch's excess: share of the time; rate: training samples/s a unit"
    console.print(Text(told, style="dim"))
    _print_problems(comparison, console)


def _print_problems(comparison: Comparison, console: Console) -> None:
    """What speaks against the sets as they lie there: the first few findings, one a line."""
    problems = comparison.problems
    if problems:
        told = f"{count(len(problems), 'finding')} against the sets as they lie there:"
        console.print(Text(told))
    for path, f in problems[:_FINDINGS_SHOWN]:
        what = f" {f.rule}: {f.where}: expected {f.expected}; found {f.actual}; {f.remedy}"
        line = Text.assemble("  ", (f.severity, STYLES[f.severity]), what, (f" ({path})", "dim"))
        console.print(line)
    if (more := len(problems) - _FINDINGS_SHOWN) > 0:
        console.print(Text(f"  and {more} more: see the page"))


def _grid(first: str, *others: str) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column(first, overflow="fold")
    for name in others:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid
