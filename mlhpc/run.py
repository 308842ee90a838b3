"""``mlhpc run``: trains to the target and records the run in its folder. Start reading at ``main``."""

import argparse
import itertools
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from threading import Timer
from types import ModuleType
from typing import Any

from mlhpc.benchmarks import load, registry, rules
from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.schema import Run
from mlhpc.common.data import manifest
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.energy.meter import meter_of
from mlhpc.common.files import locks
from mlhpc.common.files.checksum import sha256
from mlhpc.common.files.filesystem import as_user_error, filesystem_of
from mlhpc.common.host.accelerators import usable
from mlhpc.common.host.binding import asked, cores_of_ranks, describe_binding
from mlhpc.common.pages.text import printable
from mlhpc.common.ranks import launch
from mlhpc.common.ranks.collectives import on_all_ranks, on_each_rank, on_rank0
from mlhpc.common.ranks.environment import forgotten_launcher, set_variables
from mlhpc.common.ranks.local import program, run_local
from mlhpc.common.ranks.world import World
from mlhpc.common.staging.eviction import HOOK, Eviction, drop_by_hook, evict
from mlhpc.common.staging.stage import remove, remove_after_abort
from mlhpc.common.staging.target import require_own
from mlhpc.common.timing.event_files import event_files
from mlhpc.common.timing.heartbeat import FIRST_S
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.training import checkpoint
from mlhpc.doctor.memory import REMEDY, killed_hint, memory_need
from mlhpc.emulated_step import emulated, require_supported
from mlhpc.errors import MISSED, QUIET, UserError, missing_package
from mlhpc.history.reading import remember
from mlhpc.quantities import bytes_text, count, seconds_text
from mlhpc.record.breakdown import VERSION as PARTS_VERSION
from mlhpc.record.conclusion import Conclusion, last_line
from mlhpc.record.environment import write_environment
from mlhpc.record.events import read_events
from mlhpc.record.fields import write_text
from mlhpc.record.hyperparameters import load_run
from mlhpc.record.rank_table import write_rank_table
from mlhpc.record.result import Result
from mlhpc.run_signals import closing_in_order, exit_on_sigterm
from mlhpc.unused import warn_of_unused


@dataclass(frozen=True)
class RunPaths:
    """The paths of a run. ``stage`` None: the data set is read in place. ``out`` None: a new folder under
    ``results/`` with the first unused number."""

    data: Path
    stage: Path | None
    out: Path | None
    resume: Path | None


def main(options: argparse.Namespace) -> int:
    """Prepare the run, train, and conclude the run. Returns the exit status: 0 if the target was met or steps were
    emulated, otherwise MISSED.

    Raises UserError if the run cannot start or fails; if it has started, it is logged as aborted.
    """
    run, paths = requested(options)
    warn_of_launcher(options.ranks)
    if options.ranks > 1 and "MLHPC_RANK" not in os.environ:
        cores = cores_of_ranks(asked(options.bind), options.ranks)
        hint = partial(killed_hint, run, options.ranks)
        return run_local(options.ranks, program(options.argv), hint, cores)
    set_variables(run.training.variables())
    framework = registry.find(run.benchmark).frameworks[run.training.framework]
    binding, own_cores = describe_binding(_threads_variable(run)), os.sched_getaffinity(0)
    with exit_on_sigterm(), launch.joined(framework.collectives) as world:
        trainer = _import_trainer(run, framework, world)
        # With OMP_PROC_BIND, importing PyTorch binds this thread to one core (PyTorch issue 99625), which threads
        # and processes that read data would inherit.
        os.sched_setaffinity(0, own_cores)
        on_all_ranks(world, lambda: trainer.check(run, paths.stage, world))
        _warn_of_memory(run, world)
        warn_of_unused(run, options.set, world, staged=paths.stage is not None)
        out, seed, evicted = prepare(run, paths, options.seed, options.evict, world, binding)
        with (
            RunLog(out, world, meter_of(world, accelerators=not _on_cpus(run))) as log,
            closing_in_order(world, out),
            removed_on_abort(paths.stage, world),
        ):
            log.say(_first_line(run, out, world))
            extended = on_rank0(world, lambda: extended_from(paths.resume, run))
            _log_facts(run, paths.resume, extended, seed, evicted, world, log)
            conclusion = Conclusion(run, out, world, log.lost)
            try:
                trainer.train(run, paths.data, paths.stage, seed, paths.resume, world, log)
            except BaseException:
                with suppress(UserError):  # on a full disk, this fails as well
                    conclusion.write()
                raise
            events, result = conclusion.write()
            write_rank_table(out, world, events)
        status = conclude(run, paths, evicted, events, result, out, world)
    if world.rank == 0:
        remember(out)
    if world.size > 1 and framework.collectives == "torch":
        launch.end_with(status)
    return status


