"""Loads a workload from a file, or one of the suite's workloads, and validates it."""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from mlhpc.benchmarks.toml_lines import parse_toml, parse_value, setting_names, setting_problem, toml_lines
from mlhpc.common.files.untrusted import read_text
from mlhpc.errors import UserError, did_you_mean, install
from mlhpc.iobench.definition import dlio
from mlhpc.iobench.definition.dlio_keys import NO_EFFECT, USED
from mlhpc.iobench.definition.fields import Duration
from mlhpc.iobench.definition.schema import Workload
from mlhpc.quantities import binary_text

_SIZES = {("dataset", key) for key in ("files", "samples_per_file", "sample_bytes")}
LARGEST = 2**20
"""Maximum characters of a YAML file; published workloads have a few thousand."""
MOST_NODES = 10_000
LONGEST = 2**16
"""Maximum characters of a scalar, because parsing base-60 numbers (``1:30:00``) takes quadratic time."""
LineOf = Callable[[Sequence[str]], int | None]
Loaded = tuple[Workload, set[tuple[str, ...]]]
"""A workload, and the keys that were set by ``settings``."""


def names() -> dict[str, str]:
    """The descriptions of the suite's workloads, by name."""
    descriptions = {}
    for file in sorted(_folder().iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            tables = tomllib.loads(file.read_text("utf-8"))
            descriptions[file.name.removesuffix(".toml")] = str(tables.get("description", ""))
    return descriptions


def load(source: str, settings: Iterable[str] = ()) -> Workload:
    """The workload in the file ``source`` (.toml, .yaml or .yml), or the suite's workload of that name,
    overridden by ``settings`` (``table.key=value``).

    Raises UserError, with file and line, for unreadable, unknown, invalid or contradictory values.
    """
    path = Path(source)
    if path.suffix not in (".toml", ".yaml", ".yml"):
        suite_names = names()
        if source not in suite_names:
            raise UserError(f"no workload {source!r}; {did_you_mean(source, suite_names)}; or pass a file")
        text = _folder().joinpath(f"{source}.toml").read_text("utf-8")
        return _from_toml(text, f"workload {source}", settings)[0]
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{path} cannot be read: {reason}; pass a workload file") from None
    if path.suffix == ".toml":
        workload, changed = _from_toml(text, str(path), settings)
    else:
        workload, changed = _from_yaml(text, str(path), path.stem, settings)
    workload.propose(
        key
        for key in ("url", "endpoints")
        if getattr(workload.storage, key) and not {("storage",), ("storage", key)} & changed
    )
    return workload


def dumps(workload: Workload) -> str:
    """The workload as TOML text, with all defaults and settings resolved."""
    return tomli_w.dumps(workload.model_dump(mode="json", exclude_none=True))


def _folder() -> Any:
    return resources.files("mlhpc.iobench") / "workloads"


def _from_toml(text: str, where: str, settings: Iterable[str]) -> Loaded:
    settings = tuple(settings)
    if theirs := next(filter(_is_dlio, settings), None):
        raise UserError(
            f"{where}: {theirs!r} is a key of DLIO's YAML files; mlhpc io list WORKLOAD shows a workload's keys"
        )
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise UserError(f"{where}: invalid TOML: {error}") from None
    lines = toml_lines(text)

    def line_of(keys: Sequence[str]) -> int | None:
        """The line of the innermost table or key in ``keys`` that has a line of its own; keys of inline tables do
        not."""
        found = (lines.get(".".join(keys[:n])) for n in range(len(keys), 0, -1))
        return next(filter(None, found), None)

    return _validated(tables, settings, where, line_of)


def _from_yaml(text: str, where: str, stem: str, settings: Iterable[str]) -> Loaded:
    try:
        import yaml
    except ModuleNotFoundError:
        raise UserError(f"{where}: reading YAML requires PyYAML; {install('io')}, or write TOML") from None
    try:
        root, tables = _load_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: invalid YAML: {getattr(error, 'problem', error)}") from None
    except (ValueError, RecursionError) as error:  # an invalid date, or infinitely nested lists
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where}: invalid YAML: {reason}") from None
    if not isinstance(tables, dict):
        raise UserError(f"{where}: not a workload: it needs tables such as dataset, reader and train")
    settings = tuple(settings)
    for setting in filter(_is_dlio, settings):
        tables, _ = _with_setting(
            tables, setting.removeprefix("++").removeprefix("workload."), yaml.safe_load
        )
    settings = tuple(setting for setting in settings if not _is_dlio(setting))
    try:
        converted, origin = dlio.convert(tables, stem)
    except dlio.BadKey as bad:
        line_number = _yaml_line(root, bad.keys)
        raise UserError(f"{where}{f':{line_number}' if line_number else ''}: {bad}") from None
    return _validated(
        converted, settings, where, lambda keys: _yaml_line(root, origin.get(tuple(keys), tuple(keys)))
    )


