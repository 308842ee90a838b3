"""The report of a run as one self-contained HTML page."""

from collections.abc import Sequence

from mlhpc.benchmarks import registry
from mlhpc.common.pages.blocks import Banner, Cell, Grid, Section, Table, number, table
from mlhpc.common.pages.html import render
from mlhpc.errors import count
from mlhpc.submission.logs.energy import energy_section
from mlhpc.submission.logs.findings import Finding, passes, verdict
from mlhpc.submission.logs.ranks import RankTimes, read_ranks, running
from mlhpc.submission.logs.run_directory import RunDirectory
from mlhpc.submission.report import run_charts, run_sections
from mlhpc.submission.report.predicted import Beside
from mlhpc.submission.report.predicted import section as prediction_section
from mlhpc.submission.report.summary import (
    Part,
    data_rate,
    duration,
    no_score,
    parts,
    rate,
    rules_text,
    size,
    standing,
    target_sign,
    throughput,
)


def page(
    run: RunDirectory, findings: Sequence[Finding], ruleset: str, predicted: Beside | None = None
) -> str:
    """The whole HTML text. Missing parts are left out, and listed in a section of their own."""
    rules, ranks = rules_text(run, ruleset), read_ranks(run.path)
    reasons = no_score(run, findings)
    heading = registry.title(run.benchmark)
    training_rules = " (MLPerf HPC training rules up to round 2.0)" * rules.startswith("hpc")
    return render(
        title=heading + (f", preset {run.preset}" if run.preset else ""),
        blocks=[
            _missing(run),
            _breakdown(run),
            energy_section(run.result.energy, run.log.time_to_train_s if run.log else None)
            if run.result
            else None,
            prediction_section(predicted) if predicted else None,
            _progress(run, ranks),
            run_sections.processes(run, ranks),
            run_sections.spatial(run),
            run_sections.staging(run),
            run_sections.hyperparameters(run),
            run_sections.hardware(run),
            run_sections.provenance(run),
            None if running(run) else run_sections.check(findings, rules),
            run_sections.epoch_table(run),
        ],
        foot="Time to train is run_stop − run_start on one monotonic clock over all ranks, staging included"
        f"{training_rules}.",
        heading=heading,
        eyebrow="mlhpc training benchmark",
        subtitle=f"preset {run.preset}" if run.preset else "",
        meta=" · ".join(_meta(run)),
        pills=_pills(run, findings, rules),
        banners=_banners(run, reasons),
        hero=_hero(run, reasons),
    )


def _meta(run: RunDirectory) -> list[str]:
    result, log = run.result, run.log
    meta = [str(log.value(k)) for k in ("submission_org", "submission_platform") if log and log.value(k)]
    meta = [value for value in dict.fromkeys(meta) if value != "unnamed"]
    if result:
        meta.append(
            count(result.ranks, "rank") + (f" on {count(result.nodes, 'node')}" if result.nodes else "")
        )
    if result and result.data and result.data.codec:
        meta.append(f"data by {result.data}")
    if run.env.get("date"):
        meta.append(str(run.env["date"]).replace("T", " ").replace("+00:00", " UTC"))
    return meta


def _pills(run: RunDirectory, findings: Sequence[Finding], rules: str) -> list[tuple[str, str]]:
    """(text, tone) of the facts at the top of the page."""
    if running(run):
        return [("not ended", "")]
    pills = []
    if run.result:
        pills.append((f"{run.result.division} division", ""))
        pills.append((run.result.status, "good" if run.result.status == "success" else "bad"))
        if run.result.resumed:
            pills.append(("resumed", "bad"))
    pills.append((f"{rules}: {verdict(findings)}", "good" if passes(findings) else "bad"))
    return pills


def _banners(run: RunDirectory, reasons: Sequence[str]) -> list[Banner]:
    banners = [Banner(standing(run))]
    if reasons:
        strong, tone = ("No score yet:", "") if running(run) else ("No score:", "bad")
        banners.append(Banner(f"{'; '.join(reasons)}.", strong, tone))
    return banners


def _hero(run: RunDirectory, reasons: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """(label, number, text below, style) of the headline numbers."""
    result = run.result
    if reasons or result is None:
        ended = run.log.time_to_train_s if run.log else None
        also = f"The clock ran for {duration(ended)}; that is not a time to train." if ended else ""
        shown = "Not ended" if running(run) else "No score"
        cells = [("Time to train", shown, also, "big none" if shown == "No score" else "big")]
    else:
        also = f"without staging: {duration(result.time_to_train_without_staging_s)}"
        cells = [("Time to train, staging included", duration(result.time_to_train_s), also, "big")]
    if result:
        target = result.target
        best = "none" if target.best is None else f"{target.best:.4g}"
        also = f"best; target {target_sign(target)} {target.value:g}, {count(len(result.epochs), 'epoch')}"
        cells.append((target.label.capitalize(), best, also, ""))
        if speed := throughput(run):
            also = "samples/s, median epoch"
            if (read := data_rate(run)) is not None:
                also += f"; reads {size(read, '/s')}"
            cells.append(("Training throughput", rate(speed), also, ""))
    return cells


def _missing(run: RunDirectory) -> Section | None:
    if not run.problems or running(run):
        return None
    listed = run.problems[:20]
    more = len(run.problems) - len(listed)
    problems = table("missing", listed, {"file": lambda p: p[0], "problem": lambda p: p[1]}, text_columns=2)
    about = "The report shows what could be read." + (f" {more} more are not listed." if more > 0 else "")
    return Section("Missing pieces", about, (problems,))


def _breakdown(run: RunDirectory) -> Section | None:
    known = parts(run)
    if not known:
        return None
    about = "Parts of the interval from run_start to run_stop, on rank 0. They add up to the total."
    drawn = (run_charts.breakdown(known),) if any(part.seconds for part in known) else ()
    return Section("Where the time went", about, (*drawn, breakdown_table(known)))


def breakdown_table(known: Sequence[Part]) -> Table:
    total = sum(part.seconds or 0.0 for part in known)
    return table(
        "breakdown",
        known,
        {
            "part": lambda part: Cell(part.label, (part.what,), part.label, swatch=part.key),
            "seconds": lambda part: number(part.seconds, "{:.2f}".format, none=part.unknown),
            "share": lambda part: Cell("" if part.seconds is None else f"{part.share:.1%}", value=part.share),
        },
        foot=(Cell("Sum"), Cell(f"{total:.2f}"), Cell("100.0%")),
    )


def _progress(run: RunDirectory, ranks: Sequence[RankTimes]) -> Section | None:
    figures = (
        run_charts.learning_curve(run),
        *run_charts.training_curves(run),
        run_charts.epoch_times(run),
        run_charts.throughput(run),
        run_charts.data_rate(run),
        run_charts.step_times(ranks),
    )
    drawn = tuple(figure for figure in figures if figure)
    return Section("Training, epoch by epoch", "", (Grid(drawn),)) if drawn else None
