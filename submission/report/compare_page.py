"""The comparison of many runs as one self-contained HTML page, after paper 001: figures 1 and 2, tables 5 and 6,
and the prediction of section 4.1.2."""

from collections.abc import Sequence

from mlhpc.benchmarks import registry
from mlhpc.common.pages import plots
from mlhpc.common.pages.html import Banner, Cell, Chapter, Details, Grid, Section, Table, render
from mlhpc.errors import count
from mlhpc.perf.scaling import Estimate
from mlhpc.submission.logs.differences import differences_section
from mlhpc.submission.logs.phases import PARTS
from mlhpc.submission.report.compare import Comparison, Predicted
from mlhpc.submission.report.compare_planes import planes
from mlhpc.submission.report.entry import BEFORE_CLOCK, IN_CLOCK, OVER_ENDED, Entry
from mlhpc.submission.report.run_sections import findings_table
from mlhpc.submission.report.spread import Spread
from mlhpc.submission.report.summary import decimals, duration, plain, time_unit, whole
from mlhpc.submission.score.score import Weak

_BARS = 24
"""Maximum number of sets in one bar chart; the others are only in the table."""


def page(comparison: Comparison) -> str:
    """The whole HTML text."""
    sets, logs = len(comparison.entries), sum(e.logs for e in comparison.entries)
    banner = Banner(
        "Measured from the logs as they are; mlhpc check says whether they comply. Sets that solve different "
        "problems (data set, preset) are shown separately. Not verified by MLCommons."
    )
    return render(
        "mlhpc.submission.report",
        "comparison.html",
        title="Comparison of runs",
        blocks=[_findings(comparison), *(_problem(group, comparison) for group in comparison.by_problem)],
        foot="Time to solution is run_stop − run_start. Analysis after Farrell et al. 2021, section 4.1: "
        "T_solution = T_staging + T_epoch · epochs + T_extra.",
        heading="Comparison",
        subtitle=f"{count(sets, 'set')} of runs, {count(logs, 'log')}",
        meta=" · ".join(map(str, comparison.paths)),
        banners=[banner],
    )


def _problem(group: Sequence[Entry], comparison: Comparison) -> Chapter:
    first = group[0]
    originals = [e for e in group if not e.copy_of]
    measured = [e for e in originals if e.runs]
    predicted = [p for p in comparison.predictions if p.problem == first.problem]
    blocks = [
        *_banners(group),
        _sets(group),
        _breakdown(measured),
        planes(originals),
        differences_section(originals),
        _staging(measured),
        _scaling(measured),
        *_predictions(predicted),
    ]
    return Chapter(first.title, tuple(block for block in blocks if block))


def _banners(group: Sequence[Entry]) -> list[Banner]:
    first = group[0]
    banners = []
    if first.official is False:
        benchmark = registry.title(first.benchmark)
        text = f"Nothing below is a result of {benchmark}; compare these runs only with each other."
        banners.append(Banner(text, "Not the official data set.", "bad"))
    elif first.official is None:
        banners.append(Banner("It is not known whether this is the official data set."))
    inside, before = (_letters(e for e in group if e.staged == kind) for kind in (IN_CLOCK, BEFORE_CLOCK))
    if inside and before:
        text = (
            f"The scores of {inside} include staging, as the rules up to round 2.0 ask. Those of {before} do not: "
            "their data was staged before run_start, as in round 3.0. Compare them without staging."
        )
        banners.append(Banner(text, "Scores with and without staging."))
    return banners


def _letters(entries: object) -> str:
    assert hasattr(entries, "__iter__")
    return ", ".join(entry.letter for entry in entries)


