"""A study as one self-contained HTML page: charts for each setting that was varied, and a table of all cells.

Most charts follow Han et al. 2019: throughput by network and storage and its variability (Fig. 4), over ranks
(Fig. 6), by data format (Fig. 10), and over the local batch size (Fig. 11), as means over repeats with 95%
intervals. Other charts follow Ibrahim and Oliker 2022: throughput by codec, storage, batch size and data set size
(Figs. 8, 10, 11), and data wait per sample (Figs. 9 and 12).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.common.energy.counters import NAMES
from mlhpc.common.pages.blocks import Cell, Columns, Grid, Table, number, table
from mlhpc.common.pages.html import render
from mlhpc.quantities import count, digits, four_digits, plain
from mlhpc.record.environment import Environment
from mlhpc.submission.report import study_charts
from mlhpc.submission.report.spread import spread
from mlhpc.submission.report.study import GLOBAL_BATCH, Measured, Study, accuracy_loss, is_numeric
from mlhpc.submission.report.study import Cell as StudyCell
from mlhpc.submission.report.study_charts import title


def page(study: Study) -> str:
    """The HTML of the page."""
    benchmark = str(study.cells[0].settings.get("benchmark", ""))
    variable, servers = study_charts.variability(study), servers_table(study)
    times, not_shown = study_charts.sample_times(study)
    return render(
        template="mlhpc.submission.report:study.html",
        title="Study",
        heading=registry.title(benchmark),
        subtitle=f"study of training throughput, preset {_all(c.settings.get('preset') for c in study.cells)}",
        meta=_meta(study),
        emulated=emulated(study),
        axes=list(filter(None, (_throughput(study, axis) for axis in study.axes))),
        times=times,
        times_left_out=count(not_shown, "cell") if not_shown else "",
        variability=Grid(variable, 3) if variable else None,
        servers=[Grid(study_charts.accuracy(study), 3), servers] if servers else None,
        cells=cells_table(study),
        relative="ranks" in study.axes,
    )


def _throughput(study: Study, axis: str) -> dict[str, Any] | None:
    """The section on one setting, with curves if the setting is numeric, otherwise with columns."""
    figures, left_out = study_charts.throughput(study, axis)
    numeric = is_numeric(study.values(axis))
    section = {
        "key": axis,
        "title": title(axis),
        "numeric": numeric,
        "figures": Grid(figures, min(len(figures), 2) if numeric else 3),
        "left_out": count(left_out, "more figure") if left_out else "",
    }
    return section if figures else None


def _meta(study: Study) -> str:
    runs = sum(len(cell.runs) for cell in study.cells)
    steps = _all(cell.settings.get("study.steps") for cell in study.cells)
    warmup = _all(cell.settings.get("study.warmup_steps") for cell in study.cells)
    meta = f"{count(len(study.cells), 'cell')}, {count(runs, 'run')}"
    meta += f" · {steps} steps per run, after {warmup} of warm-up"
    for key in ("batch", GLOBAL_BATCH):  # shown if all cells have the same value
        if len({cell.settings.get(key) for cell in study.cells}) == 1:
            meta += f" · {title(key).lower()} {study.cells[0].settings.get(key)}"
    return f"{meta} · {_machines(study)}"


def emulated(study: Study) -> str:
    """A sentence on the steps that were emulated by waiting; "" if no steps were."""
    times = list(dict.fromkeys(cell.settings.get("emulation.step_s") for cell in study.cells))
    waited = ", ".join(four_digits(seconds) for seconds in times if isinstance(seconds, int | float))
    if not waited:
        return ""
    cells = "Emulated" if None not in times else "Emulated in the cells that have emulation.step_s"
    return f"{cells}: each step waited {waited} s; rates are those of the input path, not of training."


def cells_table(study: Study) -> Table:
    """The table of all cells with their settings and measurements; less important columns come last."""
    relative: Columns[StudyCell] = {
        "speed-up": lambda cell: number(_speedup(study, cell)[0], digits),
        "efficiency": lambda cell: number(_speedup(study, cell)[1], "{:.0%}".format),
    }
    counter = study.counter
    return table(
        "study",
        study.cells,
        {
            **(_settings(study) or {"cell": lambda cell: cell.path.name}),
            "runs": lambda cell: Cell(str(len(cell.runs)), cell.failures, len(cell.runs)),
            "samples/s": _mean(lambda run: run.samples_per_s, plain),
            "95% interval": _interval,
            **(relative if "ranks" in study.axes else {}),
            "step, ms": _mean(lambda run: run.step_s * 1e3, plain),
            "data wait": _mean(lambda run: run.wait_share, "{:.1%}".format),
            "slowest over fastest": lambda cell: number(cell.variability, "{:.1%}".format),
            "staging, s": _mean(lambda run: run.staging_s, plain),
            "checkpoint, s": _mean(lambda run: run.checkpoint_s, plain),
            f"J/sample, {NAMES[counter]}" if counter else "J/sample": _mean(
                lambda run: run.joules_per_sample.get(counter), plain
            ),
            "accelerators busy": _mean(lambda run: run.busy, "{:.0%}".format),
        },
        text_columns=len(study.axes) or 1,
    )


def servers_table(study: Study) -> Table | None:
    """The table of cells with parameter servers, with less important columns last; None if there are no such
    cells."""

    def mean(name: str, write: Callable[[float], str], unit: float = 1) -> Callable[[StudyCell], Cell]:
        return _mean(lambda run: getattr(run.servers, name) / unit if run.servers else None, write)

    cells = [cell for cell in study.cells if any(run.servers for run in cell.runs)]
    columns = {
        **_settings(study),
        "accuracy": mean("accuracy", "{:.3f}".format),
        "accuracy loss": lambda cell: number(accuracy_loss(study, cell), "{:+.3f}".format),
        "staleness": mean("staleness", "{:.2f}".format),
        "utilisation": mean("utilisation", "{:.0%}".format),
        "host to device, MB/step": mean("host_to_device", four_digits, 1e6),
        "worker, MB/step (of a ring: sent)": mean("worker_bytes", four_digits, 1e6),
        "server or ring rank, MB/step": mean("busiest_bytes", four_digits, 1e6),
        "by formula, MB/step": mean("predicted_bytes", four_digits, 1e6),
    }
    return table("servers", cells, columns, text_columns=len(study.axes)) if cells else None


def _mean(
    of: Callable[[Measured], float | None], text: Callable[[float], str]
) -> Callable[[StudyCell], Cell]:
    """A column with the mean of a quantity over a cell's runs."""

    def mean(cell: StudyCell) -> Cell:
        over_runs = spread(map(of, cell.runs))
        return number(over_runs and over_runs.mean, text)

    return mean


