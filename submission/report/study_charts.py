"""The charts of a study: curves over numeric settings, columns for other settings, and variability by storage."""

from collections.abc import Callable, Sequence
from typing import Any

from mlhpc.common.pages import plots
from mlhpc.common.pages.charts import INK, SERIES, Figure, chart_of
from mlhpc.quantities import digits, plain
from mlhpc.submission.report.spread import Spread, spread
from mlhpc.submission.report.study import GLOBAL_BATCH, SERVERS, UPDATES, Cell, Study, grouped, is_numeric

PANELS = 12
"""Maximum number of charts per section; the table contains all cells."""
BARS = 32
"""Maximum number of bars in the chart of times; the table contains all cells."""
TITLE = {
    "codec": "Codec",
    "batch": "Local batch size",
    GLOBAL_BATCH: "Global batch size",
    "ranks": "Ranks",
    "ranks_per_node": "Ranks per node",
    "data": "Data set and format",
    "storage": "Storage",
    "data.train_samples": "Training samples of the data set",
    "study.earlier_epochs": "Epochs read before",
    "network.name": "Network",
    "loading.loader": "Loader",
    "emulation.step_s": "Emulated step, s",
    SERVERS: "Parameter servers",
    UPDATES: "Updates of parameter servers",
}
_UNIT = {"batch": "samples", GLOBAL_BATCH: "samples"}
_THROUGHPUT = "training throughput, samples/s"
Panel = tuple[str, list[tuple[Cell, Spread]]]
"""A caption, and the cells shown under it, each with its measured quantity."""


def throughput(study: Study, axis: str) -> tuple[list[Figure], int]:
    """Charts of throughput over the setting ``axis``, with a common scale, and the number of omitted charts.
    Within a chart, all other settings are equal, except that a numeric ``axis`` gets a curve for each value of one
    further setting."""
    numeric = is_numeric(study.values(axis))
    series = [other for other in study.axes if other != axis][:1] if numeric else []
    panels = [
        panel
        for panel in _panels(study, (axis, *series), lambda cell: cell.samples_per_s)
        if len({repr(cell.settings[axis]) for cell, _ in panel[1]}) >= 2
    ]
    shown = panels[:PANELS]
    if not shown:
        return [], 0
    if numeric:
        return _curves(study, axis, series, shown), len(panels) - len(shown)
    most = max(rates.interval[2] for _, cells in shown for _, rates in cells)
    figures = _columns(study, axis, shown, _THROUGHPUT, most, lambda rates: plain(rates.mean), _rate)
    return figures, len(panels) - len(shown)


def variability(study: Study) -> list[Figure]:
    """Charts like Fig. 4b of Han et al. 2019: how much longer the slowest repeat took than the fastest, by
    storage."""

    def percent(cell: Cell) -> Spread | None:
        return None if cell.variability is None else Spread(100 * cell.variability, None, 1)

    panels = [panel for panel in _panels(study, ("storage",), percent) if len(panel[1]) >= 2]
    most = max((share.mean for _, cells in panels for _, share in cells), default=0.0) or 1.0
    return _columns(
        study, "storage", panels, "slowest over fastest, %", most, lambda share: f"{share.mean:.1f}%"
    )


def sample_times(study: Study) -> tuple[Figure | None, int]:
    """A chart like Figs. 9 and 12 of Ibrahim and Oliker 2022, and the number of omitted cells. The chart shows the
    step time per sample of the global batch, divided into data wait and the rest. It is None unless settings of
    the input pipeline were varied."""
    if not {"codec", "data", "storage", "data.train_samples", "study.earlier_epochs"} & set(study.axes):
        return None, 0
    rows = []
    beside = grouped(study.cells, [axis for axis in study.axes if axis != "codec"])
    for cell in (cell for cells in beside.values() for cell in cells):
        if cell.runs:
            seconds, samples = sum(run.seconds for run in cell.runs), sum(run.samples for run in cell.runs)
            wait = min(max(sum(run.wait_s for run in cell.runs), 0.0), seconds)
            settings = (
                f"{study.name(key)} {cell.settings[key]}" for key in study.axes if key in cell.settings
            )
            sizes = {"data_wait": wait / samples, "step": (seconds - wait) / samples}
            rows.append(plots.Bar(", ".join(settings), sizes))
    if not rows:
        return None, 0
    shown = plots.stacked_bars(
        rows[:BARS],
        "Time per sample",
        parts={"data_wait": "waiting for data", "step": "rest of the step"},
        measure=plots.Measure("milliseconds per sample", lambda seconds: f"{plain(1e3 * seconds)} ms", 1e-3),
        bar_height=18,
    )
    return shown, len(rows) - len(rows[:BARS])


def accuracy(study: Study) -> list[Figure]:
    """Charts like Fig. 9b of Han et al. 2019: accuracy on the evaluation images, by the number of parameter
    servers."""
    panels = _panels(
        study, (SERVERS,), lambda cell: spread(run.servers.accuracy for run in cell.runs if run.servers)
    )
    two, three = (lambda value: f"{value.mean:.2f}"), (lambda value: f"{value.mean:.3f}")
    return _columns(study, SERVERS, [panel for panel in panels if panel[1]], "accuracy", 1.0, two, three)


