"""The output of ``mlhpc check`` and ``mlhpc score`` as data for ``--json`` (docs/reference/json.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlhpc.benchmarks.findings import Finding
from mlhpc.record.energy import Energy
from mlhpc.submission.check.check import SetCheck, check_sets
from mlhpc.submission.check.rulesets import exist
from mlhpc.submission.findings import grouped, verdict
from mlhpc.submission.score.score import RunScore, Weak
from mlhpc.submission.score.set_score import (
    division_of,
    energies_in_set,
    has_own_target,
    scored_joules,
    target_of,
)


def check_content(path: Path, ruleset: str | None) -> dict[str, Any]:
    """The findings on every set at ``path``. Raises the same UserErrors as ``check_sets``."""
    sets = [
        {**_set(checked), "findings": findings_content(checked.findings)}
        for checked in check_sets(path, ruleset)
    ]
    return {"path": str(path), "ruleset": ruleset, "passes": all(s["passes"] for s in sets), "sets": sets}


def score_content(path: Path, ruleset: str | None) -> dict[str, Any]:
    """The score of every set at ``path``, the set's runs, and the verdict of its check. Raises the same UserErrors
    as ``check_sets``."""
    sets = [{**_set(checked), **_score(checked)} for checked in check_sets(path, ruleset)]
    good = all(s["passes"] and s["score_min"] is not None for s in sets)
    return {"path": str(path), "ruleset": ruleset, "passes": good, "sets": sets}


def findings_content(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """``findings`` as JSON, merged as in the printed table."""
    return [asdict(finding) for finding in grouped(findings)]


def _set(checked: SetCheck) -> dict[str, Any]:
    results = checked.results
    return {
        "path": str(results.path),
        "org": results.org,
        "system": results.system,
        "benchmark": results.benchmark or None,
        "preset": results.preset,
        "metric": results.metric,
        "division": division_of(results) or None,
        "rules": checked.rules if exist(checked.rules) else None,
        "logs": len(results.log_paths),
        "complying": checked.complying,
        "copy_of": str(checked.copy_of) if checked.copy_of else None,
        "passes": checked.passes,
        "verdict": verdict(checked.findings),
    }


def _score(checked: SetCheck) -> dict[str, Any]:
    score, target = checked.score, target_of(checked.results)
    energies = energies_in_set(score)
    content: dict[str, Any] = {
        "score_min": score.minutes,
        "score_without_staging_min": score.without_staging_minutes,
        "no_score": score.why or None,
        "target": None,
        "energy_j": scored_joules(score),
        "runs": [_run(run, energies[run.path]) for run in score.runs],
    }
    if target:
        own = has_own_target(checked.results)
        content["target"] = {"metric": target[0].metric, "value": target[0].value, "is_mlperfs": not own}
    if isinstance(score, Weak):
        return {**content, "T": score.T, "S": score.S, "M": score.M}
    interval = list(score.ci95) if score.ci95 else None
    return {**content, "mean_min": score.mean, "stdev_min": score.spread, "interval95_min": interval}


def _run(run: RunScore, energies: Mapping[str, Energy]) -> dict[str, Any]:
    return {
        "log": str(run.path),
        "seconds": run.seconds,
        "without_staging_s": run.without_staging_s,
        "epochs_to_target": run.epochs_to_target,
        "converged": run.converged,
        "energy_j": {kind: energy.whole_joules for kind, energy in energies.items()},
        "left_out": run.why or run.dropped or None,
    }
