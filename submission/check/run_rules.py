"""Rules for run folders: required files, and consistency between the files."""

from collections.abc import Iterator

from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.registry import logged_name
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError
from mlhpc.quantities import count
from mlhpc.record.mllog import Log
from mlhpc.record.result import Result
from mlhpc.record.run_directory import RunDirectory
from mlhpc.submission.result_set import Metric


def run_rules(run: RunDirectory, rules: str, metric: Metric) -> Iterator[Finding]:
    """Findings on a run folder: missing files, and differences between result, log and configuration. Instances
    for the throughput metric ("weak") may share data that one instance staged."""
    yield from _files(run)
    if run.result:
        yield from _result_rules(run.result)
        yield from _staged_inside(run.result, rules, metric)
    if run.result and run.log:
        yield from _result_against_log(run.result, run.log)
    if run.config:
        yield from _division(run.config)
    if run.config and run.result:
        yield from _result_against_config(run.result, run.config)


def _files(run: RunDirectory) -> Iterator[Finding]:
    for name, problem in run.problems:
        if name == "result.json" and problem == "is missing":
            remedy = "the run did not end (killed? time limit? out of memory?): see the job's output"
        else:
            remedy = "the folder is the evidence of the run: restore the file, or repeat the run"
        yield Finding("run/files", "error", name, f"{name}, complete", problem, remedy)


def _result_rules(result: Result) -> Iterator[Finding]:
    target = result.target
    if result.status != "success":
        best = "nothing was evaluated" if target.best is None else f"best {target.label} {target.best:.6g}"
        remedy = "only a run that met its target has a time to train"
        expected = f"status success: {target.label} of {target.value:g} met"
        actual = f"status {result.status!r}, {best}"
        yield Finding("run/status", "error", "result.json", expected, actual, remedy)
    if result.division == "closed" and result.data and result.data.lossy:
        remedy = "convert the data set losslessly, or set division to open"
        expected = "lossless data in the closed division"
        yield Finding("run/codec", "error", "result.json", expected, f"data by {result.data}", remedy)
    if result.resumed:
        remedy = "run without --resume: the clock of a resumed run does not include its first part"
        expected = "a run from start to target"
        yield Finding("run/resumed", "error", "result.json", expected, "resumed from a checkpoint", remedy)
    if result.seed is None:
        yield Finding("run/seed", "error", "result.json", "a seed", "none", "run again with this version")
    total, parts = result.time_to_train_s, result.breakdown_s
    if total is not None and parts is not None:
        summed = sum(seconds or 0.0 for seconds in parts.values())
        if not abs(summed - total) <= 0.01 * total:
            remedy = "the breakdown does not match the run; report this as a bug in mlhpc"
            expected = f"parts that add up to {total:.3f} s, within 1%"
            yield Finding("run/breakdown", "error", "result.json", expected, f"{summed:.3f} s", remedy)


def _staged_inside(result: Result, rules: str, metric: Metric) -> Iterator[Finding]:
    """Findings on files that were in the staging target before the run. Up to round 2.0, the data set is initially
    on the shared file system, and copying it to the nodes is timed (MLPerf HPC training rules)."""
    if result.staging is None or rules == "hpc_3.0.0":
        return
    if before := result.staging.kept - (result.staging.shared if metric == "weak" else 0):
        remedy = "empty the target, and repeat the run; or check under 3.0.0, which does not time staging"
        expected = "every staged file copied inside the run"
        actual = f"{count(before, 'file')} {'was' if before == 1 else 'were'} already in the staging target"
        yield Finding("run/staging", "error", "result.json", expected, actual, remedy)


def _result_against_log(result: Result, log: Log) -> Iterator[Finding]:
    """Findings on differences between result.json and the log, whose times come from the same clock readings and
    agree to a millisecond."""
    for label, claimed, logged in (
        ("run_stop − run_start", result.time_to_train_s, log.time_to_train_s),
        ("the same without staging", result.time_to_train_without_staging_s, _without_staging(log)),
    ):
        if claimed is None or logged is None:
            continue
        # A difference of two rounded times is off by less than 1 ms, one of four by less than 2 ms.
        allowed_ms = 1 if label.startswith("run_stop") else 2
        if not abs(claimed - logged) * 1e3 <= allowed_ms + 1e-3:
            remedy = "the log and the result are from different runs, or one was edited: repeat the run"
            expected = f"{label} of the log: {logged:.3f} s"
            yield Finding("run/time", "error", "result.json", expected, f"{claimed:.3f} s", remedy)
    target = result.target
    evaluations = log.evaluations(target.metric)
    if target.reached and not any(target.met_by(e.value) for e in evaluations):
        best = (max if target.metric == "eval_accuracy" else min)(
            (e.value for e in evaluations), default=None
        )
        remedy = "the target was reached by result.json, but not by the log: repeat the run"
        expected = f"an evaluation inside the run that meets {target.value:g}"
        actual = "none" if best is None else f"the best {target.metric} is {best:.6g}"
        yield Finding("run/target", "error", log.path.name, expected, actual, remedy)
    for rule, key, value in (
        ("run/seed", "seed", result.seed),
        ("run/samples", "train_samples", result.samples.train),
        ("run/samples", "eval_samples", result.samples.eval),
        ("run/division", "submission_division", result.division),
        ("run/division", "submission_benchmark", logged_name(result.benchmark)),
    ):
        logged_value = log.value(key)
        if value is not None and logged_value != value:
            remedy = "the log and the result are from different runs, or one was edited: repeat the run"
            expected = f"{key} {value} as in result.json"
            actual = "no such record" if logged_value is None else str(logged_value)
            yield Finding(rule, "error", log.path.name, expected, actual, remedy)


def _without_staging(log: Log) -> float | None:
    if log.time_to_train_s is None:
        return None
    return log.time_to_train_s - sum(interval.seconds for interval in log.staging)


def _result_against_config(result: Result, config: Run) -> Iterator[Finding]:
    for rule, quantity, claimed, configured in (
        ("run/samples", "training samples", result.samples.train, config.data.train_samples),
        ("run/samples", "evaluation samples", result.samples.eval, config.data.eval_samples),
        ("run/samples", "sample shape", result.samples.shape, config.data.sample_shape),
        ("run/target", "target", result.target.value, config.target.value),
        ("run/division", "division", result.division, config.division),
        ("run/division", "preset", result.preset, config.preset),
    ):
        if claimed != configured:
            remedy = "the run did not follow its configuration: check the data set, and repeat the run"
            expected = f"{quantity} {configured} as in config.toml"
            yield Finding(rule, "error", "result.json", expected, str(claimed), remedy)


def _division(config: Run) -> Iterator[Finding]:
    """Findings on a run in the closed division whose data, network or target differ from the reference's, which
    are those of the benchmark's preset ``closed`` (MLPerf HPC training rules, section 5)."""
    if config.division != "closed":
        return
    try:
        official = load(config.benchmark, "closed")
    except UserError as error:
        remedy = "use division open"
        yield Finding("run/division", "error", "config.toml", "a closed division", str(error), remedy)
        return
    for part in ("target", "data", "network"):
        configured, required = getattr(config, part).model_dump(), getattr(official, part).model_dump()
        for key in configured:
            if configured[key] != required[key]:
                remedy = "run the preset closed unchanged, or set division to open"
                expected = f"closed: {part}.{key} = {required[key]}"
                actual = f"{configured[key]} (preset {config.preset!r})"
                yield Finding("run/division", "error", "config.toml", expected, actual, remedy)
