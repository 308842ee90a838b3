"""A finished run with faster storage, faster steps or a different number of ranks, recomputed from its own times.

Reading runs ahead of the steps. A loop waits for its first batch for as long as reading that batch takes, and for
each later batch for as long as reading takes beyond the preceding step:

    wait = read + (batches - 1) · max(0, read - step)

where ``read`` and ``step`` are the seconds per batch. Solved for ``read``, the formula yields the time of reading
from the measured waits; with other values of ``read`` and ``step``, it yields the waits of a changed run. Reading
hidden behind the steps leaves no trace, so storage slower than the run's cannot be modelled.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mlhpc.benchmarks.schema import Run
from mlhpc.common.files.filesystem import SHARED_TYPES
from mlhpc.errors import UserError
from mlhpc.quantities import duration_text
from mlhpc.record.breakdown import EpochTimes, of_epochs
from mlhpc.record.result import Epoch, Result
from mlhpc.record.run_directory import RunDirectory

FACTORS = ("storage", "compute", "ranks")
SMALL = 0.1
"""If waiting is below this share of the steps, it may be just the hand-over of batches: the steps then hid
reading, but how long reading took is not known."""


@dataclass(frozen=True)
class Change:
    """What to change. ``storage``: the speed of reading the data set. ``compute``: the speed of the steps. Both
    are relative to the run's. ``ranks``: the number of ranks; None: unchanged. ``shared``: assume that more ranks
    read no faster in total. ``hidden``: assume that reading hidden by steps took as long as the steps, not next to
    nothing."""

    storage: float = 1.0
    compute: float = 1.0
    ranks: int | None = None
    shared: bool = False
    hidden: bool = False


@dataclass(frozen=True)
class Recomputed:
    """A run, measured or recomputed. ``parts``: seconds by part of the time to train, as in ``Breakdown``.
    ``hidden_s``: the largest amount that may have to be added, because it is not known how long reading that was
    hidden by steps took. ``title`` names the assumptions."""

    title: str
    parts: dict[str, float | None]
    hidden_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The sum of the parts in seconds."""
        return sum(seconds or 0.0 for seconds in self.parts.values())


@dataclass(frozen=True)
class WhatIf:
    """The run as measured and as recomputed; ``notes`` say what is extrapolated."""

    measured: Recomputed
    cases: tuple[Recomputed, ...]
    notes: tuple[str, ...]


def parse(text: str) -> Change:
    """The change described by ``text``, such as ``storage=2x,ranks=4``. Raises UserError if it is invalid."""
    values: dict[str, float] = {}
    for word in text.split(","):
        key, _, value = word.strip().partition("=")
        pattern = r"[0-9]{1,6}" if key == "ranks" else r"[0-9]{1,6}(\.[0-9]{1,6})?x?"
        if key not in FACTORS or key in values or not re.fullmatch(pattern, value):
            raise UserError(
                f"--what-if {text}: expected storage=2x, compute=2x or ranks=4, each at most once"
            )
        values[key] = float(value.removesuffix("x"))
    if not all(value > 0 for value in values.values()):
        raise UserError(f"--what-if {text}: all values must be above 0")
    if values.get("storage", 1.0) < 1:
        raise UserError(
            f"--what-if {text}: storage must be at least 1x, because reads hidden behind steps were not measured"
        )
    ranks = values.get("ranks")
    return Change(
        values.get("storage", 1.0), values.get("compute", 1.0), None if ranks is None else int(ranks)
    )


def what_if(run: RunDirectory, change: Change) -> WhatIf:
    """Recompute ``run`` with ``change``. Raises UserError if the run has not finished, or could not be run on that
    number of ranks."""
    result, config = run.result, run.config
    if result is None or config is None or not result.breakdown_s or not result.epochs:
        raise UserError(f"{run.path}: --what-if requires a finished run with result.json and config.toml")
    if result.staging and result.staging.overlapped:
        raise UserError(f"{run.path}: --what-if cannot separate staging from the training that it overlaps")
    config.require_startable(change.ranks or result.ranks, staged=result.staging is not None)
    measured = Recomputed("this run", dict(result.breakdown_s))
    cases = {"what if": change}
    if change.ranks not in (None, result.ranks):
        cases = {"storage keeps up": change, "storage shared": replace(change, shared=True)}
    recomputed = []
    for title, case in cases.items():
        least = Recomputed(title, _parts(result, config, case))
        most = Recomputed(title, _parts(result, config, replace(case, hidden=True)))
        recomputed.append(replace(least, hidden_s=most.total_s - least.total_s))
    return WhatIf(measured, tuple(recomputed), tuple(_notes(result, change, recomputed)))


