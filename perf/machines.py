"""Machines as data: ``benchmarks/systems/NAME.toml``, or a user's file in the same format.

Every figure has a source: ``bandwidth = { value = "900 GB/s", source = "data sheet, NVIDIA V100" }``.
Unknown figures are omitted. Bandwidths are for one direction. docs/reference/performance_models.md describes
the fields.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from mlhpc.benchmarks.toml_lines import END, parse_toml, toml_lines
from mlhpc.common.files.untrusted import read_text
from mlhpc.errors import UserError, did_you_mean, shown
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.quantities import Dimension, parse_quantity, text_of

SYSTEMS = "mlhpc.benchmarks"
COPIES = 2
"""Copies from the host to the device in a backward pass: the samples and their labels."""
PRECISIONS = {"float32": ("tf32",), "mixed_bfloat16": ("bfloat16",), "mixed_float16": ("float16", "bfloat16")}
"""The peaks to use for matrix products by a run's ``training.precision``, in order of preference; float32's is the
last resort. Both frameworks use TF32 for float32 convolutions if available (torch.backends.cudnn.allow_tf32)."""


class _Field(NamedTuple):
    """A figure's definition. ``low`` and ``high``: the plausible range in the base unit; a value outside it has a
    wrong unit or a wrong number of zeros."""

    dimension: Dimension
    low: float
    high: float
    required: bool = False


_FIGURES: dict[str, dict[str, _Field]] = {
    table: {key: _Field(**field) for key, field in fields.items()}
    for table, fields in tomllib.loads(Path(__file__).with_name("figures.toml").read_text("utf-8")).items()
}
_PLAIN: dict[str, dict[str, type]] = {
    "": {"title": str, "nodes": int, "systems": list},
    "accelerator": {"model": str, "family": str, "per_node": int, "is_cpu": bool},
    "host": {"processor": str, "cores": int},
    "links": {},
    "driver": {},
    "network": {"nics": int},
    "efficiency": {},
    "preparation": {},
    "storage": {},
}
_REQUIRED = {("", "title"), ("accelerator", "model"), ("accelerator", "family"), ("accelerator", "per_node")}


def dimension_of(key: str) -> str:
    """Return what the figure ``key`` measures: bytes, bytes/s, FLOP/s, s or a share."""
    table, _, name = key.partition(".")
    return _FIGURES[table][name].dimension


def written(key: str, value: float) -> str:
    """The figure ``key`` as written in a machine file: ``900 GB/s``."""
    table, _, name = key.partition(".")
    return text_of(value, _FIGURES[table][name].dimension)


@dataclass(frozen=True)
class Machine:
    """A system of identical nodes. An accelerator is what computes one rank's step: a GPU, or the processor of a
    node without GPUs.

    ``figures`` (in base units) and ``sources``: by ``table.key``. ``facts``: names and counts. ``where``: the
    file. ``lines``: the line of each key in the file.
    """

    name: str
    where: str
    facts: Mapping[str, Any]
    figures: Mapping[str, float]
    sources: Mapping[str, str]
    lines: Mapping[str, int] = field(repr=False, default_factory=dict)

    @property
    def title(self) -> str:
        """The full name."""
        return str(self.facts["title"])

    @property
    def family(self) -> str:
        """The accelerator family, which selects the efficiencies."""
        return str(self.facts["accelerator.family"])

    @property
    def is_cpu(self) -> bool:
        """Return whether the accelerators are the processors of nodes without GPUs."""
        return bool(self.facts.get("accelerator.is_cpu", False))

    @property
    def per_node(self) -> int:
        """Number of accelerators per node."""
        return int(self.facts["accelerator.per_node"])

    @property
    def nodes(self) -> int | None:
        """Number of nodes of the system, None if the file does not say."""
        nodes = self.facts.get("nodes")
        return None if nodes is None else int(nodes)

    @property
    def holds_data(self) -> bool:
        """Return whether the data set is already on the machine: a single node without a shared file system."""
        return self.nodes == 1 and self.get("storage.shared_read") is None

    def get(self, key: str) -> float | None:
        """The figure ``key`` in base units; None if the file has none."""
        return self.figures.get(key)

    def need(self, key: str, why: str) -> float:
        """The figure ``key`` in base units. If the figure is missing, raises UserError that says ``why`` it is
        needed."""
        if key not in self.figures:
            raise UserError(f"{self.at(key)}: {key} is missing, but required for {why}")
        return self.figures[key]

    def at(self, key: str) -> str:
        """The position of ``key`` as ``FILE, line N``; for a missing key, the line of its table or else the last
        line."""
        return _at(self.where, self.lines, key)

    def peak(self, precision: str) -> tuple[float, str]:
        """FLOP/s of matrix products in a run's ``training.precision``, and the key of this figure; float32's
        figure if the file has no other."""
        for key in PRECISIONS[precision]:
            if value := self.get(f"accelerator.{key}"):
                return value, f"accelerator.{key}"
        return self.figures["accelerator.float32"], "accelerator.float32"

    @property
    def node_network(self) -> float:
        """Bytes/s of all network cards of a node together, in one direction."""
        return self.need("network.bandwidth", "a run on several nodes") * int(
            self.facts.get("network.nics", 1)
        )

    def launching(self, kernels: int, copies: int) -> tuple[float, float] | None:
        """Host seconds that the driver needs for a step's ``kernels`` and ``copies``, with each kernel launched
        separately and with all in one graph; None if the file lacks the figures."""
        each = [self.get(f"driver.{name}") for name in ("launch", "copy", "graph", "graph_node")]
        if None in each:
            return None
        launch, copy, graph, node = (value or 0.0 for value in each)
        return kernels * launch + copies * copy, graph + kernels * node + copies * copy

    @property
    def latency(self) -> float:
        """Latency of a message between nodes, in seconds."""
        return self.need("network.latency", "a run on several nodes")


def ceilings_of(given: Machine, precision: str, ranks: int | None = None) -> Ceilings:
    """The peak rates of one accelerator of the machine ``given`` in ``precision``; with ``ranks``, of the share of
    each of the ``ranks`` of a node, which divide its processors but have a GPU each."""
    figures, model = given.figures, str(given.facts["accelerator.model"])
    share = given.per_node / ranks if ranks and given.is_cpu else 1.0
    return Ceilings(
        model if share == 1 else f"{share:.3g} {model} per rank",
        share * given.peak(precision)[0],
        share * figures["accelerator.float32"],
        share * figures["accelerator.bandwidth"],
    )


def known() -> list[str]:
    """The names of the suite's machines."""
    folder = resources.files(SYSTEMS).joinpath("systems")
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def device_model(name: str) -> Machine:
    """The machine ``name``, or the suite's first machine with accelerators of the family ``name`` (``h100``),
    preferably one whose file has the driver's launch times. Raises UserError if there is none."""
    alike = [each for each in map(machine, known()) if each.family.lower() == name.lower()]
    alike.sort(key=lambda each: each.get("driver.launch") is None)
    return alike[0] if alike and name not in known() else machine(name)


