"""A measured set of runs of one configuration, for comparisons."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from mlhpc.benchmarks import registry
from mlhpc.perf.scaling import Measured
from mlhpc.quantities import count, whole
from mlhpc.record.energy import Energy, measured_in
from mlhpc.record.phases import Phases
from mlhpc.record.result import Target
from mlhpc.submission.report.spread import Spread, spread
from mlhpc.submission.score.score import Strong, Weak, score_rules

OVER_SCORED = "the runs in the score"
OVER_CONVERGED = "all runs that converged"
OVER_ENDED = "all runs that ended normally; none converged"
OVER_UNKNOWN = "all runs that ended normally; their target is not known"
OVER_RESUMED = "resumed runs, which do not count"

IN_CLOCK, BEFORE_CLOCK, NOT_LOGGED = "in the score", "before the clock", "no record"
"""Where the staging records of a set are: after run_start (MLPerf HPC up to round 2.0 times staging), before
run_start (from round 3.0 on, the score excludes staging), or missing."""


@dataclass(frozen=True)
class RunFacts:
    """One measured run. ``epochs``: number of epochs begun before the evaluation that met the target; all epochs
    if the target was not met. ``energy``: by kind of counter; empty for logs of other programs."""

    phases: Phases
    epochs: int
    energy: Mapping[str, Energy] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One set of runs of one configuration, measured.

    ``letter`` names the set in the figures. ``unit``: accelerators, processors, ranks or nodes; ``machine``: the
    unit's model. ``runs`` are those used for the measurements, and ``over`` describes them; ``left_out`` are the
    fastest and slowest, which converged but do not count in the score. ``official``: whether the sample counts
    match a published data set; None if unknown. ``data_set``: its (training, evaluation) sample counts; without a
    published one, those logged. ``scale``: compute units of one run.
    ``aborted``: number of runs that were terminated or never ended. ``staged``: whether staging records are inside
    or before the timed run. ``log_ids`` identify the logs by their times; ``copy_of`` is the letter of an earlier
    set with the same logs. ``versions``: the logged versions of the preset, the parts and the data generator;
    ``comparable``: False if an earlier set has different versions. ``network``: the settings of the network and of
    its sample shape that differ from the preset. ``line``: submitter, kind of unit, and machine, with how
    steps are computed; the sets of a line differ in size, and are connected in charts of throughput scaling.
    """

    letter: str
    path: Path
    org: str
    system: str
    benchmark: str
    metric: str
    division: str
    preset: str | None
    when: str
    unit: str
    machine: str
    software: str
    scale: int | None
    nodes: int | None
    batch: int | None
    train_samples: int | None
    eval_samples: int | None
    data_set: tuple[int | None, int | None]
    official: bool | None
    target: Target | None
    logs: int
    runs: tuple[RunFacts, ...]
    left_out: tuple[RunFacts, ...]
    over: str
    score: Strong | Weak | None
    notes: tuple[str, ...]
    aborted: int
    staged: str
    coarse: bool
    log_ids: frozenset[tuple[float, float]]
    versions: Mapping[str, int]
    network: str
    line: tuple[str, str, str]
    copy_of: str = ""
    comparable: bool = True

    @property
    def name(self) -> str:
        """Submitter and system."""
        return f"{self.org} · {self.system}"

    @property
    def title(self) -> str:
        """The problem as text: benchmark, size of the data set, preset (unless the data set is official), a
        network that is not the preset's, a target that is not the official one, and whether some epochs used
        coarser samples."""
        samples = f"{whole(self.data_set[0])} training samples" if self.data_set[0] else ""
        rules, own = score_rules(self.benchmark), self.target
        target = f"target {own.value:g}" if own and rules and own.value != rules[0].value else ""
        coarse = "some epochs on coarser samples" if self.coarse else ""
        return " · ".join(
            t for t in (registry.title(self.benchmark), samples, self.problem[3], target, coarse) if t
        )

    @property
    def made_from(self) -> str:
        """The division, and the number and kind of the measured runs, as shown with every chart."""
        runs = count(len(self.runs), "run" if self.metric == "strong" else "throughput instance")
        over = "" if self.over == OVER_SCORED or not self.runs else f": {self.over}"
        return f"{self.division}, {runs}{over}"

    @property
    def missed(self) -> int:
        """Number of runs that did not meet the target."""
        return sum(not run.converged for run in self.score.runs) if self.score else 0

    @property
    def is_closed(self) -> bool:
        """Whether the set belongs to the closed division, as far as is known; always False without an official
        data set."""
        return self.division == "closed" and self.official is True

    @property
    def is_closed_score(self) -> bool:
        """Whether the set belongs to the closed division and has a score."""
        return self.is_closed and self.score is not None and self.score.minutes is not None

    @property
    def problem(self) -> tuple[str, int | None, int | None, str, float | None, bool]:
        """A key that identifies the problem (benchmark, data set, network, target and, unless the data set is
        official, preset). Sets of the same problem may share a chart."""
        preset = "" if self.official or self.preset is None else f"preset {self.preset}"
        own = " · ".join(filter(None, (preset, self.network)))
        target = self.target.value if self.target else None
        return self.benchmark, *self.data_set, own, target, self.coarse

    @property
    def whole_runs(self) -> tuple[RunFacts, ...]:
        """The runs whose clock covers all of the training; a resumed run has rates, but no time to solution."""
        return () if self.over == OVER_RESUMED else self.runs

    @cached_property
    def of_all(self) -> "Entry":
        """The entry measured over all runs that converged, as every confidence interval is: Student's t does not
        hold for the runs in a score, which lack the fastest and the slowest."""
        if not self.left_out:
            return self
        return replace(self, runs=self.runs + self.left_out, left_out=(), over=OVER_CONVERGED)

    @cached_property
    def time_s(self) -> Spread | None:
        """The spread of the runs' total times in seconds."""
        return spread(r.phases.total for r in self.whole_runs)

    @property
    def parts_s(self) -> dict[str, float]:
        """Mean seconds of each part; the parts add up to the mean total time."""
        parts = [r.phases.parts() for r in self.whole_runs]
        return {key: statistics.fmean(p[key] for p in parts) for key in parts[0]} if parts else {}

    @property
    def total_s(self) -> float:
        """The sum of the parts."""
        return sum(self.parts_s.values())

    @property
    def epochs(self) -> Spread | None:
        """The spread of the runs' numbers of epochs."""
        return spread(r.epochs for r in self.whole_runs if r.epochs)

    @property
    def epoch_s(self) -> Spread | None:
        """T_epoch of Farrell et al. 2021, which includes the first epoch's excess."""
        return spread(r.phases.epoch_s for r in self.runs)

    @property
    def steady_epoch_s(self) -> Spread | None:
        """T_epoch without the first epoch's excess: time of training and evaluation divided by the number of
        epochs."""
        return spread(r.phases.steady_epoch_s for r in self.runs)

    @property
    def staging_s(self) -> Spread | None:
        """The spread of the runs' staging times in seconds."""
        return spread(r.phases.staging for r in self.runs)

    @property
    def excess_s(self) -> Spread | None:
        """The seconds by which the first epoch took longer than later ones."""
        return spread(r.phases.first_epoch_excess for r in self.runs)

    @property
    def staging_in_epochs(self) -> Spread | None:
        """T_staging / T_epoch: the number of epochs that could be trained during staging. Farrell et al. 2021,
        Table 5, call this the compute-to-staging throughput ratio."""
        return spread(r.phases.staging / r.phases.epoch_s if r.phases.epoch_s else None for r in self.runs)

    @property
    def staging_and_excess_in_epochs(self) -> Spread | None:
        """Like ``staging_in_epochs``, but the first epoch's excess counts as staging instead of as part of an
        epoch."""
        return spread(
            (r.phases.staging + r.phases.first_epoch_excess) / steady
            if r.phases.first_epoch_excess is not None
            and r.phases.training > 0
            and (steady := r.phases.steady_epoch_s)
            else None
            for r in self.runs
        )

    @property
    def train_rate(self) -> Spread | None:
        """Training samples per second per compute unit."""
        if not self.scale:
            return None
        return spread(rate / self.scale if (rate := r.phases.train_rate) else None for r in self.runs)

    @property
    def eval_rate(self) -> Spread | None:
        """Evaluation samples per second per compute unit: the size of the evaluation set divided by the mean time
        of an evaluation."""
        if not (self.scale and self.eval_samples):
            return None
        times = [statistics.fmean(r.phases.evaluations) for r in self.runs if r.phases.evaluations]
        return spread(self.eval_samples / t / self.scale for t in times if t > 0)

    @property
    def budget_h(self) -> float | None:
        """Time to solution × compute units, in hours (Farrell et al. 2021, Table 6)."""
        return self.time_s.mean / 3600 * self.scale if self.time_s and self.scale else None

    @property
    def joules(self) -> dict[str, Spread | None]:
        """Energy in joules by kind of counter, over the runs without missing counters; None if there are no such
        runs."""
        runs = self.whole_runs
        kinds = measured_in(r.energy for r in runs)
        return {kind: spread(r.energy[kind].whole_joules for r in runs if kind in r.energy) for kind in kinds}

    @property
    def measured(self) -> Measured | None:
        """The input of the scaling model; None if the logs do not contain all of it. The ranges of the means are
        the intervals over all runs that converged."""
        both = zip(self._terms(), self.of_all._terms(), strict=True)
        terms = [(term.mean, *every.interval[1:]) for term, every in both if term and every]
        if not (self.scale and self.batch and len(terms) == 4) or self.over in (OVER_ENDED, OVER_UNKNOWN):
            return None
        epochs, epoch_s, staging, rest = terms
        if epoch_s[0] <= 0:
            return None
        return Measured(self.letter, self.scale, self.batch, epochs, epoch_s, staging, rest)

    def _terms(self) -> tuple[Spread | None, ...]:
        """The epochs, and the seconds of an epoch, of staging with first-epoch excess, and of the rest."""
        staging = spread(r.phases.staging + (r.phases.first_epoch_excess or 0.0) for r in self.runs)
        return self.epochs, self.steady_epoch_s, staging, spread(r.phases.rest for r in self.runs)