def _first_line(run: Run, out: Path, world: World) -> str:
    """The first line that a run prints, before libraries are imported and the network is compiled."""
    return (
        f"{run.benchmark} {run.preset}: {count(run.data.train_samples, 'training sample')}, "
        f"{run.hyperparameters.global_batch_size} per step, on {count(world.size, 'rank')}, "
        f"up to {count(run.training.max_epochs, 'epoch')}; results in {out}"
    )


def _import_trainer(run: Run, framework: registry.Framework, world: World) -> ModuleType:
    # On a busy or shared file system, the import can take longer than everything else before the clock starts.
    waiting = Timer(FIRST_S - 1, lambda: sys.stderr.write(f"importing {run.training.framework} ...\n"))
    if world.rank == 0 and not os.environ.get(QUIET):
        waiting.start()
    try:
        return import_module(framework.trainer)
    except ModuleNotFoundError as error:
        what = f"{run.benchmark} in {run.training.framework}"
        raise UserError(missing_package(error, what, framework.extra)) from error
    finally:
        waiting.cancel()


# Before the run: errors are detected as early as possible, before the run has a folder.


def requested(options: argparse.Namespace) -> tuple[Run, RunPaths]:
    """The settings and paths from the command line. Raises UserError if they are invalid."""
    run = load_run(
        options.benchmark,
        options.preset,
        options.set,
        config=options.config,
        log=options.hyperparameters_from,
    )
    if options.compute is not None:
        run = emulated(run, options.compute, options.ranks)
    require_supported(run)
    rules.enforce(rules.RunContext(run, resumed=options.resume is not None))
    paths = RunPaths(
        data=options.data or Path("data") / f"{run.benchmark}-{run.preset}",
        stage=options.stage,
        out=options.out,
        resume=options.resume,
    )
    return run, paths


def prepare(
    run: Run,
    paths: RunPaths,
    seed: int | None,
    drop: bool,
    world: World,
    binding: Mapping[str, Any] | None = None,
) -> tuple[Path, int, Eviction | None]:
    """Create the run's folder with ``config.toml`` and ``env.json``. Returns the folder, the seed, and which data
    was dropped from the page caches (None: not requested). Called by all ranks. ``binding``: the cores to which
    this rank was bound before libraries were imported.

    Raises UserError if the rules forbid the run, the data set does not exist, or the folder contains results.
    """
    _print_findings(on_all_ranks(world, lambda: rules.enforce(context_of(run, paths, drop)))[0], world)
    source = run.hyperparameters_from
    if world.rank == 0 and source and not os.environ.get(QUIET):
        sys.stderr.write(f"mlhpc: {printable(source)}\n")  # a config.toml may contain any text
    on_rank0(world, lambda: manifest.require_folder(paths.data))
    on_all_ranks(world, lambda: _check_stage(paths.stage))
    if resume := paths.resume:
        seed = on_rank0(world, lambda: seed_of(resume, run))
    evicted = _evict(run, paths, world) if drop else None
    out = on_rank0(world, lambda: _make_out(run, paths.out))
    seed = world.broadcast(secrets.randbelow(2**31 - 1) + 1 if seed is None else seed)
    binding = binding or describe_binding(_threads_variable(run))
    write_environment(out / "env.json", paths.data, world, binding)
    if world.rank == 0:
        write_text(out / "config.toml", load.dumps(run))
    return out, seed, evicted


