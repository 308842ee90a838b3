"""The charts of a study: curves for numbers, columns for words, and the variability by storage."""

from collections.abc import Iterator, Sequence
from typing import Any

from mlhpc.common.pages import bars, charts, plots
from mlhpc.common.pages.charts import SERIES, Figure
from mlhpc.submission.report.spread import Spread, spread
from mlhpc.submission.report.study import (
    GLOBAL_BATCH,
    SERVERS,
    UPDATES,
    Cell,
    Study,
    Value,
    grouped,
    is_numeric,
)
from mlhpc.submission.report.summary import plain

PANELS = 12
"""Maximum number of figures per section; the table contains all."""
BARS = 32
"""Maximum number of bars in the figure of times; the table contains all."""
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
    SERVERS: "Parameter servers",
    UPDATES: "Updates of parameter servers",
}
_UNIT = {"batch": "samples", GLOBAL_BATCH: "samples"}
_THROUGHPUT = "training throughput, samples/s"
Panels = Sequence[tuple[str, Sequence[Cell]]]
"""Captions, with the cells shown under each."""


def throughput(study: Study, axis: str) -> tuple[tuple[Figure, ...], int]:
    """The figures of one setting with a common scale, and the number of omitted figures. All other settings
    are equal within a figure; for numbers, each value of the first other setting has a curve."""
    others = [other for other in study.axes if other != axis]
    numeric = is_numeric(study.values(axis))
    series, same = (others[:1], others[1:]) if numeric else ([], others)
    panels = []
    for caption, cells in _panels(study, same):
        drawn = [cell for cell in cells if cell.runs and all(k in cell.settings for k in (axis, *series))]
        if len({repr(cell.settings[axis]) for cell in drawn}) >= 2:
            panels.append((caption, drawn))
    shown = panels[:PANELS]
    if not shown:
        return (), 0
    figures = _curves(study, axis, series, shown) if numeric else _bars(study, axis, shown)
    return figures, len(panels) - len(shown)


def variability(study: Study) -> tuple[Figure, ...]:
    """Fig. 4b of paper 003: excess of the slowest repeat over the fastest, by storage."""
    panels = []
    for caption, cells in _panels_without(study, "storage"):
        percent = {
            str(c.settings["storage"]): 100 * c.variability for c in cells if c.variability is not None
        }
        if len(percent) >= 2:
            panels.append(
                (caption, [_column(name, f"{share:.1f}%", share) for name, share in percent.items()])
            )
    most = max((row["y"] for _, rows in panels for row in rows), default=0.0) or 1.0
    return tuple(
        _columns(caption, rows, "storage", "slowest over fastest, %", most)
        for caption, rows in panels[:PANELS]
    )


def sample_times(study: Study) -> tuple[Figure | None, int]:
    """After Figs. 9 and 12 of paper 002: time per sample of the global batch, the part that rank 0 waited for
    data, and the number of omitted cells. None unless settings of the input were varied."""
    if not {"codec", "data", "storage", "data.train_samples", "study.earlier_epochs"} & set(study.axes):
        return None, 0
    rows = []
    beside = grouped(study.cells, [axis for axis in study.axes if axis != "codec"])
    for cell in (cell for cells in beside.values() for cell in cells):
        if cell.runs:
            seconds, samples, wait = (
                sum(getattr(run, key) for run in cell.runs) for key in ("seconds", "samples", "wait_s")
            )
            name = ", ".join(
                f"{study.name(axis)} {cell.settings[axis]}" for axis in study.axes if axis in cell.settings
            )
            wait = min(max(wait, 0.0), seconds)
            sizes = {"data_wait": wait / samples, "step": (seconds - wait) / samples}
            rows.append(bars.Bar(name, sizes))
    if not rows:
        return None, 0
    shown = bars.stacked_bars(
        rows[:BARS],
        "Time per sample",
        parts={"data_wait": "waiting for data", "step": "rest of the step"},
        value_title="milliseconds per sample",
        write=lambda seconds: f"{plain(1e3 * seconds)} ms",
        unit=1e-3,
        bar_height=18,
    )
    return shown, len(rows) - len(rows[:BARS])


def accuracy(study: Study) -> tuple[Figure, ...]:
    """Fig. 9b of paper 003: accuracy on the evaluation images, by the number of parameter servers."""
    figures = []
    for caption, cells in _panels_without(study, SERVERS):
        rows = []
        for cell in cells:
            if accuracies := spread(run.servers.accuracy for run in cell.runs if run.servers):
                rows.append(
                    _column(
                        cell.settings[SERVERS], f"{accuracies.mean:.2f}", accuracies, f"{accuracies.mean:.3f}"
                    )
                )
        if rows:
            figures.append(_columns(caption, rows, "parameter servers", "accuracy", 1.0))
    return tuple(figures[:PANELS])


def title(axis: str) -> str:
    return TITLE.get(axis, axis)


