"""Prints a comparison of many runs as tables in the terminal."""

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from mlhpc.common.energy.counters import NAMES
from mlhpc.common.pages.blocks import table
from mlhpc.common.pages.terminal import print_table
from mlhpc.common.pages.text import printable
from mlhpc.quantities import count, joules_text, plain, whole
from mlhpc.submission.findings import STYLES
from mlhpc.submission.report.compare import Comparison, Predicted
from mlhpc.submission.report.entry import Entry

_FINDINGS_SHOWN = 5


def _share(entry: Entry, key: str) -> str:
    if not entry.parts_s:
        return ""
    if key == "first_epoch_excess" and entry.excess_s is None:
        return "not known"
    return f"{entry.parts_s[key] / entry.total_s:.1%}" if entry.total_s else ""


def _energy(entry: Entry) -> str:
    means = {kind: spread and spread.mean for kind, spread in entry.joules.items()}
    return ", ".join(f"{NAMES[kind]} {joules_text(mean)}" for kind, mean in means.items())


_MEASURED: dict[str, Callable[[Entry], str]] = {
    "set": lambda e: e.letter,
    "runs": lambda e: f"{len(e.runs)}/{e.logs}",
    "units": lambda e: whole(e.scale),
    "batch": lambda e: whole(e.batch),
    "score": lambda e: "none" if e.score is None or e.score.minutes is None else f"{e.score.minutes:.4f}",
    "staging": lambda e: _share(e, "staging"),
    "excess": lambda e: _share(e, "first_epoch_excess"),
    "epochs": lambda e: plain(e.epochs and e.epochs.mean),
    "rate": lambda e: plain(e.train_rate and e.train_rate.mean),
}
_PREDICTED: dict[str, Callable[[Predicted], str]] = {
    "prediction for": lambda p: f"{p.org}, {p.machine}, {p.division}",
    "units": lambda p: whole(p.prediction.units),
    "batch": lambda p: whole(p.prediction.batch),
    "min": lambda p: plain(p.prediction.seconds.value / 60),
    "range": lambda p: f"{plain(p.prediction.seconds.low / 60)} to {plain(p.prediction.seconds.high / 60)}",
}


def text(value: object, style: str = "") -> Text:
    """Untrusted text from a log or a file as a rich Text, without markup or terminal escapes."""
    return Text(printable(value), style=style)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the tables of each problem (benchmark and data set), then predictions and findings."""
    for group in comparison.by_problem:
        console.print(text(group[0].title, "bold"))
        if group[0].official is False:
            console.print(Text("Not the official data set: not a result of the benchmark.", style="yellow"))
        for e in group:
            description = ", ".join(filter(None, (e.made_from, e.machine, e.software)))
            console.print(
                Text.assemble((f"{e.letter} ", "bold"), text(e.name), text(f"  {description}", "dim"))
            )
            if e.score is not None and e.score.why:
                console.print(text(f"  no score: {e.score.why}", "yellow"))
            if e.joules:
                console.print(text(f"  energy of a run, mean: {_energy(e)}", "dim"))
            for note in e.notes:
                console.print(text(f"  {note}", "yellow"))
        print_table(table("sets", group, _MEASURED, text_columns=1), console)
        new = [p for p in comparison.predictions if p.problem == group[0].problem and p.measured_min is None]
        if new:
            print_table(table("predictions", new, _PREDICTED), console)
    legend = "score: minutes; staging, excess: shares of the time; rate: training samples/s per unit"
    console.print(Text(legend, style="dim"))
    _print_problems(comparison, console)


def _print_problems(comparison: Comparison, console: Console) -> None:
    """Print the first few findings on the sets, one per line."""
    problems = comparison.problems
    if problems:
        console.print(Text(f"{count(len(problems), 'finding')} about the sets:"))
    for path, f in problems[:_FINDINGS_SHOWN]:
        description = f" {f.rule}: {f.where}: expected {f.expected}; found {f.actual}; {f.remedy}"
        line = Text.assemble(
            "  ", (f.severity, STYLES[f.severity]), text(description), text(f" ({path})", "dim")
        )
        console.print(line)
    if (more := len(problems) - _FINDINGS_SHOWN) > 0:
        console.print(Text(f"  and {more} more: see the page"))