def context_of(run: Run, paths: RunPaths, evict: bool) -> rules.RunContext:
    """The facts that the rules can check before a run starts. The data set is neither opened nor listed."""
    stage = paths.stage
    return rules.RunContext(
        run,
        resumed=paths.resume is not None,
        data_on=filesystem_of(paths.data).type,
        staged_before=stage is not None and (stage / manifest.NAME).exists() and not locks.in_use(stage),
        evicted=evict,
    )


def warn_of_launcher(ranks: int) -> None:
    """Warn if a run has a single rank but was probably meant to have several. ``ranks``: the value of
    ``--ranks``."""
    if ranks <= 1 and (forgotten := forgotten_launcher(os.environ)):
        sys.stderr.write(f"mlhpc: warning: {forgotten}\n")


def seed_of(folder: Path, run: Run) -> int:
    """The seed of the run in ``folder`` that ``run`` resumes or, with more epochs, extends. Raises UserError,
    naming the settings, if any other setting differs."""
    saved, saved_run = saved_in(folder)
    before, now = (each.model_dump(mode="json", exclude={"division"}) for each in (saved_run, run))
    differing = load.differing(before, now)
    if run.training.max_epochs > saved_run.training.max_epochs:
        del differing["training.max_epochs"]  # more epochs extend a run
    if differing:
        changes = [f"{key} was {was}, now {value}" for key, (was, value) in differing.items()][:3]
        changes += [f"and {len(differing) - 3} more"] if len(differing) > 3 else []
        raise UserError(
            f"{folder} was run with different settings: {'; '.join(changes)}; "
            f"resume with --config {folder}/config.toml"
        )
    return saved.seed


def saved_in(folder: Path) -> tuple[checkpoint.Checkpoint, Run]:
    """The checkpoint in a run's folder and the run's settings. Raises UserError if either cannot be read."""
    saved = checkpoint.load(folder)
    try:
        return saved, load.loads(saved.config)
    except ValueError as error:
        raise UserError(f"{folder}: the checkpoint's settings cannot be read: {error}") from None


def extended_from(folder: Path | None, run: Run) -> int | None:
    """``training.max_epochs`` of the run in ``folder`` if ``run``, which resumes that run, has more epochs;
    otherwise None."""
    if folder is None:
        return None
    before = saved_in(folder)[1].training.max_epochs
    return before if before < run.training.max_epochs else None


def _check_stage(stage: Path | None) -> None:
    """Check the staging folder early; staging checks it again once the run has a folder. Raises UserError for an
    unsuitable folder."""
    if stage is None:
        return
    remedy = "choose another --stage"
    if os.path.lexists(stage):
        with as_user_error(stage, "cannot be used", remedy):
            require_own(stage)
        return
    above = next(path for path in stage.absolute().parents if os.path.lexists(path))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "is not writable" if above.is_dir() else "is not a folder"
        raise UserError(f"{stage} cannot be created: {above} {why}; {remedy}")


def _warn_of_memory(run: Run, world: World) -> None:
    """Warn if memory may not suffice, because the kernel kills a rank that runs out of memory, and the rank prints
    no message."""
    need = memory_need(run, world.size, world.local_size) if world.rank == 0 else None
    if need and not need.fits:
        sys.stderr.write(f"mlhpc: warning: memory: {need}: the kernel may kill the run; {REMEDY}\n")


def _make_out(run: Run, requested: Path | None) -> Path:
    """Create or reuse a folder for the results. Results are never overwritten: the process that creates
    ``run.log`` first owns the folder, even if two runs start at the same time. Files of a run that ended before
    training do not count as results, so a corrected command can reuse the folder."""
    occupied = "{} contains the results of another run; choose another --out, or move it away"
    numbered = (Path("results") / f"{run.benchmark}-{run.preset}-{number}" for number in itertools.count(1))
    out = requested or next(path for path in numbered if not path.exists())
    try:
        out.mkdir(parents=True, exist_ok=out.is_dir())
        if (out / "result.json").exists() and not _cleared(out):
            raise UserError(occupied.format(out))
        (out / "run.log").open("x").close()
    except FileExistsError:
        raise UserError(
            occupied.format(out) if out.is_dir() else f"{out} is a file; choose another --out"
        ) from None
    except OSError as error:
        raise UserError(f"cannot write results in {out}: {error.strerror}; choose another --out") from None
    return out


