"""The errors of predictions against measured sets, in the terminal and as JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from mlhpc.common.pages.blocks import Cell, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.perf.against import Compared, Summary, apart, coverage, summary
from mlhpc.quantities import digits, four_digits


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def show(compared: Sequence[Compared]) -> None:
    """Print a row for each set, and the summaries."""
    console = Console(highlight=False)
    columns: dict[str, Callable[[Compared], Cell | str]] = {
        "use": lambda c: c.row.use,
        "set": lambda c: f"{c.row.benchmark} {c.row.round} {c.row.system}",
        "batch": lambda c: (
            four_digits(c.row.local_batch_size) if c.row.local_batch_size >= 1 else f"1/{c.row.spatial}"
        ),
        "samples/s": lambda c: digits(c.row.samples_per_s),
        "model": lambda c: digits(c.rate[0]),
        "error": lambda c: _percent(c.error),
        "base": lambda c: _percent(c.baseline_error),
        "epochs": lambda c: f"{c.row.epochs[0]:.1f}{'' if c.epochs_inside is not False else ' !'}",
        "interval": lambda c: f"{c.epochs.low:.0f}–{c.epochs.high:.0f}" if c.epochs else "",
        "time": lambda c: _percent(c.total_error),
    }
    ordered = sorted(compared, key=lambda c: (c.row.benchmark, c.row.use))
    print_table(table("errors", ordered, columns, text_columns=2), console, optional=1)
    say(console, "error of samples/s per accelerator; base: of the baseline; time: error of the time to "
                 "train, "
                  "T_staging as logged; !: outside the interval")  # fmt: skip
    for name, lines in summaries_of(compared).items():
        for line in lines:
            say(console, f"{name}: {line}")


def summaries_of(compared: Sequence[Compared]) -> dict[str, list[str]]:
    """The summary of each use of sets; and, where some are ``fit``, of predictions from other rounds, and from
    other accelerators, which say what to expect of a system that is not among the sets."""
    uses = {"fit": "fit", "test": "test", "held": "held out"}
    found = {name: summaries([c for c in compared if c.row.use == use]) for use, name in uses.items()}
    rows = [c.row for c in compared]
    if any(row.use == "fit" for row in rows):
        found["each round left out in turn"] = summaries(apart(rows, "round"))
        found["each accelerator left out in turn"] = summaries(apart(rows, "accelerator"))
    return {name: lines for name, lines in found.items() if lines}


def summaries(compared: Sequence[Compared]) -> list[str]:
    """Summary of the errors in sentences; for the baseline over the sets that have one."""
    if not compared:
        return []
    both = [c for c in compared if c.baseline is not None]
    errors = {
        "throughput": summary([c.error for c in compared]),
        "throughput of sets with a baseline": summary([c.error for c in both]),
        "baseline": summary([c.baseline_error for c in both]),
        "time to train, T_staging as logged": summary([c.total_error for c in compared]),
    }
    lines = [f"{name}: {_summary(figures)}" for name, figures in errors.items() if figures]
    model, guess = errors["throughput of sets with a baseline"], errors["baseline"]
    if model and guess:
        better = "the baseline is better" if guess.median < model.median else "the model is at least as good"
        lines.append(f"{better}: the plain median of like sets is off by {guess.median:.1%}, the model by "
                     f"{model.median:.1%}")  # fmt: skip
    else:
        lines.append("no set has a baseline: there are no like sets")
    intervals = {
        "throughput": coverage([(c.rate, c.rate_inside) for c in compared]),
        "epochs": coverage([(c.epochs and c.epochs.ends, c.epochs_inside) for c in compared]),
        "time to train": coverage([(c.total_s, c.total_inside) for c in compared]),
    }
    for name, counted in intervals.items():
        if counted:
            lines.append(
                f"{name} inside the interval: {counted.inside} of {counted.of} sets, median width a factor of "
                f"{digits(counted.width, 2)}"
            )
    return lines


def _summary(error: Summary) -> str:
    return f"median error {error.median:.1%}, {error.within:.0%} within 35%, {error.sets} sets"


def records(compared: Sequence[Compared]) -> dict[str, Any]:
    """The same as JSON."""
    sets = [
        {
            "use": c.row.use,
            "set": c.row.name,
            "benchmark": c.row.benchmark,
            "samples_per_s": c.row.samples_per_s,
            "predicted": c.rate[0],
            "predicted_interval": list(c.rate[1:]),
            "error": c.error,
            "baseline_error": c.baseline_error,
            "epochs": c.row.epochs[0],
            "epochs_interval": [c.epochs.low, c.epochs.high] if c.epochs else None,
            "epochs_inside": c.epochs_inside,
            "time_to_train_error": c.total_error,
            "efficiency_of": c.how,
        }
        for c in compared
    ]
    return {"sets": sets, "summary": summaries_of(compared)}
