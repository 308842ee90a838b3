"""Figure 2 of paper 001: epoch scaling and throughput scaling, joined on the batch size.

Four planes with logarithmic axes that are shared along rows and columns, so that the eye joins them: from the
number of units up to the batch size (a), across to the epochs (b); from the units to the epoch rate (c),
across to the time that both make (d).
"""

from collections.abc import Mapping, Sequence
from html import escape

from mlhpc.perf.scaling import Point
from mlhpc.submission.report import charts
from mlhpc.submission.report.charts import Axis, Level, Mark
from mlhpc.submission.report.compare import references
from mlhpc.submission.report.entry import Entry, Spread
from mlhpc.submission.report.html import section
from mlhpc.submission.report.summary import plain, whole

COLOURS = 6
_BARS = "bars: ± standard deviation over runs"


def planes(group: Sequence[Entry]) -> str:
    """The section of a page; empty where no set of ``group`` has all that is drawn."""
    shown = [e for e in group if e.measured]
    if not shown:
        return ""
    units = {e.letter: float(e.scale or 1) for e in shown}
    batches = {e.letter: float(e.batch or 1) for e in shown}
    spreads = {e.letter: e.epochs for e in shown if e.epochs}
    epochs = {letter: spread.mean for letter, spread in spreads.items()}
    rates = {e.letter: 3600 / e.steady_epoch_s.mean for e in shown if e.steady_epoch_s}
    low, high = min(batches.values()) / 4, max(batches.values()) * 4
    reference = [p for p in references(shown[0]) if low <= p.size <= high]

    kinds = " or ".join(dict.fromkeys(f"{e.unit}s" for e in shown))
    ends = [s.mean + sign * (s.sd or 0.0) for s in spreads.values() for sign in (-1, 1)]
    ends = [*(end for end in ends if end > 0), *(p.value[0] for p in reference)]
    sizes = [*batches.values(), *(p.size for p in reference)]
    x_units = charts.log_axis(list(units.values()), kinds, whole, base=2)
    x_epochs = charts.log_axis(ends, "epochs to the target", _tick, room=1.3)
    y_batch = charts.log_axis(sizes, "global batch size", whole, base=2)
    y_rate = charts.log_axis(list(rates.values()), "epochs an hour", _tick)

    train = shown[0].train_samples or 1
    samples = train + (shown[0].eval_samples or 0)
    drawn = [
        _plane("a) Choice of the batch size", "dotted: samples of the batch a unit",
               shown, (x_units, units), (y_batch, batches),
               charts.levels(x_units, y_batch, lambda ratio: f"{ratio:g} a unit")),
        _plane("b) Epoch scaling", f"dotted: the same number of steps; {_BARS}",
               shown, (x_epochs, epochs), (y_batch, batches),
               charts.levels(x_epochs, y_batch, lambda ratio: f"{whole(1 / ratio)} steps", train),
               spreads, reference),
        _plane("c) Throughput scaling", "dotted: samples/s a unit, training and evaluation together",
               shown, (x_units, units), (y_rate, rates),
               charts.levels(x_units, y_rate, lambda ratio: f"{ratio:g}/s a unit", 3600 / samples)),
        _plane("d) Time to compute", f"dotted: the same T_epoch · epochs; {_BARS}",
               shown, (x_epochs, epochs), (y_rate, rates), _times(epochs, rates), spreads),
    ]  # fmt: skip
    legend = "".join(
        f'<span class="mark {_style(e, shown)}"><b>{e.letter}</b> {escape(f"{e.name}, {e.made_from}")}</span>'
        for e in shown
    )
    if reference:
        told = "reference convergence points (mlperf-logging)"
        legend += f'<span class="mark ref hollow"><b>ref</b> {told}</span>'
    about = (
        "The axes of a row and of a column are the same: read the batch size across from a to b, the "
        "epoch rate across from c to d. Lines join the sets of one submitter's machine, in b and d those "
        "of one division. An epoch is training and evaluation, without the first one's excess. Filled: "
        "closed division, official data, with a score; hollow: anything else."
    )
    return section(
        "Epoch scaling and throughput scaling, joined on the batch size",
        about,
        f'<div class="planes">{"".join(drawn)}</div><div class="key legend">{legend}</div>',
    )


def _plane(
    title: str,
    note: str,
    shown: Sequence[Entry],
    x: tuple[Axis, Mapping[str, float]],
    y: tuple[Axis, Mapping[str, float]],
    levels: Sequence[Level],
    spreads: Mapping[str, Spread] | None = None,
    reference: Sequence[Point] = (),
) -> str:
    """One plane. ``spreads``, of what x shows, are drawn as bars; it is then of a division's convergence."""
    (x_axis, xs), (y_axis, ys) = x, y
    marks, joins = [], dict[object, tuple[str, list[tuple[float, float]]]]()
    for e in sorted(shown, key=lambda e: (e.scale or 0, e.batch or 0)):
        place = xs[e.letter], ys[e.letter]
        says = f"{plain(place[0])} {x_axis.title}, {plain(place[1])} {y_axis.title}"
        spread = spreads[e.letter] if spreads else None
        # A deviation as large as the mean has no lower end on a logarithmic axis: to its edge.
        reach = (
            (max(spread.mean - spread.sd, 1e-9), spread.mean + spread.sd) if spread and spread.sd else None
        )
        style = _style(e, shown)
        marks.append(Mark(*place, e.letter, style, f"{e.letter} {e.name}: {says}; {e.made_from}", reach))
        _, points = joins.setdefault((e.line, spreads and e.division), (style, []))
        points.append(place)
    for point in reference:
        says = f"reference: {plain(point.value[0])} epochs at batch size {whole(point.size)}"
        marks.append(Mark(point.value[0], point.size, "ref", "ref hollow", says))
    lines = [*joins.values(), ("ref", [(point.value[0], point.size) for point in reference])]
    says = f"{title}. " + "; ".join(mark.title for mark in marks)
    picture = charts.plane(marks, lines, says, x_axis=x_axis, y_axis=y_axis, levels=levels)
    caption = f"<figcaption>{escape(title)}<small>{escape(note)}</small></figcaption>"
    return f"<figure>{caption}{picture}</figure>"


def _style(entry: Entry, shown: Sequence[Entry]) -> str:
    lines = list(dict.fromkeys(e.line for e in shown))
    return f"c{lines.index(entry.line) % COLOURS}" + ("" if entry.is_closed_score else " hollow")


def _times(epochs: Mapping[str, float], rates: Mapping[str, float]) -> list[Level]:
    """Lines of the same time around those measured: rate = epochs / time."""
    minutes = [60 * epochs[letter] / rates[letter] for letter in epochs]
    rounds = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3000, 6000)
    near = [m for m in rounds if min(minutes) / 2.5 <= m <= max(minutes) * 2.5]
    return [Level(60 / m, _clock(m)) for m in near]


def _clock(minutes: float) -> str:
    if minutes < 1:
        return f"{60 * minutes:g} s"
    return f"{minutes:g} min" if minutes < 60 else f"{minutes / 60:g} h"


def _tick(value: float) -> str:
    return whole(value) if value >= 10 else f"{value:g}"