def _cleared(out: Path) -> bool:
    """Remove the record of a run that ended before its first epoch. Returns False if the run may have trained, or
    if another process has begun to remove the record."""
    try:
        status = json.loads((out / "result.json").read_text("utf-8"))["status"]
        events = read_events(out / "events.rank0.jsonl")
        if status != "aborted" or any((e["event"], e["name"]) == ("begin", "epoch") for e in events):
            return False
        (out / "result.json").unlink()  # succeeds in only one of two processes
    except (OSError, ValueError, LookupError, TypeError):
        return False
    for path in event_files(out).values():
        path.unlink(missing_ok=True)
    for name in ("run.log", "config.toml", "env.json", "report.html"):
        (out / name).unlink(missing_ok=True)
    return True


def _threads_variable(run: Run) -> str:
    return "TF_NUM_INTRAOP_THREADS" if run.training.framework == "tensorflow" else "OMP_NUM_THREADS"


def dataset_of(run: Run, data: Path, world: World) -> Manifest:
    """The manifest of the part of the data set that the run needs. Called by all ranks. Raises the same UserError
    on all ranks if the data set cannot be used."""
    dataset = manifest.describe(data, world, run.benchmark)
    select = registry.find(run.benchmark).select
    return on_each_rank(world, lambda: registry.load_object(select)(dataset, run.data)) if select else dataset


def _evict(run: Run, paths: RunPaths, world: World) -> Eviction:
    """Drop the data set from the page caches of the nodes that will read it, as the rules require, and print the
    result. File contents are not read."""
    nodes = count(world.nodes, "node")
    if done := drop_by_hook(os.environ, paths.data, world):
        line = f"{HOOK} dropped the page cache of {nodes} in {seconds_text(done.seconds)}"
    else:
        done = evict(dataset_of(run, paths.data, world), paths.stage, run.staging, world)
        line = (
            f"evicted {count(done.files, 'file')}, {bytes_text(done.bytes)}, from the page cache of {nodes} in "
            f"{seconds_text(done.seconds)}"
            + (
                f"; {done.kept} of them are still in memory, in use or owned by another user"
                if done.kept
                else ""
            )
        )
    if world.rank == 0:
        sys.stderr.write(f"mlhpc: {line}\n")
    return done


def _on_cpus(run: Run) -> bool:
    return getattr(run.training, "device", "") == "cpu"