def _sets(group: Sequence[Entry]) -> Section:
    head = (
        "set",
        "division",
        "one run on",
        "batch size",
        "runs",
        "score, min",
        "without staging, min",
        "staging",
    )
    rows = tuple(
        (
            Cell(e.name, notes=(", ".join(filter(None, (e.when, e.software))),), bold=e.letter),
            Cell(e.division, notes=e.notes, value=e.division),
            Cell(_units(e), notes=(e.machine,)),
            Cell(whole(e.batch), value=e.batch or ""),
            Cell(f"{len(e.runs)} of {e.logs}", notes=(f"{e.missed} missed",) if e.missed else ()),
            *_score(e),
            Cell(e.staged),
        )
        for e in group
    )
    about = (
        "Scored by MLPerf's rule: the mean without the fastest and the slowest run. Runs: the number used "
        "for everything below, out of all runs in the set; missed: did not meet the target. "
        "Staging: whether the score includes it."
    )
    return Section("Sets", about, (Table("sets", head, rows, text_columns=3, prose=(7,)),))


def _score(entry: Entry) -> tuple[Cell, Cell]:
    score = entry.score
    if score is None:
        return Cell("no score", notes=("unknown target",), value=""), Cell()
    if score.minutes is None or score.without_staging_minutes is None:
        mean = f"mean {plain(entry.time_s.mean / 60)} of {entry.over}" if entry.time_s else ""
        return Cell("no score", notes=(score.why, mean), value=""), Cell()
    if isinstance(score, Weak):
        about = f"TTTa; (T, S, M′) = ({score.T}, {score.S}, {score.M})"
    else:
        shown = entry.time_s and entry.time_s.has_interval and entry.time_s.sd is not None
        about = f"± {entry.time_s.sd / 60:.2f}" if shown and entry.time_s and entry.time_s.sd else ""
    inside = Cell(f"{score.minutes:.4f}", notes=(about,), value=score.minutes)
    return inside, Cell(f"{score.without_staging_minutes:.4f}", value=score.without_staging_minutes)


def _breakdown(shown: Sequence[Entry]) -> Section | None:
    """Figure 1, in minutes and as shares."""
    if not shown:
        return None
    drawn = shown[:_BARS]
    labels = {key: label for key, (label, _) in PARTS.items()}
    unit, scale = time_unit(max(sum(e.parts_s.values()) for e in drawn))
    rows, alt_texts = [], []
    for e in drawn:
        total = sum(e.parts_s.values())
        shares = {key: s / total for key, s in e.parts_s.items()}
        alt_texts.append(
            f"{e.letter} {e.name}, {duration(total)}: "
            + ", ".join(f"{labels[k]} {s:.1%}" for k, s in shares.items())
        )
        rows += [
            {
                "bar": e.letter,
                "name": f"{e.letter}  {e.name}, {duration(total)}",
                "set": f"{e.letter} {e.name}: {e.made_from}",
                "key": key,
                "part": labels[key],
                "value": seconds / scale,
                "time": duration(seconds),
                "share": f"{shares[key]:.1%}",
                "label": f"{shares[key]:.0%}" if shares[key] >= 0.09 else "",
            }
            for key, seconds in e.parts_s.items()
            if seconds > 0
        ]
    tooltip = [("set", "set"), ("part", "part"), ("time", "time"), ("share", "share")]
    absolute = plots.stacked_bars(
        [{**row, "label": ""} for row in rows],
        "Time by part: " + "; ".join(alt_texts),
        parts=labels,
        value_title=f"mean time to solution, {unit}",
        tooltip=tooltip,
        title="Absolute",
        static_width=480,
    )
    relative = plots.stacked_bars(
        rows,
        "Share of the time by part: " + "; ".join(alt_texts),
        parts=labels,
        value_title="share of the time to solution",
        tooltip=tooltip,
        relative=True,
        title="Relative",
        static_width=480,
    )
    about = (
        "Mean over the measured runs of each set. First-epoch excess: how much longer the first epoch and "
        "evaluation took than the median of the later ones. It includes data read in while training, which "
        "has no key of its own in the log."
    )
    if len(shown) > len(drawn):
        about += f" The figures show the first {len(drawn)} of {len(shown)} sets."
    details = Details("In numbers", (_breakdown_table(shown),))
    return Section("Where the time to solution went", about, (Grid((absolute, relative)), details))


