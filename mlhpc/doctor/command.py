"""``mlhpc doctor``: the first rank on each node examines that node (``node.py``); rank 0 gathers the facts
(``nodes.py``), checks them (``checks.py``) and prints."""

import os
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks import registry
from mlhpc.common.files.filesystem import require_new
from mlhpc.common.host.binding import asked, bind_this_rank, cores_of_ranks
from mlhpc.common.pages.terminal import say
from mlhpc.common.ranks import launch
from mlhpc.common.ranks.environment import BOUND, RankInfo
from mlhpc.common.ranks.launch import Framework
from mlhpc.doctor import fabric
from mlhpc.doctor.check_result import CheckResult, Status
from mlhpc.doctor.checks import check_nodes, clocks
from mlhpc.doctor.node import Folders, examine
from mlhpc.doctor.nodes import find_rank_info, gather_nodes
from mlhpc.errors import UserError, reason_of
from mlhpc.quantities import count, duration_text
from mlhpc.submission.system import description as system_description
from mlhpc.submission.system.node import node_facts


def doctor(benchmark: str | None, folders: Folders, console: Console) -> int:
    """Examine the nodes; rank 0 checks and prints the facts. With several ranks, also start the framework of
    ``benchmark``. Returns the exit status, which is 1 if a check failed.

    Raises UserError for an unknown benchmark, or if a rank does not connect.
    """
    ready, results = examine_all(benchmark, folders, lambda results: _print(results, console))
    if results is not None:
        warnings = count(sum(result.status == "warn" for result in results), "warning")
        console.print(f"{'ready' if ready else 'not ready'} for a run; {warnings}", style="bold")
    return 0 if ready else 1


def examine_all(
    benchmark: str | None,
    folders: Folders,
    show: Callable[[Sequence[CheckResult]], None] = lambda results: None,
) -> tuple[bool, list[CheckResult] | None]:
    """Return whether the machine is ready for a run, and the results of all checks (None on ranks other than 0).
    ``show`` is called with results as soon as they are known, because starting a framework may terminate this
    process."""
    chosen = registry.find(benchmark) if benchmark else None
    framework: Framework = chosen.frameworks[chosen.default_framework].collectives if chosen else "none"
    env = os.environ
    try:
        rank_info = find_rank_info(env)
    except UserError as error:
        results = [CheckResult("fail", "launcher", str(error), "start all ranks with the same launcher")]
        show(results)
        return False, results
    results = []
    unbound = {"unbound": _bind(rank_info)}
    nodes = gather_nodes(rank_info, lambda: examine(rank_info, framework, folders, env) | unbound, env)
    if rank_info.rank == 0:
        results = [*check_nodes(nodes, rank_info, benchmark, framework, env), *clocks(nodes)]
        if rank_info.size > 1 and not rank_info.leader:
            detail = f"not examined: {rank_info.launcher} does not report the node of rank 0"
            remedy = "use srun or torchrun, or set MLHPC_LEADER to that node"
            results.append(CheckResult("warn", "other nodes", detail, remedy))
    show(results)
    if rank_info.size > 1 and framework != "none":
        started = _start_framework(rank_info, framework)
        show(started if rank_info.rank == 0 else [])
        results += started
    failed = any(result.status == "fail" for result in results)
    return not failed, results if rank_info.rank == 0 else None


def _bind(rank_info: RankInfo) -> str:
    """Bind this rank to cores as a run would. Returns "", or the reason if binding is impossible."""
    try:
        bind_this_rank(None)
        if rank_info.launcher == "mlhpc" and BOUND not in os.environ:  # the parent would have bound this rank
            cores_of_ranks(asked(None), rank_info.local_size)
    except UserError as error:
        return str(error)
    return ""


def describe_system(settings: Sequence[str], out: Path | None, console: Console) -> int:
    """``mlhpc doctor --system``: write the official system description of this machine, or of all nodes of the
    launch, to ``out`` or standard output. Returns 1 if required fields are missing; in that case ``out`` is not
    written, since the official checker would reject the file."""
    given = system_description.given_fields(settings)
    if out:
        require_new(out)
    rank_info = find_rank_info(os.environ)
    if rank_info.size > 1 and not rank_info.leader:
        raise UserError(
            f"{rank_info.launcher} does not report the node of rank 0; use srun or torchrun, or set "
            "MLHPC_LEADER to that node"
        )
    nodes = gather_nodes(rank_info, node_facts, os.environ)
    if rank_info.rank:
        return 0
    description = system_description.describe(nodes, given)
    for key, hint in description.missing.items():
        line = f"required: --set {key}=...{f'  ({hint})' if hint else ''}"
        say(console, line)
    if description.open:
        say(console, f"optional: {', '.join(description.open)}")
    if not out:
        print(description.to_json(), end="")
    elif description.missing:
        fields = count(len(description.missing), "required field")
        repeat = shlex.join(["mlhpc", "doctor", "--system", "--out", str(out)])
        line = f"{out} was not written: {fields} missing; repeat with: {repeat} --set ..."
        say(console, line)
    else:
        system_description.write(description, out)
    return 1 if description.missing else 0


def _start_framework(rank_info: RankInfo, framework: Framework) -> list[CheckResult]:
    """Start the framework on all ranks and check that it reports as many ranks as the launcher; with PyTorch, also
    check the network. If a rank is lost meanwhile, this process reports the lost rank and exits."""
    # TensorFlow's messages about its build would hide the results.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    start = time.monotonic()
    network = []
    try:
        with fabric.logged() as log, launch.joined(framework) as world:
            total = int(world.sum(1.0))
            hosts = len(set(world.gather(rank_info.hostname or socket.gethostname())))
            seconds = time.monotonic() - start
            if framework == "torch":
                network = [fabric.check(world, log)]
    except Exception as error:  # a broken build may raise any exception
        remedy = "see the lines above, and docs/guide/sites.md"
        return [CheckResult("fail", "framework", reason_of(error), remedy)]
    complete = total == rank_info.size
    counted = f"{framework} counts {count(total, 'rank')} on {count(hosts, 'node')}"
    detail = f"{counted}; started in {duration_text(seconds)}"
    remedy = (
        "" if complete else f"{rank_info.launcher} started {rank_info.size} ranks: see docs/guide/sites.md"
    )
    return [CheckResult("pass" if complete else "fail", "framework", detail, remedy), *network]


_STYLES: dict[Status, str] = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def _print(results: Iterable[CheckResult], console: Console) -> None:
    for result in results:
        text = Text.assemble((result.status, _STYLES[result.status]), f"  {result.name:<12}  {result.detail}")
        say(console, text)
        if result.remedy:
            say(console, Text(f"      → {result.remedy}"))
