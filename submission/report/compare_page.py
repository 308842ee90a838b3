"""The comparison of many runs as one self-contained HTML page, after paper 001: figures 1 and 2, tables 5 and
6, and the prediction of section 4.1.2."""

from collections.abc import Sequence
from html import escape

from mlhpc.benchmarks import registry
from mlhpc.errors import count
from mlhpc.perf.scaling import Estimate
from mlhpc.submission.logs.phases import PARTS
from mlhpc.submission.report import charts
from mlhpc.submission.report.charts import Piece
from mlhpc.submission.report.compare import Comparison, Predicted
from mlhpc.submission.report.compare_planes import planes
from mlhpc.submission.report.entry import OVER_ENDED, Entry, Spread
from mlhpc.submission.report.html import document, section, table
from mlhpc.submission.report.summary import decimals, duration, plain, whole
from mlhpc.submission.score.score import Weak


def page(comparison: Comparison) -> str:
    """The whole HTML text."""
    sets, logs = len(comparison.entries), sum(e.logs for e in comparison.entries)
    where = " · ".join(map(str, comparison.paths))
    header = f"""<header>
<p class="eyebrow">mlhpc training benchmarks</p>
<h1>Comparison <small>{count(sets, "set")} of runs, {count(logs, "log")}</small></h1>
<p class="meta">{escape(where)}</p>
<p class="banner">Measured from the logs as they are: <code>mlhpc check</code> says whether they comply. Sets
that solve different problems (data set, preset) are shown apart. Not verified by MLCommons.</p>
</header>
"""
    problems = "".join(_problem(group, comparison) for group in comparison.by_problem)
    foot = """Time to solution is run_stop − run_start, staging included. Analysis after Farrell et al. 2021,
section 4.1: T_solution = T_staging + T_epoch · epochs + T_extra."""
    return document("Comparison of runs", header + _findings(comparison) + problems, foot)


def _problem(group: Sequence[Entry], comparison: Comparison) -> str:
    first = group[0]
    banner = ""
    if first.official is False:
        benchmark = escape(registry.title(first.benchmark))
        banner = (
            '<p class="banner bad"><strong>Not the official data set.</strong> Nothing below is a result of '
            f"{benchmark}; compare it with itself alone.</p>"
        )
    elif first.official is None:
        banner = '<p class="banner">Whether this is the official data set is not known here.</p>'
    predicted = [p for p in comparison.predictions if p.problem == first.problem]
    sections = [
        _sets(group),
        _breakdown(group),
        planes(group),
        _staging(group),
        _scaling(group),
        _predictions(predicted),
    ]
    return f'<div><h2 class="problem">{escape(first.title)}</h2>{banner}{"".join(sections)}</div>'


def _sets(group: Sequence[Entry]) -> str:
    head = ["set", "division", "one run on", "batch size", "runs", "score, min", "without staging, min"]
    rows = [
        [
            f"{_who(e)}<small>{escape(_and(e.when, e.software))}</small>",
            escape(e.division) + "".join(f"<small>{escape(note)}</small>" for note in e.notes),
            f"{_units(e)}<small>{escape(e.machine)}</small>",
            whole(e.batch),
            f"{len(e.runs)} of {e.logs}" + (f"<small>{e.missed} missed</small>" if e.missed else ""),
            *_score(e),
        ]
        for e in group
    ]
    about = (
        "Scored by MLPerf's rule: the fastest and the slowest run dropped, the mean of the rest. Runs: "
        "those that everything below is measured over, of those in the set; missed: did not meet the "
        "target."
    )
    return section("Sets", about, table(head, rows, numbers_from=3))


def _score(entry: Entry) -> tuple[str, str]:
    score = entry.score
    if score is None:
        return "no score<small>no target is known</small>", ""
    if score.minutes is None:
        mean = f"mean {plain(entry.time_s.mean / 60)} of {entry.over}" if entry.time_s else ""
        return f"no score<small>{escape(score.why)}</small><small>{escape(mean)}</small>", ""
    if isinstance(score, Weak):
        about = f"TTTa; (T, S, M′) = ({score.T}, {score.S}, {score.M})"
    else:
        about = f"± {entry.time_s.sd / 60:.2f}" if entry.time_s and entry.time_s.sd is not None else ""
    return f"{score.minutes:.4f}<small>{about}</small>", f"{score.without_staging_minutes:.4f}"