def _validated(tables: dict[str, Any], settings: Iterable[str], where: str, line_of: LineOf) -> Loaded:
    changed: set[tuple[str, ...]] = set()
    for setting in settings:
        tables, keys = _with_setting(tables, setting)
        changed.add(keys)
    if (
        changed & _SIZES
        and ("dataset", "total_bytes") not in changed
        and isinstance(tables.get("dataset"), dict)
    ):
        # The total stated in the file no longer applies if sizes are changed.
        tables = {**tables, "dataset": {k: v for k, v in tables["dataset"].items() if k != "total_bytes"}}
    try:
        return Workload(**tables), changed
    except ValidationError as error:
        keys, message = setting_problem(error, Workload, Duration)
        if any(keys[: len(each)] == each for each in changed):
            raise UserError(f"--set {'.'.join(keys)}: {message}") from None
        line = line_of(keys)
        raise UserError(f"{where}{f':{line}' if line else ''}: {message}") from None


def _is_dlio(setting: str) -> bool:
    """Return whether ``setting`` is one of DLIO's: these begin with "++", or have a key that occurs only in DLIO's
    files."""
    table, _, key = setting.partition("=")[0].strip().partition(".")
    known = USED.get(table, set()) | NO_EFFECT.get(table, set())
    return setting.startswith("++") or (
        key in known and f"{table}.{key}" not in setting_names(Workload, Duration)
    )


def _with_setting(
    tables: dict[str, Any], setting: str, value_of: Callable[[str], Any] = parse_value
) -> tuple[dict[str, Any], tuple[str, ...]]:
    key, equals, text = setting.partition("=")
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys) or not text.strip():
        raise UserError(f"--set {setting!r} must have the form table.key=value, such as dataset.files=16")
    value = value_of(text.strip())
    merged = dict(tables)
    inner = merged
    for part in keys[:-1]:
        inner[part] = dict(inner[part]) if isinstance(inner.get(part), dict) else {}
        inner = inner[part]
    inner[keys[-1]] = value
    return merged, keys


def _load_yaml(text: str) -> tuple[Any, Any]:
    """The node tree of a YAML document, for ``_yaml_line``, and its value.

    Aliases (``*name``), which merge keys (``<<``) also use, are refused, because a few hundred bytes of them can
    expand to more values than fit into memory. Raises yaml.YAMLError, RecursionError, and ValueError for an
    invalid date and for a document that is too large.
    """
    import yaml

    if len(text) > LARGEST:
        raise ValueError(f"larger than {binary_text(LARGEST)}")

    class Loader(yaml.SafeLoader):
        nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            parser: Any = self  # its methods have no type hints
            event = parser.peek_event()
            self.nodes += 1
            problem = None
            if isinstance(event, yaml.AliasEvent):
                problem = f"aliases (*{event.anchor:.40}) are not supported; write the value out"
            elif self.nodes > MOST_NODES or len(getattr(event, "value", "")) > LONGEST:
                problem = f"more than {MOST_NODES} values, or one of more than {LONGEST} characters"
            if problem:
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
            return super().compose_node(parent, index)

    loader = Loader(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _yaml_line(root: Any, keys: Sequence[str]) -> int | None:
    """The line number, from 1, of the innermost key of ``keys`` that exists in a node tree of ``yaml.compose``."""
    line, node = None, root
    for key in keys:
        for name, value in getattr(node, "value", ()) if getattr(node, "id", "") == "mapping" else ():
            if name.value == key:
                line, node = name.start_mark.line + 1, value
                break
        else:
            break
    return line
