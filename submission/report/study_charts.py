"""The charts of a study: curves over numbers, columns over words, and the variability by storage."""

from collections.abc import Iterator, Sequence
from typing import Any

from mlhpc.common.pages import charts, plots
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
    SERVERS: "Parameter servers",
    UPDATES: "Updates of parameter servers",
}
_UNIT = {"batch": "samples", GLOBAL_BATCH: "samples"}
_THROUGHPUT = "training throughput, samples/s"
Panels = Sequence[tuple[str, Sequence[Cell]]]
"""Captions, and the cells drawn below each."""


def throughput(study: Study, axis: str) -> tuple[list[Figure], int]:
    """The figures of one setting, all on one scale, and how many were left out. All else is equal within a
    figure; over numbers, each value of the first other setting has a curve."""
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
        return [], 0
    figures = _curves(study, axis, series, shown) if numeric else _bars(study, axis, shown)
    return figures, len(panels) - len(shown)


def variability(study: Study) -> list[Figure]:
    """Fig. 4b of paper 003: how much longer the slowest repeat took than the fastest, by storage."""
    if "storage" not in study.axes:
        return []
    panels = []
    for caption, cells in _panels(study, [axis for axis in study.axes if axis != "storage"]):
        shares = [
            (str(c.settings["storage"]), 100 * c.variability) for c in cells if c.variability is not None
        ]
        if len(shares) >= 2:
            panels.append((caption, shares))
    most = max((share for _, shares in panels for _, share in shares), default=0.0) or 1.0
    return [
        _columns(
            [
                {"x": name, "value": share, "top": f"{share:.1f}%", "says": f"{share:.1f}%"}
                for name, share in shares
            ],
            range(len(shares)),
            "storage",
            "slowest over fastest, %",
            most,
            caption,
        )
        for caption, shares in panels[:PANELS]
    ]


def accuracy(study: Study) -> list[Figure]:
    """Fig. 9b of paper 003: accuracy on the evaluation images, by the number of parameter servers."""
    if SERVERS not in study.axes:
        return []
    figures = []
    for caption, cells in _panels(study, [axis for axis in study.axes if axis != SERVERS]):
        rows = []
        for cell in cells:
            if found := spread(run.servers.accuracy for run in cell.runs if run.servers):
                mean, low, high = found.interval
                whisker = {"low": low, "high": high} if found.has_interval else {}
                rows.append({"x": str(cell.settings[SERVERS]), "value": mean, "top": f"{mean:.2f}",
                             "says": f"{mean:.3f}", **whisker})  # fmt: skip
        if rows:
            figures.append(_columns(rows, range(len(rows)), "parameter servers", "accuracy", 1.0, caption))
    return figures[:PANELS]


def title(axis: str) -> str:
    return TITLE.get(axis, axis)


def _panels(study: Study, same: Sequence[str]) -> Iterator[tuple[str, list[Cell]]]:
    """The cells that have equal values of ``same``, under a caption that names them."""
    for values, cells in grouped(study.cells, same).items():
        named = zip(same, values, strict=True)
        yield ", ".join(f"{study.name(key)} {'not set' if v is None else v}" for key, v in named), cells


def _curves(study: Study, axis: str, series: Sequence[str], panels: Panels) -> list[Figure]:
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
    figures = []
    for caption, drawn in panels:
        rows = []
        for cell in sorted(drawn, key=lambda cell: float(cell.settings[axis])):
            rates = measured(cell)
            mean, low, high = rates.interval
            name = str(cell.settings[series[0]]) if series else ""
            rows.append(
                {
                    "x": float(cell.settings[axis]),
                    "y": mean,
                    "low": max(low, y_axis.low) if rates.has_interval else None,
                    "high": high if rates.has_interval else None,
                    "series": name,
                    "cell": f"{name} {study.name(axis)} {cell.settings[axis]}".strip(),
                    "rate": _rate(rates),
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


def _bars(study: Study, axis: str, panels: Panels) -> list[Figure]:
    """Figs. 4a and 10: a column for each value of the setting, of the same colour in all figures."""
    values = study.values(axis)
    most = max(measured(cell).interval[2] for _, drawn in panels for cell in drawn)
    return [
        _columns(
            [_column(cell, cell.settings[axis]) for cell in drawn],
            [values.index(cell.settings[axis]) for cell in drawn],
            _axis_title(axis),
            _THROUGHPUT,
            most,
            caption,
        )
        for caption, drawn in panels
    ]


def _column(cell: Cell, name: Value) -> dict[str, Any]:
    rates = measured(cell)
    mean, low, high = rates.interval
    whisker = {"low": low, "high": high} if rates.has_interval else {}
    return {"x": str(name), "value": mean, "top": plain(mean), "says": _rate(rates), **whisker}


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
