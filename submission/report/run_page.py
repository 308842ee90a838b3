"""The report of a run as one self-contained HTML page: no script, no network, no file beside it."""

from collections.abc import Sequence
from html import escape

from mlhpc.benchmarks import registry
from mlhpc.errors import count
from mlhpc.submission.logs.findings import Finding, passes, verdict
from mlhpc.submission.logs.run_directory import RunDirectory
from mlhpc.submission.report import run_charts, run_sections
from mlhpc.submission.report.html import document, pair, section
from mlhpc.submission.report.summary import (
    data_rates,
    duration,
    no_score,
    rate,
    rules_text,
    size,
    standing,
    target_sign,
    throughput,
)


def page(run: RunDirectory, findings: Sequence[Finding], ruleset: str) -> str:
    """The whole HTML text. What the directory lacks is left out, and named in a section of its own."""
    sections = [
        _missing(run),
        run_charts.breakdown(run),
        pair(run_charts.learning_curve(run), run_charts.epoch_times(run)),
        pair(run_charts.throughput_chart(run), run_charts.data_rate_chart(run)),
        run_charts.epoch_table(run),
        pair(run_sections.staging(run), run_sections.hyperparameters(run)),
        run_sections.hardware(run),
        run_sections.provenance(run),
        _check(findings, rules_text(run, ruleset)),
    ]
    by = " (MLPerf HPC training rules up to round 2.0)" * rules_text(run, ruleset).startswith("hpc")
    foot = (
        f"Time to train is run_stop − run_start on one monotonic clock over all ranks, staging included{by}."
    )
    body = _header(run, findings, ruleset) + "\n" + "".join(sections)
    return document(_title(run), body, foot)


def _title(run: RunDirectory) -> str:
    return registry.title(run.benchmark) + (f", preset {run.preset}" if run.preset else "")


def _header(run: RunDirectory, findings: Sequence[Finding], ruleset: str) -> str:
    result, log = run.result, run.log
    reasons = no_score(run, findings)
    preset = f" <small>preset {escape(run.preset)}</small>" if run.preset else ""
    meta = [str(log.value(k)) for k in ("submission_org", "submission_platform") if log and log.value(k)]
    meta = [value for value in dict.fromkeys(meta) if value != "unnamed"]
    if result:
        meta.append(
            count(result.ranks, "rank") + (f" on {count(result.nodes, 'node')}" if result.nodes else "")
        )
    if run.env.get("date"):
        meta.append(str(run.env["date"]).replace("T", " ").replace("+00:00", " UTC"))
    pills = []
    if result:
        pills.append(f"<li>{escape(result.division)} division</li>")
        good = "good" if result.status == "success" else "bad"
        pills.append(f'<li class="{good}">{escape(result.status)}</li>')
        if result.resumed:
            pills.append('<li class="bad">resumed</li>')
    tone = "good" if passes(findings) else "bad"
    pills.append(f'<li class="{tone}">{rules_text(run, ruleset)}: {escape(verdict(findings))}</li>')
    banner = f'<p class="banner">{escape(standing(run))}</p>'
    if reasons:
        why = "; ".join(reasons)
        banner += f'<p class="banner bad" role="alert"><strong>No score:</strong> {escape(why)}.</p>'
    return f"""<header>
<p class="eyebrow">mlhpc training benchmark</p>
<h1>{escape(registry.title(run.benchmark))}{preset}</h1>
<p class="meta">{escape(" · ".join(meta))}</p>
<ul class="pills">{"".join(pills)}</ul>
{banner}
</header>
{_hero(run, reasons)}"""


def _hero(run: RunDirectory, reasons: Sequence[str]) -> str:
    result = run.result
    if reasons or result is None:
        ended = run.log.time_to_train_s if run.log else None
        also = f"The clock ran for {duration(ended)}; that is not a time to train." if ended else ""
        cells = [_cell("Time to train", "No score", also, "big none")]
    else:
        also = f"without staging: {duration(result.time_to_train_without_staging_s)}"
        cells = [_cell("Time to train, staging included", duration(result.time_to_train_s), also, "big")]
    if result:
        target = result.target
        best = "none" if target.best is None else f"{target.best:.4g}"
        also = f"best; target {target_sign(target)} {target.value:g}, {count(len(result.epochs), 'epoch')}"
        cells.append(_cell(target.label.capitalize(), best, also))
        speed, rates = throughput(run), list(data_rates(run).values())
        if speed:
            also = "samples/s, median epoch"
            if rates:
                also += f"; reads {size(sorted(rates)[len(rates) // 2], '/s')}"
            cells.append(_cell("Training throughput", rate(speed), also))
    return f'<div class="hero">{"".join(cells)}</div>'


def _cell(label: str, number: str, also: str, style: str = "") -> str:
    return (
        f'<div><p class="label">{escape(label)}</p><p class="number {style}">{escape(number)}</p>'
        f'<p class="also">{escape(also)}</p></div>'
    )


def _missing(run: RunDirectory) -> str:
    if not run.problems:
        return ""
    items = "".join(f"<li><code>{escape(name)}</code> {escape(what)}</li>" for name, what in run.problems)
    return section("Missing pieces", "The report shows what could be read.", f"<ul>{items}</ul>")


def _check(findings: Sequence[Finding], rules: str) -> str:
    about = f"mlperf-logging, ruleset {rules}, and mlhpc's own rules: {verdict(findings)}."
    if not findings:
        return section("Check", about, "")
    head = ("finding", "expected", "found", "what to do")
    rows = "".join(
        f'<tr><th scope="row"><span class="{f.severity}">{f.severity}</span> {escape(f.rule)}'
        f"<small>{escape(f.where)} · {escape(f.source)}</small></th>"
        + "".join(
            f'<td data-label="{label}">{escape(text)}</td>'
            for label, text in zip(head[1:], (f.expected, f.actual, f.remedy), strict=True)
        )
        + "</tr>"
        for f in findings
    )
    columns = "".join(f'<th scope="col">{label}</th>' for label in head)
    table = f'<table class="findings"><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>'
    return section("Check", about, table)