def _parts(result: Result, config: Run, change: Change) -> dict[str, float | None]:
    """The parts of the time to train with ``change``, in seconds."""
    parts = result.breakdown_s or {}
    per_rank = result.ranks / (change.ranks or result.ranks)  # samples per rank, relative to the run's
    computing = 1 / change.compute
    group, batch = config.training.spatial_size, config.training.eval_batch_size
    evaluated = [
        max(1, math.ceil(result.samples.eval * group / ranks / batch))
        for ranks in (result.ranks, change.ranks or result.ranks)
    ]
    train = partial(
        _loop,
        hidden=change.hidden,
        read=(1.0 if change.shared else per_rank) / change.storage,
        step=computing * (1.0 if result.emulation else per_rank),  # emulated steps take the same on any rank
    )
    evaluate = partial(
        _loop,
        hidden=change.hidden,
        read=(1 / per_rank if change.shared else 1.0) / change.storage,
        step=computing,
    )

    def again(epoch: Epoch) -> EpochTimes:
        steps = (epoch.samples or 0) / config.hyperparameters.global_batch_size
        batches = max(1, round(steps * config.backward_passes))
        wait, step = train(epoch.train_s, epoch.data_wait_s, batches, batches)
        eval_wait, eval_step = evaluate(epoch.eval_s, epoch.eval_data_wait_s, *evaluated)
        return EpochTimes(epoch.epoch, wait + step, wait, eval_wait + eval_step, eval_wait)

    epochs = tuple(map(again, result.epochs))
    copying = 1.0 if change.shared else per_rank
    if _on_every_node(result):
        copying = 1.0 if result.staging and result.staging.read_once else copying / per_rank
    staging = (parts.get("staging") or 0.0) * copying / change.storage
    within = sum((e.train_s or 0.0) + (e.eval_s or 0.0) for e in result.epochs)
    unchanged = sum(seconds or 0.0 for seconds in parts.values()) - (parts.get("staging") or 0.0) - within
    recomputed = of_epochs(
        epochs,
        [epoch.eval_s for epoch in epochs if epoch.eval_s],
        [epoch.samples for epoch in result.epochs],
        total=unchanged + staging + sum(epoch.train_s + epoch.eval_s for epoch in epochs),
        staging=staging,
        exchange=parts.get("exchange") or 0.0,
    ).parts()
    return {key: None if parts.get(key) is None else recomputed[key] for key in parts}


def _on_every_node(result: Result) -> bool:
    """Whether each node of the run copied the whole data set, so that more nodes copy more in total. On a single
    node, and to a file system that nodes share, more ranks divide the same files."""
    staging = result.staging
    if staging is None or staging.mode != "replicate" or (result.nodes or 1) == 1:
        return False
    return staging.target_filesystem not in SHARED_TYPES


def _loop(
    seconds: float | None,
    waited: float | None,
    before: int,
    after: int,
    *,
    hidden: bool,
    read: float,
    step: float,
) -> tuple[float, float]:
    """Seconds of waiting and of steps in a loop of ``after`` batches, recomputed from a loop of ``before`` batches
    that took ``seconds``, of which ``waited`` seconds were spent waiting. ``read`` and ``step``: time per batch
    relative to that loop; ``hidden``: see ``Change``."""
    waited = waited or 0.0
    each = max(0.0, (seconds or 0.0) - waited) / before
    if waited < max(each, SMALL * before * each) and not hidden:
        return waited * read * after / before, after * each * step
    reading, each = max(each, (waited + (before - 1) * each) / before) * read, each * step
    return reading + (after - 1) * max(0.0, reading - each), after * each


def _notes(result: Result, change: Change, cases: Sequence[Recomputed]) -> Iterator[str]:
    for case in cases:
        if case.hidden_s > 0.01 * case.total_s:
            yield f"{case.title}: up to {duration_text(case.hidden_s)} more if steps hid much reading"
    if change.storage != 1:
        yield "extrapolated: all reading and staging time is attributed to storage; decoding does not get faster"
    if change.ranks not in (None, result.ranks):
        if result.emulation:
            yield "steps are emulated, so they take the same time on any number of ranks"
        else:
            yield (
                "extrapolated: step time is proportional to samples per rank; small batches and the "
                "all-reduce make it longer (mlhpc predict models both)"
            )
        yield "storage keeps up: each rank reads as fast as before; shared: all ranks together do"
        if _on_every_node(result):
            yield "the same ranks per node; every node copies the whole data set, as in this run"
    yield "the same epochs; checkpoints and the time between epochs as measured"
