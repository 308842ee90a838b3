"""``mlhpc profile``."""

import argparse
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from mlhpc.benchmarks import registry
from mlhpc.benchmarks.load import load
from mlhpc.benchmarks.schema import Run
from mlhpc.common.pages.html import write
from mlhpc.common.timing.profile import Profile
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.machines import Machine, machine
from mlhpc.perf.networks.registry import network_of
from mlhpc.perf.profile import tables
from mlhpc.perf.profile.layers import by_layer, by_operation, by_part, histogram


def profile(options: argparse.Namespace) -> int:
    """Profiles some training steps on samples in memory, on one rank. Raises UserError."""
    if options.steps < 1 or (options.batch is not None and options.batch < 1):
        raise UserError("--steps and --batch: give 1 or more")
    run = load(options.benchmark, options.preset, options.set)
    batch = options.batch or run.hyperparameters.global_batch_size // run.backward_passes
    ceilings = ceilings_of(machine(options.machine), run) if options.machine else None
    network = network_of(run)
    found = _measure(run, batch, options.steps, options.trace)
    times = by_layer(found, network, run.training.precision)
    bins = histogram(times, ceilings) if ceilings else []
    shown = tables.Shown(run, found, times, by_part(found), by_operation(found), ceilings, bins)
    if options.json:
        print(json.dumps(_record(shown), indent=1))
    else:
        tables.show(shown)
    if options.out:
        write(options.out, tables.page(shown))
    return 0


def ceilings_of(given: Machine, run: Run) -> Ceilings:
    """The peaks of an accelerator of ``given`` in the precision of ``run``."""
    tensor, _ = given.peak(run.training.precision)
    why = "hardware efficiency"
    return Ceilings(
        str(given.facts["accelerator.model"]),
        tensor,
        given.need("accelerator.float32", why),
        given.need("accelerator.bandwidth", why),
    )


def _measure(run: Run, batch: int, steps: int, trace: Path | None) -> Profile:
    framework = registry.find(run.benchmark).frameworks[run.training.framework]
    if not framework.profiler:
        raise UserError(f"{run.benchmark} has no profiler for {run.training.framework}")
    module, _, function = framework.profiler.partition(":")
    try:
        measure = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{run.benchmark} needs the package {error.name}, which is not installed here; see "
            "docs/dependencies.md"
        ) from error
    found: Profile = measure(run, batch, steps, trace)
    return found


def _record(shown: tables.Shown) -> dict[str, Any]:
    profile = shown.profile
    return {
        "benchmark": shown.run.benchmark,
        "preset": shown.run.preset,
        "precision": shown.run.training.precision,
        "device": profile.device,
        "batch": profile.batch,
        "steps": profile.steps,
        "step_s": profile.wall,
        "parts_s": shown.parts,
        "layers": [
            time._asdict() | ({"efficiency": time.efficiency(shown.ceilings)} if shown.ceilings else {})
            for time in shown.times
        ],
        "operations": [{"name": n, "seconds": s, "calls": c} for n, s, c in shown.operations],
        "ceilings": asdict(shown.ceilings) if shown.ceilings else None,
        "efficiency_histogram": [bin_._asdict() for bin_ in shown.bins],
    }
