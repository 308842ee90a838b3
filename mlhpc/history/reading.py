"""Creates records from files written by this suite: runs, cells of studies, campaigns, I/O emulations, profiles
and predictions. The record depends only on the files, not on their location or the time when they are added."""

import contextlib
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from mlhpc.common.files.untrusted import parse_json, printable, read_object, read_text
from mlhpc.errors import UserError
from mlhpc.history.store import digest, put
from mlhpc.record.environment import Environment, without_number
from mlhpc.record.history import HistoryRecord, RunFigures, canonical, time_text
from mlhpc.record.result import Result
from mlhpc.record.run_directory import RunDirectory, read
from mlhpc.record.series import CampaignRecord

T = TypeVar("T")
STORE = "MLHPC_HISTORY"
"""Environment variable with the store to which runs, campaigns and emulations are added when they end."""
ADDING_S = 1.0
"""Maximum seconds that a process waits, as its last act, until its record is stored."""


def records_below(path: Path, system: str | None) -> Iterator[HistoryRecord]:
    """Yield the records of a folder written by this suite and of the folders below it. Prints a warning for each
    damaged folder below. Raises UserError if ``path`` itself is damaged."""
    if (path / "campaign.json").is_file():
        yield campaign_record(path, system)
    if (path / "result.json").is_file():
        yield folder_record(path, system)
        return
    folders = [each for each in path.glob("[!.]*") if each.is_dir() and not each.is_symlink()]
    for below in sorted(folders):
        try:
            yield from records_below(below, system)
        except UserError as error:  # the remaining records are still added
            sys.stderr.write(f"mlhpc: warning: not added: {error}\n")


def folder_record(path: Path, system: str | None) -> HistoryRecord:
    """The record of a run or an I/O emulation, from its folder. Raises UserError if the folder has no readable
    result."""
    stated = _read(path / "result.json", lambda file: read_object(file, os.O_NOFOLLOW))
    if stated.get("kind") == "io":
        return _io_record(path, stated, system)
    run = read(path)
    if run.result is None:
        why = dict(run.problems)["result.json"]
        raise UserError(f"{path}: result.json {why}; the run has not ended, or is damaged")
    result, config = run.result, run.config.model_dump(mode="json", exclude_none=True) if run.config else {}
    content: dict[str, Any] = {
        "result": result.model_dump(exclude_unset=True),
        "environment": run.env.model_dump(exclude_unset=True),
        "config": config,
    }
    with contextlib.suppress(OSError, ValueError):  # most runs do not belong to a study
        content["cell"] = read_object(path.parent / "cell.json", os.O_NOFOLLOW)
    if run.log and run.log.fingerprint:
        content["log"] = run.log.fingerprint
    return HistoryRecord(
        kind="study cell" if "cell" in content else "run",
        **_where(run.env, system),
        **same(result, "benchmark", "preset", "division", "status", "mlhpc", "ranks", "nodes"),
        global_batch_size=result.global_batch_size,
        framework=run.framework,
        when=_when(run),
        settings=_settings(config),
        versions=result.versions or {},
        accelerators=sum(len(machine.accelerators) for machine in run.env.machines),
        runs=(run_figures(result),),
        content=content,
    )