def title(axis: str) -> str:
    """The title of a chart over the setting ``axis``."""
    return TITLE.get(axis, axis)


def _panels(study: Study, varied: Sequence[str], value: Callable[[Cell], Spread | None]) -> list[Panel]:
    """Groups of cells that differ only in the settings ``varied``, each with a caption that names the remaining
    settings; cells without a ``value`` are omitted. Empty if the study did not vary all of ``varied``."""
    if not set(varied) <= set(study.axes):
        return []
    same = [axis for axis in study.axes if axis not in varied]
    panels = []
    for values, cells in grouped(study.cells, same).items():
        named = zip(same, values, strict=True)
        caption = ", ".join(f"{study.name(key)} {'not set' if v is None else v}" for key, v in named)
        placed = [cell for cell in cells if all(key in cell.settings for key in varied)]
        panels.append((caption, [(cell, of) for cell in placed if (of := value(cell))]))
    return panels


def _curves(study: Study, axis: str, series: Sequence[str], panels: Sequence[Panel]) -> list[Figure]:
    """Charts like Figs. 6 and 11 of Han et al. 2019: a curve for each value of the setting ``series``."""
    cells = [cell for _, drawn in panels for cell in drawn]
    ends = [end for _, rates in cells for end in rates.interval if end > 0]
    whole = all(isinstance(cell.settings[axis], int) for cell, _ in cells)
    xs = [float(cell.settings[axis]) for cell, _ in cells]
    x = plots.log_axis(xs, _axis_title(axis), base=2 if whole else 10, room=1.3)
    y = plots.log_axis(ends, _THROUGHPUT, room=1.2)
    constants = [(c, f"{digits(c)} per rank") for c in plots.round_constants(x, y)] if axis == "ranks" else []
    names = [str(value) for value in study.values(series[0])] if series else [""]

    def point(cell: Cell, rates: Spread) -> dict[str, Any]:
        mean, low, high = rates.interval
        name = str(cell.settings[series[0]]) if series else ""
        place = names.index(name) - (len(names) - 1) / 2
        shown = {"y_low": max(low, y.low), "y_high": high} if rates.has_interval else {}
        where = f"{name} {study.name(axis)} {cell.settings[axis]}".strip()
        at = {"x": x.beside(float(cell.settings[axis]), place), "y": mean, "series": name}
        return at | shown | {"says": f"{where}: {_rate(rates)}"}

    figures = []
    for caption, drawn in panels:
        rows = sorted((point(*of) for of in drawn), key=lambda row: row["x"])
        figures.append(
            plots.lines(
                plots.on_axes(rows, x, y),
                "; ".join(row["says"] for row in rows),
                series=names,
                series_title=_axis_title(series[0]) if series else "",
                under=plots.levels(x, y, constants),
                title=caption,
                height=260,
            )
        )
    return figures


def _columns(
    study: Study,
    axis: str,
    panels: Sequence[Panel],
    y_title: str,
    most: float,
    top: Callable[[Spread], str],
    says: Callable[[Spread], str] | None = None,
) -> list[Figure]:
    """Charts like Figs. 4 and 10 of Han et al. 2019: a column for each value of the setting, in the same colour
    and up to the same maximum ``most`` in all charts. ``top``: text above a column; ``says``: text on hover, by
    default equal to ``top``."""
    colours = {str(value): SERIES[n % len(SERIES)][0] for n, value in enumerate(study.values(axis))}
    figures = []
    for caption, cells in panels[:PANELS]:
        rows: list[dict[str, Any]] = []
        for cell, value in cells:
            x, (mean, low, high) = str(cell.settings[axis]), value.interval
            interval = {"low": low, "high": high} if value.has_interval else {}
            texts = {"part": x, "top": top(value), "says": f"{x}: {(says or top)(value)}"}
            rows.append({"x": x, "y": mean, "above": interval.get("high", mean), **texts, **interval})
        over = chart_of(rows, x=plots.BY_COLUMN)
        whiskers = over.transform_filter("isValid(datum.low)").mark_rule(color=INK[0], strokeWidth=1.5)
        drawn = [row["x"] for row in rows]
        figures.append(
            plots.columns(
                rows,
                "; ".join(row["says"] for row in rows),
                titles=(_axis_title(axis), y_title),
                y_max=most * 1.12,
                colours={name: colours[name] for name in drawn},
                legend="bottom" if sum(map(len, drawn)) > 36 else None,
                over=[
                    whiskers.encode(y="low:Q", y2="high:Q"),
                    over.mark_text(dy=-7).encode(y="above:Q", text="top:N"),
                ],
                title=caption,
                static_width=300,
            )
        )
    return figures


def _rate(spread: Spread) -> str:
    mean, low, high = spread.interval
    text = f"{plain(mean)} samples/s"
    return f"{text} ({plain(low)} to {plain(high)}, {spread.n} runs)" if spread.has_interval else text


def _axis_title(axis: str) -> str:
    unit = _UNIT.get(axis)
    return title(axis).lower() + (f", {unit}" if unit else "")
