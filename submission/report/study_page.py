"""A study as one self-contained HTML page: a picture for each setting that was varied, and the table.

After Han et al. 2019 (paper 003): throughput by network and storage and its variability (Fig. 4), over ranks
(Fig. 6), by data format (Fig. 10), over the local batch size (Fig. 11). Means over repeats with 95% intervals.
"""

from collections.abc import Sequence
from html import escape

from mlhpc.benchmarks import registry
from mlhpc.errors import count
from mlhpc.submission.report import charts
from mlhpc.submission.report.charts import Column, Mark
from mlhpc.submission.report.entry import Spread
from mlhpc.submission.report.html import document, section, table
from mlhpc.submission.report.study import GLOBAL_BATCH, Cell, Study, Value, grouped, is_numeric
from mlhpc.submission.report.summary import plain

COLOURS = 6
PANELS = 12
"""Pictures of one section at most; what they leave out is in the table."""
TITLE = {
    "batch": "Local batch size",
    GLOBAL_BATCH: "Global batch size",
    "ranks": "Ranks",
    "ranks_per_node": "Ranks of a node",
    "data": "Data set and format",
    "storage": "Storage",
    "network.name": "Network",
    "loading.loader": "Loader",
}


def page(study: Study) -> str:
    """The whole HTML text."""
    first = study.cells[0].settings
    benchmark = str(first.get("benchmark", ""))
    runs = [run for cell in study.cells for run in cell.runs]
    steps = _all(cell.settings.get("study.steps") for cell in study.cells)
    warmup = _all(cell.settings.get("study.warmup_steps") for cell in study.cells)
    presets = _all(cell.settings.get("preset") for cell in study.cells)
    meta = f"{count(len(study.cells), 'cell')}, {count(len(runs), 'run')}"
    meta += f" · {steps} steps a run, after {warmup} of warm-up"
    for key in ("batch", GLOBAL_BATCH):  # where it is the same in all cells
        if len({cell.settings.get(key) for cell in study.cells}) == 1:
            meta += f" · {_title(key).lower()} {first.get(key)}"
    meta += f" · {_machines(study)}"
    title = escape(registry.title(benchmark))
    header = f"""<header>
<p class="eyebrow">mlhpc training benchmarks</p>
<h1>{title} <small>study of training throughput, preset {escape(presets)}</small></h1>
<p class="meta">{escape(meta)}</p>
<p class="banner">Throughput of training steps, waiting for data included; no run went to its target. Not a result
of the benchmark.</p>
</header>
"""
    pictures = "".join(_section(study, axis) for axis in study.axes)
    if "storage" in study.axes:
        pictures += _variability(study)
    foot = """Each cell is measured by runs of the suite, the data set dropped from the page cache before each.
Intervals: 95% of the mean over repeats (Student's t). After Han et al. 2019."""
    return document("Study", header + pictures + _table(study), foot)


def _section(study: Study, axis: str) -> str:
    """The pictures of one setting: curves over numbers, bars over words; all else equal in each."""
    others = [other for other in study.axes if other != axis]
    numeric = is_numeric(study.values(axis))
    series, same = (others[:1], others[1:]) if numeric else ([], others)
    key = axis if not numeric and _is_long(study.values(axis)) else next(iter(series), None)
    panels = []
    for fixed, cells in grouped(study.cells, same).items():
        drawn = [cell for cell in cells if cell.runs and all(k in cell.settings for k in (axis, *series))]
        if len({repr(cell.settings[axis]) for cell in drawn}) < 2:
            continue
        draw = _curves(study, axis, series, drawn) if numeric else _bars(study, axis, drawn)
        panels.append(f"<figure>{_caption(study, same, fixed)}{draw}</figure>")
    if not panels:
        return ""
    about = "Training throughput, samples/s: means with 95% intervals."
    if numeric:
        about += " Both axes are logarithmic."
        if axis == "ranks":
            about += " Dotted: the same samples/s a rank."
    return _panels(_title(axis), about, panels, "planes" if numeric else "panels", _legend(study, key))


