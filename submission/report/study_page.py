"""A study as one self-contained HTML page: figures for each setting that was varied, and the table.

After Han et al. 2019 (paper 003): throughput by network and storage and its variability (Fig. 4), over ranks
(Fig. 6), by data format (Fig. 10), over the local batch size (Fig. 11). Means over repeats with 95% intervals.
And after Ibrahim and Oliker 2022 (paper 002): throughput by codec, storage, batch and set size (Figs. 8, 10, 11),
and the share of data wait per sample (Figs. 9 and 12).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.common.pages.blocks import Cell, Grid, Table, number, table
from mlhpc.common.pages.html import render
from mlhpc.errors import count
from mlhpc.submission.report.study import GLOBAL_BATCH, Study, accuracy_loss, is_numeric
from mlhpc.submission.report.study import Cell as StudyCell
from mlhpc.submission.report.study_charts import (
    accuracy,
    measured,
    sample_times,
    throughput,
    title,
    variability,
)
from mlhpc.submission.report.summary import plain

Columns = dict[str, Callable[[StudyCell], Cell | str]]


def page(study: Study) -> str:
    """The whole HTML text."""
    benchmark = str(study.cells[0].settings.get("benchmark", ""))
    variable, servers = variability(study), servers_table(study)
    times, not_shown = sample_times(study)
    return render(
        template="mlhpc.submission.report:study.html",
        title="Study",
        heading=registry.title(benchmark),
        subtitle=f"study of training throughput, preset {_all(c.settings.get('preset') for c in study.cells)}",
        meta=_meta(study),
        axes=list(filter(None, (_throughput(study, axis) for axis in study.axes))),
        times=times,
        times_left_out=count(not_shown, "cell") if not_shown else "",
        variability=Grid(variable, 3) if variable else None,
        servers=[Grid(accuracy(study), 3), servers] if servers else None,
        cells=cells_table(study),
        relative="ranks" in study.axes,
    )


def _throughput(study: Study, axis: str) -> dict[str, Any] | None:
    """The section of one setting: curves for numbers, columns for words."""
    figures, left_out = throughput(study, axis)
    numeric = is_numeric(study.values(axis))
    section = {
        "key": axis,
        "title": title(axis),
        "numeric": numeric,
        "figures": Grid(figures, 2 if numeric else 3),
        "left_out": count(left_out, "more figure") if left_out else "",
    }
    return section if figures else None


def _meta(study: Study) -> str:
    runs = sum(len(cell.runs) for cell in study.cells)
    steps = _all(cell.settings.get("study.steps") for cell in study.cells)
    warmup = _all(cell.settings.get("study.warmup_steps") for cell in study.cells)
    meta = f"{count(len(study.cells), 'cell')}, {count(runs, 'run')}"
    meta += f" · {steps} steps per run, after {warmup} of warm-up"
    for key in ("batch", GLOBAL_BATCH):  # if it is the same in all cells
        if len({cell.settings.get(key) for cell in study.cells}) == 1:
            meta += f" · {title(key).lower()} {study.cells[0].settings.get(key)}"
    return f"{meta} · {_machines(study)}"


def cells_table(study: Study) -> Table:
    """Every cell of the study with its settings and measurements; less important columns come last."""
    relative: Columns = {
        "speed-up": lambda cell: number(_speedup(study, cell)[0], "{:.3g}".format),
        "efficiency": lambda cell: number(_speedup(study, cell)[1], "{:.0%}".format),
    }
    return table(
        "study",
        study.cells,
        {
            **(_settings(study) or {"cell": lambda cell: cell.path.name}),
            "runs": lambda cell: Cell(str(len(cell.runs)), cell.failures, len(cell.runs)),
            "samples/s": lambda cell: number(_mean(run.samples_per_s for run in cell.runs), plain),
            "95% interval": _interval,
            **(relative if "ranks" in study.axes else {}),
            "step, ms": lambda cell: number(_mean(run.step_s * 1e3 for run in cell.runs), plain),
            "data wait": lambda cell: number(_mean(run.wait_share for run in cell.runs), "{:.1%}".format),
            "slowest over fastest": lambda cell: number(cell.variability, "{:.1%}".format),
            "staging, s": lambda cell: number(_mean(run.staging_s for run in cell.runs), plain),
        },
        text_columns=len(study.axes) or 1,
    )


def servers_table(study: Study) -> Table | None:
    """The cells with parameter servers; None if there are none. Less important columns come last."""
    cells = [cell for cell in study.cells if any(run.servers for run in cell.runs)]
    if not cells:
        return None
    columns = {
        **_settings(study),
        "accuracy": _figure("accuracy", "{:.3f}".format),
        "accuracy loss": lambda cell: number(accuracy_loss(study, cell), "{:+.3f}".format),
        "staleness": _figure("staleness", "{:.2f}".format),
        "utilisation": _figure("utilisation", "{:.0%}".format),
        "host to device, MB/step": _figure("host_to_device", "{:.4g}".format, 1e6),
        "worker, MB/step (of a ring: sent)": _figure("worker_bytes", "{:.4g}".format, 1e6),
        "server or ring rank, MB/step": _figure("busiest_bytes", "{:.4g}".format, 1e6),
        "by formula, MB/step": _figure("predicted_bytes", "{:.4g}".format, 1e6),
    }
    return table("servers", cells, columns, text_columns=len(study.axes))


def _figure(name: str, text: Callable[[float], str], unit: float = 1) -> Callable[[StudyCell], Cell | str]:
    """The mean over a cell's runs, in units of ``unit``."""

    def cell_of(cell: StudyCell) -> Cell:
        mean = _mean(getattr(run.servers, name) if run.servers else None for run in cell.runs)
        return number(mean and mean / unit, text)

    return cell_of