def _breakdown(group: Sequence[Entry]) -> str:
    """Figure 1."""
    shown = [e for e in group if e.runs]
    if not shown:
        return ""
    bars, rows = [], []
    for e in shown:
        parts = e.parts_s
        total = sum(parts.values())
        shares = {PARTS[key][0]: f"{duration(s)}, {s / total:.1%}" for key, s in parts.items()}
        pieces = [
            Piece(key, s / total, f"{e.letter} {PARTS[key][0]}: {shares[PARTS[key][0]]}")
            for key, s in parts.items()
            if s > 0
        ]
        says = f"{e.name}: " + "; ".join(f"{label} {share}" for label, share in shares.items())
        bars.append(
            f'<div class="stack"><p>{_measured_over(e)}</p>{charts.stacked_bar(pieces, says, 30)}'
            f'<p class="n">{plain(total / 60)} min</p></div>'
        )
        cells = {key: _share(s, total) for key, s in parts.items()}
        if all(r.phases.first_epoch_excess is None for r in e.runs):
            cells["first_epoch_excess"] = "not known"
        rows.append([_who(e), *cells.values(), plain(total / 60)])
    key = "".join(
        f'<span title="{escape(what)}"><span class="swatch {part}"></span>{label}</span>'
        for part, (label, what) in PARTS.items()
    )
    numbers = table(["minutes, share", *(label for label, _ in PARTS.values()), "sum"], rows)
    about = (
        "Mean over the runs named. First-epoch excess: what the first epoch and evaluation took longer "
        "than the median of the later ones. Data read in while training is staging that no key shows; it "
        "shows here."
    )
    return section(
        "Where the time to solution went",
        about,
        f'<div class="key">{key}</div><div class="stacks">{"".join(bars)}</div>'
        f"<details><summary>In numbers</summary>{numbers}</details>",
    )


def _staging(group: Sequence[Entry]) -> str:
    """Table 5."""
    shown = [e for e in group if e.runs]
    if not shown:
        return ""
    head = ["set", "staging, min", "T_epoch, s", "compute-to-staging ratio", "first-epoch excess, min",
            "ratio with the excess"]  # fmt: skip
    rows = []
    for e in shown:
        staged = bool(e.staging_s and e.staging_s.mean > 0)
        rows.append(
            [
                _measured_over(e),
                _pm(e.staging_s, 60) if staged else "no staging key",
                _pm(e.epoch_s),
                _pm(e.staging_ratio) if staged else "",
                _pm(e.excess_s, 60) or "not known",
                _pm(e.hidden_ratio),
            ]
        )
    about = (
        "Mean ± standard deviation over the runs. The ratio is T_staging / T_epoch: what staging costs, "
        "in epochs. T_epoch is the mean epoch with its evaluation. The last column counts the first "
        "epoch's excess as staging, and divides by the mean epoch without it."
    )
    return section("Staging", about, table(head, rows))


def _scaling(group: Sequence[Entry]) -> str:
    """Table 6."""
    shown = [e for e in group if e.runs]
    if not shown:
        return ""
    head = ["set", "batch size", "epochs", "units", "training, samples/s a unit",
            "evaluation, samples/s a unit", "time, min", "budget, h · units"]  # fmt: skip
    rows = [
        [
            _measured_over(e),
            whole(e.batch),
            f"target not met in {max(r.epochs for r in e.runs)}" if e.over == OVER_ENDED else _pm(e.epochs),
            _units(e),
            _pm(e.train_rate),
            _pm(e.eval_rate),
            _pm(e.time_s, 60),
            plain(e.budget_h),
        ]
        for e in shown
    ]
    about = (
        "Mean ± standard deviation over the runs. Training throughput is over all epochs, without "
        "evaluation and checkpoints; samples are counted by steps where the log has them."
    )
    return section("Scaling", about, table(head, rows))


