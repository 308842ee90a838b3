"""``mlhpc presets``: the presets of the benchmarks, and an explanation of every setting of a preset."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mlhpc.benchmarks import load, registry
from mlhpc.benchmarks.bounds import bounds
from mlhpc.benchmarks.meanings import meaning, unit
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.terminal import print_facts


@dataclass(frozen=True)
class Setting:
    """One setting of a preset. ``source``: where the setting's value comes from. ``closed``: the values that the
    closed division allows."""

    key: str
    value: Any
    unit: str
    meaning: str
    source: str
    closed: str


def presets_of(benchmark: str | None) -> dict[str, dict[str, str]]:
    """Names and descriptions of the presets of ``benchmark`` (None: all benchmarks), by benchmark."""
    names = [benchmark] if benchmark else list(registry.benchmarks())
    return {name: load.presets(name) for name in names}


def print_presets(benchmark: str | None, console: Console) -> None:
    """Print the presets of ``benchmark``, or of all benchmarks."""
    for name, presets in presets_of(benchmark).items():
        if benchmark is None:
            console.print(Text(name, style="bold"))
        print_facts(presets.items(), console)


def settings_of(benchmark: str, preset: str) -> list[Setting]:
    """All resolved settings of a preset. Raises UserError for an unknown benchmark or preset."""
    run = load.load(benchmark, preset)
    definition = load.definition_of(benchmark)
    fixed, free = definition.get("closed_fixes", {}), definition.get("closed_free", {})
    given = dict(load.dotted(definition["presets"][preset])), dict(load.dotted(definition["defaults"]))
    return [
        Setting(
            key,
            value,
            unit(key),
            described or meaning(key),
            _source(key, preset, *given),
            _closed(key, fixed, free),
        )
        for key, value, described in _fields(run)
    ]


def print_settings(benchmark: str, preset: str, console: Console) -> None:
    """Print at most three lines per setting: value and unit, meaning, then the source and the values that the
    closed division allows. A table with six columns would not fit into 80 characters."""
    for setting in settings_of(benchmark, preset):
        value = "not set" if setting.value is None else load.toml_value(setting.value)
        if setting.unit and setting.value is not None:
            value += f" {setting.unit}"
        console.print(Text.assemble((setting.key, "bold"), f" = {value}"))
        for line in (setting.meaning, f"from {setting.source}; closed: {setting.closed}"):
            if line:
                style = "dim" if line is not setting.meaning else ""
                console.print(Padding(Text(line, style=style), (0, 0, 0, 4)))


def as_json(benchmark: str | None, preset: str | None) -> dict[str, Any]:
    """The content of ``mlhpc presets --json`` (docs/reference/json.md)."""
    if benchmark is None or preset is None:
        return {"presets": presets_of(benchmark)}
    settings = [asdict(setting) for setting in settings_of(benchmark, preset)]
    return {"benchmark": benchmark, "preset": preset, "settings": json.loads(json.dumps(settings))}


def _fields(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Dotted name, value and description of every setting; settings in tables that are None are omitted."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, f"{prefix}{name}.")
        elif value is None and _is_table(field.annotation):
            continue
        elif prefix or name in ("division", *_own(type(model))):
            yield prefix + name, value, field.description or ""


def _is_table(annotation: Any) -> bool:
    """Return whether a setting with this type annotation is a table of settings (or None)."""
    parts = (annotation, *getattr(annotation, "__args__", ()))
    return any(isinstance(part, type) and issubclass(part, BaseModel) for part in parts)


def _own(model: type[BaseModel]) -> set[str]:
    """The top-level settings of a benchmark that are not common to all benchmarks."""
    return set(model.model_fields) - set(Run.model_fields)


def _source(key: str, preset: str, own: dict[str, Any], defaults: dict[str, Any]) -> str:
    if key in own:
        return f"preset {preset}"
    return "the benchmark's defaults" if key in defaults else "the suite's defaults"


def _closed(key: str, fixed: dict[str, Any], free: dict[str, Any]) -> str:
    if key in fixed:
        return f"fixed to {load.toml_value(fixed[key])}"
    name = key.removeprefix("hyperparameters.")
    if name in free and key.startswith("hyperparameters."):
        return f"free, {bounds(free[name])}"
    return "free"