def _settings(study: Study) -> Columns:
    """The columns of the settings that were varied."""

    def setting(cell: StudyCell, axis: str) -> Cell:
        value = cell.settings.get(axis, "")
        return Cell(str(value), value=value)

    return {study.name(axis): partial(setting, axis=axis) for axis in study.axes}


def _interval(cell: StudyCell) -> str:
    if not cell.runs:
        return ""
    spread = measured(cell)
    _, low, high = spread.interval
    return f"{plain(low)} – {plain(high)}" if spread.has_interval else f"of {count(spread.n, 'run')}"


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _speedup(study: Study, cell: StudyCell) -> tuple[float | None, float | None]:
    """Throughput over that of the cell with the fewest ranks and the same other settings, and its ratio to
    that of the ranks; None without such a cell."""
    others = [axis for axis in study.axes if axis not in ("ranks", GLOBAL_BATCH)]
    same_settings = [
        c for c in study.cells if c.runs and all(c.settings.get(a) == cell.settings.get(a) for a in others)
    ]
    if not cell.runs or len(same_settings) < 2:
        return None, None
    base = min(same_settings, key=lambda c: float(c.settings["ranks"]))
    speedup = measured(cell).mean / measured(base).mean
    return speedup, speedup / (float(cell.settings["ranks"]) / float(base.settings["ranks"]))


def _machines(study: Study) -> str:
    """The machines and commits of the measurements; all are listed, since cells may differ in them."""
    environments = [run.environment for cell in study.cells for run in cell.runs if run.environment]
    texts: list[str] = []
    for describe in (_machine, _commit):
        kinds = list(dict.fromkeys(map(describe, environments)))
        texts += kinds if len(kinds) < 2 else [f"{len(kinds)} of them: {'; '.join(kinds)}"]
    return " · ".join(filter(None, texts))


def _machine(environment: object) -> str:
    facts = environment if isinstance(environment, dict) else {}
    listed = facts.get("accelerators")
    accelerators = listed if isinstance(listed, list) else []
    parts = [str(facts.get("cpu", "")), f"{facts.get('cores') or '?'} cores"]
    parts += [f"{len(accelerators)} × {accelerators[0]}"] if accelerators else ["no GPU"]
    return ", ".join(filter(None, parts))


def _commit(environment: object) -> str:
    facts = environment if isinstance(environment, dict) else {}
    commit = facts.get("commit")
    changes = " and changes" if facts.get("dirty") else ""
    return f"commit {str(commit)[:12]}{changes}" if commit else "commit unknown"


def _all(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(values))
