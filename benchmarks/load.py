"""From a benchmark's TOML, a preset and ``--set key=value`` to a ``Run``."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run, Target
from mlhpc.benchmarks.toml_lines import parse_toml, parse_value, read_toml, toml_lines
from mlhpc.errors import UserError, did_you_mean, shown


class BadSetting(UserError):
    """An unknown setting, or one with an invalid value. ``key``: its dotted name; empty if several settings
    conflict."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


RUNS_OF_A_SCORE = 5
"""Runs per score of a benchmark whose TOML does not give ``closed_results.runs``."""


def presets(benchmark: str) -> dict[str, str]:
    """Name and one-line description of each preset of ``benchmark``."""
    return {name: preset["description"] for name, preset in definition_of(benchmark)["presets"].items()}


def preset_version(benchmark: str, preset: str) -> int:
    """Incremented when results of ``preset`` from before a change cannot be compared with those after it: in the
    table ``versions`` of the benchmark's TOML, 1 without an entry."""
    return int(definition_of(benchmark).get("versions", {}).get(preset, 1))


def load(
    benchmark: str, preset: str, settings: Iterable[str] = (), tables: Mapping[str, Any] | None = None
) -> Run:
    """The fully resolved run of a preset, with ``tables`` of settings over it and ``settings``
    (``table.key=value``) on top.

    Raises UserError for an unknown benchmark, preset or key, and for an invalid value.
    ``benchmarks/rules.py`` checks whether a run qualifies as closed.
    """
    definition = definition_of(benchmark)
    if preset not in definition["presets"]:
        raise UserError(f"no preset {preset!r}; {did_you_mean(preset, definition['presets'])}")
    own = _over(definition["defaults"], definition["presets"][preset])
    named = {**own, "benchmark": benchmark, "preset": preset}
    return _validated(_over(named, dict(tables or {})), settings)


def load_file(
    path: Path, benchmark: str, settings: Iterable[str] = (), tables: Mapping[str, Any] | None = None
) -> Run:
    """The run that a ``config.toml`` describes, such as that of an earlier run, with ``tables`` of settings over
    it and ``settings`` on top.

    Raises UserError if the file cannot be read, is not a run's configuration, or belongs to another
    benchmark; the message has the line of the setting.
    """
    settings = list(settings)
    text, own = read_toml(path, "--config requires the config.toml of a run")
    if own.get("benchmark") != benchmark:
        where = at_line(path, text, "benchmark")
        raise UserError(
            f"{where}: this configuration is for {shown(own.get('benchmark'))}, not for {benchmark}"
        )
    try:
        return _validated(_over(own, dict(tables or {})), settings)
    except BadSetting as error:
        above = [key for key, _ in dotted(dict(tables or {}))]
        above += [setting.partition("=")[0].strip() for setting in settings]
        if any(f"{key}.".startswith(f"{error.key}.") or key in _with_parents(error.key) for key in above):
            raise  # the key was set over the file, or conflicts with it
        raise UserError(f"{at_line(path, text, error.key)}: {error}") from None


def dumps(run: Run) -> str:
    """``run`` as TOML text, for the record of a run: all settings resolved."""
    return tomli_w.dumps(run.model_dump(mode="json", exclude_none=True))


def loads(text: str) -> Run:
    """The ``Run`` that :func:`dumps` wrote; for a benchmark that is not installed, only what all runs have.

    Raises ValueError, with one line that says why, when ``text`` describes no run of this version.
    """
    tables = parse_toml(text)
    try:
        chosen, tables = run_class(str(tables.get("benchmark"))), _with_framework(tables)
    except UserError:
        chosen = Run
    try:
        return chosen(**tables)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        line = toml_lines(text).get(key)
        where = f"line {line}: {key}" if line else key
        raise ValueError(f"{where}: {problem['msg']} (written by another version of mlhpc?)") from None


def definition_of(benchmark: str) -> dict[str, Any]:
    """The benchmark's TOML file, unresolved, not to be changed. Raises UserError for an unknown benchmark."""
    return _parsed(registry.find(benchmark).definition)


@cache
def _parsed(definition: str) -> dict[str, Any]:
    """A check of the rules needs the tables twenty times."""
    package, _, file = definition.partition(":")
    return tomllib.loads(resources.files(package).joinpath(file).read_text("utf-8"))


