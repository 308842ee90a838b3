"""Prints the output of ``mlhpc score --acceptance``."""

from collections.abc import Iterator
from functools import partial

from rich.console import Console

from mlhpc.common.energy.counters import NAMES
from mlhpc.common.pages.blocks import Cell, Columns, Table, number, table
from mlhpc.common.pages.terminal import print_table, say
from mlhpc.quantities import bytes_text, count, digits, duration_text, joules_text
from mlhpc.submission.acceptance.judge import COLUMNS, Acceptance, Judged
from mlhpc.submission.acceptance.tender import TIERS

_TONES = {"fails": "error", "passes": ""}
_STATUS = {0: "accepted", 1: "not accepted", 3: "undecided"}


def print_acceptance(accepted: Acceptance, console: Console) -> None:
    """Print the times of all jobs, the required bandwidths, the commands of jobs still to be run, the metric, and
    the verdict."""
    tender = accepted.tender
    say(console, f"{tender.title}: {count(tender.system.nodes, 'node')} of {accepted.machine.title}", "bold")
    print_table(_times(accepted), console)
    for each in accepted.jobs:
        for line in _lines(each, tender.jobs[each.name].changes):
            say(console, f"{each.name}: {line}")
    for tier in dict.fromkeys(job.tier for job in tender.jobs.values()):
        say(console, f"tier {tier}: {TIERS[tier]}")
    print_table(_bandwidths(accepted), console)
    say(console, "bandwidths per node, required / offered: of samples at the accelerators' peak; of files at the "
                 "predicted rate (Ibrahim et al. 2021, section VII)")  # fmt: skip
    for each in accepted.jobs:
        if each.verdict not in ("passes", "fails"):
            time = each.times.get("predicted")
            hours = f"  # about {digits(time.seconds * time.nodes / 3600)} node hours per run" if time else ""
            say(console, f"to run: {each.command}{hours}")
    say(console, "improvement: geometric mean of c · U · S with U = (n_ref / n) · (N / N_ref) and S = t_ref / t "
                 "≥ 1 (NERSC, Scalable System Improvement)")  # fmt: skip
    required = tender.required_improvement
    for column, value in accepted.improvements.items():
        wanted = f", required {digits(required)}" if required and column == "measured" else ""
        mark = " *" * (column == "measured" and accepted.is_scaled)
        say(console, f"improvement, {column}: {digits(value)}{mark}{wanted}")
    say(console, f"verdict: {_STATUS[accepted.status]}", "bold")


def _times(accepted: Acceptance) -> Table:
    def time(column: str, each: Judged) -> Cell | str:
        value = each.reference if column == "reference" else each.times.get(column)
        if value is None:
            return ""
        return Cell(duration_text(value.seconds) + " *" * bool(value.scaled), value=value.seconds)

    def energy(each: Judged) -> Cell | str:
        kind = NAMES[accepted.tender.jobs[each.name].energy_of]
        return "" if each.joules is None else Cell(f"{joules_text(each.joules)}, {kind}", value=each.joules)

    columns: Columns[Judged] = {
        "job": lambda each: each.name,
        "tier": lambda each: accepted.tender.jobs[each.name].tier,
        "verdict": lambda each: Cell(each.verdict, tone=_TONES.get(each.verdict, "warning")),
        "nodes": lambda each: str(each.nodes),
        **{column: partial(time, column) for column in ("reference", *COLUMNS)},
        "improvement": lambda each: number(
            each.improvements.get("measured"), lambda value: digits(value) + " *" * each.is_scaled
        ),
        "energy": energy,
    }
    return table("acceptance", accepted.jobs, columns, text_columns=3)


def _lines(each: Judged, changes: str) -> Iterator[str]:
    """Yield lines about a job: sources of times, reasons for unknown times, changes, notes, problems."""
    for column, time in {"reference": each.reference, "measured": each.times.get("measured")}.items():
        if time:
            yield f"{column}: {time.source}" + f" * scaled by predict from {time.scaled}" * bool(time.scaled)
    if each.predicted_s:
        _, low, high = each.predicted_s
        yield f"predicted: {duration_text(low)} to {duration_text(high)}"
    else:
        yield f"no prediction: {each.unknown}"
    if changes:
        yield f"changes: {changes}"
    yield from (*each.notes, *(f"fails: {problem}" for problem in each.problems))


def _bandwidths(accepted: Acceptance) -> Table:
    def pair(needed: str, has: str, each: Judged) -> str:
        return " / ".join(bytes_text(each.bandwidths[key], "/s") for key in (needed, has))

    columns: Columns[Judged] = {
        "job": lambda each: each.name,
        "samples / host link": partial(pair, "samples", "link"),
        "memory": partial(pair, "memory", "memory_of_machine"),
        "files / file system": partial(pair, "files", "file_system"),
        "files / local storage": partial(pair, "files", "local"),
    }
    return table("bandwidths", accepted.jobs, columns)
