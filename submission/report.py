"""``mlhpc report``: a run told as a table, and as one page to hand on."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlhpc.common.data.atomic import write_bytes
from mlhpc.common.errors import UserError
from mlhpc.submission.check import check_run
from mlhpc.submission.facts import (
    TITLES,
    data_rates,
    duration,
    no_score,
    parts,
    quality,
    rate,
    size,
    standing,
    throughput,
)
from mlhpc.submission.findings import Finding, passes, verdict
from mlhpc.submission.page import page
from mlhpc.submission.rundir import RunDirectory, read


def report(run_dir: Path, console: Console, ruleset: str = "2.0.0") -> Path:
    """Prints what the run directory says and writes it as ``report.html`` into it; returns that path.

    A run that was resumed, did not meet its target or does not pass its check gets no score.

    Raises:
        UserError: ``run_dir`` is no run directory, or the page cannot be written.
    """
    run = read(run_dir)
    findings = check_run(run, ruleset)
    _print(run, findings, ruleset, console)
    path = run_dir / "report.html"
    try:
        write_bytes(path, page(run, findings, ruleset).encode())
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); make room or copy the run directory"
        ) from None
    return path


def _print(run: RunDirectory, findings: Sequence[Finding], ruleset: str, console: Console) -> None:
    result = run.result
    reasons = no_score(run, findings)
    title = TITLES.get(run.benchmark, run.benchmark) + (f", preset {run.preset}" if run.preset else "")
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
        whole = sum(part.seconds or 0.0 for part in told)
        table.add_row("sum, from run_start to run_stop", f"{whole:.2f}", "100.0%")
        console.print(table)
    facts = _facts(run)
    if reasons:
        facts = {"time to train": "no score: " + "; ".join(reasons), **facts}
    elif result:
        both = duration(result.time_to_train_s), duration(result.time_to_train_without_staging_s)
        facts = {"time to train": f"{both[0]}; without staging {both[1]}", **facts}
    facts["check"] = f"hpc {ruleset}: {verdict(findings)}"
    grid = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        bad = (key == "time to train" and reasons) or (key == "check" and not passes(findings))
        grid.add_row(Text(key, style="dim"), Text(value, style="bold red" if bad else ""))
    console.print(grid)


def _facts(run: RunDirectory) -> dict[str, str]:
    result, env = run.result, run.env
    facts = {}
    if result:
        facts[result.target.label] = f"{quality(result.target)}, {len(result.epochs)} epochs"
        if speed := throughput(run):
            facts["throughput"] = f"{rate(speed)} samples/s, median epoch"
        if rates := sorted(data_rates(run).values()):
            facts["data rate"] = f"{size(rates[len(rates) // 2], '/s')}, median epoch"
        if staging := result.staging:
            speed_of = f", {size(staging.bytes / staging.seconds, '/s')}" if staging.seconds else ""
            facts["staged"] = (
                f"{staging.files} files, {size(staging.bytes)} in {duration(staging.seconds)}{speed_of}"
            )
        facts["ranks"] = f"{result.ranks} on {result.nodes} node(s), launched by {result.launcher}"
        facts["seed"] = str(result.seed)
    if env.get("cpu"):
        accelerators = ", ".join(map(str, env.get("accelerators") or [])) or "no accelerators"
        facts["hardware"] = (
            f"{env['cpu']}, {env.get('cores')} cores, {env.get('memory_gib')} GiB, {accelerators}"
        )
    if env.get("commit"):
        facts["commit"] = f"{env['commit']}{' with uncommitted changes' if env.get('dirty') else ''}"
    if isinstance(env.get("packages"), dict):
        facts["packages"] = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
    if env.get("date"):
        facts["date"] = str(env["date"])
    return facts