def _breakdown_table(shown: Sequence[Entry]) -> Table:
    rows = []
    for e in shown:
        total = sum(e.parts_s.values())
        cells = {
            key: Cell(plain(s / 60), notes=(f"{s / total:.1%}",), value=s / 60)
            for key, s in e.parts_s.items()
        }
        if all(r.phases.first_epoch_excess is None for r in e.runs):
            cells["first_epoch_excess"] = Cell("not known", value="")
        rows.append((_who(e), *cells.values(), Cell(plain(total / 60), value=total / 60)))
    head = ("minutes and share", *(label for label, _ in PARTS.values()), "sum")
    return Table("breakdown", head, tuple(rows))


def _staging(shown: Sequence[Entry]) -> Section | None:
    """Table 5."""
    if not shown:
        return None
    head = ("set", "staging, min", "T_epoch, s", "T_staging / T_epoch", "first-epoch excess, min",
            "(T_staging + excess) / T_epoch")  # fmt: skip
    rows = []
    for e in shown:
        timed = e.staged == IN_CLOCK and e.staging_s is not None
        rows.append(
            (
                _measured_over(e),
                _mean(e.staging_s, 60) if timed else Cell(e.staged, value=""),
                _mean(e.epoch_s),
                _mean(e.staging_in_epochs) if timed else Cell(),
                _mean(e.excess_s, 60) if e.excess_s else Cell("not known", value=""),
                _mean(e.staging_and_excess_in_epochs),
            )
        )
    about = (
        "Mean ± standard deviation over the runs (three or more). T_staging / T_epoch is the cost of staging "
        "in epochs (paper 001 calls it the compute-to-staging throughput ratio). T_epoch is the mean epoch "
        "with its evaluation. The last column counts the first epoch's excess as staging, and divides by the "
        "mean epoch without it."
    )
    return Section("Staging", about, (Table("staging", head, tuple(rows)),))


def _scaling(shown: Sequence[Entry]) -> Section | None:
    """Table 6, with speed-up and efficiency."""
    if not shown:
        return None
    head = ("set", "batch size", "epochs", "units", "training, samples/s per unit",
            "evaluation, samples/s per unit", "time, min", "speed-up", "efficiency",
            "budget, h · units")  # fmt: skip
    rows = []
    for e in shown:
        speedup, efficiency, base = _speedup(e, shown)
        rows.append(
            (
                _measured_over(e),
                Cell(whole(e.batch), value=e.batch or ""),
                Cell(f"target not met in {max(r.epochs for r in e.runs)}")
                if e.over == OVER_ENDED
                else _mean(e.epochs),
                Cell(_units(e), value=e.scale or ""),
                _mean(e.train_rate),
                _mean(e.eval_rate),
                _mean(e.time_s, 60),
                Cell(f"{speedup:.3g}", notes=(f"of {base}",), value=speedup) if speedup else Cell(),
                Cell(f"{efficiency:.0%}", value=efficiency) if efficiency else Cell(),
                Cell(plain(e.budget_h), value=e.budget_h or ""),
            )
        )
    about = (
        "Mean ± standard deviation over the runs (three or more). Training throughput is over all epochs, "
        "without evaluation and checkpoints; samples are counted by steps where the log has them. Speed-up: "
        "the time to solution of the smallest set of the same machine and division over that of this set; "
        "efficiency: speed-up over the ratio of their units."
    )
    return Section("Scaling", about, (Table("scaling", head, tuple(rows)),))


def _speedup(entry: Entry, shown: Sequence[Entry]) -> tuple[float | None, float | None, str]:
    """Speed-up and efficiency relative to the smallest set of the same machine, division and metric; its
    letter."""
    same_line = [
        e
        for e in shown
        if (e.line, e.division, e.metric) == (entry.line, entry.division, entry.metric)
        and e.scale
        and e.time_s
        and e.over != OVER_ENDED
    ]
    if entry not in same_line or len({e.scale for e in same_line}) < 2:
        return None, None, ""
    base = min(same_line, key=lambda e: e.scale or 0)
    assert base.time_s and entry.time_s and base.scale and entry.scale
    speedup = base.time_s.mean / entry.time_s.mean
    return speedup, speedup * base.scale / entry.scale, base.letter