def _legend(study: Study, key: str | None) -> str:
    """The letters of a setting's values."""
    values = study.values(key) if key else []
    marks = [
        f'<span class="mark c{i % COLOURS}"><b>{_letter(i)}</b> {escape(f"{study.name(str(key))} {value}")}</span>'
        for i, value in enumerate(values)
    ]
    return f'<div class="key legend">{"".join(marks)}</div>' if marks else ""


def _caption(study: Study, same: Sequence[str], fixed: Sequence[Value | None]) -> str:
    parts = [
        f"{study.name(key)} {'not set' if value is None else value}"
        for key, value in zip(same, fixed, strict=True)
    ]
    return f"<figcaption>{escape(', '.join(parts))}</figcaption>" if parts else ""


def _panels(title: str, about: str, panels: Sequence[str], layout: str, legend: str = "") -> str:
    left_out = len(panels) - PANELS
    if left_out > 0:
        about += f" {count(left_out, 'more picture')} left out; the table has all."
    return section(title, about, f'<div class="{layout}">{"".join(panels[:PANELS])}</div>{legend}')


def _curves(study: Study, axis: str, series: Sequence[str], cells: Sequence[Cell]) -> str:
    """Figs. 6 and 11: a curve for each value of ``series``."""
    names = study.values(series[0]) if series else []
    marks, lines, ends = [], [], []
    for of, members in grouped(cells, series).items():
        index = next((i for i, name in enumerate(names) if of and name == of[0]), 0)
        style = f"c{index % COLOURS}"
        points = sorted(((float(c.settings[axis]), c) for c in members), key=lambda point: point[0])
        for x, cell in points:
            found = _of(cell)
            mean, low, high = found.interval
            ends += [mean, low or mean, high]
            letter = _letter(index) if series and x == points[-1][0] else ""
            says = f"{of[0] if of else ''} {study.name(axis)} {x:g}: {_told(found)}"
            marks.append(Mark(x, mean, letter, style, says.strip(), y_range=(low, high)))
        lines.append((style, [(x, _of(cell).mean) for x, cell in points]))
    whole = all(isinstance(cell.settings[axis], int) for cell in cells)
    x_axis = charts.log_axis([m.x for m in marks], _title(axis).lower(), _tick, base=2 if whole else 10)
    y_axis = charts.log_axis(ends, "samples/s", _tick, room=1.2)
    levels = charts.levels(x_axis, y_axis, lambda ratio: f"{_tick(ratio)} a rank") if axis == "ranks" else ()
    says = "; ".join(mark.title for mark in marks)
    return charts.plane(marks, lines, says, x_axis=x_axis, y_axis=y_axis, levels=levels)


def _bars(study: Study, axis: str, cells: Sequence[Cell]) -> str:
    """Figs. 4a and 10: a bar for each value of the setting; of one letter and colour in all pictures."""
    values = study.values(axis)
    columns = []
    for cell in cells:
        found, value = _of(cell), cell.settings[axis]
        _, low, high = found.interval
        index = values.index(value)
        name = _letter(index) if _is_long(values) else str(value)
        title = f"{value}: {_told(found)}"
        columns.append(Column(name, found.mean, (low, high), f"c{index % COLOURS}", plain(found.mean), title))
    return charts.whisker_bars(columns, "; ".join(c.title for c in columns), _tick)


def _is_long(values: Sequence[Value]) -> bool:
    """Whether the names of bars would not stand beside each other in a picture on a phone."""
    return len(values) * max((len(str(value)) for value in values), default=0) > 36