def _settings(study: Study) -> Columns[StudyCell]:
    """The columns of the settings that were varied."""

    def setting(cell: StudyCell, axis: str) -> Cell:
        value = cell.settings.get(axis, "")
        return Cell(str(value), value=value)

    return {study.name(axis): partial(setting, axis=axis) for axis in study.axes}


def _interval(cell: StudyCell) -> str:
    if not (rates := cell.samples_per_s):
        return ""
    _, low, high = rates.interval
    return f"{plain(low)} – {plain(high)}" if rates.has_interval else f"of {count(rates.n, 'run')}"


def _speedup(study: Study, cell: StudyCell) -> tuple[float | None, float | None]:
    """Speed-up and efficiency of ``cell`` relative to the cell with the fewest ranks and otherwise the same
    settings; None without such a cell. Efficiency is speed-up divided by the ratio of ranks. Only one of the two
    batch sizes is among the settings that must be the same: the global one in studies of strong scaling, otherwise
    the local one (``study.read``)."""
    others = [axis for axis in study.axes if axis != "ranks"]
    same = [c for c in study.cells if all(c.settings.get(axis) == cell.settings.get(axis) for axis in others)]
    rates = [(_ranks(c), c.samples_per_s.mean) for c in same if c.samples_per_s and _ranks(c)]
    if not cell.samples_per_s or not _ranks(cell) or len(rates) < 2:
        return None, None
    base_ranks, base_rate = min(rates, key=lambda pair: pair[0])
    speedup = cell.samples_per_s.mean / base_rate
    return speedup, speedup / (_ranks(cell) / base_ranks)


def _ranks(cell: StudyCell) -> int:
    """The number of ranks; 0 if the cell's settings, which are untrusted, do not state it."""
    ranks = cell.settings.get("ranks")
    return max(0, ranks) if isinstance(ranks, int) else 0


def _machines(study: Study) -> str:
    """All machines and commits of the measurements as text, since they may differ between cells."""
    environments = [run.environment for cell in study.cells for run in cell.runs if run.environment]
    texts: list[str] = []
    for describe in (_machine, _commit):
        kinds = list(dict.fromkeys(map(describe, environments)))
        texts += kinds if len(kinds) < 2 else [f"{len(kinds)} of them: {'; '.join(kinds)}"]
    return " · ".join(filter(None, texts))


def _machine(env: Environment) -> str:
    accelerators = f"{len(env.accelerators)} × {env.accelerators[0]}" if env.accelerators else "no GPU"
    return ", ".join(filter(None, (env.cpu, f"{env.cores or '?'} cores", accelerators)))


def _commit(env: Environment) -> str:
    return f"commit {env.commit[:12]}{' and changes' * bool(env.dirty)}" if env.commit else "commit unknown"


def _all(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(values))