def machine(name: str) -> Machine:
    """The suite's machine called ``name``, or the machine described by the file at that path.

    Raises UserError with the line of the file if it is invalid.
    """
    if name in (names := known()):
        text = resources.files(SYSTEMS).joinpath(f"systems/{name}.toml").read_text("utf-8")
        return parse(text, f"systems/{name}.toml", name)
    path = Path(name)
    if not (path.suffix == ".toml" or path.exists()):
        raise UserError(f"no machine {name!r}; {did_you_mean(name, names)}, or pass a machine file")
    try:
        return parse(read_text(path), str(path), path.stem)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{path} cannot be read ({reason}); choose a machine or a machine file") from None


def parse(text: str, where: str, name: str) -> Machine:
    """The machine described by the TOML ``text`` of the file ``where``. Raises UserError if it is invalid."""
    try:
        tables, lines = parse_toml(text), toml_lines(text)
    except ValueError as error:
        raise UserError(f"{where}: invalid TOML ({error})") from None
    facts: dict[str, Any] = {}
    figures: dict[str, float] = {}
    sources: dict[str, str] = {}

    def wrong(key: str, problem: str) -> UserError:
        return UserError(f"{_at(where, lines, key)}: {problem}")

    flat = {k: v for k, v in tables.items() if not isinstance(v, dict)}
    for table, content in [("", flat), *((k, v) for k, v in tables.items() if isinstance(v, dict))]:
        if table not in _PLAIN:
            raise wrong(table, f"unknown table [{table}]; {did_you_mean(table, list(_FIGURES))}")
        for key, value in content.items():
            full = f"{table}.{key}" if table else key
            if key in _PLAIN[table]:
                facts[full] = _fact(
                    value, _PLAIN[table][key], lambda problem, full=full: wrong(full, problem), full
                )
            elif key in _FIGURES.get(table, {}):
                try:
                    figures[full], sources[full] = _figure(value, _FIGURES[table][key])
                except ValueError as error:
                    raise wrong(full, f"{full}: {error}") from None
            else:
                options = [*_PLAIN[table], *_FIGURES.get(table, {})]
                raise wrong(full, f"unknown key {full!r}; {did_you_mean(key, options)}")
    wanted = {f"{t}.{k}" if t else k for t, k in _REQUIRED}
    wanted |= {f"{t}.{k}" for t, keys in _FIGURES.items() for k, f in keys.items() if f.required}
    for key in sorted(wanted - facts.keys() - figures.keys()):
        raise wrong(key, f"{key} is missing")
    machine = Machine(name, where, facts, figures, sources, lines)
    _consistent(machine, wrong)
    return machine


