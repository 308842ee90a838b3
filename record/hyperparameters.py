"""Takes hyperparameters from the log of a different submission: ``mlhpc run --hyperparameters-from LOG``.

In an MLPerf round, submitters may borrow each other's hyperparameters (Farrell et al. 2021, section 3.2.2). The
suite's settings have the names that the logging rules define, so the values in a log are used unchanged. Values
whose meaning may differ in the log of a different implementation are refused. Target, data, seed and other
settings are not taken.
"""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from mlhpc.benchmarks import load, registry
from mlhpc.benchmarks.schema import Hyperparameters, Run
from mlhpc.common.files.checksum import sha256
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.pages.text import printable
from mlhpc.errors import UserError
from mlhpc.record.mllog import Log, parse


def load_run(
    benchmark: str,
    preset: str,
    settings: Sequence[str],
    *,
    config: Path | None = None,
    log: Path | None = None,
) -> Run:
    """The run of a preset, or of ``config`` (the config.toml of a run), with its hyperparameters replaced first by
    those in ``log`` and then by ``settings``. ``log`` may be the folder of a run. Raises UserError for an
    unreadable log or a log of a different benchmark, for missing or repeated hyperparameters, and for values that
    are ambiguous or that the settings cannot express, unless ``settings`` contains such a value.
    """

    def loaded(tables: dict[str, Any]) -> Run:
        if config:
            return load.load_file(config, benchmark, settings, tables)
        return load.load(benchmark, preset, settings, tables)

    if log is None:
        return loaded({})
    path = log / "run.log" if log.is_dir() else log
    given = {setting.partition("=")[0].strip() for setting in settings}
    source, values = _taken(path, benchmark, given)
    try:
        run = loaded({"hyperparameters": values, "hyperparameters_from": source})
    except UserError as error:
        about_log = any(key in str(error) for key in values)
        raise (
            UserError(f"{path}: {printable(error)[:500]}; --set overrides the log") if about_log else error
        ) from None
    own = run.hyperparameters.logged()
    missing = [key for key in own if key not in values and f"hyperparameters.{key}" not in given]
    if missing:
        raise UserError(
            f"{path} lacks {', '.join(missing)}; add --set hyperparameters.{missing[0]}=VALUE"
            f"{' and so on' if missing[1:] else ''}"
        )
    return run


def _taken(path: Path, benchmark: str, given: Collection[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The source of the hyperparameters, and their values except for hyperparameters that ``given`` replaces."""
    with as_user_error(path, "cannot be read", "pass the log of a submission (result_N.txt)"):
        digest = sha256(path)
    log = parse(path)
    name, expected = log.value("submission_benchmark"), registry.logged_name(benchmark)
    if name != expected:
        logged_benchmark = f"submission_benchmark {_short(name)}" if name else "no submission_benchmark"
        raise UserError(f"{path} states {logged_benchmark}; pass the log of a {expected} submission")
    fields = _class_of(benchmark).model_fields
    values = {}
    for key, value in _values(log, [key for key in fields if f"hyperparameters.{key}" not in given], path):
        if isinstance(value, bool) != (fields[key].annotation is bool):
            right = "a number or a name" if isinstance(value, bool) else "true or false"
            raise UserError(f"{path}: {key} is {_short(value)}, expected {right}")
        if _has_text(value) and get_origin(fields[key].annotation) is not Literal:
            raise UserError(f"{path}: {key} is the string {_short(json.dumps(value))}, expected a number")
        values[key] = _plain(value, fields[key].annotation)
    logged = {key: log.value(key) for key in fields if log.value(key) is not None}
    for key, why in _class_of(benchmark).unclear(logged):
        if key in values:
            raise UserError(
                f"{path}: {key} {_short(values[key])} is ambiguous ({why}); set hyperparameters.{key}"
            )
    # Other implementations do not log hyperparameters that the closed division fixes.
    for key, value in load.closed_table(benchmark, "closed_fixes").items():
        table, _, name = key.partition(".")
        if table == "hyperparameters" and key not in given:
            values.setdefault(name, value)
    submitter = _short(log.value("submission_org") or "unnamed")
    return {"file": path.name, "sha256": digest, "submitter": submitter}, values


def _values(log: Log, keys: Sequence[str], path: Path) -> Iterator[tuple[str, Any]]:
    """The values of ``keys`` in the log. Raises UserError for a key with several values, as in concatenated logs,
    and for a value that is not finite."""
    for key in keys:
        values = [record.value for record in log.all(key) if record.value is not None]
        if any(value != values[0] for value in values):
            other = next(value for value in values if value != values[0])
            raise UserError(
                f"{path}: {key} has two values, {_short(values[0])} and {_short(other)}; pass a single log"
            )
        if values and isinstance(values[0], float) and not math.isfinite(values[0]):
            raise UserError(f"{path}: {key} is {values[0]}, not a finite number")
        if values:
            yield key, values[0]


def _plain(value: Any, annotation: Any) -> Any:
    """``value`` converted to the type of the setting: a name is written in the case that the setting uses, and a
    single number becomes a list with one element."""
    if get_origin(annotation) is Literal:
        same = (name for name in get_args(annotation) if str(name).casefold() == str(value).casefold())
        return next(same, value)
    if get_origin(annotation) is tuple and isinstance(value, int | float):
        return [value]
    return value


def _has_text(value: Any) -> bool:
    return any(isinstance(part, str) for part in (value if isinstance(value, list) else [value]))


def _short(value: object) -> str:
    return printable(value)[:80]


def _class_of(benchmark: str) -> type[Hyperparameters]:
    annotation = load.run_class(benchmark).model_fields["hyperparameters"].annotation
    assert isinstance(annotation, type) and issubclass(annotation, Hyperparameters)
    return annotation
