"""Creates a ``Run`` from a benchmark's TOML file, a preset and ``--set key=value``."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.schema import Run, Target
from mlhpc.benchmarks.toml_lines import parse_toml, parse_value, read_toml, setting_problem, toml_lines
from mlhpc.errors import UserError, did_you_mean, shown


class BadSetting(UserError):
    """Raised for an unknown setting, or a setting with an invalid value. ``key``: the dotted name of the setting;
    empty if several settings conflict."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


RUNS_OF_A_SCORE = 5
"""Runs per score of a benchmark whose TOML file does not set ``closed_results.runs``."""


def presets(benchmark: str) -> dict[str, str]:
    """Name and one-line description of each preset of ``benchmark``."""
    return {name: preset["description"] for name, preset in definition_of(benchmark)["presets"].items()}


def preset_version(benchmark: str, preset: str) -> int:
    """The version of ``preset``, which is incremented when a change makes earlier results incomparable with later
    ones. The table ``versions`` of the benchmark's TOML file lists the versions; a preset without an entry has
    version 1."""
    return int(definition_of(benchmark).get("versions", {}).get(preset, 1))


def load(
    benchmark: str, preset: str, settings: Iterable[str] = (), tables: Mapping[str, Any] | None = None
) -> Run:
    """The fully resolved run of a preset, overridden first by ``tables`` of settings and then by ``settings``
    (``table.key=value``).

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
    """The run described by a ``config.toml``, for example from an earlier run's folder, overridden first by
    ``tables`` of settings and then by ``settings``.

    Raises UserError if the file cannot be read, is not the configuration of a run, or belongs to a different
    benchmark; the message names the line of the setting.
    """
    settings = list(settings)
    text, own = read_toml(path, "--config requires the config.toml of a run")
    if own.get("benchmark") != benchmark:
        where = at_line(path, text, "benchmark")
        raise UserError(
            f"{where}: this configuration is for {shown(own.get('benchmark'))}; pass one for {benchmark}"
        )
    try:
        return _validated(_over(own, dict(tables or {})), settings)
    except BadSetting as error:
        above = [key for key, _ in dotted(dict(tables or {}))]
        above += [setting.partition("=")[0].strip() for setting in settings]
        if any(f"{key}.".startswith(f"{error.key}.") or key in _with_parents(error.key) for key in above):
            raise  # the problem may be in ``tables`` or ``settings``, not in the file
        raise UserError(f"{at_line(path, text, error.key)}: {error}") from None


def dumps(run: Run) -> str:
    """``run`` as TOML text with all settings resolved, for the record of a run."""
    return tomli_w.dumps(run.model_dump(mode="json", exclude_none=True))


def loads(text: str) -> Run:
    """The ``Run`` in TOML text written by :func:`dumps`. If the benchmark is not installed, the ``Run`` contains
    only the settings common to all benchmarks.

    Raises ValueError, with a reason in one line, if ``text`` does not describe a run of this version.
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
    """The parsed content of the benchmark's TOML file, before settings are resolved; callers must not change it.
    Raises UserError for an unknown benchmark."""
    return _parsed(registry.find(benchmark).definition)


@cache
def _parsed(definition: str) -> dict[str, Any]:
    """The parsed TOML file, cached because one check of the rules reads its tables about twenty times."""
    package, _, file = definition.partition(":")
    return tomllib.loads(resources.files(package).joinpath(file).read_text("utf-8"))


def closed_table(benchmark: str, name: str) -> dict[str, Any]:
    """Table ``name`` (``closed_fixes``, ``closed_free``, ``closed_data``, ``closed_results``) of a benchmark's
    TOML; empty for a benchmark without a closed division."""
    table: dict[str, Any] = definition_of(benchmark).get(name, {})
    return table


def official_target(benchmark: str) -> Target:
    """The target of the closed division; for a benchmark without a closed division, its default target."""
    target = Target(**definition_of(benchmark)["defaults"]["target"])
    fixed = closed_table(benchmark, "closed_fixes")
    names = (key.removeprefix("target.") for key in fixed if key.startswith("target."))
    return target.model_copy(update={name: fixed[f"target.{name}"] for name in names})


def runs_of_a_score(benchmark: str) -> int:
    """Number of runs per score (MLPerf HPC training rules, "Benchmark Results")."""
    return int(closed_table(benchmark, "closed_results").get("runs", RUNS_OF_A_SCORE))


def hyperparameter_keys(benchmark: str) -> tuple[str, ...]:
    """The names that the MLPerf logging rules use for the hyperparameters of ``benchmark``."""
    return run_class(benchmark).hyperparameter_keys()


def dotted(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All settings of a table and its subtables, by dotted name as in ``--set``."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def differing(first: dict[str, Any], second: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ between two tables, by dotted name, each with both values (None if missing)."""
    a, b = dict(dotted(first)), dict(dotted(second))
    return {key: (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)}


def toml_value(value: Any) -> str:
    """``value`` as TOML on one line. The TOML and JSON of booleans, numbers, strings and lists are the same."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def at_line(path: Path, text: str, key: str) -> str:
    """The position (file and line) of ``key`` in the file ``path``, whose content is ``text``; if the key is not
    in the file, the position of its table."""
    lines = toml_lines(text)
    line = next((lines[name] for name in _with_parents(key) if name in lines), None)
    return f"{path}, line {line}" if line else str(path)


def _with_parents(key: str) -> Iterator[str]:
    """Yield ``key``, then the tables that contain it: ``a.b.c``, ``a.b``, ``a``. Yield nothing for an empty
    key."""
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
        keys, problem = setting_problem(error, chosen)
        raise BadSetting(problem, ".".join(keys)) from None


def run_class(benchmark: str) -> type[Run]:
    """The class of the runs of ``benchmark``. Raises UserError for an unknown benchmark."""
    chosen: type[Run] = registry.load_object(registry.find(benchmark).settings)
    return chosen


def _with_framework(tables: dict[str, Any]) -> dict[str, Any]:
    """``tables``, with the framework set to the benchmark's first one if none is set, as in files of earlier
    versions."""
    benchmark = registry.find(str(tables["benchmark"]))
    training = tables.get("training", {})
    if not isinstance(training, dict):
        return tables  # validation will refuse it
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
