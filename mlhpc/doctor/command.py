"""``mlhpc doctor``: the first rank of every node looks at it (``node.py``), rank 0 hears them all (``nodes.py``)
and judges (``judge.py``)."""

import os
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks import registry
from mlhpc.common.ranks import launch
from mlhpc.common.ranks.environment import RankInfo
from mlhpc.common.ranks.launch import Framework as Backend
from mlhpc.doctor.checks import CheckResult, Status, check_nodes, clocks
from mlhpc.doctor.node import Folders, examine
from mlhpc.doctor.nodes import of_all_nodes, place_of
from mlhpc.errors import UserError, count
from mlhpc.submission.system import description as system_description
from mlhpc.submission.system.node import node_facts


def doctor(benchmark: str | None, folders: Folders, console: Console) -> int:
    """Examine, judge and print; with several ranks on rank 0, for all. Then start what ``benchmark`` trains
    with, if there is more than one rank. Returns the exit status: 1 when a line says fail.

    Raises UserError when there is no such benchmark, or a rank does not come.
    """
    chosen = registry.find(benchmark) if benchmark else None
    backend: Backend = chosen.frameworks[chosen.default_framework].collectives if chosen else "none"
    env = os.environ
    try:
        place = place_of(env)
    except UserError as error:
        _print([CheckResult("fail", "launcher", str(error), "start all ranks with one launcher")], console)
        return 1
    lines: list[CheckResult] = []
    nodes = of_all_nodes(place, lambda: examine(place, backend, folders, env), env)
    if place.rank == 0:
        lines = [*check_nodes(nodes, place, benchmark, backend, env), *clocks(nodes)]
        if place.size > 1 and not place.leader:
            found = f"not examined: {place.launcher} does not say where rank 0 is"
            remedy = "start this with srun or torchrun, or set MLHPC_LEADER to the host of rank 0"
            lines.append(CheckResult("warn", "other nodes", found, remedy))
    _print(lines, console)
    failed = any(line.status == "fail" for line in lines)
    if place.size > 1 and backend != "none":
        failed = _start(place, backend, console) or failed
    if place.rank == 0:
        warned = sum(line.status == "warn" for line in lines)
        verdict = "not fit for a run" if failed else "nothing failed"
        console.print(f"{verdict}; {warned or 'no'} warning{'' if warned == 1 else 's'}", style="bold")
    return 1 if failed else 0


def describe_system(settings: Sequence[str], out: Path | None, console: Console) -> int:
    """``mlhpc doctor --system``: the official JSON of this machine, or of the nodes that a launcher started
    this on, to ``out`` or standard output. Returns 1 when an answer that the rules need is missing."""
    given = system_description.given_fields(settings)
    if out and out.exists():
        raise UserError(f"{out} is there already; choose another --out, or move it away")
    place = place_of(os.environ)
    if place.size > 1 and not place.leader:
        raise UserError(
            f"{place.launcher} does not say where rank 0 is, so the nodes cannot be described together; start "
            "this with srun or torchrun, or set MLHPC_LEADER to the host of rank 0"
        )
    nodes = of_all_nodes(place, node_facts, os.environ)
    if place.rank:
        return 0
    description = system_description.describe(nodes, given)
    if out:
        system_description.write(description, out)
    else:
        print(description.to_json(), end="")
    for key, hint in description.missing.items():
        console.print(f"fill in: --set {key}=…{f'  ({hint})' if hint else ''}", soft_wrap=True, markup=False)
    if description.open:
        console.print(f"may be filled in: {', '.join(description.open)}", soft_wrap=True, markup=False)
    return 1 if description.missing else 0


def _start(place: RankInfo, backend: Backend, console: Console) -> bool:
    """Start the backend with all ranks, and say on rank 0 whether it counts them as the launcher does;
    whether that failed. A rank that is lost meanwhile ends this process, and is named."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes on its build would bury ours
    began = time.monotonic()
    try:
        with launch.joined(backend) as world:
            total = int(world.sum(1.0))
            hosts = len(set(world.gather(place.hostname or socket.gethostname())))
    except Exception as error:  # a backend that does not work may raise anything
        if place.rank == 0:
            why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            _print([CheckResult("fail", "backend", why, "see the lines above, and docs/sites.md")], console)
        return True
    good = total == place.size
    if place.rank == 0:
        where = f"{hosts} node{'s' * (hosts > 1)}"
        took = f"it took {time.monotonic() - began:.1f} s to start"
        found = f"{backend} counts {count(total, 'rank')} on {where}; {took}"
        remedy = "" if good else f"{place.launcher} started {place.size}: see docs/sites.md"
        _print([CheckResult("pass" if good else "fail", "backend", found, remedy)], console)
    return not good


_STYLES: dict[Status, str] = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def _print(lines: Iterable[CheckResult], console: Console) -> None:
    for line in lines:
        text = Text.assemble((line.status, _STYLES[line.status]), f"  {line.what:<12}  {line.found}")
        console.print(text, soft_wrap=True)
        if line.remedy:
            console.print(Text(f"      → {line.remedy}"), soft_wrap=True)
