"""``mlhpc io run``: check, emulate and summarise. Read ``run`` first."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from mlhpc.common.data.generate import write_on_all_ranks, write_on_rank0
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import filesystem_of
from mlhpc.common.host.malloc import keep_memory
from mlhpc.common.host.provenance import describe_environment
from mlhpc.common.ranks.collectives import on_all_ranks, on_each_rank, on_rank0
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.waiting import clock
from mlhpc.errors import UserError
from mlhpc.iobench.dataset.generate import require_data
from mlhpc.iobench.dataset.layout import Layout, Root, root_of
from mlhpc.iobench.definition import load
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.emulate.checkpoints import Checkpoints, require_space
from mlhpc.iobench.emulate.emulation import Settings, emulate, emulate_null
from mlhpc.iobench.emulate.plan import require_enough
from mlhpc.iobench.formats.formats import FORMATS
from mlhpc.iobench.formats.mpi_io import require_mpi
from mlhpc.iobench.report.result import rank_summary, result, write_steps
from mlhpc.iobench.report.trace import join_parts, write_part
from mlhpc.record.environment import Environment


@dataclass(frozen=True)
class Paths:
    """The folders of a run. ``data`` is None for a workload that reads nothing; ``checkpoints`` is the parent
    folder of checkpoints."""

    data: Root | None
    out: Path
    checkpoints: Path


def run(
    workload: Workload, paths: Paths, settings: Settings, command: Sequence[str], world: World
) -> dict[str, Any]:
    """Emulate ``workload`` and write ``result.json``, ``workload.toml``, ``env.json`` and ``steps.rankN.csv`` to
    ``paths.out``. Called by all ranks, and returns the result on all.

    Raises UserError, the same on all ranks; in this case, no output folder is left behind, unless a rank was
    killed.
    """
    layout = Layout(paths.data, workload.dataset) if workload.dataset and paths.data else None
    on_all_ranks(world, lambda: require_enough(workload, world.size))
    if workload.dataset and layout:
        kind, dataset = FORMATS[workload.dataset.format], workload.dataset
        on_each_rank(world, kind.load)
        on_each_rank(world, lambda: _require_access(workload, layout, settings, world))
        on_rank0(world, lambda: require_data(dataset, layout.root))
    if workload.checkpoint.enabled:
        on_rank0(world, lambda: require_space(workload.checkpoint, paths.checkpoints, world))
    on_rank0(world, lambda: _make_out(paths.out))
    try:
        return _measured(workload, layout, paths, settings, command, world)
    except BaseException:
        if world.rank == 0:
            shutil.rmtree(paths.out, ignore_errors=True)
        raise


def _require_access(workload: Workload, layout: Layout, settings: Settings, world: World) -> None:
    """Raise UserError if the data cannot be read as the workload requires."""
    reader = workload.reader
    if layout.place.folder is None:
        if reader.direct or reader.mpi_io:
            key = "reader.direct" if reader.direct else "reader.mpi_io"
            raise UserError(f"{layout.place}: {key} requires a folder; omit it, or choose another --data")
        if settings.cache == "warm":
            raise UserError(f"{layout.place}: there is no page cache to fill; omit --cache warm")
    elif reader.mpi_io:
        require_mpi(world.size, shared=1 in (layout.files("train"), layout.files("validation")))


def _measured(
    workload: Workload,
    layout: Layout | None,
    paths: Paths,
    settings: Settings,
    command: Sequence[str],
    world: World,
) -> dict[str, Any]:
    keep_memory()
    checkpoints = Checkpoints(workload.checkpoint, paths.checkpoints, world)
    world.before_exit(lambda: _clean_up(checkpoints, paths.out, world))
    try:
        real = emulate(workload, layout, checkpoints, world, settings)
    finally:
        checkpoints.remove()
    null = None
    if layout and settings.null_steps and not workload.reader.load_all:
        null = emulate_null(workload, layout, world, settings)
    ranks = world.gather(rank_summary(workload, real, null))
    facts = _facts(workload, layout, paths, settings, command)
    total = result(workload, ranks, world, facts)
    out = paths.out
    write_on_all_ranks(world, out, lambda: write_steps(real, out / f"steps.rank{world.rank}.csv"))
    if settings.trace:
        write_on_all_ranks(world, out, lambda: write_part(real, world.rank, out))
        origin_us = round(1e6 * (time.time() - (clock() - real.origin)))
        write_on_rank0(world, out, lambda: join_parts(world.size, out, origin_us))
    write_on_rank0(world, out, lambda: _write_record(workload, total, out))
    return total


def _clean_up(checkpoints: Checkpoints, out: Path, world: World) -> None:
    """Remove results and checkpoints after another rank was lost."""
    checkpoints.remove()
    if world.rank == 0:
        shutil.rmtree(out, ignore_errors=True)


def _facts(
    workload: Workload, layout: Layout | None, paths: Paths, settings: Settings, command: Sequence[str]
) -> dict[str, Any]:
    facts: dict[str, Any] = {"command": list(command), "cache": settings.cache}
    if layout:
        facts |= layout.place.facts()
        if layout.place.folder is None:
            facts["cache"] = "none"
        else:
            devices = {os.stat(path).st_dev for path in (layout.place.folder, paths.out)}
            facts["results_beside_data"] = len(devices) == 1
    if workload.checkpoint.enabled:
        facts["checkpoint_filesystem"] = filesystem_of(paths.checkpoints).type
    return facts


def _make_out(out: Path) -> None:
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise UserError(f"{out} exists; results are never overwritten: choose another --out") from None
    except OSError as error:
        raise UserError(f"{out} cannot be created: {error.strerror}; choose another --out") from None


def _write_record(workload: Workload, total: dict[str, Any], out: Path) -> None:
    atomic.write_bytes(out / "workload.toml", load.dumps(workload).encode())
    Environment(**describe_environment()).write(out / "env.json")
    atomic.write_bytes(out / "result.json", (json.dumps(total, indent=1) + "\n").encode())


def data_of(given: str | None, workload: Workload, rank: int) -> Root:
    """The location of the data of ``workload``: ``given``, or else the workload's own, or else a folder with the
    workload's name.

    Raises UserError for an incomplete URL, and for a URL or server that only the workload's file has chosen: other
    people's files must not decide where the user's data goes or who gets requests signed by the user.
    """
    storage = workload.storage
    if not given and "url" in workload.proposed:
        raise UserError(
            f"the workload file names a data location; to accept it, add --data {quote(storage.url)}"
        )
    data = given or storage.url or f"data/io-{workload.name}"
    if "://" in data and "endpoints" in workload.proposed:
        servers = quote(",".join(storage.endpoints))
        raise UserError(
            "the workload file names storage servers; requests to them would be signed with your credentials. To "
            f"accept them, add --set storage.endpoints={servers}"
        )
    return root_of(data, workload.storage, rank)


def default_out(workload: Workload) -> Path:
    """The folder with the first free number under ``results/``."""
    number = 1
    while os.path.lexists(out := Path("results") / f"io-{workload.name}-{number}"):
        number += 1
    return out