def _predictions(predicted: Sequence[Predicted]) -> list[Section]:
    new = [p for p in predicted if p.measured_min is None]
    tested = [p for p in predicted if p.measured_min is not None]
    sections = []
    if new:
        about = (
            "Configurations that were not run. T_staging + T_epoch · epochs + T_extra, T_epoch from the "
            "throughput scaling of the machine, the epochs from the epoch scaling of the division. Ranges: "
            "between two measurements, the predictions of each of them; beyond them, from no gain to ideal "
            "scaling, and from the same epochs to the same steps; each end of the range takes all terms at "
            "that end. From a single size, T_epoch is assumed to scale ideally: the value is then near the "
            "lower end."
        )
        title = "Predictions"
        sections.append(Section(title, about, (_predicted_table("predictions", new),)))
    if tested:
        about = (
            "Each set predicted from the others, without itself, and the measured time. A set outside its range "
            "differs from the others in more than size: software, hyperparameters, file system."
        )
        sections.append(
            Section(
                "Predictions against measurements", about, (_predicted_table("predictions-tested", tested),)
            )
        )
    return sections


def _predicted_table(name: str, predicted: Sequence[Predicted]) -> Table:
    head = ("machine", "on", "time to solution, min", "staging, min", "T_epoch, s", "epochs", "from")
    rows = []
    for p in predicted:
        estimate, measured = p.prediction, ""
        if p.measured_min is not None:
            inside = estimate.seconds.low <= p.measured_min * 60 <= estimate.seconds.high
            measured = f"measured {plain(p.measured_min)}, {'inside' if inside else 'outside'}"
        rows.append(
            (
                Cell(p.org, notes=(p.machine, p.division)),
                Cell(f"{whole(estimate.units)} {p.unit}s", notes=(f"batch size {whole(estimate.batch)}",)),
                _estimate(estimate.seconds, 60, measured),
                _estimate(estimate.staging_s, 60),
                _estimate(estimate.epoch_s),
                _estimate(estimate.epochs),
                Cell(", ".join(filter(None, (estimate.seconds.how, p.note)))),
            )
        )
    return Table(name, head, tuple(rows), text_columns=2, prose=(6,))


def _findings(comparison: Comparison) -> Section | None:
    problems = comparison.problems
    if not problems:
        return None
    table = findings_table([(str(path), finding) for path, finding in problems])
    summary = f"{count(len(problems), 'finding')} about the sets"
    return Section("Findings", "", (Details(summary, (table,), open=len(problems) <= 6),))


# Formatting of values.


def _who(entry: Entry) -> Cell:
    return Cell(entry.name, bold=entry.letter)


def _measured_over(entry: Entry) -> Cell:
    return Cell(entry.name, notes=(entry.made_from,), bold=entry.letter)


def _units(entry: Entry) -> str:
    if entry.scale is None:
        return "not logged"
    return f"{whole(entry.scale)} {entry.unit}{'' if entry.scale == 1 else 's'}"


def _mean(value: Spread | None, by: float = 1.0) -> Cell:
    """``26.42 ± 0.69``, both divided by ``by``; the deviation has as many decimals as the mean."""
    if value is None:
        return Cell()
    mean = value.mean / by
    if value.sd is None or not value.has_interval or 0 < mean < 0.001:
        return Cell(plain(mean), value=mean)
    return Cell(f"{plain(mean)}\xa0±\xa0{value.sd / by:,.{decimals(mean)}f}".replace(",", "\xa0"), value=mean)


def _estimate(estimate: Estimate, by: float = 1.0, note: str = "") -> Cell:
    value, low, high = (plain(end / by) for end in estimate[:3])
    return Cell(value, notes=(f"{low} to {high}", note), value=estimate.value / by)
