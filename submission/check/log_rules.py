"""What the official checker lets pass in a log. Init time, order and keys are its own."""

import math
from collections.abc import Iterator
from itertools import pairwise

from mlhpc.errors import count
from mlhpc.submission.logs.findings import Finding
from mlhpc.submission.logs.mllog import Log


def log_rules(log: Log) -> Iterator[Finding]:
    """What speaks against any log, whoever wrote it."""
    name = log.path.name
    for key in ("run_start", "run_stop"):
        if len(log.all(key)) > 1:
            lines = ", ".join(str(r.line) for r in log.all(key))
            yield Finding(
                "log/one-run",
                "error",
                f"{name}:{lines}",
                f"one {key}",
                f"{len(log.all(key))}: more than one run in the file",
                "give every run a file of its own; times would be taken from the first run alone",
            )
    if log.run and not 0 < log.run.seconds < math.inf:
        yield Finding(
            "log/time",
            "error",
            name,
            "run_stop after run_start",
            f"run_stop − run_start = {log.run.seconds:.3f} s",
            "the clock was set back during the run, or the file was edited: run again",
        )
    backwards = [(b.line, a.time_ms - b.time_ms) for a, b in pairwise(log.records) if b.time_ms < a.time_ms]
    if backwards:
        largest = max(step for _, step in backwards)
        yield Finding(
            "log/clock",
            "warning",
            f"{name}:{backwards[0][0]}",
            "times that never go back",
            f"{count(len(backwards), 'step')} back, the largest {largest:g} ms",
            "several ranks wrote into one file, or a clock was set: log from rank 0",
        )
    seeds = log.all("seed")
    if len(seeds) > 1:
        yield Finding(
            "log/seed",
            "warning",
            f"{name}:{', '.join(str(r.line) for r in seeds[:4])}",
            "one seed",
            f"{len(seeds)} records: {', '.join(str(r.value) for r in seeds[:4])}{', …' * (len(seeds) > 4)}",
            "log the one that the run was started with, from rank 0; the first is taken for it",
        )
    if log.repeated:
        yield Finding(
            "log/repeated",
            "error",
            f"{name}:{', '.join(map(str, log.repeated[:4]))}",
            "every key of a record once",
            f"{len(log.repeated)} with a key twice",
            "which of the two counts is left to the reader: mend what writes the log, and run again",
        )
    starts, stops = len(log.all("staging_start")), len(log.all("staging_stop"))
    if starts != stops:
        yield Finding(
            "log/staging",
            "error",
            name,
            "a staging_stop for every staging_start",
            f"{starts} staging_start, {stops} staging_stop",
            "staging did not end: see the job's output",
        )
    for staging in log.staging:
        # Staging before run_start is for the ruleset to judge: 3.0.0 allows it.
        if log.run and staging.stop_ms > log.run.stop_ms:
            yield Finding(
                "log/staging",
                "error",
                name,
                "staging that ends before run_stop",
                f"it ends {(staging.stop_ms - log.run.stop_ms) / 1e3:.3f} s after it",
                "stage inside the run, and wait for it before training",
            )
    if log.value("study_steps"):
        yield Finding(
            "log/study",
            "error",
            log.path.name,
            "a training to the target",
            f"a run of a study, ended after {log.value('study_steps')} measured steps",
            "leave it out: a study measures throughput, its runs are no results",
        )


def bare_log_rules(log: Log) -> Iterator[Finding]:
    """What speaks against a log that no run directory lies around: there ``run_rules`` look at these."""
    name = log.path.name
    if log.value("seed") is None:
        yield Finding(
            "log/seed",
            "warning",
            name,
            "a seed",
            "none",
            "log the seed; the package checker rejects a set of runs without seeds",
        )
    if log.value("resumed"):
        yield Finding(
            "log/resumed",
            "error",
            name,
            "a run in one piece",
            "resumed from a checkpoint",
            "run it again from the start; the time of a resumed run counts for nothing",
        )
    stop = log.first("run_stop")
    status = stop.metadata.get("status") if stop else None
    if stop and status not in (None, "success"):
        yield Finding(
            "log/status",
            "error",
            f"{name}:{stop.line}",
            "run_stop with status success",
            f"status {status!r}",
            "only a run that met its target has a time to train",
        )
