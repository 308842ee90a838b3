"""From a benchmark's TOML, a preset and ``--set key=value`` to a ``Run``."""

import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Any

from pydantic import BaseModel, ValidationError

from mlhpc.benchmarks.cosmoflow import CosmoFlow
from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.benchmarks.resnet50 import ResNet50
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError, did_you_mean

BENCHMARKS: dict[str, type[Run]] = {"cosmoflow": CosmoFlow, "deepcam": DeepCam, "resnet50": ResNet50}


def presets(benchmark: str) -> dict[str, str]:
    """Name and one-line description of each preset of ``benchmark``."""
    return {name: preset["description"] for name, preset in definition_of(benchmark)["presets"].items()}


def load(benchmark: str, preset: str, settings: Iterable[str] = ()) -> Run:
    """The fully resolved run of a preset, with ``settings`` (``table.key=value``) laid over it.

    Raises UserError for an unknown benchmark, preset or key, and for a value that is not valid. Whether a run
    that calls itself closed is so, ``benchmarks/rules.py`` says.
    """
    definition = definition_of(benchmark)
    if preset not in definition["presets"]:
        raise UserError(
            f"{benchmark} has no preset {preset!r}; {did_you_mean(preset, definition['presets'])}"
        )
    facts = _over(definition["defaults"], definition["presets"][preset])
    for setting in settings:
        facts = _over(facts, _parse(setting))
    try:
        return BENCHMARKS[benchmark](benchmark=benchmark, preset=preset, **facts)
    except ValidationError as error:
        raise UserError(_first_problem(error, BENCHMARKS[benchmark])) from None


def dumps(run: Run) -> str:
    """``run`` as TOML text, for the record of a run: what was resolved, nothing left to look up."""
    return "\n".join(_toml_table("", run.model_dump(mode="json", exclude_none=True))).strip() + "\n"


def loads(text: str) -> Run:
    """The ``Run`` that :func:`dumps` wrote."""
    facts = tomllib.loads(text)
    return BENCHMARKS.get(facts.get("benchmark", ""), Run)(**facts)


def definition_of(benchmark: str) -> dict[str, Any]:
    """The benchmark's TOML file as it stands. Raises UserError for an unknown benchmark."""
    if benchmark not in BENCHMARKS:
        raise UserError(f"no benchmark {benchmark!r}; {did_you_mean(benchmark, BENCHMARKS)}")
    return tomllib.loads(resources.files("mlhpc.benchmarks").joinpath(f"{benchmark}.toml").read_text("utf-8"))


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _over(below[key], value) if both else value
    return merged


def _parse(setting: str) -> dict[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise UserError(
            f"--set {setting!r} is not of the form table.key=value, such as training.max_epochs=3"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string: --set hyperparameters.opt_name=adam
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return dict(value)


def _first_problem(error: ValidationError, model: type[Run]) -> str:
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown key {place!r}; {did_you_mean(place, _keys(model))}"
    message = problem["msg"].removeprefix("Value error, ")
    given = "" if isinstance(problem["input"], dict) else f"; got {problem['input']!r}"
    # What speaks of several tables at once has no place, and names its keys itself.
    return f"{place}: {message}{given}" if place else message


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all that can be set."""
    keys = []
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_model(t)]
        keys += _keys(inner[0], f"{prefix}{name}.") if inner else [prefix + name]
    return keys


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _toml_table(name: str, table: dict[str, Any]) -> list[str]:
    plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
    lines = [f"\n[{name}]"] if name and plain else []
    lines += [f"{key} = {toml_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _toml_table(f"{name}.{key}" if name else key, value)
    return lines


def toml_value(value: Any) -> str:
    """One value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)
