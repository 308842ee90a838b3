"""``mlhpc profile``."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.schema import DdpTraining, Run
from mlhpc.common.data import manifest
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.pages.html import write
from mlhpc.common.ranks import launch
from mlhpc.common.ranks.environment import identify, set_variables
from mlhpc.common.ranks.local import program, run_local
from mlhpc.common.ranks.world import World
from mlhpc.common.timing import horovod_timeline
from mlhpc.common.timing.profile import Profile, Request
from mlhpc.errors import UserError, missing_package
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.machines import Machine, ceilings_of, device_model, machine
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.profile import batches, tables
from mlhpc.perf.profile.counters import Counters, of_step
from mlhpc.perf.profile.counters import read as read_counters
from mlhpc.perf.profile.host import differences
from mlhpc.perf.profile.launches import launches, settings_of
from mlhpc.perf.profile.layers import by_layer, by_operation, by_part, histogram

Measure = Callable[[Run, Request, World], Profile]


def profile(options: argparse.Namespace) -> int:
    """Profiles some training steps on each rank, at one or several batch sizes. Raises UserError."""
    _check(options)
    run = _requested(options)
    given = machine(options.machine) if options.machine else None
    framework = registry.find(run.benchmark).frameworks[run.training.framework]
    if not framework.profiler:
        raise UserError(f"{run.benchmark} has no profiler for {run.training.framework}")
    if options.data:
        manifest.require_folder(options.data)
    ranks = max(identify(os.environ).size, options.ranks)
    counters = read_counters(options.counters, options.counted_steps, ranks) if options.counters else None
    if options.ranks > 1 and "MLHPC_RANK" not in os.environ:
        return run_local(options.ranks, program(options.argv))
    set_variables(run.training.variables())
    if framework.collectives == "horovod":
        horovod_timeline.enable()
    with launch.joined(framework.collectives) as world:
        measure = _profiler(run, framework.profiler)
        if options.device_model:
            launches(
                options,
                run,
                device_model(options.device_model),
                lambda run, request: measure(run, request, world),
            )
            return 0
        parts = world.size * run.backward_passes
        sizes = options.batches or [
            options.batch or divide_batch(run.hyperparameters.global_batch_size, parts)
        ]
        trace = options.trace if world.rank == 0 else None
        wanted = partial(
            Request, steps=options.steps, trace=trace, data=options.data, passes=run.backward_passes
        )
        profiles = [world.gather(measure(run, wanted(size), world)) for size in sizes]
        if world.rank == 0:
            elsewhere = _elsewhere(given, profiles[0][0]) if given else ""
            if elsewhere:
                sys.stderr.write(f"mlhpc: warning: {elsewhere}\n")
            ceilings = ceilings_of(given, run.training.precision, world.local_size) if given else None
            _show(options, run, ceilings, profiles, elsewhere, counters)
    if world.size > 1 and framework.collectives == "torch":
        launch.end_with(0)
    return 0


def _elsewhere(given: Machine, first: Profile) -> str:
    """The error message if rank 0's profile ``first`` was not measured on the machine ``given``; otherwise an
    empty string."""
    if not (differ := differences(given, first)):
        return ""
    return (
        f"--machine {given.name}: this is another machine ({'; '.join(differ)}), so hardware efficiency "
        "would relate to the wrong peaks; pass this machine's file (written by mlhpc doctor --calibrate)"
    )


def _check(options: argparse.Namespace) -> None:
    options.batches = sorted(options.batches or [])
    if options.batches and options.batch is not None:
        raise UserError("--batch and --batches cannot be combined")
    if options.batches and options.trace:
        raise UserError("--trace writes the trace of a single batch size; use --batch instead of --batches")
    if options.batches and options.counters:
        raise UserError("--counters applies to a single batch size; use --batch instead of --batches")
    others = {
        "--machine": options.machine,
        "--ranks": options.ranks,
        "--data": options.data,
        "--trace": options.trace,
        "--counters": options.counters,
    }
    if options.device_model and (given := [name for name, value in others.items() if value]):
        raise UserError(f"--device-model measures nothing, so {given[0]} has no effect; omit it")


def _requested(options: argparse.Namespace) -> Run:
    settings = [*(settings_of(options.benchmark) if options.device_model else []), *options.set]
    if options.data:  # an epoch is cut to these steps; one with fewer steps is refused
        before = 1 + options.steps  # without the profiler
        settings += ["division=open", f"study.warmup_steps={before}", f"study.steps={options.steps}"]
    run = load(options.benchmark, options.preset or ("closed" if options.device_model else "smoke"), settings)
    if run.graphs == "on" or (isinstance(run.training, DdpTraining) and run.training.compile):
        key = "cuda_graphs" if run.graphs == "on" else "compile"
        raise UserError(f"profiles are of eager steps, without training.{key}; omit the setting")
    return run


def _profiler(run: Run, name: str) -> Measure:
    module, _, function = name.partition(":")
    try:
        measure: Measure = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        extra = registry.find(run.benchmark).frameworks[run.training.framework].extra
        raise UserError(
            missing_package(error, f"{run.benchmark} in {run.training.framework}", extra)
        ) from error
    return measure


def _show(
    options: argparse.Namespace,
    run: Run,
    ceilings: Ceilings | None,
    profiles: Sequence[Sequence[Profile]],
    elsewhere: str,
    counters: Counters | None,
) -> None:
    """Print the profiles, and write the page if requested. ``profiles``: by batch size, the profiles of all ranks.
    ``elsewhere``: the reason if the ceilings belong to a different machine. ``counters``: hardware counters of the
    same step, if any."""
    network = network_of(run)
    shown = []
    for ranks in profiles:
        first = ranks[0]
        times = by_layer(first, network, run.training.precision)
        bins = histogram(times, ceilings) if ceilings else []
        parts, operations = by_part(first), by_operation(first)
        counted = of_step(counters, first, network, run.training.precision) if counters else ()
        shown.append(tables.Shown(run, ranks, times, parts, operations, ceilings, bins, elsewhere, counted))
    if options.json:
        record = _record(shown[0]) if len(shown) == 1 else {"batches": [_record(each) for each in shown]}
        print(json.dumps(record, indent=1))
    elif len(shown) == 1:
        tables.show(shown[0])
    else:
        batches.show(shown)
    if options.out:
        write(options.out, tables.page(shown[0]) if len(shown) == 1 else batches.page(shown))


def _record(shown: tables.Shown) -> dict[str, Any]:
    profile = shown.profile
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "benchmark": shown.run.benchmark,
        "preset": shown.run.preset,
        "framework": shown.run.training.framework,
        "precision": shown.run.training.precision,
        "device": profile.device,
        "gpu": profile.gpu,
        "batch": profile.batch,
        "backward_passes": profile.passes,
        "steps": profile.steps,
        "step_s": profile.wall,
        "step_without_profiler_s": profile.plain,
        "parts_s": shown.of_step,
        "parts_of_all_threads_s": shown.parts,
        "per_sample_s": batches.per_sample(shown),
        "memory_bytes": profile.memory,
        "memory_modelled_bytes": batches.modelled(shown),
        "exchange": shown.run.training.exchange(),
        "ranks": [_rank_record(each) for each in shown.ranks],
        "layers": [
            time._asdict() | ({"efficiency": time.efficiency(shown.ceilings)} if shown.ceilings else {})
            for time in shown.times
        ],
        "operations": [{"name": n, "seconds": s, "calls": c} for n, s, c in shown.operations],
        "ceilings": asdict(shown.ceilings) if shown.ceilings else None,
        "measured_elsewhere": shown.elsewhere or None,
        "efficiency_histogram": [bin_._asdict() for bin_ in shown.bins],
        "counters": [each._asdict() for each in shown.counted],
    }


def _rank_record(profile: Profile) -> dict[str, Any]:
    exchange, reading = profile.exchange, profile.reading
    return {
        "step_s": profile.wall,
        "communication_s": exchange.exposed if exchange else None,
        "bytes_exchanged": exchange.bytes if exchange else None,
        "messages": [message._asdict() for message in exchange.messages] if exchange else [],
        "messages_under_way_s": exchange.under_way if exchange else None,
        "message_bytes_per_s": exchange.rate if exchange else None,
        "input_wait_s": reading.waited if reading else None,
        "bytes_read": reading.bytes if reading else None,
        "loader_alone_bytes_per_s": reading.alone if reading else None,
    }
