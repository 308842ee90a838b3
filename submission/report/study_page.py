"""A study as one self-contained HTML page: figures for each setting that was varied, and the table.

After Han et al. 2019 (paper 003): throughput by network and storage and its variability (Fig. 4), over ranks
(Fig. 6), by data format (Fig. 10), over the local batch size (Fig. 11). Means over repeats with 95% intervals.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.common.pages import charts, plots
from mlhpc.common.pages.charts import SERIES, Figure
from mlhpc.common.pages.html import Banner, Cell, Grid, Section, Table, render
from mlhpc.errors import count
from mlhpc.submission.report.spread import Spread
from mlhpc.submission.report.study import GLOBAL_BATCH, Study, Value, grouped, is_numeric
from mlhpc.submission.report.study import Cell as StudyCell
from mlhpc.submission.report.summary import plain

PANELS = 12
"""Maximum number of figures per section; the table has the rest."""
TITLE = {
    "batch": "Local batch size",
    GLOBAL_BATCH: "Global batch size",
    "ranks": "Ranks",
    "ranks_per_node": "Ranks per node",
    "data": "Data set and format",
    "storage": "Storage",
    "network.name": "Network",
    "loading.loader": "Loader",
}
_UNIT = {"batch": "samples", GLOBAL_BATCH: "samples"}


def page(study: Study) -> str:
    """The whole HTML text."""
    first = study.cells[0].settings
    benchmark = str(first.get("benchmark", ""))
    banner = Banner(
        "Throughput of training steps, data wait included; no run trained to its target. Not a result of the "
        "benchmark."
    )
    return render(
        "mlhpc.submission.report",
        "comparison.html",
        title="Study",
        blocks=[*(_section(study, axis) for axis in study.axes), _variability(study), _table(study)],
        foot="Cells are measured by runs of the suite; the data set is evicted from the page cache before each. "
        "Intervals: 95% of the mean over three or more repeats (Student's t). After Han et al. 2019.",
        heading=registry.title(benchmark),
        subtitle=f"study of training throughput, preset {_all(c.settings.get('preset') for c in study.cells)}",
        meta=_meta(study),
        banners=[banner],
    )


def _meta(study: Study) -> str:
    runs = sum(len(cell.runs) for cell in study.cells)
    steps = _all(cell.settings.get("study.steps") for cell in study.cells)
    warmup = _all(cell.settings.get("study.warmup_steps") for cell in study.cells)
    meta = f"{count(len(study.cells), 'cell')}, {count(runs, 'run')}"
    meta += f" · {steps} steps per run, after {warmup} of warm-up"
    for key in ("batch", GLOBAL_BATCH):  # where it is the same in all cells
        if len({cell.settings.get(key) for cell in study.cells}) == 1:
            meta += f" · {_title(key).lower()} {study.cells[0].settings.get(key)}"
    return f"{meta} · {_machines(study)}"


def _section(study: Study, axis: str) -> Section | None:
    """The figures of one setting: curves over numbers, bars over words; all else is equal within a figure. All
    have the same scale."""
    others = [other for other in study.axes if other != axis]
    numeric = is_numeric(study.values(axis))
    series, same = (others[:1], others[1:]) if numeric else ([], others)
    panels = []
    for fixed, cells in grouped(study.cells, same).items():
        drawn = [cell for cell in cells if cell.runs and all(k in cell.settings for k in (axis, *series))]
        if len({repr(cell.settings[axis]) for cell in drawn}) >= 2:
            panels.append((_caption(study, same, fixed), drawn))
    if not panels:
        return None
    about = (
        "Training throughput: means, with 95% intervals over three or more runs. All figures share one scale."
    )
    if numeric:
        about += " Both axes are logarithmic."
        if axis == "ranks":
            about += " Dotted: the same samples/s per rank."
    shown = panels[:PANELS]
    if len(panels) > len(shown):
        about += f" {count(len(panels) - len(shown), 'more figure')} left out; the table has all."
    cells = [cell for _, drawn in shown for cell in drawn]
    draw = _curves if numeric else _bars
    figures = draw(study, axis, series, shown, cells)
    return Section(_title(axis), about, (Grid(tuple(figures), 2 if numeric else 3),))


Panels = Sequence[tuple[str, Sequence[StudyCell]]]


def _curves(
    study: Study, axis: str, series: Sequence[str], panels: Panels, cells: Sequence[StudyCell]
) -> list[Figure]:
    """Figs. 6 and 11: a curve for each value of ``series``."""
    xs = [float(cell.settings[axis]) for cell in cells]
    ends = [end for cell in cells for end in _spread(cell).interval if end > 0]
    whole = all(isinstance(cell.settings[axis], int) for cell in cells)
    x_axis = charts.log_axis(xs, _axis_title(axis), base=2 if whole else 10, room=1.3)
    y_axis = charts.log_axis(ends, "training throughput, samples/s", room=1.2)
    levels: list[dict[str, Any]] = []
    if axis == "ranks":
        constants = [(c, f"{c:g} per rank") for c in plots.round_constants(x_axis, y_axis)]
        levels = plots.level_lines(x_axis, y_axis, constants)
    names = [str(value) for value in study.values(series[0])] if series else [""]
    figures = []
    for caption, drawn in panels:
        rows = []
        for cell in sorted(drawn, key=lambda cell: float(cell.settings[axis])):
            spread = _spread(cell)
            mean, low, high = spread.interval
            name = str(cell.settings[series[0]]) if series else ""
            rows.append(
                {
                    "x": float(cell.settings[axis]),
                    "y": mean,
                    "low": max(low, y_axis.low) if spread.has_interval else None,
                    "high": high if spread.has_interval else None,
                    "series": name,
                    "cell": f"{name} {study.name(axis)} {cell.settings[axis]}".strip(),
                    "rate": _rate(spread),
                }
            )
        says = "; ".join(f"{row['cell']}: {row['rate']}" for row in rows)
        tooltip = [("cell", "cell"), ("rate", "throughput")]
        figures.append(
            plots.curves(
                rows,
                says,
                x_axis=x_axis,
                y_axis=y_axis,
                series=names,
                tooltip=tooltip,
                levels=levels,
                title=caption,
            )
        )
    return figures


def _bars(
    study: Study, axis: str, series: Sequence[str], panels: Panels, cells: Sequence[StudyCell]
) -> list[Figure]:
    """Figs. 4a and 10: a bar for each value of the setting, of the same colour in all figures."""
    values = study.values(axis)
    most = max(_spread(cell).interval[2] for cell in cells)
    return [
        _columns(
            [
                _column(
                    str(cell.settings[axis]),
                    _spread(cell).mean,
                    plain(_spread(cell).mean),
                    _rate(_spread(cell)),
                    _spread(cell),
                )
                for cell in drawn
            ],
            [values.index(cell.settings[axis]) for cell in drawn],
            _axis_title(axis),
            "training throughput, samples/s",
            most,
            caption,
        )
        for caption, drawn in panels
    ]


def _column(name: str, value: float, top: str, says: str, spread: Spread | None = None) -> dict[str, Any]:
    low, high = (spread.interval[1:]) if spread and spread.has_interval else (None, None)
    return {
        "x": name,
        "value": value,
        "low": low,
        "high": high,
        "top": top,
        "above": high or value,
        "says": says,
    }


def _columns(
    rows: list[dict[str, Any]], series: Sequence[int], x_title: str, y_title: str, most: float, caption: str
) -> Figure:
    return plots.columns(
        rows,
        "; ".join(f"{row['x']}: {row['says']}" for row in rows),
        x_title=x_title,
        y_title=y_title,
        tooltip=[("x", x_title), ("says", "measured")],
        y_max=most * 1.12,
        colours=[SERIES[n % len(SERIES)][0] for n in series],
        long_names=sum(len(row["x"]) for row in rows) > 36,
        title=caption,
        static_width=300,
    )


def _variability(study: Study) -> Section | None:
    """Fig. 4b."""
    if "storage" not in study.axes:
        return None
    others = [axis for axis in study.axes if axis != "storage"]
    panels = []
    for fixed, cells in grouped(study.cells, others).items():
        shares = [
            (str(c.settings["storage"]), 100 * c.variability) for c in cells if c.variability is not None
        ]
        if len(shares) >= 2:
            panels.append((_caption(study, others, fixed), shares))
    if not panels:
        return None
    most = max(share for _, shares in panels for _, share in shares) or 1.0
    figures = [
        _columns(
            [_column(name, share, f"{share:.1f}%", f"{share:.1f}%") for name, share in shares],
            range(len(shares)),
            "storage",
            "slowest over fastest, %",
            most,
            caption,
        )
        for caption, shares in panels[:PANELS]
    ]
    about = "How much longer the slowest repeat took than the fastest, relative to the fastest."
    return Section("Variability by storage", about, (Grid(tuple(figures), 3),))


def _table(study: Study) -> Section:
    axes = study.axes or ("cell",)
    scaled = "ranks" in study.axes
    head = (*map(study.name, axes), "runs", "samples/s", "95% interval",
            *(("speed-up", "efficiency") if scaled else ()),
            "slowest over fastest", "step, ms", "data wait", "staging, s")  # fmt: skip
    rows = []
    for cell in study.cells:
        settings = [
            Cell(str(cell.settings.get(axis, "")), value=cell.settings.get(axis, "")) for axis in study.axes
        ]
        settings = settings or [Cell(cell.path.name)]
        runs = Cell(str(len(cell.runs)), notes=cell.failures, value=len(cell.runs))
        rows.append((*settings, runs, *_measurements(study, cell, scaled)))
    about = "Means over the runs of a cell. Data wait is a share of the time of the steps."
    if scaled:
        about += " Speed-up and efficiency: against the fewest ranks with the same other settings."
    table = Table("study", head, tuple(rows), text_columns=len(axes))
    return Section("In numbers", about, (table,))


def _measurements(study: Study, cell: StudyCell, scaled: bool) -> list[Cell]:
    spread = cell.samples_per_s
    if spread is None:
        return [Cell()] * (8 if scaled else 6)
    _, low, high = spread.interval
    interval = (
        Cell(f"{plain(low)} – {plain(high)}") if spread.has_interval else Cell(f"of {count(spread.n, 'run')}")
    )
    cells = [Cell(plain(spread.mean), value=spread.mean), interval]
    if scaled:
        speedup, ranks = _speedup(study, cell)
        cells.append(Cell(f"{speedup:.3g}", value=speedup) if speedup else Cell())
        cells.append(Cell(f"{speedup / ranks:.0%}", value=speedup / ranks) if speedup else Cell())
    step = _mean([run.step_s * 1e3 for run in cell.runs])
    wait = _mean([run.wait_share for run in cell.runs])
    staged = [run.staging_s for run in cell.runs if run.staging_s is not None]
    share = cell.variability
    return [
        *cells,
        Cell() if share is None else Cell(f"{share:.1%}", value=share),
        Cell(plain(step), value=step),
        Cell(f"{wait:.1%}", value=wait),
        Cell(plain(_mean(staged)), value=_mean(staged)) if staged else Cell(),
    ]


def _speedup(study: Study, cell: StudyCell) -> tuple[float | None, float]:
    """Throughput over that of the cell with the fewest ranks and the same other settings, and the ratio of their
    ranks; None if there is no other."""
    others = [axis for axis in study.axes if axis not in ("ranks", GLOBAL_BATCH)]
    same_settings = [
        c for c in study.cells if c.runs and all(c.settings.get(a) == cell.settings.get(a) for a in others)
    ]
    base = min(same_settings, key=lambda c: float(c.settings["ranks"]))
    if len(same_settings) < 2:
        return None, 1.0
    ratio = float(cell.settings["ranks"]) / float(base.settings["ranks"])
    return _spread(cell).mean / _spread(base).mean, ratio


def _caption(study: Study, same: Sequence[str], fixed: Sequence[Value | None]) -> str:
    parts = [
        f"{study.name(key)} {'not set' if value is None else value}"
        for key, value in zip(same, fixed, strict=True)
    ]
    return ", ".join(parts)


def _machines(study: Study) -> str:
    """The machines and commits of the measurements; all are listed, since cells may differ in them."""
    environments = [run.environment for cell in study.cells for run in cell.runs if run.environment]
    texts = []
    for describe in (_machine, _commit):
        kinds = list(dict.fromkeys(map(describe, environments)))
        texts.append(
            kinds[0] if len(kinds) == 1 else f"{len(kinds)} of them: {'; '.join(kinds)}" if kinds else ""
        )
    return " · ".join(filter(None, texts))


def _machine(environment: object) -> str:
    facts = environment if isinstance(environment, dict) else {}
    listed = facts.get("accelerators")
    accelerators = listed if isinstance(listed, list) else []
    parts = [str(facts.get("cpu", "")), f"{facts.get('cores', '?')} cores"]
    parts += [f"{len(accelerators)} × {accelerators[0]}"] if accelerators else ["no GPU"]
    return ", ".join(filter(None, parts))


def _commit(environment: object) -> str:
    facts = environment if isinstance(environment, dict) else {}
    commit = facts.get("commit")
    return (
        f"commit {str(commit)[:12]}{' and changes' * bool(facts.get('dirty'))}"
        if commit
        else "commit unknown"
    )


def _spread(cell: StudyCell) -> Spread:
    measured = cell.samples_per_s
    assert measured is not None  # only measured cells are drawn
    return measured


def _rate(spread: Spread) -> str:
    mean, low, high = spread.interval
    text = f"{plain(mean)} samples/s"
    return f"{text} ({plain(low)} to {plain(high)}, {spread.n} runs)" if spread.has_interval else text


def _title(axis: str) -> str:
    return TITLE.get(axis, axis)


def _axis_title(axis: str) -> str:
    unit = _UNIT.get(axis)
    return _title(axis).lower() + (f", {unit}" if unit else "")


def _all(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(values))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