def closed_table(benchmark: str, name: str) -> dict[str, Any]:
    """Table ``name`` (``closed_fixes``, ``closed_free``, ``closed_data``, ``closed_results``) of a benchmark's
    TOML; empty for a benchmark without a closed division."""
    table: dict[str, Any] = definition_of(benchmark).get(name, {})
    return table


def official_target(benchmark: str) -> Target:
    """The target of the closed division, or that of the benchmark's defaults if it has none."""
    target = Target(**definition_of(benchmark)["defaults"]["target"])
    fixed = closed_table(benchmark, "closed_fixes")
    names = (key.removeprefix("target.") for key in fixed if key.startswith("target."))
    return target.model_copy(update={name: fixed[f"target.{name}"] for name in names})


def runs_of_a_score(benchmark: str) -> int:
    """Number of runs per score (MLPerf HPC training rules, "Benchmark Results")."""
    return int(closed_table(benchmark, "closed_results").get("runs", RUNS_OF_A_SCORE))


def hyperparameter_keys(benchmark: str) -> tuple[str, ...]:
    """The keys of the logging rules that are hyperparameters of ``benchmark``."""
    return run_class(benchmark).hyperparameter_keys()


def dotted(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All settings of a table and its subtables, by the dotted name of ``--set``."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def toml_value(value: Any) -> str:
    """One value on one line of TOML; for booleans, numbers, strings and lists this is JSON."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def at_line(path: Path, text: str, key: str) -> str:
    """The position of ``key``, or else of its table, in the file ``path`` with ``text``."""
    lines = toml_lines(text)
    line = next((lines[name] for name in _with_parents(key) if name in lines), None)
    return f"{path}, line {line}" if line else str(path)


def _with_parents(key: str) -> Iterator[str]:
    """``a.b.c``, ``a.b``, ``a``; nothing for an empty key."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _validated(tables: dict[str, Any], settings: Iterable[str]) -> Run:
    for setting in settings:
        tables = _over(tables, _parse(setting))
    chosen = run_class(str(tables["benchmark"]))
    try:
        return chosen(**_with_framework(tables))
    except ValidationError as error:
        raise _first_problem(error, chosen) from None


def run_class(benchmark: str) -> type[Run]:
    """The class of the runs of ``benchmark``. Raises UserError for an unknown one."""
    chosen: type[Run] = registry.load_object(registry.find(benchmark).settings)
    return chosen


def _with_framework(tables: dict[str, Any]) -> dict[str, Any]:
    """``tables`` with the benchmark's first framework if none is chosen, as in files of earlier versions."""
    benchmark = registry.find(str(tables["benchmark"]))
    training = tables.get("training", {})
    if not isinstance(training, dict):
        return tables  # refused like any value of a wrong type
    chosen = training.get("framework") or benchmark.default_framework
    if not isinstance(chosen, str) or chosen not in benchmark.frameworks:
        options = did_you_mean(str(chosen), benchmark.frameworks)
        key = "training.framework"
        raise BadSetting(f"{benchmark.name} has no {key} {chosen!r}; {options}", key)
    return _over(tables, {"training": {"framework": chosen}})


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _over(below[key], value) if both else value
    return merged


def _parse(setting: str) -> dict[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise UserError(f"--set {setting!r} must be table.key=value, such as training.max_epochs=3")
    value = parse_value(text)
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return dict(value)


def _first_problem(error: ValidationError, model: type[Run]) -> BadSetting:
    problems = error.errors()
    # An unknown key is reported before a missing one: it may be a misspelling of it.
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        table = problem["input"]
        while isinstance(table, dict) and table:  # an unknown table: its first key says what was meant
            key, table = next(iter(table.items()))
            place += f".{key}"
        return BadSetting(f"unknown key {place!r}; {did_you_mean(place, _keys(model))}", place)
    message = problem["msg"].removeprefix("Value error, ")
    got = "" if isinstance(problem["input"], dict) else f"; got {shown(problem['input'])}"
    # A message about several tables has no position, and names its keys itself.
    return BadSetting(f"{place}: {message}{got}" if place else message, place)


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all settings."""
    keys = []
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_model(t)]
        keys += _keys(inner[0], f"{prefix}{name}.") if inner else [prefix + name]
    return keys


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
