"""The output of ``mlhpc report`` as data for ``--json`` (docs/reference/json.md)."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlhpc.errors import UserError
from mlhpc.perf.what_if import Change, what_if
from mlhpc.record.energy import in_order
from mlhpc.record.progress import Follower
from mlhpc.record.run_directory import RunDirectory, read, running
from mlhpc.submission.check.check import check_run
from mlhpc.submission.check.content import findings_content
from mlhpc.submission.findings import passes, verdict
from mlhpc.submission.report.compare import compare
from mlhpc.submission.report.entry import Entry
from mlhpc.submission.report.summary import data_rate, no_score, parts, standing


def report_content(
    paths: Sequence[Path],
    configurations: Sequence[tuple[int, int | None]] = (),
    change: Change | None = None,
) -> dict[str, Any]:
    """The report on one run, or the comparison of all sets of runs below ``paths``. Nothing is written. Raises the
    same UserErrors as ``report_on``."""
    first = paths[0]
    if len(paths) == 1 and ((first / "run.log").is_file() or (first / "result.json").is_file()):
        if configurations:
            raise UserError("--predict requires several runs; pass the folder that contains them")
        run = read(first)
        answer = {"what_if": asdict(what_if(run, change))} if change else {}
        return {**run_content(run), **answer}
    if change:
        raise UserError("--what-if requires a single run; pass its folder")
    comparison = compare(paths, configurations)
    return {
        "kind": "comparison",
        "sets": [_entry(entry.of_all) for entry in comparison.entries],
        "findings": [
            {"path": str(path), **findings_content([finding])[0]} for path, finding in comparison.problems
        ],
        "predictions": [
            {
                "org": p.org,
                "machine": p.machine,
                "division": p.division,
                "units": p.prediction.units,
                "global_batch_size": p.prediction.batch,
                "seconds": p.prediction.seconds.value,
                "seconds_low": p.prediction.seconds.low,
                "seconds_high": p.prediction.seconds.high,
                "measured_min": p.measured_min,
            }
            for p in comparison.predictions
        ],
    }


def run_content(run: RunDirectory) -> dict[str, Any]:
    """The report on one run: its times, their breakdown, and the verdict of the rule check."""
    alive = running(run)
    findings = [] if alive else check_run(run)
    reasons = no_score(run, findings)
    result = run.result
    return {
        "kind": "run",
        "path": str(run.path),
        "benchmark": run.benchmark,
        "preset": run.preset,
        "framework": run.framework,
        "status": "running" if alive else result.status if result else None,
        "standing": standing(run),
        "no_score": reasons,
        "time_to_train_s": result.time_to_train_s if result and not reasons else None,
        "time_to_train_without_staging_s": (
            result.time_to_train_without_staging_s if result and not reasons else None
        ),
        "parts": [{"part": p.key, "seconds": p.seconds, "share": p.share} for p in parts(run)],
        "samples_per_s": result.samples_per_s if result else None,
        "bytes_per_s": data_rate(run),
        "energy_j": {k: e.whole_joules for k, e in in_order(result.energy if result else None).items()},
        "progress": asdict(Follower(run.path).look()) if alive and run.log else None,
        "problems": [f"{name} {problem}" for name, problem in run.problems] if not alive else [],
        "passes": passes(findings) and not alive,
        "verdict": None if alive else verdict(findings),
        "findings": findings_content(list(findings)),
        "result": result.model_dump(mode="json") if result else None,
    }


_SAME_KEYS = ("org", "system", "benchmark", "preset", "division", "metric", "machine", "software")
"""The attributes of an entry that are keys of the same name."""


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "letter": entry.letter,
        "path": str(entry.path),
        **{key: getattr(entry, key) for key in _SAME_KEYS},
        "units": entry.scale,
        "unit": entry.unit,
        "global_batch_size": entry.batch,
        "train_samples": entry.train_samples,
        "official_data": entry.official,
        "logs": entry.logs,
        "runs": len(entry.runs),
        "runs_are": entry.over,
        "aborted": entry.aborted,
        "score_min": entry.score.minutes if entry.score else None,
        "no_score": (entry.score.why or None) if entry.score else None,
        "time_s": entry.time_s and entry.time_s.content(),
        "parts_s": entry.parts_s,
        "epochs": entry.epochs and entry.epochs.content(),
        "samples_per_s_per_unit": entry.train_rate and entry.train_rate.content(),
        "energy_j": {kind: joules and joules.content() for kind, joules in entry.joules.items()},
        "notes": list(entry.notes),
    }
