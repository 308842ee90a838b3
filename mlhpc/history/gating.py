"""``mlhpc history gate``: selects the new runs, their baseline and the tolerances of the test."""

import re
from collections.abc import Sequence
from pathlib import Path

from mlhpc.errors import UserError, did_you_mean
from mlhpc.history.gate import EMULATED, Measured
from mlhpc.history.index import Index, conditions
from mlhpc.history.rows import MEANS
from mlhpc.quantities import parse_quantity

SAME = ("kind", "benchmark", "preset", "system")
"""Keys for which the records of a baseline must have the same values as the new runs, except for keys in the
selection."""


def tolerance_of(text: object) -> float:
    """A tolerance, as a fraction from 0 up to 10, from text such as "5%". Raises UserError for any other text."""
    try:
        value = parse_quantity(str(text), "a share")
    except ValueError as error:
        raise UserError(f"tolerance {error}") from None
    if not 0 <= value < 10:
        raise UserError(f"tolerance {text} must be between 0% and 1000%; write, for example, 5%")
    return value


def rules_of(path: Path | None, tolerance: str) -> dict[str, float]:
    """The fraction by which new runs may be worse, by metric: from the ``[[rule]]`` tables (``metric`` and
    ``tolerance``) of a TOML file; without a file, ``tolerance`` for the time to train. Raises UserError for an
    invalid file or tolerance."""
    if path is None:
        return {"time_to_train_s": tolerance_of(tolerance)}
    from mlhpc.benchmarks.toml_lines import read_toml  # imports pydantic

    _, content = read_toml(path, "pass a TOML file of rules")
    try:
        rules = {each["metric"]: tolerance_of(each.get("tolerance", tolerance)) for each in content["rule"]}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: expected [[rule]] tables with metric and tolerance") from None
    if not rules:
        raise UserError(f"{path} has no rules; add [[rule]] tables with metric and tolerance")
    for metric in rules:
        if metric not in MEANS:
            raise UserError(f"{path}: no metric {metric!r}; {did_you_mean(str(metric), MEANS)}")
    return rules


def baseline_of(index: Index, selection: str, new: Sequence[Measured]) -> list[Measured]:
    """The records in ``selection``, without ``new``, whose values for the keys ``SAME`` equal those of ``new``,
    and that are emulated if ``new`` are; keys with a condition in ``selection`` are not compared. Raises UserError
    for an invalid selection."""
    wanted, first = conditions(selection), new[0][0] if new else {}
    named = {re.split("[<>=!]", each)[0].strip() for each in wanted}
    if "name" in named:
        for each in wanted:  # raises UserError unless exactly one record has this name
            if each.startswith("name="):
                index.name_of(each.removeprefix("name="))
    else:
        wanted += [f"{key}={first[key]}" for key in SAME if key not in named and first.get(key)]
        if "status" not in named and first.get("status"):  # emulated runs have rates, but compute nothing
            wanted.append(f"status{'=' if first['status'] == EMULATED else '!='}{EMULATED}")
    # A run that was also added under a different system name has a different digest.
    own = [_identity(pair) for pair in new]
    return [pair for pair in index.measured(wanted) if _identity(pair) not in own]


def _identity(measured: Measured) -> tuple[object, ...]:
    row, runs = measured
    own = [(run.get("seed"), run.get("time_to_train_s")) for run in runs]
    return row["when"] or row["name"], row["settings"], own


def measured(index: Index, text: str, system: str | None) -> list[Measured]:
    """The runs that ``text`` names: a folder, whose runs need not be in the store, or a selection. Raises
    UserError for a missing folder or an invalid selection."""
    path = Path(text)
    if not path.exists():
        if not re.fullmatch("[0-9a-f]{6,64}", text) and not re.search("[<>=]", text):
            raise UserError(f"{text}: no such folder; pass a run, a record name, or a selection (last=5)")
        return index.measured(conditions(text))
    from mlhpc.history.importing import all_records
    from mlhpc.history.rows import row_of
    from mlhpc.history.store import digest

    records = (record for record in all_records(path, system) if record.kind != "campaign")
    return [(row_of(digest(one.canonical()), one), [run.model_dump() for run in one.runs]) for one in records]
