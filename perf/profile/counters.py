"""Hardware counters read by a vendor's tool, next to the FLOPs and bytes that the model counts for a training
step.

``perf stat -j`` counts processes; Nsight Compute (``ncu --csv``, with or without ``--page raw``) and
``rocprofv3`` count each launch of a kernel. FLOPs and bytes of an event:

* perf: Intel, FP_ARITH_INST_RETIRED (an FMA counts twice) and 64 bytes for CAS_COUNT (Intel, Perfmon events); AMD,
  ``fp_ret_sse_avx_ops.all`` and 64 bytes for ``umc_cas_cmd`` (Processor Programming Reference, family 19h).
* ncu: thread instructions, an FMA twice, operations of tensor cores (``sm__ops_path_tensor``), on Volta 512 for
  each of their instructions, and ``dram__bytes`` (Yang et al. 2020, arXiv:2009.05257).
* rocprofv3: 64 lanes for each vector instruction, 512 for MFMA_MOPS; FETCH_SIZE and WRITE_SIZE in KiB (AMD, MI300
  and MI200 performance counters).
"""

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from mlhpc.common.files.untrusted import parse_json, read_text
from mlhpc.common.pages.blocks import Cell, Table, number, table
from mlhpc.common.timing.profile import Profile, Work
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.networks.layer import Network, Precision
from mlhpc.perf.profile.layers import LayerTime, by_layer
from mlhpc.quantities import count, digits, four_digits

