"""A set of runs for one score, with their logs and system description."""

import contextlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.load import dotted, loads
from mlhpc.benchmarks.schema import Run
from mlhpc.common.files.untrusted import read_text
from mlhpc.errors import UserError
from mlhpc.record.environment import Environment, framework_of
from mlhpc.record.mllog import Log, parse
from mlhpc.record.result import Target

Metric = Literal["strong", "weak"]
METRICS: tuple[Metric, Metric] = ("strong", "weak")
PRUNED = "pruned_results"
BYPASS = "package_checker_params"
"""A file that a submitter may put next to results to make package_checker skip a check."""
SCALING = "scaling.json"
"""A file with a scaling factor of the score, which the official tools have written next to results since round
2.1."""
SETTINGS = ("opt_", "sgd_", "lars_", "lamb_", "scheduler_", "dropout", "batchnorm_", "gradient_accumulation")
"""Prefixes of hyperparameter keys (mlperf-logging, closed_*.yaml of HPC and of resnet)."""
SIZES = (
    "global_batch_size", "train_samples", "eval_samples",
    "number_of_nodes", "accelerators_per_node", "number_of_accelerators",
)  # fmt: skip
_SET_KEYS = frozenset(
    {"run_start", "run_stop", "staging_start", "staging_stop", "eval_error", "eval_accuracy", "seed", "resumed",
     "emulated_step_s", *SIZES}
)  # fmt: skip


@dataclass(frozen=True)
class ResultSet:
    """A set of runs for one score.

    ``path``: the folder of the runs, or the single log. ``benchmark``: MLPerf's name (``cosmoflow``, ``deepcam``,
    ``resnet``), empty if unknown. ``system_json``: the system description, None if it cannot be read.
    ``log_paths``: the logs in natural order, result_2 before result_10. ``problems``: problems with the files of
    the set. For run folders of this suite: ``runs``, their ``preset`` and ``target``; for logs of other programs,
    the target of the rules applies.
    """

    path: Path
    org: str | None
    system: str | None
    system_json: dict[str, Any] | None
    benchmark: str
    metric: Metric
    log_paths: tuple[Path, ...]
    pruned_paths: tuple[Path, ...] = ()
    problems: tuple[Finding, ...] = ()
    runs: tuple[Path, ...] = ()
    preset: str | None = None
    target: Target | None = None
    campaign_scale: int | None = None

    @cached_property
    def logs(self) -> tuple[Log, ...]:
        """The complete logs. Raises UserError if a log cannot be opened."""
        return tuple(map(parse, self.log_paths))

    @cached_property
    def pruned(self) -> tuple[Log, ...]:
        """The complete logs of the instances that the submitter has pruned from a weak set."""
        return tuple(map(parse, self.pruned_paths))

    @cached_property
    def condensed(self) -> tuple[Log, ...]:
        """The logs reduced to the records that scores and the rules for sets need: a few hundred out of up to
        millions of records, so that a set of large logs fits into memory. Raises UserError if a log cannot be
        opened."""
        return tuple(parse(path).condensed(_is_for_sets) for path in self.log_paths)

    @cached_property
    def condensed_pruned(self) -> tuple[Log, ...]:
        """The pruned logs, reduced like ``condensed``."""
        return tuple(parse(path).condensed(_is_for_sets) for path in self.pruned_paths)

    @cached_property
    def configurations(self) -> dict[Path, Run]:
        """The configurations of run folders of this suite, which have more settings than a log, by the path of the
        log; without those that cannot be read."""
        found = {}
        for log in self.log_paths:
            with contextlib.suppress(OSError, ValueError, UserError, RecursionError):
                if log.name == "run.log":
                    found[log] = loads(read_text(log.with_name("config.toml"), flags=os.O_NOFOLLOW))
        return found

    def settings_of(self, log: Log) -> dict[str, Any]:
        """All settings of the run with the log ``log`` by dotted name, except description, division and submitter.
        A run whose configuration is not known is assumed to have that of the first one; empty if none is."""
        run = self.configurations.get(log.path) or next(iter(self.configurations.values()), None)
        texts = {"description", "division", "submission"}
        return dict(dotted(run.model_dump(mode="json", exclude=texts, exclude_none=True))) if run else {}

    def ran_on(self, log: Log) -> dict[str, str]:
        """The hardware and software of the run with the log ``log``, as far as it recorded them, and its platform,
        unless the folders of a tree name it. They must be the same in all runs of a score."""
        env, run = environment_of(log), self.configurations.get(log.path)
        facts = {
            "accelerators": ", ".join(sorted(set(env.accelerators))),
            "processors": env.cpu,
            "cluster": env.cluster,
            "submission_platform": None if self.is_tree else named(log.value("submission_platform")),
            "framework": framework_of(run.benchmark, run.training.framework, env.packages) if run else None,
        }
        return {key: value for key, value in facts.items() if value}

    @property
    def fingerprint(self) -> frozenset[str]:
        """The fingerprints of the set's logs, which are the same for a set and its copies. Empty if a log cannot
        be read, because it is then unknown whether the set is a copy."""
        found = frozenset(log.fingerprint for log in self.condensed)
        return frozenset() if "" in found else found

    @property
    def is_tree(self) -> bool:
        """Whether the set is in a submission tree, to which more rules apply."""
        return self.system is not None

    @property
    def total_scale(self) -> int | None:
        """T, the number of compute units (accelerators, or nodes if a node has none) in the system description or,
        without a description, in the campaign.json of a throughput campaign."""
        fields = self.system_json
        if fields is None:
            return self.campaign_scale
        try:
            return int(fields["number_of_nodes"]) * max(int(fields["accelerators_per_node"]), 1)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


def environment_of(log: Log) -> Environment:
    """The environment in the run folder of a log of this suite; empty if it is not known."""
    known = log.path.name == "run.log" and Environment.read_or_none(log.path.with_name("env.json"))
    return known or Environment()


def named(value: Any) -> str | None:
    """``value`` as text; None if it is empty or only stands for an unknown name."""
    text = str(value).strip() if value else ""
    return text if text and text.lower() not in ("n/a", "none", "unnamed") else None


def _is_for_sets(key: str) -> bool:
    return key in _SET_KEYS or key.startswith((*SETTINGS, "submission_"))


def natural(path: Path) -> list[tuple[int, int | str]]:
    """A sorting key that puts result_2 before result_10."""
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part)) if part.isdecimal() and part.isascii() else (1, part) for part in parts]