def _read(file: Path, reader: Callable[[Path], T]) -> T:
    try:
        return reader(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {printable(str(error))[:300]}") from None


def same(source: object, *keys: str) -> dict[str, Any]:
    """The attributes ``keys`` of ``source`` by name; a record uses the same names."""
    return {key: getattr(source, key) for key in keys}


def _when(run: RunDirectory | None) -> str | None:
    """The start of a run."""
    started = run.log.first("run_start") if run and run.log else None
    return time_text(started.time_ms / 1e3 if started else run.env.date if run else None)


def _where(env: Environment, system: str | None) -> dict[str, Any]:
    """System, machine and commit. Unless ``system`` is passed, the system is the Slurm cluster or, outside Slurm,
    the host name without the node's number."""
    return {
        "system": system or env.cluster or without_number(env.hostname),
        "machine": env.accelerators[0] if env.accelerators else env.cpu,
        "commit": f"{env.commit}{' with changes' * bool(env.dirty)}" if env.commit else None,
    }


def _settings(config: dict[str, Any]) -> str | None:
    """A digest of all settings except description and submitter; None without settings."""
    chosen = {key: value for key, value in config.items() if key not in ("description", "submission")}
    return digest(canonical(chosen))[:16] if chosen else None


def run_figures(result: Result) -> RunFigures:
    """The measurements of a run that a record contains. A negative time, which occurs if the clock was set back,
    is omitted."""
    seconds, parts = result.time_to_train_s, result.breakdown_s or {}
    known = {key: value for key, value in parts.items() if value is not None}
    epochs = len(result.epochs)
    trained = sum(known.get(part, 0.0) for part in ("data_wait", "step", "evaluation"))
    sane = seconds is not None and seconds > 0
    return RunFigures(
        time_to_train_s=seconds if sane else None,
        time_to_train_without_staging_s=result.time_to_train_without_staging_s if sane else None,
        epochs=epochs or None,
        epoch_s=trained / epochs if epochs and trained > 0 else None,
        parts_s=known,
        reached=result.status == "success",
        **same(result, "samples_per_s", "joules", "joules_per_sample", "seed"),
    )


def campaign_record(path: Path, system: str | None) -> HistoryRecord:
    """The record of a campaign's folder; its runs have separate records. Raises UserError if campaign.json cannot
    be read."""
    campaign = _read(path / "campaign.json", CampaignRecord.read)
    first: RunDirectory | None = None
    with contextlib.suppress(UserError, IndexError):
        first = read(path / campaign.run_states[0].name)
    score = campaign.score.minutes
    runs = (
        RunFigures(
            time_to_train_s=state.seconds,
            time_to_train_without_staging_s=state.without_staging_s,
            reached=state.state == "converged",
            **same(state, "epochs", "seed", "joules", "joules_per_sample"),
        )
        for state in campaign.run_states
    )
    return HistoryRecord(
        kind="campaign",
        **_where(first.env if first else Environment(), system),
        **same(campaign, "benchmark", "preset", "division", "mlhpc"),
        when=_when(first),
        status="scored" if score is not None else "not scored",
        versions=(first.result.versions or {}) if first and first.result else {},
        runs=tuple(runs),
        figures={} if score is None else {"score_s": score * 60},
        content={"campaign": campaign.model_dump(mode="json", exclude_unset=True)},
    )


def _io_record(path: Path, content: dict[str, Any], system: str | None) -> HistoryRecord:
    """The record of an I/O emulation."""
    from mlhpc.iobench.report.record import Result as Emulated

    result = _read(path / "result.json", lambda file: Emulated.model_validate(content))
    hosts = [rank.host for rank in result.rank_results]
    figures = {"au_percent": result.au_percent, "bytes_per_s": result.reading.bandwidth}
    return HistoryRecord(
        kind="io",
        benchmark=re.sub(r"[^\w.+-]", "_", result.workload.name)[:100],
        **_where(Environment(hostname=hosts[0] if hosts else None), system),
        when=time_text(result.date),
        **same(result, "mlhpc", "ranks", "nodes"),
        runs=(RunFigures(samples_per_s=result.samples_per_s),),
        figures={key: value for key, value in figures.items() if value is not None},
        content={"io": content},
    )


def json_records(path: Path, system: str | None) -> Iterator[HistoryRecord]:
    """The records of the output of ``mlhpc profile --json`` or ``mlhpc predict --json``. Raises UserError if the
    file contains neither."""
    value = _read(path, lambda file: parse_json(read_text(file, flags=os.O_NOFOLLOW)))
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict) or not {"benchmark", "step_s"} <= each.keys():
            raise UserError(f"{path}: not --json output of mlhpc profile or mlhpc predict")
        predicted = "machine" in each
        taken = "step_s" if predicted else "step_without_profiler_s"
        step, total = (_first(each.get(key)) for key in (taken, "time_to_train_s"))
        named = ("benchmark", "preset", "framework", "nodes", "accelerators", "global_batch_size")
        yield HistoryRecord(
            kind="prediction" if predicted else "profile",
            machine=each["machine"] if predicted else each.get("device"),
            system=system or each.get("machine"),
            when=time_text(each.get("date")),
            **{key: each.get(key) for key in named},
            runs=(RunFigures(time_to_train_s=total),) if total else (),
            figures={"training_step_s": step} if step is not None else {},
            content={"json": each},
        )


def node_record(path: Path, system: str | None) -> HistoryRecord:
    """The record of a machine file that ``mlhpc doctor --calibrate`` has written on a node. Raises UserError if
    the file cannot be read."""
    from mlhpc.perf.machines import machine

    measured = machine(str(path))
    node = measured.title.removesuffix(", as measured")
    dates = re.findall(r"\d{4}-\d\d-\d\d", " ".join(measured.sources.values()))
    if node == measured.title or not dates:
        raise UserError(f"{path}: not a machine file from mlhpc doctor --calibrate")
    return HistoryRecord(
        kind="node",
        node=node,
        **_where(Environment(hostname=node, cpu=str(measured.facts["accelerator.model"])), system),
        when=time_text(min(dates) + "T00:00:00+00:00"),
        figures=dict(measured.figures),
    )


def _first(value: Any) -> float | None:
    value = value[0] if isinstance(value, list) and value else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def remember(path: Path) -> None:
    """Add the run, campaign or emulation in ``path`` to the store named by the environment variable
    ``MLHPC_HISTORY``, if it is set. Called last, when the result has been printed and all ranks have disconnected.

    Never raises, and waits at most ``ADDING_S``: if the store fails or hangs, a warning says how to add the record
    later. A detached process would need no wait, but batch systems kill it with its job.
    """
    store = os.environ.get(STORE)
    if not store:
        return
    problem = [f"not written within {ADDING_S:.0f} s"]

    def add() -> None:
        try:
            put(Path(store), next(records_below(path, None)))  # of a campaign, not its runs
            problem.clear()
        except Exception as error:  # whatever the error, the run has ended and its result is in its folder
            problem[:] = [printable(str(error)) or "no result"]

    thread = threading.Thread(target=add, daemon=True)
    thread.start()
    thread.join(ADDING_S)
    if why := "".join(problem):  # the thread may still be writing
        later = shlex.join(["mlhpc", "history", "add", str(path), "--store", store])
        sys.stderr.write(f"mlhpc: warning: not in the history: {why}; add it with: {printable(later)}\n")
