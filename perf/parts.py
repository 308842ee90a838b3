"""The time that published runs spend outside training steps: staging, evaluation, and the rest of the timed run.

Each of these times is the median over the strong-scaling ``fit`` sets, with minimum and maximum, because
submissions differ in their staging and evaluation methods by more than their machines explain.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mlhpc.errors import UserError
from mlhpc.perf.published import Published, published
from mlhpc.perf.samples import sample_bytes
from mlhpc.perf.scaling import Triple

_NOTHING_STAGED_S = 1.0


@dataclass(frozen=True)
class Parts:
    """Each part as (median, least, most) over sets.

    ``staging_rate``: bytes/s of a node copying its share of the data set from the shared file system.
    ``evaluation``: accelerator seconds per evaluated sample, relative to those per trained sample. ``rest``: share
    of the time to train that remains after staging, evaluation and epochs of median length; it includes the first
    epoch's excess.
    """

    staging_rate: Triple
    evaluation: Triple
    rest: Triple


def of_sets(sets: Sequence[Published]) -> Parts:
    """The parts derived from the strong-scaling ``fit`` rows of ``sets``. Raises UserError if there are none."""
    rows = [row for row in sets if row.use == "fit" and row.metric == "strong" and row.total_s]
    rates, evaluation, rest = [], [], []
    for row in rows:
        run = row.run
        total, share = row.total_s or 0.0, row.eval_fraction or 0.0
        if row.staging_s and row.staging_s > _NOTHING_STAGED_S:
            size = sample_bytes(run).stored * (run.data.train_samples + run.data.eval_samples)
            nodes = row.accelerators / row.machine.per_node
            rates.append(size * row.spatial / row.staging_s / nodes)
        if share:
            evaluated = total * share / row.epochs[0] / run.data.eval_samples
            evaluation.append(evaluated / (row.epoch_s / row.train_samples))
        left = total * (1 - share) - (row.staging_s or 0.0) - row.epochs[0] * row.epoch_s
        rest.append(max(0.0, left / total))
    return Parts(_triple(rates), _triple(evaluation), _triple(rest))


def _triple(values: Sequence[float]) -> Triple:
    if not values:
        raise UserError("the sets marked fit lack times for staging, evaluation or the remaining parts")
    return statistics.median(values), min(values), max(values)


@cache
def parts() -> Parts:
    """The parts derived from the published sets."""
    return of_sets(published())
