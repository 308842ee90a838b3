"""Rows: the parts of a record that lists, selections and gates need. This module does not import pydantic, which
would take longer than reading ten thousand rows."""

from typing import TYPE_CHECKING, Any

from mlhpc.common.energy.counters import shared_kind
from mlhpc.record.breakdown import PARTS

if TYPE_CHECKING:
    from mlhpc.record.history import HistoryRecord

FIGURES = ("time_to_train_s", "time_to_train_without_staging_s", "epochs", "epoch_s", "samples_per_s")
BY_KIND = ("joules", "joules_per_sample")
"""Figures of a run with a value for each kind of counter."""
MEANS = (*FIGURES, *BY_KIND)
"""Figures of the runs of which a row has the mean."""
ROW = ("name", "when", "kind", "benchmark", "preset", "division", "framework", "system", "org", "machine", "node",
       "status", "mlhpc", "commit", "settings", "versions", "ranks", "nodes", "accelerators", "global_batch_size",
       "number_of_runs", *FIGURES, *(f"{part}_s" for part in PARTS), *BY_KIND)  # fmt: skip
"""The keys of every row, in order; further figures of a record follow."""
TEXTS = frozenset(ROW[: ROW.index("ranks")])
"""The keys that are compared as text; all others are numbers."""
TO_TARGET = frozenset({"time_to_train_s", "epochs", "time_to_train_without_staging_s", "joules"})
"""Figures that exist only for runs that reached the target."""


def row_of(name: str, record: "HistoryRecord") -> dict[str, Any]:
    """A flat summary of a record: means over the record's runs and, of figures that depend on the target,
    over those that reached it (if none did, over all); energy is that measured by the most comprehensive kind of
    counter that all these runs have."""
    row: dict[str, Any] = dict.fromkeys(ROW)
    row |= {key: getattr(record, key) for key in ROW if key in type(record).model_fields}
    row["name"], row["number_of_runs"] = name, len(record.runs)
    versions = (f"{what} {number}" for what, number in sorted(record.versions.items()))
    row["versions"] = ", ".join(versions) or None
    reached = [run for run in record.runs if run.reached] or record.runs
    for key in MEANS:
        values = [getattr(run, key) for run in (reached if key in TO_TARGET else record.runs)]
        if key in BY_KIND:
            kind = shared_kind(values)
            values = [by_kind.get(kind) for by_kind in values]
        row[key] = _mean(values)
    if record.kind == "study cell":  # ends after some steps; earlier versions called that a time to train
        row["time_to_train_s"] = row["time_to_train_without_staging_s"] = None
    for part in PARTS:
        row[f"{part}_s"] = _mean([run.parts_s.get(part) for run in record.runs])
    return row | {key: value for key, value in record.figures.items() if row.get(key) is None}


def _mean(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    return sum(known) / len(known)