def _predictions(predicted: Sequence[Predicted]) -> str:
    new = [p for p in predicted if p.measured_min is None]
    held = [p for p in predicted if p.measured_min is not None]
    sections = []
    if new:
        about = (
            "Not measured. T_staging + T_epoch · epochs + T_extra, T_epoch carried along the throughput "
            "scaling of the machine, the epochs along the epoch scaling of the division. Ranges: between "
            "two measurements, what either would say alone; beyond them, from no gain to ideal scaling, "
            "and from the same epochs to the same steps; every end takes all terms at that end. From one "
            "size, T_epoch is taken to scale ideally: the value is then near the lower end."
        )
        title = "Prediction of configurations that were not run"
        sections.append(section(title, about, _predicted_table(new)))
    if held:
        about = (
            "Each set predicted from the others, without itself, and what was measured. One outside its "
            "range differs from the others in more than size: software, hyperparameters, file system."
        )
        sections.append(section("The prediction held against measurements", about, _predicted_table(held)))
    return "".join(sections)


def _predicted_table(predicted: Sequence[Predicted]) -> str:
    head = ["machine", "on", "time to solution, min", "staging, min", "T_epoch, s", "epochs",
            '<span class="how">from</span>']  # fmt: skip
    rows = []
    for p in predicted:
        said = p.prediction
        held = ""
        if p.measured_min is not None:
            inside = said.seconds.low <= p.measured_min * 60 <= said.seconds.high
            style, where = ("", "inside") if inside else (' class="warning"', "outside")
            held = f"<small{style}>measured {plain(p.measured_min)}, {where}</small>"
        rows.append(
            [
                f"{escape(p.org)}<small>{escape(p.machine)}</small><small>{escape(p.division)}</small>",
                f"{whole(said.units)} {escape(p.unit)}s<small>batch size {whole(said.batch)}</small>",
                _estimate(said.seconds, 60) + held,
                _estimate(said.staging_s, 60),
                _estimate(said.epoch_s),
                _estimate(said.epochs),
                f'<span class="how">{escape(_and(said.seconds.how, p.note))}</span>',
            ]
        )
    return table(head, rows, numbers_from=2)


def _findings(comparison: Comparison) -> str:
    problems = comparison.problems
    if not problems:
        return ""
    rows = [
        [
            f'<span class="{f.severity}">{f.severity}</span> {escape(f.rule)}'
            f"<small>{escape(f.where)}</small><small>{escape(str(path))}</small>",
            escape(f.expected),
            escape(f.actual),
            escape(f.remedy),
        ]
        for path, f in problems
    ]
    drawn = table(["finding", "expected", "found", "what to do"], rows, numbers_from=9)
    shown = " open" if len(problems) <= 6 else ""
    title = f"{count(len(problems), 'finding')} against the sets as they lie there"
    return f"<section><details{shown}><summary>{title}</summary>{drawn}</details></section>"


# How things are written.


def _who(entry: Entry) -> str:
    return f"<b>{entry.letter}</b> {escape(entry.name)}"


def _measured_over(entry: Entry) -> str:
    return f"{_who(entry)}<small>{escape(entry.made_from)}</small>"


def _units(entry: Entry) -> str:
    if entry.scale is None:
        return "not logged"
    return f"{whole(entry.scale)} {escape(entry.unit)}{'' if entry.scale == 1 else 's'}"


def _and(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def _pm(value: Spread | None, by: float = 1.0) -> str:
    """``26.42 ± 0.69``, both divided by ``by``: the deviation with the decimals of the mean."""
    if value is None:
        return ""
    mean = value.mean / by
    if value.sd is None or 0 < mean < 0.001:
        return escape(plain(mean))
    return f"{plain(mean)}&nbsp;± {value.sd / by:,.{decimals(mean)}f}".replace(",", "\xa0")


def _share(seconds: float, total: float) -> str:
    return f"{escape(plain(seconds / 60))}<small>{seconds / total:.1%}</small>"


def _estimate(estimate: Estimate, by: float = 1.0) -> str:
    value, low, high = (escape(plain(end / by)) for end in estimate[:3])
    return f"{value}<small>{low} to {high}</small>"
