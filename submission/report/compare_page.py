"""The comparison of many runs as one self-contained HTML page, after Farrell et al. 2021: figures 1 and 2, tables
5 and 6, and the prediction of section 4.1.2. The order and text of the sections are in
``templates/comparison.html``."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.common.energy.counters import NAMES
from mlhpc.common.pages.blocks import Cell, Details, Table, number, table
from mlhpc.common.pages.html import render
from mlhpc.perf.scaling import Estimate
from mlhpc.quantities import count, decimals, digits, plain, whole
from mlhpc.record.differences import differences_table
from mlhpc.submission.findings import findings_table
from mlhpc.submission.report.compare import DETAILED, Comparison, Predicted
from mlhpc.submission.report.compare_figures import BARS, breakdown, planes
from mlhpc.submission.report.entry import BEFORE_CLOCK, IN_CLOCK, OVER_ENDED, OVER_UNKNOWN, Entry
from mlhpc.submission.report.spread import Spread
from mlhpc.submission.score.score import Weak


def page(comparison: Comparison) -> str:
    """The HTML of the page."""
    sets, logs = len(comparison.entries), sum(e.logs for e in comparison.entries)
    return render(
        template="mlhpc.submission.report:comparison.html",
        title="Comparison of runs",
        heading="Comparison",
        subtitle=f"{count(sets, 'set')} of runs, {count(logs, 'log')}",
        meta=" · ".join(map(str, comparison.paths)),
        findings=_findings(comparison),
        problems=[_problem(group, comparison) for group in comparison.by_problem],
        bars=BARS,
        detailed=DETAILED,
    )


def _problem(group: Sequence[Entry], comparison: Comparison) -> dict[str, Any]:
    """The contents of the chapter on one problem, for the template: the blocks of each section (None for an
    omitted section), and the values in the text."""
    first = group[0]
    originals = [e for e in group if not e.copy_of]
    measured = [e for e in originals if e.runs]
    timed = [e for e in measured if e.whole_runs]
    predicted = [p for p in comparison.predictions if p.problem == first.problem]
    return {
        "title": first.title,
        "official": first.official,
        "benchmark": registry.title(first.benchmark),
        "staged_inside": ", ".join(e.letter for e in group if e.staged == IN_CLOCK),
        "staged_before": ", ".join(e.letter for e in group if e.staged == BEFORE_CLOCK),
        "sets": _sets(group),
        "measured": len(timed),
        "breakdown": breakdown(timed) if timed else None,
        "planes": planes(originals),
        "differences": differences_table(originals),
        "staging": _staging(measured),
        "scaling": _scaling(measured),
        "energy": _energy([e for e in measured if e.joules]),
        "predicted": _predicted("predictions", [p for p in predicted if p.measured_min is None]),
        "tested": _predicted("predictions-tested", [p for p in predicted if p.measured_min is not None]),
    }


def _findings(comparison: Comparison) -> Details | None:
    problems = comparison.problems
    if not problems:
        return None
    rows = findings_table([(str(path), finding) for path, finding in problems])
    return Details(f"{count(len(problems), 'finding')} about the sets", (rows,), open=len(problems) <= 6)


def _sets(group: Sequence[Entry]) -> Table:
    return table(
        "sets",
        group,
        {
            "set": lambda e: Cell(e.name, (", ".join(filter(None, (e.when, e.software))),), bold=e.letter),
            "division": lambda e: Cell(e.division, e.notes, e.division),
            "one run on": lambda e: Cell(_units(e), (e.machine,)),
            "batch size": lambda e: Cell(whole(e.batch), value=e.batch or ""),
            "runs": lambda e: Cell(f"{len(e.runs)} of {e.logs}", (f"{e.missed} missed" * bool(e.missed),)),
            "score, min": _score,
            "without staging, min": lambda e: number(_without_staging(e), "{:.4f}".format),
            "staging": lambda e: e.staged,
        },
        text_columns=3,
        prose=(7,),
    )


def _score(entry: Entry) -> Cell:
    score, time = entry.score, entry.time_s
    if score is None:
        return Cell("no score", ("unknown target",), "")
    if score.minutes is None:
        mean = f"mean {plain(time.mean / 60)} of {entry.over}" if time else ""
        return Cell("no score", (score.why, mean), "")
    if isinstance(score, Weak):
        about = f"TTTa; (T, S, M′) = ({score.T}, {score.S}, {score.M})"
    else:
        about = f"all that converged: {plain(score.mean)} ± {score.spread:.2f}" if score.spread else ""
    return Cell(f"{score.minutes:.4f}", (about,), score.minutes)


def _without_staging(entry: Entry) -> float | None:
    score = entry.score
    return score.without_staging_minutes if score and score.minutes is not None else None


def _staging(shown: Sequence[Entry]) -> Table:
    """A table like table 5 of Farrell et al. 2021, on staging."""

    def timed(entry: Entry) -> bool:
        return entry.staged == IN_CLOCK and entry.staging_s is not None

    unknown = Cell("not known", value="")
    return table(
        "staging",
        shown,
        {
            "set": _measured_over,
            "staging, min": lambda e: _mean(e.staging_s, 60) if timed(e) else Cell(e.staged, value=""),
            "T_epoch, s": lambda e: _mean(e.epoch_s),
            "T_staging / T_epoch": lambda e: _mean(e.staging_in_epochs if timed(e) else None),
            "first-epoch excess, min": lambda e: _mean(e.excess_s, 60) if e.excess_s else unknown,
            "(T_staging + excess) / T_epoch": lambda e: _mean(e.staging_and_excess_in_epochs),
        },
    )


def _scaling(shown: Sequence[Entry]) -> Table:
    """A table like table 6 of Farrell et al. 2021, with speed-up and efficiency."""
    relative = {e.letter: _speedup(e, shown) for e in shown}

    def epochs(entry: Entry) -> Cell | str:
        if entry.over == OVER_ENDED:
            return f"target not met in {max(r.epochs for r in entry.runs)}"
        return _mean(entry.epochs)

    return table(
        "scaling",
        shown,
        {
            "set": _measured_over,
            "batch size": lambda e: Cell(whole(e.batch), value=e.batch or ""),
            "epochs": epochs,
            "units": lambda e: Cell(_units(e), value=e.scale or ""),
            "training, samples/s per unit": lambda e: _mean(e.train_rate),
            "evaluation, samples/s per unit": lambda e: _mean(e.eval_rate),
            "time, min": lambda e: _mean(e.time_s, 60),
            "speed-up": lambda e: relative[e.letter][0],
            "efficiency": lambda e: relative[e.letter][1],
            "budget, h · units": lambda e: Cell(plain(e.budget_h), value=e.budget_h or ""),
        },
    )


def _energy(shown: Sequence[Entry]) -> Table:
    """A table of joules and the corresponding time, by kind of counter."""

    def kilojoules(kind: str, entry: Entry) -> Cell:
        if kind in entry.joules and entry.joules[kind] is None:
            return Cell("incomplete", value="")
        return _mean(entry.joules.get(kind), 1e3)

    def sources(entry: Entry) -> str:
        named = ((NAMES[kind], run.energy.get(kind)) for kind in entry.joules for run in entry.runs)
        return "; ".join(dict.fromkeys(f"{name}: {energy.source}" for name, energy in named if energy))

    kinds = [kind for kind in NAMES if any(kind in e.joules for e in shown)]
    return table(
        "energy",
        shown,
        {
            "set": _measured_over,
            "time, min": lambda e: _mean(e.time_s, 60),
            **{f"{NAMES[kind]}, kJ": partial(kilojoules, kind) for kind in kinds},
            "read with": sources,
        },
        prose=(2 + len(kinds),),
    )


def _speedup(entry: Entry, shown: Sequence[Entry]) -> tuple[Cell, Cell]:
    """Speed-up and efficiency relative to the smallest set of the same machine, software, division and metric."""

    def kind(e: Entry) -> tuple[object, ...]:
        return e.line, e.software, e.division, e.metric

    off_target = (OVER_ENDED, OVER_UNKNOWN)
    alike = [e for e in shown if kind(e) == kind(entry) and e.comparable and e.over not in off_target]
    line = {e.letter: (e.scale, e.time_s.mean) for e in alike if e.scale and e.time_s}
    if entry.letter not in line or len({scale for scale, _ in line.values()}) < 2:
        return Cell(), Cell()
    base = min(line, key=lambda letter: line[letter][0])
    (base_scale, base_s), (scale, seconds) = line[base], line[entry.letter]
    speedup = base_s / seconds
    efficiency = speedup * base_scale / scale
    return number(speedup, digits, f"of {base}"), number(efficiency, "{:.0%}".format)


def _predicted(name: str, predicted: Sequence[Predicted]) -> Table:
    return table(
        name,
        predicted,
        {
            "machine": lambda p: Cell(p.org, (p.machine, p.division)),
            "on": lambda p: Cell(
                f"{whole(p.prediction.units)} {p.unit}s", (f"batch size {whole(p.prediction.batch)}",)
            ),
            "time to solution, min": lambda p: _estimate(p.prediction.seconds, 60, _measured(p)),
            "staging, min": lambda p: _estimate(p.prediction.staging_s, 60),
            "T_epoch, s": lambda p: _estimate(p.prediction.epoch_s),
            "epochs": lambda p: _estimate(p.prediction.epochs),
            "from": lambda p: ", ".join(filter(None, (p.prediction.seconds.how, p.note))),
        },
        text_columns=2,
        prose=(6,),
    )


def _measured(p: Predicted) -> str:
    if p.measured_min is None:
        return ""
    estimate = p.prediction.seconds
    inside = estimate.low <= p.measured_min * 60 <= estimate.high
    return f"measured {plain(p.measured_min)}, {'inside' if inside else 'outside'}"


def _measured_over(entry: Entry) -> Cell:
    return Cell(entry.name, notes=(entry.made_from,), bold=entry.letter)


def _units(entry: Entry) -> str:
    if entry.scale is None:
        return "not logged"
    return f"{whole(entry.scale)} {entry.unit}{'' if entry.scale == 1 else 's'}"


def _mean(value: Spread | None, by: float = 1.0) -> Cell:
    """Mean and standard deviation, divided by ``by``, as text with equal numbers of decimals: ``26.42 ± 0.69``."""
    if value is None:
        return Cell()
    mean = value.mean / by
    if value.sd is None or not value.has_interval or 0 < mean < 0.001:
        return Cell(plain(mean), value=mean)
    return Cell(f"{plain(mean)}\xa0±\xa0{value.sd / by:,.{decimals(mean)}f}", value=mean)


def _estimate(estimate: Estimate, by: float = 1.0, note: str = "") -> Cell:
    value, low, high = (plain(end / by) for end in estimate[:3])
    return Cell(value, notes=(f"{low} to {high}", note), value=estimate.value / by)