def _panels(study: Study, same: Sequence[str]) -> Iterator[tuple[str, list[Cell]]]:
    """The cells that have equal values of ``same``, under a caption that names them."""
    for values, cells in grouped(study.cells, same).items():
        named = zip(same, values, strict=True)
        yield ", ".join(f"{study.name(key)} {'not set' if v is None else v}" for key, v in named), cells


def _panels_without(study: Study, axis: str) -> Iterator[tuple[str, list[Cell]]]:
    """The cells that differ only in ``axis``; none if it was not varied."""
    return (
        _panels(study, [other for other in study.axes if other != axis]) if axis in study.axes else iter(())
    )


def _curves(study: Study, axis: str, series: Sequence[str], panels: Panels) -> tuple[Figure, ...]:
    """Figs. 6 and 11: a curve for each value of ``series``."""
    cells = [cell for _, drawn in panels for cell in drawn]
    xs = [float(cell.settings[axis]) for cell in cells]
    ends = [end for cell in cells for end in measured(cell).interval if end > 0]
    whole = all(isinstance(cell.settings[axis], int) for cell in cells)
    x_axis = charts.log_axis(xs, _axis_title(axis), base=2 if whole else 10, room=1.3)
    y_axis = charts.log_axis(ends, _THROUGHPUT, room=1.2)
    levels: list[dict[str, Any]] = []
    if axis == "ranks":
        constants = [(c, f"{c:g} per rank") for c in plots.round_constants(x_axis, y_axis)]
        levels = plots.level_lines(x_axis, y_axis, constants)
    names = [str(value) for value in study.values(series[0])] if series else [""]

    def point(cell: Cell) -> dict[str, Any]:
        rates = measured(cell)
        mean, low, high = rates.interval
        name = str(cell.settings[series[0]]) if series else ""
        return {
            "x": float(cell.settings[axis]),
            "y": mean,
            "low": max(low, y_axis.low) if rates.has_interval else None,
            "high": high if rates.has_interval else None,
            "series": name,
            "cell": f"{name} {study.name(axis)} {cell.settings[axis]}".strip(),
            "rate": _rate(rates),
        }

    figures = []
    for caption, drawn in panels:
        rows = sorted(map(point, drawn), key=lambda row: row["x"])
        figures.append(
            plots.curves(
                rows,
                "; ".join(f"{row['cell']}: {row['rate']}" for row in rows),
                x_axis=x_axis,
                y_axis=y_axis,
                series=names,
                tooltip=[("cell", "cell"), ("rate", "throughput")],
                levels=levels,
                title=caption,
            )
        )
    return tuple(figures)


def _bars(study: Study, axis: str, panels: Panels) -> tuple[Figure, ...]:
    """Figs. 4a and 10: a column for each value of the setting, with the same colour in all figures."""
    colour_of = {str(v): SERIES[n % len(SERIES)][0] for n, v in enumerate(study.values(axis))}
    most = max(measured(cell).interval[2] for _, drawn in panels for cell in drawn)
    figures = []
    for caption, drawn in panels:
        rows = []
        for cell in drawn:
            rates = measured(cell)
            rows.append(_column(cell.settings[axis], plain(rates.mean), rates, _rate(rates)))
        colours = [colour_of[row["x"]] for row in rows]
        figures.append(_columns(caption, rows, _axis_title(axis), _THROUGHPUT, most, colours))
    return tuple(figures)


def _column(name: Value, top: str, value: float | Spread, says: str = "") -> dict[str, Any]:
    """``top``: text above the column. ``says``: text on hover, by default ``top``."""
    measured = value if isinstance(value, Spread) else Spread(value, None, 1)
    _, low, high = measured.interval
    whisker = {"low": low, "high": high} if measured.has_interval else {}
    return {"x": str(name), "y": measured.mean, "top": top, "says": says or top, **whisker}


def _columns(
    caption: str,
    rows: list[dict[str, Any]],
    x_title: str,
    y_title: str,
    most: float,
    colours: Sequence[str] | None = None,
) -> Figure:
    """Columns with different colours; all figures of a section have the scale ``most``."""
    return bars.columns(
        rows,
        "; ".join(f"{row['x']}: {row['says']}" for row in rows),
        x_title=x_title,
        y_title=y_title,
        tooltip=[("x", x_title), ("says", "measured")],
        y_max=most * 1.12,
        colours=colours or [SERIES[n % len(SERIES)][0] for n in range(len(rows))],
        long_names=sum(len(row["x"]) for row in rows) > 36,
        title=caption,
        static_width=300,
    )


def measured(cell: Cell) -> Spread:
    """The throughput of a cell that has runs."""
    rates = cell.samples_per_s
    assert rates is not None
    return rates


def _rate(spread: Spread) -> str:
    mean, low, high = spread.interval
    text = f"{plain(mean)} samples/s"
    return f"{text} ({plain(low)} to {plain(high)}, {spread.n} runs)" if spread.has_interval else text


def _axis_title(axis: str) -> str:
    unit = _UNIT.get(axis)
    return title(axis).lower() + (f", {unit}" if unit else "")