def _fact(value: Any, kind: type, wrong: Any, key: str) -> Any:
    if kind is list:
        good = isinstance(value, list) and all(isinstance(v, str) and v for v in value)
        expected = "a list of strings"
    elif kind is int:
        good = isinstance(value, int) and not isinstance(value, bool) and value > 0
        expected = "a whole number above 0"
    elif kind is bool:
        good, expected = isinstance(value, bool), "true or false"
    else:
        good, expected = isinstance(value, str) and bool(value.strip()), "a text"
    if not good:
        raise wrong(f"{key}: {shown(value)} is not {expected}")
    return value


def _figure(value: Any, about: _Field) -> tuple[float, str]:
    if not isinstance(value, dict) or not isinstance(value.get("value"), str):
        raise ValueError('write a figure as { value = "900 GB/s", source = "data sheet, NAME" }')
    if extra := set(value) - {"value", "source"}:
        raise ValueError(f"unknown key {sorted(extra)[0]!r} next to value and source")
    source = value.get("source")
    if not isinstance(source, str) or not source.strip():
        raise ValueError("source is missing; state the origin of the figure, or 'measured'")
    number = parse_quantity(value["value"], about.dimension)
    if not about.low <= number <= about.high:
        low, high = text_of(about.low, about.dimension), text_of(about.high, about.dimension)
        raise ValueError(f"{shown(value['value'])} is impossible: expected {low} to {high}; check the unit")
    return number, source


def _consistent(machine: Machine, wrong: Any) -> None:
    """Raise UserError for contradictory figures."""
    for key in ("accelerator.bfloat16", "accelerator.float16", "accelerator.tf32"):
        value = machine.get(key)
        if value is not None and value < 0.2 * machine.figures["accelerator.float32"]:
            raise wrong(key, f"{key} is far below accelerator.float32; check the unit")
    if machine.get("storage.local_read") is not None and machine.get("storage.local") is None:
        raise wrong("storage.local_read", "storage.local, the size of node-local storage, is missing")
    for key in machine.figures:
        if key.startswith("preparation.") and "host.cores" not in machine.facts:
            raise wrong(key, "host.cores is missing, but preparation rates are per core")
    pairs = (("storage.shared_read_node", "storage.shared_read"), ("host.memory", "storage.shared"))
    for small, large in pairs:
        a, b = machine.get(small), machine.get(large)
        if a is not None and b is not None and a > b:
            raise wrong(small, f"{small} is above {large}, which is impossible")


def _at(where: str, lines: Mapping[str, int], key: str) -> str:
    line = lines.get(key) or lines.get(key.partition(".")[0]) or lines.get(END)
    return f"{where}, line {line}" if line else where
