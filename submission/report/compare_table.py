"""A comparison of many runs as tables in the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlhpc.common.pages.text import printable
from mlhpc.errors import count
from mlhpc.submission.logs.findings import STYLES
from mlhpc.submission.report.compare import Comparison
from mlhpc.submission.report.summary import plain, whole

_FINDINGS_SHOWN = 5


def text(value: object, style: str = "") -> Text:
    """Text from a log or a file, without markup or terminal escapes."""
    return Text(printable(value), style=style)


def print_comparison(comparison: Comparison, console: Console) -> None:
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
            for note in e.notes:
                console.print(text(f"  {note}", "yellow"))
        measured = _grid("set", "runs", "units", "batch", "score", "staging", "excess", "epochs", "rate")
        for e in group:
            seconds = e.parts_s
            total = sum(seconds.values())
            shares = {key: f"{part / total:.1%}" if total else "" for key, part in seconds.items()}
            if e.excess_s is None and e.runs:
                shares["first_epoch_excess"] = "not known"
            measured.add_row(
                e.letter,
                f"{len(e.runs)}/{e.logs}",
                whole(e.scale),
                whole(e.batch),
                "none" if e.score is None or e.score.minutes is None else f"{e.score.minutes:.4f}",
                *(shares.get(key, "") for key in ("staging", "first_epoch_excess")),
                plain(e.epochs and e.epochs.mean),
                plain(e.train_rate and e.train_rate.mean),
            )
        console.print(measured)
        new = [p for p in comparison.predictions if p.problem == group[0].problem and p.measured_min is None]
        if new:
            predicted = _grid("prediction for", "units", "batch", "min", "range")
            for p in new:
                estimate, time = p.prediction, p.prediction.seconds
                predicted.add_row(
                    text(f"{p.org}, {p.machine}, {p.division}"),
                    whole(estimate.units),
                    whole(estimate.batch),
                    plain(time.value / 60),
                    f"{plain(time.low / 60)} to {plain(time.high / 60)}",
                )
            console.print(predicted)
    legend = (
        "score: minutes; staging, first epoch's excess: share of the time; rate: training samples/s per unit"
    )
    console.print(Text(legend, style="dim"))
    _print_problems(comparison, console)


def _print_problems(comparison: Comparison, console: Console) -> None:
    """The first few findings about the sets, one per line."""
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


def _grid(first: str, *others: str) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column(first, overflow="fold")
    for name in others:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid
