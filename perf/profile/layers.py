"""Measured times of a step by layer of the network instead of by module of the framework."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from mlhpc.common.timing.profile import Part, Profile, Work
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.networks.layer import PRODUCTS, Layer, Network, Precision

Direction = Literal["forward", "backward"]


class LayerTime(NamedTuple):
    """Seconds per step in one direction for one layer, or for several that the framework computes together. FLOPs
    and ``bytes`` (lower limit) are for a step's samples, ``weights`` the number of weights read or written in each
    backward pass; all are 0 if no layer is known for the module."""

    name: str
    kind: str
    direction: Direction
    seconds: float
    product_flops: int
    other_flops: int
    bytes: float
    weights: int = 0

    def efficiency(self, ceilings: Ceilings) -> float:
        """The utilisation of tensor cores, float32 units or memory bandwidth, whichever is highest (Ibrahim et al.
        2021, section V-B), computed from the minimum of computation and traffic. Limited to 1, because caches can
        reduce traffic."""
        if not self.seconds:
            return 0.0
        used = (
            self.product_flops / ceilings.tensor,
            self.other_flops / ceilings.float32,
            self.bytes / ceilings.bandwidth,
        )
        return min(1.0, max(used) / self.seconds)


class Bin(NamedTuple):
    """The layers with a hardware efficiency of at least ``low`` and below ``high``: their ``seconds``, and their
    ``potential`` seconds at full use of their most-used resource (time · efficiency)."""

    low: float
    high: float
    seconds: float
    potential: float
    layers: int


def by_part(profile: Profile) -> dict[str, float]:
    """Seconds of a step by part, summed over all threads or streams; their sum exceeds the step if operations
    overlap."""
    parts: dict[Part, float] = defaultdict(float)
    for work in profile.work:
        parts[work.part] += work.seconds
    order: Sequence[Part] = ("forward", "backward", "optimizer", "communication", "input", "other")
    waits = {"input wait": profile.input_wait} if profile.reading else {}
    return {**{part: parts[part] for part in order if parts[part]}, **waits, "wait": profile.wait}


def divided(seconds: float, waits: Mapping[str, float], operations: Mapping[str, float]) -> dict[str, float]:
    """Parts that add up to ``seconds``: ``waits`` keep their length, and ``operations``, which may overlap, share
    the rest in proportion."""
    left, busy = max(0.0, seconds - sum(waits.values())), sum(operations.values())
    shrunk = min(1.0, left / busy) if busy else 0.0
    parts = {**waits, **{name: shrunk * value for name, value in operations.items()}}
    whole = sum(parts.values())
    return {name: value * seconds / whole if whole else 0.0 for name, value in parts.items()}


def of_step(profile: Profile) -> dict[str, float]:
    """``by_part``, scaled so that the parts add up to the profiled step. Communication counts as a wait if the
    part of it that computation does not hide was measured."""
    parts = by_part(profile)
    exposed = profile.exchange is not None and profile.exchange.exposed is not None
    waits = {name for name in ("input wait", "wait", *["communication"] * exposed) if name in parts}
    shares = divided(
        profile.wall,
        {name: parts[name] for name in waits},
        {name: value for name, value in parts.items() if name not in waits},
    )
    return {name: shares[name] for name in parts}


def by_operation(profile: Profile) -> list[tuple[str, float, float]]:
    """(name, seconds, calls) of each operation or kernel, the slowest first."""
    operations: dict[str, tuple[float, float]] = {}
    for work in profile.work:
        seconds, calls = operations.get(work.name, (0.0, 0.0))
        operations[work.name] = seconds + work.seconds, calls + work.calls
    return sorted(((name, *both) for name, both in operations.items()), key=lambda row: -row[1])


def by_layer(
    profile: Profile, network: Network, precision: Precision, called: Iterable[Work] = ()
) -> list[LayerTime]:
    """Forward and backward seconds of the layers of ``network``, in the network's order, and of modules without
    weights.

    The framework's modules with weights correspond to the network's layers with parameters, in the same order
    (tests/numeric/perf/networks). Layers that modify the output of such a layer in place are counted with it.
    ``called``: the work of the whole step if ``profile`` has only a part of it; it determines which modules are
    called.
    """
    layers = _with_followers(network)
    if len(layers) != len(profile.modules):
        shared = min(len(layers), len(profile.modules))
        alone = (
            f"module {profile.modules[shared]!r} is the first without a layer"
            if len(profile.modules) > shared
            else f"layer {layers[shared][0].name!r} is the first without a module"
        )
        raise UserError(
            f"network {network.name}: {len(profile.modules)} modules with weights, but the model has "
            f"{len(layers)} layers with parameters ({alone}, in call order); update perf/networks"
        )
    layers_of_module = dict(zip(profile.modules, layers, strict=True))
    seconds: dict[tuple[str, Direction], float] = defaultdict(float)
    for work in profile.work:
        if work.part in ("forward", "backward") and work.module:
            seconds[work.module, work.part] += work.seconds
    measured = {module for module, _ in seconds}
    measured |= {work.module for work in called if work.part in ("forward", "backward") and work.module}
    rows = []
    for (module, direction), total in seconds.items():
        inside = _layers_of(module, layers_of_module, measured)
        rows.append(
            (
                _rank(module, layers_of_module),
                _layer_time(module, inside, direction, total, precision, profile),
            )
        )
    return [time for _, time in sorted(rows, key=lambda item: item[0])]


def histogram(times: Iterable[LayerTime], ceilings: Ceilings, bins: int = 10) -> list[Bin]:
    """Times by hardware efficiency as in figure 3 of Ibrahim et al. 2021, with layers instead of kernels."""
    counted = [(time, time.efficiency(ceilings)) for time in times]
    made = []
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        these = [(t, e) for t, e in counted if low <= e < high or (e == 1 and number == bins - 1)]
        made.append(
            Bin(low, high, sum(t.seconds for t, _ in these), sum(t.seconds * e for t, e in these), len(these))
        )
    return made


def _with_followers(network: Network) -> list[list[Layer]]:
    """The layers with parameters, each with the in-place layers that directly follow it."""
    groups: list[list[Layer]] = []
    open_ = False
    for layer in network:
        if layer.parameters:
            groups.append([layer])
            open_ = True
        elif open_ and layer.kind == "activation" and layer.in_place:
            groups[-1].append(layer)
        else:
            open_ = False
    return groups


def _layers_of(module: str, layers_of_module: dict[str, list[Layer]], measured: set[str]) -> list[Layer]:
    """The layers of ``module``, including those of inner modules that were never called because ``module``
    computes them itself."""
    if module in layers_of_module:
        return layers_of_module[module]
    uncalled = (name for name in layers_of_module if name not in measured)
    return [
        layer for name in uncalled if _innermost(name, measured) == module for layer in layers_of_module[name]
    ]


def _innermost(name: str, measured: set[str]) -> str:
    """The innermost measured module that contains ``name``; empty if there is none."""
    while name and name not in measured:
        name = name.rpartition(".")[0]
    return name


def _common_start(names: list[str]) -> str:
    """The common start of ``names``: ``entry 1.2`` for ``entry 1.2 depthwise`` and ``entry 1.2 pointwise``; the
    first name if there is none."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in alike).strip(" .") or names[0]