def _variability(study: Study) -> str:
    """Fig. 4b."""
    others = [axis for axis in study.axes if axis != "storage"]
    panels = []
    for fixed, cells in grouped(study.cells, others).items():
        drawn = [
            (str(c.settings["storage"]), 100 * c.variability) for c in cells if c.variability is not None
        ]
        if len(drawn) < 2:
            continue
        columns = [
            Column(name, share, (share, share), f"c{i % COLOURS}", f"{share:.1f}%", f"{name}: {share:.1f}%")
            for i, (name, share) in enumerate(drawn)
        ]
        says = "; ".join(column.title for column in columns)
        draw = charts.whisker_bars(columns, says, lambda share: f"{share:g}%")
        panels.append(f"<figure>{_caption(study, others, fixed)}{draw}</figure>")
    if not panels:
        return ""
    about = "What the slowest repeat took longer than the fastest, of the fastest."
    return _panels("Variability by storage", about, panels, "panels")


def _table(study: Study) -> str:
    head = [*(escape(study.name(axis)) for axis in study.axes or ("cell",)), "runs", "samples/s", "95% interval",
            "slowest over fastest", "step, ms", "waiting for data", "staging, s"]  # fmt: skip
    rows = []
    for cell in study.cells:
        values = [escape(str(cell.settings.get(axis, ""))) for axis in study.axes] or [escape(cell.path.name)]
        failed = "".join(f'<small class="error">{escape(why)}</small>' for why in cell.failures)
        found = cell.samples_per_s
        if found is None:
            rows.append([*values, f"0{failed}", "", "", "", "", "", ""])
            continue
        _, low, high = found.interval
        staged = [run.staging_s for run in cell.runs if run.staging_s is not None]
        rows.append(
            [
                *values,
                f"{len(cell.runs)}{failed}",
                plain(found.mean),
                f"{plain(low)} – {plain(high)}" if found.n > 1 else "one run",
                "" if cell.variability is None else f"{cell.variability:.1%}",
                plain(_mean([run.step_s * 1e3 for run in cell.runs])),
                f"{_mean([run.wait_share for run in cell.runs]):.1%}",
                plain(_mean(staged)) if staged else "",
            ]
        )
    about = "Means over the runs of a cell. Waiting for data is a share of the time of the steps."
    return section("In numbers", about, table(head, rows, numbers_from=max(1, len(study.axes))))


def _machines(study: Study) -> str:
    """Where and from which commit it was measured; more than one is said, for then cells differ in that too."""
    found = [run.environment for cell in study.cells for run in cell.runs if run.environment]
    told = []
    for kind in (_machine, _commit):
        kinds = list(dict.fromkeys(kind(environment) for environment in found))
        told.append(
            kinds[0] if len(kinds) == 1 else f"{len(kinds)} of them: {'; '.join(kinds)}" if kinds else ""
        )
    return " · ".join(filter(None, told))


def _machine(environment: object) -> str:
    facts = environment if isinstance(environment, dict) else {}
    accelerators = facts.get("accelerators") or []
    parts = [str(facts.get("cpu", "")), f"{facts.get('cores', '?')} cores"]
    parts += [f"{len(accelerators)} × {accelerators[0]}"] if accelerators else ["no GPU"]
    return ", ".join(filter(None, parts))


def _commit(environment: object) -> str:
    facts = environment if isinstance(environment, dict) else {}
    commit = facts.get("commit")
    return (
        f"commit {str(commit)[:12]}{' and changes' if facts.get('dirty') else ''}"
        if commit
        else "no commit known"
    )


def _of(cell: Cell) -> Spread:
    found = cell.samples_per_s
    assert found is not None  # only cells that were measured are drawn
    return found


def _told(found: Spread) -> str:
    mean, low, high = found.interval
    return f"{plain(mean)} samples/s" + (
        f" ({plain(low)} to {plain(high)}, {found.n} runs)" if found.n > 1 else ""
    )


def _tick(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\xa0") if value >= 1000 else f"{value:.4g}"


def _letter(index: int) -> str:
    return chr(ord("A") + index % 26) * (1 + index // 26)


def _title(axis: str) -> str:
    return TITLE.get(axis, axis)


def _all(values: object) -> str:
    assert hasattr(values, "__iter__")
    return ", ".join(str(value) for value in dict.fromkeys(values))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