def _accelerators(run: Run, world: World) -> dict[str, int]:
    """The records of the accelerators that the run uses, which are its scale: one for each rank, since PyTorch's
    world and NCCL refuse shared ones. What a rank sees does not count them: with ``srun --gpus-per-task``, it is
    only the rank's own. If nodes have different numbers of ranks, the rules' record is rounded up."""
    if _on_cpus(run) or not on_rank0(world, lambda: bool(usable())):
        return {"accelerators_per_node": 0}
    each, uneven = -(-world.size // world.nodes), world.size % world.nodes != 0
    if uneven and world.rank == 0:
        sys.stderr.write(
            f"mlhpc: warning: {world.size} accelerators on {world.nodes} nodes: accelerators_per_node is logged "
            f"as {each}, which overstates the scale in MLPerf's tools\n"
        )
    return {"accelerators_per_node": each, **({"number_of_accelerators": world.size} if uneven else {})}


def _log_facts(
    run: Run,
    resume: Path | None,
    extended: int | None,
    seed: int,
    evicted: Eviction | None,
    world: World,
    log: RunLog,
) -> None:
    """Log the records that the rules require before anything is timed, and the facts for result.json."""
    clear = evicted is not None and evicted.complete
    versions = {"preset": load.preset_version(run.benchmark, run.preset), "parts": PARTS_VERSION}
    log.note(
        "facts",
        resumed=resume is not None,
        **({"extended_from_epochs": extended} if extended else {}),
        seed=seed,
        ranks=world.size,
        nodes=world.nodes,
        launcher=world.launcher,
        source_evicted=clear,
        versions=versions,
    )
    if evicted:
        log.note("eviction", **evicted._asdict())
    submission = run.submission
    cut = getattr(run.training, "spatial", ())
    weights = getattr(run.training, "weights", "")
    coarse = getattr(run.training, "coarse_epochs", ())
    log.hyperparameters(
        {
            "cache_clear": clear,
            "submission_benchmark": registry.logged_name(run.benchmark),
            "submission_org": submission.org,
            "submission_division": run.division,
            "submission_status": submission.status,
            "submission_platform": submission.platform,
            "number_of_nodes": world.nodes,
            **_accelerators(run, world),
            "seed": seed,
            # These are not keys of the logging rules, but the suite's own check reads them.
            **{f"{what}_version": number for what, number in versions.items()},
            **({"resumed": True} if resume else {}),
            **({"spatial_parallelism": list(cut)} if prod(cut) > 1 else {}),
            **({"extended_from_epochs": extended} if extended else {}),
            **({"coarse_epochs": list(coarse)} if coarse else {}),
            **({"staging_overlap": True} if run.staging.overlap else {}),
            **({"hyperparameters_from": source.model_dump()} if (source := run.hyperparameters_from) else {}),
            **({"initial_weights": sha256(Path(weights))} if weights else {}),
            **(run.training.exchange() if world.size > 1 else {}),
            **({"study_steps": run.study.steps} if run.study.steps else {}),
            **({"emulated_step_s": run.emulation.step_s} if run.emulation.enabled else {}),
            "train_samples": run.data.train_samples,
            "eval_samples": run.data.eval_samples,
            **run.hyperparameters.logged(),
        }
    )


# After the run.


def conclude(
    run: Run,
    paths: RunPaths,
    evicted: Eviction | None,
    events: Sequence[dict[str, Any]],
    result: Result,
    out: Path,
    world: World,
) -> int:
    """Remove the staged copy, print the outcome, and return the exit status. Called by all ranks."""
    if paths.stage:
        _remove_staged(paths.stage, world)
    init_s = next((e["seconds"] for e in events if e["event"] == "end" and e["name"] == "init"), None)
    context = rules.RunContext(run, init_s=init_s, evicted=evicted and evicted.complete)
    _print_findings(rules.findings(context), world)
    if world.rank == 0:
        sys.stderr.write(last_line(result, out) + "\n")
    return 0 if result.status in ("success", "emulated") else MISSED


@contextmanager
def removed_on_abort(stage: Path | None, world: World) -> Iterator[None]:
    """Context manager that removes the staged copy of an aborted run on every node if its folder is named after
    the batch job, because no later job could use it."""
    if stage is None or world.local_rank != 0:
        yield
        return
    world.before_exit(lambda: remove_after_abort(stage, os.environ))
    try:
        yield
    except BaseException:
        remove_after_abort(stage, os.environ)
        raise


def _remove_staged(stage: Path, world: World) -> None:
    """Remove the staged copy after a completed run, since the next run must start without it. After an interrupted
    run, the staged files are kept for the next attempt."""
    for turn in (world.rank == 0, world.rank > 0 and world.local_rank == 0):
        # If the nodes share the folder, rank 0 has already removed it.
        if turn and (stage / manifest.NAME).exists():
            remove(stage)
        world.barrier()


def _print_findings(findings: Sequence[Finding], world: World) -> None:
    """Print rule violations that did not prevent the run from starting, or that were found after it ended."""
    for finding in findings if world.rank == 0 else ():
        sys.stderr.write(f"mlhpc: {finding.severity}: {rules.sentence(finding)}\n")
