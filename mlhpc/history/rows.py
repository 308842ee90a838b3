"""Rows: the parts of a record that lists, selections and gates need. This module does not import pydantic, which
would take longer than reading ten thousand rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlhpc.common.energy.counters import shared_kind
from mlhpc.record.breakdown import PARTS

if TYPE_CHECKING:
    from mlhpc.record.history import HistoryRecord

ROW = ("name", "when", "kind", "benchmark", "preset", "division", "framework", "system", "org", "machine", "node",
       "status", "mlhpc", "commit", "settings", "versions", "ranks", "nodes", "accelerators", "global_batch_size",
       "number_of_runs", "time_to_train_s", "time_to_train_without_staging_s", "epochs", "epoch_s",
       "samples_per_s", *(f"{part}_s" for part in PARTS), "joules", "joules_per_sample")  # fmt: skip
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
    row["versions"] = versions_text(record.versions) or None
    reached = [run for run in record.runs if run.reached] or record.runs
    for key in ("time_to_train_s", "time_to_train_without_staging_s", "epochs", "epoch_s", "samples_per_s"):
        row[key] = _mean([getattr(run, key) for run in (reached if key in TO_TARGET else record.runs)])
    if record.kind == "study cell":  # ends after some steps; earlier versions called that a time to train
        row["time_to_train_s"] = row["time_to_train_without_staging_s"] = None
    for part in PARTS:
        row[f"{part}_s"] = _mean([run.parts_s.get(part) for run in record.runs])
    for key in ("joules", "joules_per_sample"):
        runs = reached if key in TO_TARGET else record.runs
        figures = [by_kind for run in runs if (by_kind := getattr(run, key))]
        kind = shared_kind(figures)
        row[key] = _mean([by_kind[kind] for by_kind in figures if kind in by_kind])
    return row | {key: value for key, value in record.figures.items() if row.get(key) is None}


def versions_text(versions: Mapping[str, int]) -> str:
    """``versions`` as text: ``data 1, parts 1, preset 2``."""
    return ", ".join(f"{what} {number}" for what, number in sorted(versions.items()))


def _mean(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    return sum(known) / len(known)