def _kind(products: list[Layer]) -> str:
    kinds = list(dict.fromkeys(layer.kind for layer in products))
    if kinds == ["depthwise convolution", "pointwise convolution"]:
        return "separable convolution"
    return " + ".join(kinds)


def _rank(module: str, layers_of_module: dict[str, list[Layer]]) -> int:
    order = list(layers_of_module)
    inside = [n for n, name in enumerate(order) if name == module or name.startswith(f"{module}.")]
    return inside[0] if inside else len(order)


def _layer_time(
    module: str,
    layers: list[Layer],
    direction: Direction,
    seconds: float,
    precision: Precision,
    profile: Profile,
) -> LayerTime:
    if not layers:
        return LayerTime(module, "other", direction, seconds, 0, 0, 0.0)
    forward = direction == "forward"
    passes = [part for layer in layers for part in layer.passes if (part.name == "forward") == forward]
    products = [layer for layer in layers if layer.kind in PRODUCTS]
    return LayerTime(
        layers[0].name if len(products) < 2 else _common_start([layer.name for layer in layers]),
        _kind(products) or layers[0].kind,
        direction,
        seconds,
        profile.samples * sum(part.flops for part in passes),
        profile.samples * sum(part.operations for part in passes),
        profile.samples * sum(part.traffic(precision, profile.batch) for part in passes),
        sum(part.weights for part in passes),
    )
