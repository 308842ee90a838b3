"""``mlhpc campaign``: performs all runs required for a score, sequentially or concurrently.

The campaign's folder is its only record: the state of each run is read from the run's folder, so a restarted
campaign continues with the missing runs. ``campaign.json`` is regenerated from the folders after every run, and
never read.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks import load, rules
from mlhpc.campaign.checks import check_options, check_settings, rule_context
from mlhpc.campaign.placement import bind_environment, cores_of, gpu_environment, srun_options
from mlhpc.campaign.record import Campaign, attempts, read_run, save, score_of, show
from mlhpc.common.pages.terminal import say
from mlhpc.common.ranks.hostlist import expand_hosts
from mlhpc.common.ranks.local import end, signals_as_ctrl_c, status_of
from mlhpc.errors import MISSED
from mlhpc.history.reading import remember
from mlhpc.record.series import RunState
from mlhpc.run_processes import GRACE_S, in_slurm, is_locked, locked, run_words, start_run

ABORTS_IN_A_ROW = 2
"""Consecutive aborted runs after which the campaign stops."""


def make(campaign: Campaign, number: int | None, console: Console) -> int:
    """Run the missing runs, or only run ``number`` (a task of a job array), and print the state of the campaign.

    Returns the exit status: 0 if all runs are done and have a score, MISSED if there is no score because runs
    missed their target, 1 if there is none for any other reason, 128 plus the signal's number after an
    interruption. Raises UserError if another campaign is running in the folder, if the folder contains runs with
    other settings, or if the rules of the closed division forbid the runs.
    """
    if in_slurm(os.environ):
        campaign = replace(campaign, nodes=len(expand_hosts(os.environ["SLURM_JOB_NODELIST"])))
    check_options(campaign, number)
    for warning in rules.enforce(rule_context(campaign)):
        line = f"{warning.severity}: {rules.sentence(warning)}"
        say(console, Text(line, style="yellow"))
    if bind_environment(campaign, os.environ):
        say(console, "MLHPC_BIND lists the cores of a whole node, so instances that share a node run unbound")
    names = campaign.names if number is None else [campaign.names[number - 1]]
    with locked(campaign.out, names[0] if number else None, "campaign") as lock_fds:
        check_settings(campaign)
        if restarts := os.environ.get("SLURM_RESTART_COUNT"):  # set for a requeued job (sbatch(1))
            done = sum(state.state in ("converged", "missed") for state in _read_all(campaign, names))
            say(console, f"requeued by Slurm, restart {restarts}: {done} of {campaign.runs} runs are done")
        status = 0
        try:
            with signals_as_ctrl_c():
                why = _run_all(campaign, names, lock_fds, console)
        except KeyboardInterrupt as interrupt:
            remedy = "it continues when Slurm requeues the job, or when you submit it again"
            remedy = remedy if in_slurm(os.environ) else "restart it to continue"
            status, why = status_of(interrupt), f"interrupted; {remedy}"
        states = _read_all(campaign, names)
        score = score_of(campaign, states)
        save(campaign, states, score, why)
    show(campaign, states, score, why, console)
    if not status and number is None:
        remember(campaign.out)
    own = [state.state for state in (states if number is None else [states[number - 1]])]
    # With fewer --runs than a score needs, having no score is not a failure.
    few = number is not None or campaign.runs < load.runs_of_a_score(campaign.run.benchmark)
    done = all(state == "converged" for state in own) if few else score.minutes is not None
    return status or (0 if done else MISSED if "missed" in own and "aborted" not in own else 1)


def _run_all(campaign: Campaign, names: Sequence[str], lock_fds: list[int], console: Console) -> str:
    """Keep ``instances`` runs active until all of ``names`` are done. Returns the reason for stopping early,
    or ""."""
    states = [read_run(campaign, name) for name in campaign.names]
    queue = [s.name for s in states if s.name in names and s.state in ("to do", "aborted")]
    if campaign.metric == "weak" and 0 < len(queue) < campaign.runs:
        # Throughput counts from the first start to the last end, including any pause.
        console.print(
            "throughput requires concurrent runs: all runs start again, and earlier results are set aside"
        )
        queue = list(names)
    seeds = {state.seed for state in states if state.seed is not None}
    running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
    aborted, why = 0, ""
    try:
        while queue or running:
            why = _no_score_possible(states) if campaign.metric == "strong" else ""
            if aborted >= ABORTS_IN_A_ROW:
                why = f"{aborted} runs in a row were aborted: fix the cause, then restart"
            if why:
                queue.clear()
            while queue and len(running) < campaign.instances:
                slot = min(set(range(campaign.instances)) - set(running))
                name = queue.pop(0)
                _set_aside(campaign.out, name)
                seed = _clock_seed(seeds)
                seeds.add(seed)
                running[slot] = name, _start(campaign, name, slot, seed, lock_fds)
                output = f", output in {name}.out" if campaign.instances > 1 else ""
                console.print(f"starting {name} of {campaign.runs}, seed {seed}{output}")
            if not running:
                return why
            time.sleep(0.1)
            for slot, (name, process) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[slot]
                states = _read_all(campaign, names, [name for name, _ in running.values()])
                state = states[campaign.names.index(name)]
                aborted = aborted + 1 if state.state == "aborted" else 0
                console.print(Text(f"{name}: {state.state}" + (f": {state.why}" if state.why else "")))
                save(campaign, states, score_of(campaign, states), why)
    finally:
        end([process for _, process in running.values()], GRACE_S)
    return why


def _read_all(campaign: Campaign, own: Sequence[str], running: Sequence[str] = ()) -> list[RunState]:
    """The states of all runs. ``own``: the names of this process's runs; ``running``: the names of those in
    progress. Other runs are in progress if a different task of the job array has locked them."""
    return [
        read_run(campaign, name, name in running if name in own else is_locked(campaign.out, name))
        for name in campaign.names
    ]


def _no_score_possible(states: Sequence[RunState]) -> str:
    """The reason why these runs can no longer have a score, or "". Only one run may miss the target, and it counts
    as the slowest run (MLPerf training rules, "Benchmark Results")."""
    missed = [state.name for state in states if state.state == "missed"]
    if len(missed) < 2:
        return ""
    return f"{' and '.join(missed)} missed the target; only one run may miss it, so no score is possible"


# One run.


def _start(
    campaign: Campaign, name: str, slot: int, seed: int, lock_fds: list[int]
) -> subprocess.Popen[bytes]:
    words = run_words(campaign.data, campaign.out / name, seed, campaign.stage)
    slurm = in_slurm(os.environ)
    devices = {} if slurm else gpu_environment(campaign, slot)
    return start_run(
        [campaign.run.benchmark, *campaign.arguments, *words],
        ranks=campaign.ranks,
        srun_options=srun_options(campaign, slot, os.environ) if slurm else (),
        output=campaign.out / f"{name}.out" if campaign.instances > 1 else None,
        env=devices | bind_environment(campaign, os.environ),
        cores=None if slurm else cores_of(campaign, slot),
        lock_fds=lock_fds,
    )


def _clock_seed(used: set[int]) -> int:
    """A seed derived from the clock, which no other run of the campaign uses (MLPerf training rules, "Random
    numbers")."""
    while (seed := time.time_ns() // 1000 % (2**31 - 1) + 1) in used:
        time.sleep(1e-5)
    return seed


def _set_aside(out: Path, name: str) -> None:
    """Move an aborted attempt to a hidden folder, so that tools do not count it as a run of the campaign."""
    if (out / name).exists():
        (out / ".aborted").mkdir(exist_ok=True)
        (out / name).rename(out / ".aborted" / f"{name}-{attempts(out, name) + 1}")
