"""The verdict of a comparison, computed from the registry and the measured values whenever it is shown."""

from typing import Any, NamedTuple

from pydantic import BaseModel

from mlhpc.papers.registry import Figure, Number
from mlhpc.quantities import count, digits

MEANINGS = {
    "agrees": "every number that is compared lies within its tolerance of the printed one, and every test of a "
    "trend holds",
    "trend": "the paper's order and direction, as tests; no number of the row is compared",
    "contradicted": "a compared number lies outside its tolerance, or a test fails; with the reason",
    "modelled": "our model, or a model of ours in place of a machine; never counted as agreement",
    "needs a device": "measured on an accelerator; with the command and, where there is a model, its value",
    "needs a cluster": "likewise, of many nodes",
    "not run": "no stored values, or those of other commands or expressions",
}
"""The possible verdicts and their meanings."""


class Measured(BaseModel):
    """This suite's values of a figure. ``basis``: the figure's basis when the values were measured; ``numbers``:
    the values for which the registry has an expression, by name; ``trends``: whether the test of each trend is
    true, by the trend's statement; ``curves``: points by name; ``where``: the machine, the date, and the suite's
    commit or, if it is installed, its version."""

    paper: str
    label: str
    basis: str
    numbers: dict[str, float | None]
    trends: dict[str, bool]
    curves: dict[str, list[tuple[float, float]]] = {}
    where: str = ""


class Verdict(NamedTuple):
    """The result of a comparison. ``word``: a key of ``MEANINGS``; ``details``: what was compared and what
    deviates."""

    word: str
    details: str


def judge(figure: Figure, measured: Measured | None) -> Verdict:
    """The verdict on ``figure``."""
    if figure.needs:
        return Verdict(f"needs a {figure.needs}", "ours is modelled" if measured and measured.numbers else "")
    if measured is None or measured.basis != figure.basis:
        return Verdict("not run", "")
    compared = [number for number in figure.number if number.tolerance is not None]
    outside = [number for number in compared if not within(number, measured.numbers[number.name])]
    failing = [trend for trend in figure.trend if not measured.trends[trend.says]]
    counts = [f"{len(compared) - len(outside)} of {count(len(compared), 'number')}"] if compared else []
    if figure.trend:
        counts.append(f"{len(figure.trend) - len(failing)} of {count(len(figure.trend), 'trend')}")
    differing = [
        f"{n.name}: {five_digits(measured.numbers[n.name]) or 'nothing'} for {five_digits(n.printed)}"
        for n in outside
    ]
    differing += [f"not so: {trend.says}" for trend in failing]
    details = "; ".join([*counts, *differing])
    if figure.modelled:
        return Verdict("modelled", details)
    if differing:
        return Verdict("contradicted", f"{details}. {figure.reason}" if figure.reason else details)
    if compared and figure.kind == "numbers":
        return Verdict("agrees", details)
    return Verdict("trend" if figure.trend else "not run", details)


def within(number: Number, value: float | None) -> bool:
    """Return whether ``value`` lies within the tolerance of the printed number."""
    most = (number.tolerance or 0.0) * abs(number.printed)
    return value is not None and abs(value - number.printed) <= most + 1e-12  # margin for rounding


def five_digits(value: float | None) -> str:
    """``value`` as text with five digits, the precision of the papers; empty for None."""
    return digits(value, 5)


def record(figure: Figure, measured: Measured | None) -> dict[str, Any]:
    """A figure, its values and its verdict as JSON."""
    verdict = judge(figure, measured)
    values = measured.numbers if measured else {}
    return {
        "paper": figure.paper, "label": figure.label, "shows": figure.shows,
        "verdict": verdict.word, "details": verdict.details, "quotes": list(figure.quotes),
        "printed": [number.model_dump(exclude={"ours"}) for number in figure.number],
        "ours": [values.get(number.name) for number in figure.number],
        "trends": measured.trends if measured else {},
        "command": figure.command, "commands": list(figure.run.values()), "full_command": figure.full or None,
        "where": measured.where if measured else None,
    }  # fmt: skip
