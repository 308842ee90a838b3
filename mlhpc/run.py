"""``mlhpc run``: one training to target, and the directory that is its evidence."""

import importlib
import json
import os
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import mlhpc
from mlhpc.benchmarks import load, rules
from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.schema import Run
from mlhpc.common.data import manifest
from mlhpc.common.files import atomic, pagecache
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.host.provenance import accelerators, describe_environment
from mlhpc.common.ranks import environment, launch
from mlhpc.common.ranks.collectives import on_all_ranks, on_rank0
from mlhpc.common.ranks.world import Loss, World
from mlhpc.common.staging.stage import remove
from mlhpc.common.staging.target import in_use
from mlhpc.common.timing.breakdown import breakdown, read_events
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.training import checkpoint
from mlhpc.errors import Ended, UserError
from mlhpc.submission.logs.result_sets import MLPERF_NAMES

ENDED = "ended from outside (SIGTERM), perhaps by the time limit of the job"
BACKENDS: dict[str, launch.Framework] = {"cosmoflow": "horovod", "deepcam": "torch", "resnet50": "torch"}
TRAINERS = {
    "cosmoflow": "mlhpc.cosmoflow.tf.train",
    "deepcam": "mlhpc.deepcam.train",
    "resnet50": "mlhpc.resnet50.train",
}


@dataclass(frozen=True)
class RunPaths:
    """Where a run reads and writes. ``stage`` None: read the data set where it lies. ``out`` None: the first
    free number under ``results/``."""

    data: Path
    stage: Path | None
    out: Path | None
    resume: Path | None


def execute(run: Run, places: RunPaths, seed: int | None, evict: bool) -> int:
    """Train to target and leave the evidence in ``places.out``. Returns the exit status: 0 when the target
    was met, 1 when it was not.

    Raises UserError when the output directory holds results already, or anything else is for the user to
    mend; once the run has begun, its log then says that it was aborted.
    """
    signal.signal(signal.SIGTERM, _exit_at_once)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes on its build would bury ours
    # Where TensorFlow would do without oneDNN, on older CPUs, its pooling in three dimensions gives the gradient
    # to every voxel within 1e-5 of the largest.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    threads = str(environment.threads_per_rank(environment.identify(os.environ)))
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ.setdefault(name, threads)
    try:
        with launch.joined(BACKENDS[run.benchmark]) as world:
            result, out = _execute(run, places, seed, evict, world)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if world.rank == 0:
        sys.stderr.write(_last_line(result, out) + "\n")
    status = 0 if result["status"] == "success" else 1
    if world.size > 1 and BACKENDS[run.benchmark] == "torch":
        launch.end_with(status)
    return status


def _execute(
    run: Run, places: RunPaths, seed: int | None, evict: bool, world: World
) -> tuple[dict[str, Any], Path]:
    _warn(on_all_ranks(world, lambda: rules.enforce(context_of(run, places, evict)))[0], world)
    # What can be known to be wrong is told before the run has a folder.
    on_rank0(world, lambda: manifest.require_folder(places.data))
    if resume := places.resume:
        seed = on_rank0(world, lambda: seed_of(resume, run))
    trainer = importlib.import_module(TRAINERS[run.benchmark])
    on_all_ranks(world, lambda: trainer.check(run, places.stage, world))
    out = world.broadcast(_make_out(run, places.out) if world.rank == 0 else Path())
    seed = world.broadcast(secrets.randbelow(2**31 - 1) + 1 if seed is None else seed)
    _write_evidence(run, places.data, out, world)
    evicted = evict and _evict(places.data, world)
    with RunLog(out, world) as log, _heeding_signals(world):
        _log_facts(run, places.resume, seed, evicted, world, log)
        conclude = partial(_conclude, run, out, world, threading.Lock())

        def lost(loss: Loss) -> None:
            log.lost(loss)
            conclude(last=True)

        world.on_loss(lost)
        try:
            trainer.train(run, places.data, places.stage, seed, places.resume, world, log)
        finally:
            events, result = conclude()
    if places.stage:
        _remove_staged(places.stage, world)
    init_s = next((e["seconds"] for e in events if e["event"] == "end" and e["name"] == "init"), None)
    _warn(rules.findings(rules.RunContext(run, init_s=init_s, evicted=evicted if evict else None)), world)
    return result, out


