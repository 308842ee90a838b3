"""``mlhpc run --dry-run``: shows the size and settings of a run without starting, creating or writing anything."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks import load, registry, rules
from mlhpc.benchmarks.schema import HyperparametersSource, Run
from mlhpc.common.data import manifest
from mlhpc.common.data.manifest import Manifest
from mlhpc.common.data.partition import files_of_node
from mlhpc.common.data.sharding import divide_batch
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.host.binding import Cores, asked, cores_of_ranks, ranges
from mlhpc.common.host.memory import usable_bytes
from mlhpc.common.pages.terminal import say
from mlhpc.common.pages.text import printable
from mlhpc.common.ranks.environment import identify
from mlhpc.common.ranks.world import Solo
from mlhpc.doctor.memory import rank_memory
from mlhpc.errors import UserError
from mlhpc.quantities import bytes_text, count
from mlhpc.run import context_of, dataset_of, requested, seed_of, warn_of_launcher
from mlhpc.submission.check.content import findings_content


def content(options: argparse.Namespace) -> dict[str, Any]:
    """The content of ``mlhpc run --dry-run --json`` (docs/reference/json.md).

    Raises the same UserErrors as the start of the run.
    """
    run, paths = requested(options)
    warn_of_launcher(options.ranks)
    rank_info = identify(os.environ)
    ranks = options.ranks or rank_info.size
    nodes = 1 if options.ranks else rank_info.nodes
    if check := registry.find(run.benchmark).check:
        registry.load_object(check)(run)
    run.require_startable(ranks, staged=paths.stage is not None)
    together = run.training.spatial_size
    local = divide_batch(run.hyperparameters.global_batch_size, ranks // together)
    if paths.resume:
        seed_of(paths.resume, run)
    # Without a manifest, listing files can take minutes.
    dataset = dataset_of(run, paths.data, Solo()) if (paths.data / manifest.NAME).is_file() else None
    context = replace(context_of(run, paths, options.evict), facts=dataset.facts if dataset else None)
    cores: Sequence[Cores] = ()
    unbound = None
    if rank_info.launcher == "none":
        try:
            cores = cores_of_ranks(asked(options.bind), ranks)
        except UserError as error:
            if options.bind:
                raise
            unbound = str(error)  # a site file lists the cores of compute nodes, not of login nodes
    steps = run.data.train_samples // run.hyperparameters.global_batch_size
    return {
        "benchmark": run.benchmark,
        "preset": run.preset,
        "settings": run.model_dump(mode="json", exclude_none=True),
        "ranks": ranks,
        "nodes": nodes,
        "cores_of_ranks": [ranges(own) for own in cores] or None,
        "binding_problem": unbound,
        "local_batch_size": local,
        "ranks_per_sample": together,
        "steps_per_epoch": steps,
        "max_epochs": run.training.max_epochs,
        "max_steps": steps * run.training.max_epochs,
        "data": {
            "path": str(paths.data),
            "exists": paths.data.is_dir(),
            "files": len(dataset.files) if dataset else None,
            "bytes": dataset.bytes if dataset else None,
        },
        "staging": _staging(run, paths.stage, dataset, nodes or 1),
        "memory": _memory(run, ranks),
        "findings": findings_content(rules.findings(context)),
    }


def _staging(run: Run, stage: Path | None, dataset: Manifest | None, nodes: int) -> dict[str, Any] | None:
    """Facts about staging to node 0, which stores the most data: folder, file system, files and bytes; None
    without a staging folder."""
    if stage is None:
        return None
    target = filesystem_of(stage)
    facts: dict[str, Any] = {"path": str(stage), "mode": run.staging.mode}
    facts |= {"filesystem": target.type, "is_ram": target.is_ram, "free_bytes": target.free_bytes}
    if dataset:
        files = files_of_node(dataset.files, 0, nodes, run.staging.mode)
        facts |= {"files_per_node": len(files), "bytes_per_node": files.size}
    return facts


def _memory(run: Run, ranks: int) -> dict[str, Any] | None:
    """Bytes of memory for a training step on one rank; None for a network without a memory model, or if ranks
    share samples."""
    if not (needed := rank_memory(run, ranks)):
        return None
    return {
        "batch": needed.batch,
        "parameters": needed.parameters,
        "step_peak_bytes": needed.peak,
        "node_bytes": usable_bytes(),
    }


def dry_run(options: argparse.Namespace, console: Console) -> None:
    """Print the size of the run, then all settings."""
    facts = content(options)
    data, staging, memory = facts["data"], facts["staging"], facts["memory"]
    on = "" if facts["nodes"] is None else f" on {count(facts['nodes'], 'node')}"
    group = "rank" if facts["ranks_per_sample"] == 1 else f"group of {facts['ranks_per_sample']} ranks"
    share = f"{facts['local_batch_size']} samples per {group} and step"
    per_epoch = count(facts["steps_per_epoch"], "step")
    lines = {
        "ranks": f"{count(facts['ranks'], 'rank')}{on}, {share}",
        **({"cores": ":".join(facts["cores_of_ranks"])} if facts["cores_of_ranks"] else {}),
        **({"binding": f"not on this machine: {problem}"} if (problem := facts["binding_problem"]) else {}),
        "steps": f"{per_epoch} per epoch, at most {facts['max_steps']} in {facts['max_epochs']} epochs",
        "data": f"{data['path']}: {_size_of(data)}",
        "staging": _staging_line(staging),
    }
    if memory:
        step = f"a step of {count(memory['batch'], 'sample')}"
        peak = f"{bytes_text(memory['step_peak_bytes'])} at the peak of {step}"
        has = f"this node has {bytes_text(memory['node_bytes'])}"
        lines["memory"] = f"{peak} per rank, excluding framework and loader (model); {has}"
    for label, line in lines.items():
        console.print(Text.assemble((f"{label:9}", "bold"), line), soft_wrap=console.width > 200)
    for finding in facts["findings"]:
        line = f"{finding['severity']}: {finding['rule']}: {finding['expected']}; found {finding['actual']}; "
        console.print(Text(line + finding["remedy"], style="yellow"))
    if source := facts["settings"].get("hyperparameters_from"):
        console.print(Text(printable(HyperparametersSource(**source))))
    console.print(Text("settings", style="bold"))
    say(console, load.dumps(requested(options)[0]).rstrip())
    console.print(Text("dry run: nothing was started or written", style="bold"))


def _size_of(data: dict[str, Any]) -> str:
    if not data["exists"]:
        return "does not exist"
    if data["files"] is None:
        return "no manifest, so its files are not counted; write one with mlhpc data index"
    return f"{count(data['files'], 'file')}, {bytes_text(data['bytes'])}"


def _staging_line(staging: dict[str, Any] | None) -> str:
    if staging is None:
        return "none: data is read in place"
    kind = f"{staging['filesystem']}{', memory' if staging['is_ram'] else ''}"
    free = f"{staging['path']} ({kind}, {bytes_text(staging['free_bytes'])} free)"
    if "bytes_per_node" not in staging:
        return f"{staging['mode']} to {free}"
    copied = f"{count(staging['files_per_node'], 'file')}, {bytes_text(staging['bytes_per_node'])} per node"
    return f"{copied}, {staging['mode']} to {free}"
