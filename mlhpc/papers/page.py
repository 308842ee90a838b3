"""Shows stored comparisons as a table, or the comparison of one figure as a page."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mlhpc.common.pages.blocks import Cell, Facts, Section, Table, table
from mlhpc.papers.registry import Figure, Number, registry
from mlhpc.papers.verdict import MEANINGS, Measured, five_digits, judge, within
from mlhpc.quantities import count

Rows = Sequence[tuple[Figure, Measured | None]]
TONES = {"agrees": "good", "trend": "good", "contradicted": "error", "not run": "warning"}


def listing(rows: Rows) -> Table:
    """A table of all figures with their verdicts."""
    return table(
        "papers",
        [(figure, judge(figure, measured)) for figure, measured in rows],
        {
            "paper": lambda row: row[0].paper,
            "figure": lambda row: row[0].label,
            "verdict": lambda row: Cell(row[1].word, tone=TONES.get(row[1].word, "")),
            "shows": lambda row: row[0].shows,
        },
        text_columns=4,
    )


def counted(rows: Rows) -> Counter[str]:
    """The number of figures with each verdict."""
    return Counter(judge(figure, measured).word for figure, measured in rows)


def comparison(figure: Figure, measured: Measured | None) -> Table:
    """A table of the printed numbers and this suite's values."""
    values = measured.numbers if measured else {}

    def ours(number: Number) -> Cell:
        value = values.get(number.name)
        wrong = number.tolerance is not None and number.name in values and not within(number, value)
        return Cell(five_digits(value), value="" if value is None else value, tone="error" * wrong)

    def relation(number: Number) -> str:
        value = values.get(number.name)
        return "" if value is None or not number.printed else f"{value / number.printed:.3g}"

    return table(
        "comparison",
        figure.number,
        {
            "quantity": lambda number: number.name,
            "printed": lambda number: Cell(five_digits(number.printed), value=number.printed),
            "ours": ours,
            "ours / printed": relation,
            "unit": lambda number: number.unit,
            "tolerance": lambda number: (
                "not compared" if number.tolerance is None else f"{number.tolerance:.2%}"
            ),
            "in the paper's words": lambda number: number.quote,
        },
        prose=(4, 5, 6),
    )


def tests(figure: Figure, measured: Measured | None) -> Table:
    """A table of the trends that the paper describes in words, and whether this suite's values show them."""
    held = measured.trends if measured else {}
    words = {True: Cell("yes", tone="good"), False: Cell("no", tone="error"), None: Cell("not tested")}
    columns = {
        "the paper": lambda trend: trend.says,
        "so here": lambda trend: words[held.get(trend.says)],
        "test": lambda trend: trend.test,
    }
    return table("trends", figure.trend, columns, text_columns=3)


def page(figure: Figure, measured: Measured | None) -> str:
    """The HTML page of one figure: this suite's values beside the paper's. Requires the extra ``pages``."""
    from mlhpc.common.pages.html import render

    verdict = judge(figure, measured)
    blocks = [block for block in (comparison(figure, measured), tests(figure, measured)) if not block.empty]
    facts = {
        "in the paper's words": "; ".join(f"“{quote}”" for quote in figure.quotes),
        "commands": "; ".join(figure.run.values()) or None,
        "at the paper's size": figure.full or None,
        "what limits it": figure.note or None,
        "values of": measured.where if measured else None,
    }
    return render(
        eyebrow="mlhpc papers",
        heading=figure.label,
        subtitle=registry().papers[figure.paper],
        meta=figure.shows,
        hero=[("Verdict", verdict.word, verdict.details or MEANINGS[verdict.word])],
        blocks=[
            Section("Ours beside the paper's", figure.note, (*_figures(figure, measured), *blocks)),
            Section("How it was compared", f"{verdict.word}: {MEANINGS[verdict.word]}.", (Facts(facts),)),
        ],
        foot="Printed numbers stand in the quoted words; no curve was read off a picture.",
    )


def _figures(figure: Figure, measured: Measured | None) -> tuple[Any, ...]:
    """The charts of a figure: this suite's value and the printed value of each number, and the curves that the
    registry defines."""
    from mlhpc.common.pages import plots

    drawn: list[Any] = []
    values = measured.numbers if measured else {}
    both = [(n, value) for n in figure.number if n.printed > 0 and (value := values.get(n.name) or 0) > 0]
    if both:
        rows = [
            {"x": y, "y": name, "series": series, "says": f"{name}, {series}: {five_digits(y)} {n.unit}"}
            for n, value in both
            for name in [f"{n.name}, {n.unit}" if n.unit else n.name]
            for series, y in (("the paper", n.printed), ("ours", value))
        ]
        drawn.append(_dots(rows, len(both)))
    curves = measured.curves if measured else {}
    points: list[dict[str, Any]] = [
        {"x": x, "y": y, "series": name, "says": f"{name}: {five_digits(x)}, {five_digits(y)}"}
        for name, curve in curves.items()
        for x, y in curve
        if x > 0 and y > 0
    ]
    if points:
        axes = [
            plots.log_axis([row[key] for row in points], title)
            for key, title in zip("xy", figure.axes, strict=True)
        ]
        said = "; ".join(row["says"] for row in points[:60])
        title = f"{figure.axes[1]} over {figure.axes[0]}, ours"
        drawn.append(
            plots.lines(plots.on_axes(points, *axes), said, series=list(curves), title=title, height=260)
        )
    return tuple(drawn)


def _dots(rows: list[dict[str, Any]], number: int) -> Any:
    """A chart with one row per quantity, which marks the paper's value and this suite's."""
    import altair as alt

    from mlhpc.common.pages import charts, plots

    axis = plots.log_axis([row["x"] for row in rows], "value, logarithmic", room=1.15)
    names = list(dict.fromkeys(row["series"] for row in rows))
    base = charts.chart_of(rows, x=alt.X("x:Q", **axis.channel), y=alt.Y("y:N", sort=None, title=None))
    colours = alt.Scale(domain=names, range=[pair[0] for pair in charts.SERIES[: len(names)]])
    marks = base.mark_point(filled=True, size=90, opacity=0.8).encode(
        color=alt.Color("series:N", scale=colours),
        shape=alt.Shape("series:N", scale=alt.Scale(domain=names, range=["circle", "triangle-right"])),
    )
    said = "; ".join(row["says"] for row in rows[:60])
    return charts.figure(alt.layer(marks), said, title="Printed and ours", height=40 + 24 * number)


def summary(rows: Rows) -> str:
    """The number of figures per verdict, as a sentence."""
    totals = counted(rows)
    counts = ", ".join(f"{totals[word]} {word}" for word in MEANINGS if totals[word])
    return f"{count(totals.total(), 'figure')}: {counts}"
