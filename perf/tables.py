"""Predictions in the terminal and as JSON."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mlhpc.benchmarks.schema import Run
from mlhpc.perf.against import Compared, Summary, summary
from mlhpc.perf.machines import Machine
from mlhpc.perf.prediction import Prediction
from mlhpc.perf.scaling import Triple

PREDICTED = "Predicted, not measured"


def one(p: Prediction) -> None:
    """Step, epoch and time to train with their parts."""
    console = Console()
    console.print(f"[bold]{_heading(p.machine, p.run)}[/], {p.nodes} nodes, {p.accelerators} accelerators", highlight=False)
    parts = f"a sample on {p.parts} accelerators" if p.parts > 1 else f"local batch {p.local_batch}"
    console.print(f"{PREDICTED}. Global batch {p.batch}, {parts}, {p.run.training.precision}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", "predicted", "low", "high"):
        table.add_column(title, justify="right" if title else "left")
    for name, seconds in p.step.named.items():
        table.add_row(f"  {name}", seconds_text(seconds), "", "")
    _triple(table, "training step", p.step_s.ends)
    table.add_section()
    _triple(table, "  training", p.train_s)
    _triple(table, "  evaluation", p.eval_s)
    _triple(table, "T_epoch", p.epoch_s)
    table.add_section()
    _triple(table, "T_staging", p.staging_s)
    if p.epochs:
        table.add_row("epochs", *(f"{value:.1f}" for value in p.epochs.ends))
    _triple(table, "T_extra", p.extra_s)
    if p.total_s:
        table.add_section()
        _triple(table, "time to train", p.total_s)
    console.print(table)
    facts = Table.grid(padding=(0, 2))
    for key, value in facts_of(p).items():
        facts.add_row(f"[dim]{key}[/]", value)
    console.print(facts, highlight=False)


def facts_of(p: Prediction) -> dict[str, str]:
    value, low, high = p.samples_per_s
    facts = {
        "throughput": f"{value:.3g} samples/s an accelerator ({low:.3g} to {high:.3g}), "
        f"{value * p.accelerators:,.0f} in all".replace(",", " "),
        "binding": p.binding,
        "training data": f"in {p.tier.name}" + ("" if p.tier.read else ", whose bandwidth the machine file leaves out"),
        "all-reduce": f"{p.step.reduce.algorithm}, bound by {p.step.reduce.bound}",
        "efficiency": f"{p.efficiency.value:.3g} of the roofline, {p.efficiency.how}",
    }
    if p.epochs:
        facts["epochs"] = p.epochs.how
    else:
        facts["epochs"] = "none published for this preset: no time to train"
    return facts | {f"note {n}": note for n, note in enumerate(p.notes, 1)}


def scaling(machine: Machine, run: Run, found: Sequence[Prediction]) -> None:
    console = Console()
    console.print(f"[bold]{_heading(machine, run)}[/], global batch {run.hyperparameters.global_batch_size}", highlight=False)
    console.print(f"{PREDICTED}.", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("nodes", "accelerators", "local batch", "samples/s", "T_staging", "T_epoch", "time to train", "interval"):
        table.add_column(title, justify="right")
    for title in ("data in", "binding"):
        table.add_column(title)
    totals = [p.total_s[0] for p in found if p.total_s]
    for p in found:
        total = p.total_s
        fastest = total is not None and total[0] == min(totals)
        local = f"1/{p.parts}" if p.parts > 1 else str(p.local_batch)
        table.add_row(
            str(p.nodes), str(p.accelerators), local,
            f"{p.samples_per_s[0] * p.accelerators:,.0f}".replace(",", " "),
            seconds_text(p.staging_s[0]), seconds_text(p.epoch_s[0]),
            seconds_text(total[0]) if total else "", f"{seconds_text(total[1])} – {seconds_text(total[2])}" if total else "",
            p.tier.name, p.binding, style="bold" if fastest else "",
        )  # fmt: skip
    console.print(table)
    if totals:
        best = min(found, key=lambda p: p.total_s[0] if p.total_s else float("inf"))
        console.print(f"shortest time to train: {best.nodes} nodes", highlight=False)


def errors(compared: Sequence[Compared]) -> None:
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", "set", "accelerators", "batch", "samples/s", "predicted", "error", "baseline", "epochs", "interval",
                  "", "time to train"):  # fmt: skip
        table.add_column(title, justify="left" if title in ("", "set") else "right", no_wrap=title != "set")
    for c in sorted(compared, key=lambda c: (c.row.benchmark, c.row.use)):
        row = c.row
        local = f"{row.local_batch:g}" if row.local_batch >= 1 else f"1/{row.spatial}"
        table.add_row(
            row.use, f"{row.benchmark} {row.name}", str(row.accelerators), local, f"{row.samples_per_s:.3g}", f"{c.rate:.3g}",
            percent(c.error), percent(c.baseline_error), f"{row.epochs[0]:.1f}", f"{c.epochs.low:.1f} – {c.epochs.high:.1f}",
            "inside" if c.epochs_inside else "outside", percent(c.total_error),
        )  # fmt: skip
    console.print(table)
    for use in ("fit", "test"):
        part = [c for c in compared if c.row.use == use]
        for line in summaries(part):
            console.print(f"{use}: {line}", highlight=False)


def summaries(compared: Sequence[Compared]) -> list[str]:
    """What the errors come to, in sentences; of the baseline over the sets that it speaks of."""
    both = [c for c in compared if c.baseline is not None]
    lines = []
    for name, found in (
        ("throughput", summary([c.error for c in compared])),
        ("throughput, where there is a baseline", summary([c.error for c in both])),
        ("baseline", summary([c.baseline_error for c in both])),
        ("time to train, T_staging as logged", summary([c.total_error for c in compared])),
    ):
        if found:
            lines.append(f"{name}: {_summary(found)}")
    inside = sum(c.epochs_inside for c in compared)
    return [*lines, f"epochs inside the interval: {inside} of {len(compared)} sets"] if compared else []


def _summary(found: Summary) -> str:
    return f"median error {found.median:.1%}, {found.within:.0%} within 35%, {found.sets} sets"


def record(p: Prediction) -> dict[str, Any]:
    """One prediction as JSON. Intervals are [value, low, high]; times in seconds."""
    return {
        "benchmark": p.run.benchmark, "preset": p.run.preset, "machine": p.machine.name, "nodes": p.nodes,
        "accelerators": p.accelerators, "global_batch_size": p.batch, "local_batch": p.local_batch,
        "accelerators_per_sample": p.parts, "precision": p.run.training.precision,
        "step_s": list(p.step_s.ends), "step_parts_s": p.step.named,
        "samples_per_s_per_accelerator": list(p.samples_per_s), "staging_s": list(p.staging_s),
        "train_s": list(p.train_s), "eval_s": list(p.eval_s), "epoch_s": list(p.epoch_s),
        "epochs": list(p.epochs.ends) if p.epochs else None, "extra_s": list(p.extra_s),
        "time_to_train_s": list(p.total_s) if p.total_s else None, "tier": p.tier.name,
        "binding": p.binding, "efficiency": p.efficiency.value, "efficiency_of": p.efficiency.how,
        "notes": list(p.notes),
    }  # fmt: skip


def error_records(compared: Sequence[Compared]) -> dict[str, Any]:
    sets = [
        {
            "use": c.row.use, "set": c.row.name, "benchmark": c.row.benchmark, "samples_per_s": c.row.samples_per_s,
            "predicted": c.rate, "error": c.error, "baseline_error": c.baseline_error, "epochs": c.row.epochs[0],
            "epochs_interval": [c.epochs.low, c.epochs.high], "epochs_inside": c.epochs_inside,
            "time_to_train_error": c.total_error, "efficiency_of": c.how,
        }
        for c in compared
    ]  # fmt: skip
    return {"sets": sets, "summary": {use: summaries([c for c in compared if c.row.use == use]) for use in ("fit", "test")}}


def _heading(machine: Machine, run: Run) -> str:
    return f"{run.benchmark}, preset {run.preset}, on {machine.title}"


def _triple(table: Table, name: str, triple: Triple) -> None:
    table.add_row(name, *(seconds_text(value) for value in triple))


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def seconds_text(seconds: float) -> str:
    """``8.62 ms``, ``46.8 s``, ``12.3 min``, ``5.1 h``."""
    if seconds == 0:
        return "0 s"
    for unit, factor, from_ in (("d", 86400, 172800), ("h", 3600, 7200), ("min", 60, 300), ("s", 1, 1), ("ms", 1e-3, 1e-3)):
        if seconds >= from_:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
