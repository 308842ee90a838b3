"""The errors of predictions against measured sets, in the terminal and as JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from mlhpc.common.pages.blocks import Cell, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.perf.against import Compared, Summary, summary
from mlhpc.perf.units import percent


def show(compared: Sequence[Compared]) -> None:
    console = Console(highlight=False)
    columns: dict[str, Callable[[Compared], Cell | str]] = {
        "use": lambda c: c.row.use,
        "set": lambda c: f"{c.row.benchmark} {c.row.round} {c.row.system}",
        "batch": lambda c: (
            f"{c.row.local_batch_size:g}" if c.row.local_batch_size >= 1 else f"1/{c.row.spatial}"
        ),
        "samples/s": lambda c: f"{c.row.samples_per_s:.3g}",
        "model": lambda c: f"{c.rate:.3g}",
        "error": lambda c: percent(c.error),
        "base": lambda c: percent(c.baseline_error),
        "epochs": lambda c: f"{c.row.epochs[0]:.1f}{'' if c.epochs_inside else ' !'}",
        "interval": lambda c: f"{c.epochs.low:.0f}–{c.epochs.high:.0f}",
        "time": lambda c: percent(c.total_error),
    }
    ordered = sorted(compared, key=lambda c: (c.row.benchmark, c.row.use))
    print_table(table("errors", ordered, columns, text_columns=2), console, optional=1)
    say(console, "error of samples/s per accelerator; base: of the baseline; time: error of the time to "
                 "train, "
                  "T_staging as logged; !: outside the interval")  # fmt: skip
    for use in ("fit", "test"):
        for line in summaries([c for c in compared if c.row.use == use]):
            say(console, f"{use}: {line}")


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
    inside = sum(c.epochs_inside for c in compared)
    lines = [f"{name}: {_summary(figures)}" for name, figures in errors.items() if figures]
    return [*lines, f"epochs inside the interval: {inside} of {len(compared)} sets"]


def _summary(error: Summary) -> str:
    return f"median error {error.median:.1%}, {error.within:.0%} within 35%, {error.sets} sets"


def records(compared: Sequence[Compared]) -> dict[str, Any]:
    sets = [
        {
            "use": c.row.use,
            "set": c.row.name,
            "benchmark": c.row.benchmark,
            "samples_per_s": c.row.samples_per_s,
            "predicted": c.rate,
            "error": c.error,
            "baseline_error": c.baseline_error,
            "epochs": c.row.epochs[0],
            "epochs_interval": [c.epochs.low, c.epochs.high],
            "epochs_inside": c.epochs_inside,
            "time_to_train_error": c.total_error,
            "efficiency_of": c.how,
        }
        for c in compared
    ]
    of_use = {use: summaries([c for c in compared if c.row.use == use]) for use in ("fit", "test")}
    return {"sets": sets, "summary": of_use}