_REMEDY = "pass the output of perf stat -j, ncu --csv --page raw or rocprofv3 (counter_collection.csv)"
_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNIT = re.compile(r"([KMGT]?)(byte|inst|op)?s?(/.*)?$")
_NUMBER = re.compile(r"\d+(,\d{3})*(\.\d+)?")
_TENSOR = re.compile(r"sm__ops_path_tensor(_op_\w+?)?(_src_\w+?)(_dst_\w+?)?(_sparsity_o(?:n|ff))?\.sum")
"""Operations of tensor cores; an event without one of the parts counts all of them together."""
_BINARY = {"": 64.0, "Bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
"""Bytes per count, by perf's unit; a count without a unit counts cache lines."""
_FLOPS: Sequence[tuple[str, float]] = (
    (r"fp_arith_inst_retired\.scalar(_single|_double)?", 1),
    (r"fp_arith_inst_retired\.128b_packed_double", 2),
    (r"fp_arith_inst_retired\.(128b_packed_single|256b_packed_double|4_flops)", 4),
    (r"fp_arith_inst_retired\.(256b_packed_single|512b_packed_double|8_flops)", 8),
    (r"fp_arith_inst_retired\.512b_packed_single", 16),
    (r"fp_ret_sse_avx_ops\.all", 1),
    (r"sm(sp)?__sass_thread_inst_executed_op_[dfh](add|mul)_pred_on\.sum", 1),
    (r"sm(sp)?__sass_thread_inst_executed_op_[dfh]fma_pred_on\.sum", 2),
    (r"sm__ops_path_tensor_\w+\.sum", 1),
    (r"SQ_INSTS_VALU_(ADD|MUL|TRANS)_F(16|32|64)", 64),
    (r"SQ_INSTS_VALU_FMA_F(16|32|64)", 128),
    (r"SQ_INSTS_VALU_MFMA_MOPS_\w+", 512),
)
_INTEL = "fp_arith_inst_retired"
_WHOLE = {
    f"{_INTEL}.scalar_single": f"{_INTEL}.scalar",
    f"{_INTEL}.scalar_double": f"{_INTEL}.scalar",
    f"{_INTEL}.128b_packed_single": f"{_INTEL}.4_flops",
    f"{_INTEL}.256b_packed_double": f"{_INTEL}.4_flops",
    f"{_INTEL}.256b_packed_single": f"{_INTEL}.8_flops",
    f"{_INTEL}.512b_packed_double": f"{_INTEL}.8_flops",
}
"""Events of perf, and the event that includes their counts, which a file may list as well."""
_VOLTA = "sm__inst_executed_pipe_tensor.sum"
_BYTES: Sequence[tuple[str, float]] = (
    (r".*cas_count[_.](read|write|rd|wr)/?", 1),
    (r"umc_cas_cmd\.(rd|wr)", 1),
    (r"dram__bytes(_op)?(_read|_write)?\.sum", 1),
    (r"(FETCH|WRITE)_SIZE", 1024),
)


COUNTERS_NOTE = (
    "Counted by the hardware, beside the model of the same step; the model's bytes are the least that its layers "
    "move. Kernels without counts are left out; a layer is shown if all its kernels have counts and no other "
    "layer calls them. Rates are those of the profiled step."
)


class Kernel(NamedTuple):
    """FLOPs and bytes of memory traffic per launch of a kernel, as means over the counted launches; None: not
    counted."""

    flops: float | None
    bytes: float | None


_Kind = Callable[[Kernel], float | None]


@dataclass(frozen=True)
class Counters:
    """The counts in a file written by the tool ``source``, by kernel. perf does not know kernels: its counts have
    an empty name and cover ``steps`` steps."""

    path: Path
    source: str
    kernels: Mapping[str, Kernel]
    steps: int | None = None


class Counted(NamedTuple):
    """FLOPs and bytes of memory traffic of one layer, or of all layers (``direction`` is empty), in a step:
    counted (None: not counted) and modelled. ``seconds``: time of the same work in the profiled step."""

    layer: str
    direction: str
    seconds: float
    flops: float | None
    bytes: float | None
    model_flops: float
    model_bytes: float

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte, as counted."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    def of_roofline(self, ceilings: Ceilings) -> float | None:
        """The FLOP/s reached, as a share of what the roofline allows at this intensity."""
        if self.intensity is None or self.flops is None or not self.seconds:
            return None
        return self.flops / self.seconds / min(ceilings.tensor, self.intensity * ceilings.bandwidth)


def read(path: Path, steps: int | None, ranks: int = 1) -> Counters:
    """The counters in a file of any of the tools; ``steps``: the number of steps that a perf file covers. Raises
    UserError if the file comes from none of these tools, has neither FLOPs nor bytes, or covers an unknown number
    of steps or of the profile's ``ranks``."""
    try:
        lines = read_text(path, "replace").removeprefix("\ufeff").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({reason}); {_REMEDY}") from error
    # ncu's messages begin with ==, the date line of a perf file with #; ncu also prints the program's output.
    lines = [line for line in lines if line.strip() and not line.startswith(("==", "#"))]
    lines = lines[next((n for n, line in enumerate(lines) if line.startswith('"ID",')), 0) :]
    source, parse = _tool(lines[0] if lines else "", path)
    try:
        kernels = parse(lines)
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UserError(f"{path}: not valid {source} output ({reason}); {_REMEDY}") from error
    if all(kernel.flops is None and kernel.bytes is None for kernel in kernels.values()):
        raise UserError(
            f"{path}: {source} counted neither FLOPs nor bytes of memory; record the events named in "
            "docs/reference/performance_models.md, on a machine that has them"
        )
    if "" in kernels and not steps:
        raise UserError(f"{path}: {source} does not state how many steps it covers; add --counted-steps")
    if "" in kernels and ranks > 1:
        raise UserError(
            f"{path}: {source} does not state how many of the {ranks} ranks it covers; use one rank"
        )
    return Counters(path, source, kernels, steps)


def _tool(first: str, path: Path) -> tuple[str, Callable[[Sequence[str]], dict[str, Kernel]]]:
    """The name of the tool whose files have this ``first`` line, and its parser."""
    if first.startswith("{"):
        return "perf stat", _perf
    if "," in first and "Counter_Name" in first:
        return "rocprofv3", _rocprofv3
    if "," in first and "Kernel Name" in first:
        return "Nsight Compute", _ncu
    raise UserError(f"{path}: not the output of a known tool; {_REMEDY}")


def of_step(counters: Counters, profile: Profile, network: Network, precision: Precision) -> list[Counted]:
    """The counts of a step: those of all layers together, followed by those of each layer whose kernels no other
    layer calls. A kernel's counts are multiplied by its calls in the profile. Raises UserError if no kernel of the
    file is in the profile."""
    path, kernels = counters.path, counters.kernels
    if counters.steps and "" in kernels:
        if profile.gpu:
            raise UserError(
                f"{path}: {counters.source} measures the host, but the step runs on {profile.device}; "
                "pass counters of that device"
            )
        flops, moved = (None if sum_ is None else sum_ / counters.steps for sum_ in kernels[""])
        return [_all(profile, network, precision, flops, moved)]
    found = [work for work in profile.work if _name(work.name) in kernels]
    if not found:
        raise UserError(
            f"{path}: none of its {count(len(kernels), 'kernel')} is in the profiled step; "
            "record the same step"
        )

    def counted(work: Work, of: _Kind) -> float:
        return (of(kernels[_name(work.name)]) or 0.0) * work.calls

    def total(of: _Kind) -> float | None:
        none = all(of(kernel) is None for kernel in kernels.values())
        return None if none else sum(counted(work, of) for work in found)

    whole = _all(profile, network, precision, total(_flops), total(_bytes))
    own = _of_one_layer(profile.work, kernels)

    def by_layer_of(value: Callable[[Work], float]) -> list[LayerTime]:
        """Sum ``value`` by layer; the sums replace the seconds of the returned layers."""
        work = tuple(each._replace(seconds=value(each)) for each in own)
        return by_layer(replace(profile, work=work), network, precision, profile.work)

    rows = [whole]
    for time, operations, traffic in zip(
        by_layer_of(lambda work: work.seconds),
        by_layer_of(lambda work: counted(work, _flops)),
        by_layer_of(lambda work: counted(work, _bytes)),
        strict=True,
    ):
        counts = (
            (None if whole.flops is None else operations.seconds),
            (None if whole.bytes is None else traffic.seconds),
        )
        rows.append(Counted(time.name, time.direction, time.seconds, *counts, *_model([time])))
    return rows


def _all(
    profile: Profile, network: Network, precision: Precision, flops: float | None, bytes_: float | None
) -> Counted:
    times = by_layer(profile, network, precision)
    return Counted("all", "", profile.wall, flops, bytes_, *_model(times))


def _model(times: Sequence[LayerTime]) -> tuple[float, float]:
    """FLOPs and bytes of layers according to the model."""
    return float(sum(t.product_flops + t.other_flops for t in times)), sum(t.bytes for t in times)


def _flops(kernel: Kernel) -> float | None:
    return kernel.flops


def _bytes(kernel: Kernel) -> float | None:
    return kernel.bytes


def _of_one_layer(work: Iterable[Work], kernels: Mapping[str, Kernel]) -> list[Work]:
    """The kernels of those layers whose kernels are all in the file and called by no other layer."""
    places = defaultdict(set)
    for each in work:
        places[_name(each.name)].add((each.part, each.module))
    shared = {
        place for name, where in places.items() if len(where) > 1 or name not in kernels for place in where
    }
    return [each for each in work if each.module and (each.part, each.module) not in shared]


def counters_table(counted: Sequence[Counted], ceilings: Ceilings | None) -> Table:
    """Counted and modelled FLOPs and bytes side by side, with a row for the step and for each layer."""

    def share(row: Counted) -> Cell:
        return number(row.of_roofline(ceilings) if ceilings else None, "{:.0%}".format)

    return table(
        "counters",
        counted,
        {
            "layer": lambda row: row.layer,
            "direction": lambda row: row.direction,
            "GFLOP counted": lambda row: _giga(row.flops),
            "model": lambda row: _giga(row.model_flops),
            "GB counted": lambda row: _giga(row.bytes),
            "model, at least": lambda row: _giga(row.model_bytes),
            "FLOP/byte": lambda row: number(row.intensity, digits),
            **({"of roofline": share} if ceilings else {}),
        },
        text_columns=2,
    )


def _giga(value: float | None) -> Cell:
    return number(None if value is None else value / 1e9, four_digits)


def _name(kernel: str) -> str:
    """The kernel's name without blanks, which tools write differently."""
    return "".join(kernel.removeprefix("void ").split())


def _factor(event: str, table: Sequence[tuple[str, float]]) -> float | None:
    return next((factor for pattern, factor in table if re.fullmatch(pattern, event)), None)


class _Sum:
    """A kernel's counts, and the launches in which they were counted, separately for FLOPs and bytes."""

    def __init__(self) -> None:
        self.launches: dict[str, set[str]] = defaultdict(set)
        self.counts: dict[str, float] = defaultdict(float)

    def add(self, launch: str, event: str, count: float, unit: float = 1.0) -> None:
        """Add ``count`` occurrences of ``event``; ``unit``: bytes per count of a memory event."""
        if not (math.isfinite(count) and count >= 0):
            raise ValueError(f"{event} is {count}")
        for kind, factors in (("flops", _FLOPS), ("bytes", _BYTES)):
            if (factor := _factor(event, factors)) is not None:
                self.launches[kind].add(launch)
                self.counts[kind] += count * factor * (unit if kind == "bytes" else 1.0)

    def kernel(self) -> Kernel:
        means = {kind: whole / len(self.launches[kind]) for kind, whole in self.counts.items()}
        return Kernel(means.get("flops"), means.get("bytes"))


def _perf(lines: Sequence[str]) -> dict[str, Kernel]:
    sums = _Sum()
    events = [parse_json(line) for line in lines]
    # perf writes <not supported> or <not counted>; a line with only a metric has no count.
    events = [event for event in events if not str(event.get("counter-value", "<not")).startswith("<not")]
    names = [re.sub(r":[a-zA-Z]+$", "", event["event"]).lower() for event in events]
    for name, event in zip(names, events, strict=True):
        if _WHOLE.get(name) not in names:
            sums.add("", name, float(event["counter-value"]), _BINARY.get(event["unit"], 1.0))
    return {"": sums.kernel()}


def _rows(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of a CSV table. Raises ValueError for an incomplete row."""
    for line, row in enumerate(csv.DictReader(lines, strict=True), 2):
        if None in row or None in row.values():
            raise ValueError(f"row {line} is not complete")
        yield row


def _rocprofv3(lines: Sequence[str]) -> dict[str, Kernel]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for row in _rows(lines):
        sums[_name(row["Kernel_Name"])].add(
            row["Dispatch_Id"], row["Counter_Name"], float(row["Counter_Value"])
        )
    return {name: each.kernel() for name, each in sums.items()}


def _in_another(event: str, events: Iterable[str]) -> bool:
    """Return whether a different one of ``events`` includes everything that ``event`` counts."""
    if event.startswith("sm__sass"):
        return f"smsp{event[2:]}" in events
    if event.startswith("dram__bytes_"):
        return "dram__bytes.sum" in events
    if (own := _TENSOR.fullmatch(event)) is None:
        return False
    others = (_TENSOR.fullmatch(each) for each in events if each != event)
    return any(
        all(part in (None, mine) for part, mine in zip(other.groups(), own.groups(), strict=True))
        for other in others
        if other
    )


def _require_distinct(events: Iterable[str]) -> None:
    """Raise ValueError if two of ``events``, none of which includes another, count some operations both."""
    parts = {event: own.groups() for event in events if (own := _TENSOR.fullmatch(event))}
    for one, other in combinations(parts, 2):
        if all(a == b or None in (a, b) for a, b in zip(parts[one], parts[other], strict=True)):
            raise ValueError(f"{one} and {other} count some operations both; collect only one")


def _launches(lines: Sequence[str]) -> Iterable[tuple[dict[str, str], dict[str, tuple[str, str]]]]:
    """Each launch in a table of ncu, with the unit and value of each event. A row contains one event, or, with
    ``--page raw``, all events of a launch; then the first row contains their units."""
    rows = list(_rows(lines))
    if rows and "Metric Name" in rows[0]:
        launches: dict[str, tuple[dict[str, str], dict[str, tuple[str, str]]]] = {}
        for row in rows:
            values = launches.setdefault(row["ID"], (row, {}))[1]
            values[row["Metric Name"]] = row["Metric Unit"], row["Metric Value"]
        return launches.values()
    units, *rows = rows
    return [(row, {event: (units[event], text) for event, text in row.items()}) for row in rows]


def _ncu(lines: Sequence[str]) -> dict[str, Kernel]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for launch, listed in _launches(lines):
        values = {event: value for event, value in listed.items() if value[1] not in ("", "n/a")}
        has = launch.get("CC") == "7.0" and not any("ops_path_tensor" in event for event in values)
        values = {event: value for event, value in values.items() if not _in_another(event, values)}
        _require_distinct(values)
        for event, (unit, text) in values.items():
            name = "sm__ops_path_tensor_volta.sum" if has and event == _VOLTA else event
            if _factor(name, _FLOPS) is None and _factor(name, _BYTES) is None:
                continue
            scale, number_ = _UNIT.match(unit), _NUMBER.fullmatch(text)
            if scale is None or number_ is None:
                raise ValueError(f"{text} {unit} of {event}")
            value = float(text.replace(",", "")) * _PREFIX[scale[1]] * (512 if name != event else 1)
            sums[_name(launch["Kernel Name"])].add(launch["ID"], name, value)
    return {name: each.kernel() for name, each in sums.items()}