def _conclude(
    run: Run, out: Path, world: World, turn: threading.Lock, last: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of this rank and what they come to; rank 0 writes it. ``last``: the process ends after this,
    and nobody else is to begin to write."""
    turn.acquire()
    try:
        events = read_events(out / f"events.rank{world.rank}.jsonl")
        result = summarize(run, events)
        if world.rank == 0:
            _write(out / "result.json", json.dumps(result, indent=1) + "\n")
    finally:
        if not last:
            turn.release()
    return events, result


def context_of(run: Run, places: RunPaths, evict: bool) -> rules.RunContext:
    """What the rules can know of a run before it starts. The data set is neither opened nor listed."""
    stage = places.stage
    return rules.RunContext(
        run,
        resumed=places.resume is not None,
        data_on=filesystem_of(places.data).type,
        staged_before=stage is not None and (stage / manifest.NAME).exists() and not in_use(stage),
        evicted=evict,
    )


def _warn(findings: Sequence[Finding], world: World) -> None:
    """What speaks against a run that could start all the same, or has ended."""
    for finding in findings if world.rank == 0 else ():
        sys.stderr.write(f"mlhpc: {finding.severity}: {rules.sentence(finding)}\n")


def summarize(run: Run, events: list[dict[str, Any]]) -> dict[str, Any]:
    """``result.json`` (docs/architecture.md) from the events of rank 0."""
    noted = {e["name"]: e for e in events if e["event"] == "note"}
    facts = _plain(noted["facts"])
    staged = noted.get("staging")
    metrics: dict[int, dict[str, float]] = {}
    for event in events:
        if event["event"] == "metric" and "epoch" in event:
            metrics.setdefault(event["epoch"], {})[event["name"]] = event["value"]
    ended_well = any(e["event"] == "end" and e["name"] == "run" and "error" not in e for e in events)
    status = noted["finish"]["status"] if "finish" in noted and ended_well else "aborted"
    values = [e["value"] for e in events if e["event"] == "metric" and e["name"] == run.target.metric]
    best = (max if run.target.higher_is_better else min)(values) if values else None
    try:
        times = breakdown(events)
    except ValueError:
        times = None
    ended = times is not None and status != "aborted"
    return {
        "mlhpc": mlhpc.__version__,
        "benchmark": run.benchmark,
        "preset": run.preset,
        "division": run.division,
        "status": status,
        **facts,
        "target": {
            "metric": run.target.metric,
            "label": run.target.label,
            "value": run.target.value,
            "best": best,
            "reached": status == "success",
        },
        "time_to_train_s": times.total if times and ended else None,
        "time_to_train_without_staging_s": times.without_staging if times and ended else None,
        "breakdown_s": {**times.parts(), "staging": times.staging if staged else None}
        if times and ended
        else None,
        "epochs": [
            {
                "epoch": epoch.epoch,
                "train_s": epoch.train_s,
                "data_wait_s": epoch.data_wait_s,
                "step_s": epoch.step_s,
                "eval_s": epoch.eval_s,
                "samples_per_s": metrics[epoch.epoch]["samples"] / epoch.train_s,
                **metrics[epoch.epoch],
            }
            for epoch in (times.epochs if times else ())
            if "samples" in metrics.get(epoch.epoch, {})
        ],
        "samples": {
            "train": run.data.train_samples,
            "eval": run.data.eval_samples,
            "shape": list(run.data.sample_shape),
        },
        "global_batch_size": run.hyperparameters.global_batch_size,
        "staging": _plain(staged) if staged else None,
    }


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("t", "event", "name")}


def _make_out(run: Run, wanted: Path | None) -> Path:
    """A directory for the results, by rank 0. Results are never written over: whoever creates ``run.log``
    first has the directory, also when two runs start at once."""
    taken = "{} holds the results of another run; choose another --out, or move it away"
    numbered = (Path("results") / f"{run.benchmark}-{run.preset}-{number}" for number in count(1))
    out = wanted or next(path for path in numbered if not path.exists())
    try:
        out.mkdir(parents=True, exist_ok=out.is_dir())
        if (out / "result.json").exists():
            raise UserError(taken.format(out))
        (out / "run.log").open("x").close()
    except FileExistsError:
        raise UserError(
            taken.format(out) if out.is_dir() else f"{out} is a file; choose another --out"
        ) from None
    except OSError as error:
        raise UserError(f"cannot write results in {out}: {error.strerror}; choose another --out") from None
    return out


def _exit_at_once(number: int, frame: object) -> None:
    """SIGTERM while there is nothing to close. Frameworks that are being loaded bear no exception from a
    signal: PyTorch 2.13 aborts with a page of frames."""
    os.write(2, f"mlhpc: {ENDED}\n".encode())
    os._exit(2)


@contextmanager
def _heeding_signals(world: World) -> Iterator[None]:
    """SIGTERM and Ctrl-C while the log is open. Rank 0 raises, so that all is closed in order; what comes after
    the first is ignored, for a launcher may send several, and Ctrl-C reaches the starter of local ranks too,
    which then ends them. The other ranks have nothing to close: they say it and are gone, from a thread, for the
    signal may have come in the middle of what they say to rank 0."""
    came: list[int] = []
    # What was started to be deaf to Ctrl-C, in the background of a script, stays so.
    ctrl_c = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else []
    numbers = [signal.SIGTERM, *ctrl_c]

    def leave(number: int) -> None:
        what = ENDED if number == signal.SIGTERM else "interrupted"
        world.fail(what)
        os.write(2, f"mlhpc: {what}\n".encode())
        os._exit(2)

    def end(number: int, frame: object) -> None:
        came.append(number)
        if len(came) > 1:
            return  # and not SIG_IGN: Python tells of a signal that came just before with a traceback
        if world.rank != 0:
            threading.Thread(target=leave, args=(number,), daemon=True).start()
        elif number == signal.SIGTERM:
            raise Ended(ENDED)
        else:
            raise KeyboardInterrupt

    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    except BaseException as error:
        if came:  # a framework may have made another error of it on its way
            raise (UserError(ENDED) if came[0] == signal.SIGTERM else KeyboardInterrupt) from error
        raise
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def seed_of(directory: Path, run: Run) -> int:
    """The seed of the run that is resumed. Raises UserError when its settings were others, and says which."""
    saved = checkpoint.load(directory)
    before, now = (
        dict(_settings(each.model_dump(mode="json", exclude={"division"})))
        for each in (load.loads(saved.config), run)
    )
    differ = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if differ:
        told = [f"{key} was {before.get(key)}, now {now.get(key)}" for key in differ[:3]]
        told += [f"and {len(differ) - 3} more"] if len(differ) > 3 else []
        raise UserError(
            f"{directory} was run with other settings: {'; '.join(told)}; resume with those in "
            f"{directory}/config.toml"
        )
    return saved.seed


def _settings(table: dict[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a table and the tables in it, by its name as ``--set`` has it."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{below}{key}.")
        else:
            yield below + key, value


def _evict(data: Path, world: World) -> bool:
    """Before the run, as the rules have caches cleared: drop the data set from every node's page cache; no
    file's content is read. Returns whether no page of it was left on any node."""
    gone = True
    if world.local_rank == 0:
        files = [path for path in data.rglob("*") if path.is_file()]
        pagecache.evict(files)
        gone = not any(pagecache.resident_fraction(path) for path in files)
    return all(world.gather(gone))


def _remove_staged(stage: Path, world: World) -> None:
    """After a run that went to its end: the next one is to find nothing staged. An interrupted run leaves its
    files for the next try."""
    for turn in (world.rank == 0, world.rank > 0 and world.local_rank == 0):
        # Nodes may turn out to share the folder; then rank 0 has removed it for all.
        if turn and (stage / manifest.NAME).exists():
            remove(stage)
        world.barrier()


def _write_evidence(run: Run, data: Path, out: Path, world: World) -> None:
    mine = describe_environment() if world.local_rank == 0 else None
    nodes = [facts for facts in world.gather(mine) if facts]
    if world.rank == 0:
        keys = ("hostname", "cpu", "cores", "memory_gib", "accelerators", "os")
        env = {
            **nodes[0],
            "nodes": [{key: node[key] for key in keys} for node in nodes],
            "command": shlex.join(["mlhpc", *sys.argv[1:]]),
            "data": str(data.absolute()),
        }
        _write(out / "env.json", json.dumps(env, indent=1) + "\n")
        _write(out / "config.toml", load.dumps(run))


def _log_facts(run: Run, resume: Path | None, seed: int, evicted: bool, world: World, log: RunLog) -> None:
    """The records that the rules want before anything is timed, and the facts that result.json carries."""
    log.note(
        "facts",
        resumed=resume is not None,
        seed=seed,
        ranks=world.size,
        nodes=world.nodes,
        launcher=world.launcher,
        source_evicted=evicted,
    )
    submission = run.submission
    log.hyperparameters(
        {
            "cache_clear": evicted,
            "submission_benchmark": MLPERF_NAMES.get(run.benchmark, run.benchmark),
            "submission_org": submission.org,
            "submission_division": run.division,
            "submission_status": submission.status,
            "submission_platform": submission.platform,
            "number_of_nodes": world.nodes,
            "accelerators_per_node": min(len(accelerators()), world.local_size),
            "seed": seed,
            # No keys of the rules: our own check looks for them.
            **({"resumed": True} if resume else {}),
            **({"study_steps": run.study.steps} if run.study.steps else {}),
            "train_samples": run.data.train_samples,
            "eval_samples": run.data.eval_samples,
            **run.hyperparameters.logged(),
        }
    )


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    try:
        atomic.write_bytes(path, text.encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; make room there") from None


def _last_line(result: dict[str, Any], out: Path) -> str:
    target = result["target"]
    outcome = ("reached" if target["reached"] else "missed") + (", resumed" if result["resumed"] else "")
    staged = "staging included" if result["staging"] else "nothing was staged"
    best = "nothing evaluated" if target["best"] is None else f"best {target['best']:.4f}"
    return (
        f"{result['benchmark']} {result['preset']}: target {target['label']} {target['value']} {outcome} "
        f"({best}) in {result['time_to_train_s']:.2f} s, {staged}; "
        f"see: mlhpc report {shlex.quote(str(out))}"
    )
