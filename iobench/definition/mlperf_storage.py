"""The rules of MLPerf Storage, among them the minimum size of a data set, which defeats caches and ensures a
minimum run length.

Rounds v1.0 and v2.0 (the same workloads): mlcommons/storage, Submission guidelines. Round v3.0: Rules.md in the
same repository (2.1.17, 3.1.2, 3.3.2, 3.3.6, 3.4.2), training/README.md (Table 1) and the round's workload files
in configs/dlio/workload; mlpstorage_py/rules/core_config_keys.yaml lists the keys that a result may not change.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlhpc.errors import UserError
from mlhpc.iobench.definition import load
from mlhpc.iobench.definition.schema import Workload
from mlhpc.quantities import count, digits, four_digits

MEMORIES = 5
STEPS = 500
RUNS = 5


@dataclass(frozen=True)
class Official:
    """A workload of one round. Settings that are the same in all rounds are in the suite's workload called
    ``mlperf_`` and the same name. ``accelerators``: batch size and seconds per step for each accelerator."""

    round: str
    name: str
    epochs: int
    au_percent: float
    accelerators: Mapping[str, tuple[int, float]]

    @property
    def warm_ups(self) -> int:
        """Number of warm-up runs."""
        return 1 if self.round == "v3.0" else 0

    @property
    def results_elsewhere(self) -> bool:
        """Return whether results must be written outside the measured file system."""
        return self.round == "v3.0"

    def accelerator(self, workload: Workload) -> str | None:
        """The accelerator with the batch size and step time of ``workload``; None if there is none."""
        steps = (workload.reader.batch_size, workload.train.computation.expected)
        constant = workload.train.computation.constant
        return next((name for name, own in self.accelerators.items() if constant and own == steps), None)


# For each workload, the latest round comes first.
_OFFICIAL = (
    Official("v3.0", "retinanet", 8, 85, {"B200": (24, 0.04755), "MI355": (32, 0.0634)}),
    Official("v3.0", "unet3d", 5, 90, {"B200": (7, 0.162)}),
    Official("v2.0", "unet3d", 5, 90, {"A100": (7, 0.636), "H100": (7, 0.323)}),
    Official("v2.0", "resnet50", 5, 90, {"A100": (400, 0.435), "H100": (400, 0.224)}),
    Official("v2.0", "cosmoflow", 5, 70, {"A100": (1, 0.00551), "H100": (1, 0.0035)}),
)
_TABLES = ("dataset", "reader", "train", "evaluation", "checkpoint", "metric")
_FREE = {
    # Settings that may be changed in the closed division (core_config_keys.yaml). Folders and storage are not in
    # these tables.
    "dataset.files", "dataset.total_bytes", "reader.threads", "reader.preprocess_threads", "reader.prefetch",
    "reader.transfer_bytes", "reader.direct",
    # Settings that are measured on the machine itself.
    "reader.loader_cost",
    # Settings that do not affect the measurement, because no round evaluates and contents are random.
    "dataset.eval_files", "reader.eval_batch_size", "dataset.seed",
    # Settings checked separately against the round's numbers.
    "reader.batch_size", "train.computation", "train.epochs", "train.steps", "metric.au_percent",
}  # fmt: skip


def official(workload: Workload) -> Official | None:
    """The official workload of the same name as ``workload``, from the round that lists the accelerator of
    ``workload``, or else from the latest round; None if there is none."""
    if workload.suite == "mlhpc":
        return None
    name = workload.name.removeprefix("mlperf_")
    same = [each for each in _OFFICIAL if each.name == name]
    return next((each for each in same if each.accelerator(workload)), same[0] if same else None)


@dataclass(frozen=True)
class Size:
    """The required size of a data set. ``bound``: the rule that requires more files, ``memory`` or ``steps``."""

    files: int
    samples: int
    bytes: int
    steps_per_epoch: int
    bound: str


def required(workload: Workload, memory_bytes: int, accelerators: int, clients: int = 1) -> Size:
    """The smallest data set of ``workload`` allowed for ``clients`` nodes with ``memory_bytes`` each and
    ``accelerators`` in total, at least one per node. Raises UserError for a workload without data, and for numbers
    below 1."""
    dataset = workload.dataset
    if dataset is None:
        raise UserError(f"workload {workload.name} reads no data, so no data size is required")
    for name, value in (("--memory", memory_bytes), ("--accelerators", accelerators), ("--clients", clients)):
        if value < 1:
            raise UserError(f"{name} {value} must be at least 1")
    if clients > accelerators:
        raise UserError(f"--clients {clients} must not exceed the {accelerators} accelerators")
    file_bytes = dataset.samples_per_file * dataset.sample_bytes
    batch = accelerators * workload.reader.batch_size
    for_memory = math.ceil(MEMORIES * memory_bytes * clients / file_bytes)
    for_steps = math.ceil(STEPS * batch / dataset.samples_per_file)
    files = max(for_memory, for_steps)
    samples = files * dataset.samples_per_file
    bound = "memory" if for_memory >= for_steps else "steps"
    return Size(files, samples, files * file_bytes, samples // batch, bound)


def findings(
    workload: Workload,
    memory_bytes: int,
    accelerators: int,
    clients: int,
    runs: Sequence[float | None] = (),
    without_loader: Sequence[float | None] = (),
) -> list[str]:
    """Rule violations of a result of this workload, one sentence each. ``runs``: the utilisations of the runs in
    order, in per cent, empty before the first run; ``without_loader``: those computed without the loader's
    cost."""
    dataset = workload.dataset
    if dataset is None:
        return ["it reads no data"]
    own = official(workload)
    violations = _changes(workload, own)
    needed = required(workload, memory_bytes, accelerators, clients)
    if dataset.bytes < MEMORIES * memory_bytes * clients:
        times = digits(dataset.bytes / (memory_bytes * clients), 2)
        violations.append(
            f"{count(dataset.files, 'file')} have only {times} times the clients' memory, but "
            f"{MEMORIES} times are required; set dataset.files={needed.files}"
        )
    steps = workload.steps_per_epoch(accelerators)
    if steps < STEPS:
        violations.append(
            f"{steps} steps per epoch, but {STEPS} are required; set dataset.files={needed.files}"
        )
    epochs = own.epochs if own else 5
    if workload.train.epochs != epochs or workload.train.steps:
        violations.append(f"{workload.train.epochs} epochs, but {epochs} whole epochs are required")
    threshold = own.au_percent if own else workload.metric.au_percent
    if threshold is None:
        violations.append("the workload has no utilisation threshold (metric.au_percent)")
    warm_ups = own.warm_ups if own else 0
    if runs and len(runs) < RUNS + warm_ups:
        wanted = f"{RUNS} after one warm-up run" if warm_ups else f"{RUNS}"
        violations.append(f"{len(runs)} runs, but {wanted} are required")
    for number, utilisation in enumerate(runs[warm_ups:], 1 + warm_ups):
        if utilisation is None or (threshold is not None and utilisation < threshold):
            reached = "none" if utilisation is None else f"{utilisation:.1f}%"
            more = dict(enumerate(without_loader, 1)).get(number)
            other = "" if more is None else f" ({more:.1f}% without the cost of the loader)"
            violations.append(f"run {number}: utilisation {reached}{other}, but {threshold:g}% is required")
    return violations


def _changes(workload: Workload, own: Official | None) -> list[str]:
    """Settings of ``workload`` that differ from the round's file but may not be changed."""
    if own is None:
        names = sorted({f"mlperf_{each.name}" for each in _OFFICIAL})
        return [f"the workload {workload.name} is not one of MLPerf Storage: {', '.join(names)}"]
    stated, wanted = _fixed(workload), _fixed(load.load(f"mlperf_{own.name}"))
    changes = [
        f"{key} is {json.dumps(stated[key])}, but {json.dumps(wanted[key])} in {own.name} of {own.round}"
        for key in wanted
        if stated[key] != wanted[key]
    ]
    if own.accelerator(workload) is None:
        known = [
            f"{name} ({batch} in {four_digits(1e3 * seconds)} ms, {each.round})"
            for each in _OFFICIAL
            if each.name == own.name
            for name, (batch, seconds) in each.accelerators.items()
        ]
        step = four_digits(1e3 * workload.train.computation.expected)
        changes.append(
            f"steps of {workload.reader.batch_size} samples in {step} ms "
            f"match no accelerator of {own.name}: {', '.join(known)}"
        )
    return changes


def _fixed(workload: Workload) -> dict[str, Any]:
    """All keys of a workload whose values must equal those in the round's file, by name, with values as in
    JSON."""
    tables = workload.model_dump(mode="json", include=set(_TABLES))
    return {
        f"{table}.{key}": value
        for table, keys in tables.items()
        for key, value in keys.items()
        if f"{table}.{key}" not in _FREE
    }
