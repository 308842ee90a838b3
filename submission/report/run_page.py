"""The report of a run as one self-contained HTML page. ``templates/run.html`` has the order of the sections and
their text."""

from collections.abc import Sequence

from mlhpc.benchmarks import registry
from mlhpc.common.pages.blocks import Banner, Cell, Grid, Table, number, table
from mlhpc.common.pages.charts import Figure
from mlhpc.common.pages.html import render
from mlhpc.errors import count
from mlhpc.submission.logs.bindings import read_bindings, shared_cores
from mlhpc.submission.logs.energy import energy_table
from mlhpc.submission.logs.findings import Finding, passes, verdict
from mlhpc.submission.logs.ranks import read_ranks, running
from mlhpc.submission.logs.run_directory import RunDirectory
from mlhpc.submission.report import run_charts, run_sections
from mlhpc.submission.report.predicted import Beside, predicted_table, words
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

PROBLEMS_LISTED = 20


def page(
    run: RunDirectory, findings: Sequence[Finding], ruleset: str, predicted: Beside | None = None
) -> str:
    """The whole HTML text. Missing parts are left out, and listed in a separate section."""
    rules, ranks, result = rules_text(run, ruleset), read_ranks(run.path), run.result
    machines, bindings = run_sections.machines_of(run.env), read_bindings(run.env)
    reasons = no_score(run, findings)
    heading = registry.title(run.benchmark)
    preset = f"preset {run.preset}" if run.preset else ""
    seconds = run.log.time_to_train_s if run.log else None
    check = [run_sections.findings_table([("", f) for f in findings])] if findings else []
    return render(
        template="mlhpc.submission.report:run.html",
        title=", ".join(filter(None, (heading, preset))),
        heading=heading,
        subtitle=preset,
        meta=" · ".join(_meta(run)),
        pills=_pills(run, findings, rules),
        banners=_banners(run, reasons),
        hero=_hero(run, reasons),
        # Values for the template's text.
        result=result,
        config=run.config,
        rules=rules,
        verdict=verdict(findings),
        ranks=len(ranks),
        cut=getattr(run.config.training, "spatial", ()) if run.config else (),
        machines=count(len(machines), "node"),
        shared_cores=shared_cores(bindings),
        predicted=predicted,
        unlisted=len(run.problems) - PROBLEMS_LISTED,
        sections={
            "missing": None if running(run) else _missing(run.problems[:PROBLEMS_LISTED]),
            "breakdown": _breakdown(run),
            "energy": energy_table(result.energy if result else None, seconds),
            "prediction": [Banner(words(predicted)), predicted_table(predicted)] if predicted else None,
            "training": Grid(drawn) if (drawn := run_charts.training(run, ranks)) else None,
            "processes": run_sections.processes(ranks),
            "spatial": run_sections.spatial(result.epochs) if result else None,
            "staging": run_sections.staging(result) if result else None,
            "hyperparameters": run_sections.hyperparameters(run),
            "hardware": run_sections.hardware(machines, bindings),
            "provenance": run_sections.provenance(run),
            "check": None if running(run) else check,
            "epochs": run_sections.epoch_table(run),
        },
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
        also = f"The clock ran for {duration(ended)}; this is not a time to train." if ended else ""
        shown = "Not ended" if running(run) else "No score"
        cells = [("Time to train", shown, also, "big none" if shown == "No score" else "big")]
    else:
        also = f"without staging: {duration(result.time_to_train_without_staging_s)}"
        cells = [("Time to train, including staging", duration(result.time_to_train_s), also, "big")]
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


def _missing(problems: Sequence[tuple[str, str]]) -> Table:
    columns = {"file": lambda problem: problem[0], "problem": lambda problem: problem[1]}
    return table("missing", problems, columns, text_columns=2)


def _breakdown(run: RunDirectory) -> list[Figure | Table] | None:
    breakdown_parts = parts(run)
    drawn = [run_charts.breakdown(breakdown_parts)] if any(part.seconds for part in breakdown_parts) else []
    return [*drawn, breakdown_table(breakdown_parts)] if breakdown_parts else None


def breakdown_table(breakdown_parts: Sequence[Part]) -> Table:
    total = sum(part.seconds or 0.0 for part in breakdown_parts)
    return table(
        "breakdown",
        breakdown_parts,
        {
            "part": lambda part: Cell(part.label, (part.what,), part.label, swatch=part.key),
            "seconds": lambda part: number(part.seconds, "{:.2f}".format, none=part.unknown),
            "share": lambda part: Cell("" if part.seconds is None else f"{part.share:.1%}", value=part.share),
        },
        foot=(Cell("Sum"), Cell(f"{total:.2f}"), Cell("100.0%")),
    )
