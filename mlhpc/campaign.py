"""``mlhpc campaign``: the runs that one score is made from, one after the other or several at once.

The folder is the record: a run is done when its directory says so, and a second start goes on from there.
``campaign.json`` is made anew from the directories after every run; nothing is read back from it.
"""

import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mlhpc.benchmarks import load, rules
from mlhpc.campaign_record import Campaign, Made, attempts, read, save, score_of, show
from mlhpc.common.data import manifest
from mlhpc.common.host.provenance import accelerators
from mlhpc.common.ranks.hostlist import expand_hosts
from mlhpc.common.ranks.local import end, sigterm_as_ctrl_c
from mlhpc.errors import UserError, count
from mlhpc.run import RunPaths, context_of
from mlhpc.run_processes import GRACE_S, check_alone, in_slurm, is_locked, locked, start

ABORTS_IN_A_ROW = 2
"""So many runs that end without a result say that the next will too."""


def make(campaign: Campaign, number: int | None, console: Console) -> int:
    """Make the runs that are not made yet, or the one of ``number`` alone (a task of a job array), and print
    how the campaign stands.

    Returns the exit status: 0 when all runs were made and a score can be made from them, 1 when not, 130 when
    it was ended from outside. Raises UserError when another campaign is at work in the folder, when it holds
    runs with other settings, or the rules of the closed division keep the runs from starting.
    """
    if in_slurm(os.environ):
        campaign = replace(campaign, nodes=len(expand_hosts(os.environ["SLURM_JOB_NODELIST"])))
    _check_launcher(campaign)
    if number is not None and campaign.metric == "weak":
        raise UserError("--number is for runs one after the other; --instances are made by one start")
    if number is not None and not 1 <= number <= campaign.runs:
        raise UserError(f"--number {number}: this campaign has the runs 1 to {campaign.runs}")
    for finding in rules.enforce(_known(campaign)):
        console.print(Text(f"{finding.severity}: {rules.sentence(finding)}", style="yellow"), soft_wrap=True)
    names = campaign.names if number is None else [campaign.names[number - 1]]
    with locked(campaign.out, names[0] if number else None, "campaign") as locks:
        _check_settings(campaign)
        interrupted = False
        try:
            with sigterm_as_ctrl_c():
                why = _make_all(campaign, names, locks, console)
        except KeyboardInterrupt:
            interrupted, why = True, "ended from outside; start it again to go on"
        made = _as_it_stands(campaign, names)
        score = score_of(campaign, made)
        save(campaign, made, score, why)
    show(campaign, made, score, why, console)
    if interrupted:
        return 128 + signal.SIGINT
    if number is not None:
        return 0 if made[number - 1].state == "converged" else 1
    # Of fewer runs than a score needs nobody expects one.
    few = campaign.runs < load.runs_of_a_score(campaign.run.benchmark)
    asked_for = all(m.state == "converged" for m in made) if few else score.minutes is not None
    return 0 if asked_for else 1


def _make_all(campaign: Campaign, names: Sequence[str], locks: list[int], console: Console) -> str:
    """Keep ``instances`` runs going until all of ``names`` are made. Returns why it stopped before."""
    everything = [read(campaign, name) for name in campaign.names]
    waiting = [name for name in names if read(campaign, name).state in ("to do", "aborted")]
    if campaign.metric == "weak" and 0 < len(waiting) < campaign.runs:
        # Throughput is measured from the first start to the last end: its runs belong to one start.
        console.print("throughput is of runs made together: all are made anew, the earlier set aside")
        waiting = list(names)
    seeds = {made.seed for made in everything if made.seed is not None}
    running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
    aborted = 0
    try:
        while waiting or running:
            why = _hopeless(campaign) if campaign.metric == "strong" else ""
            if aborted >= ABORTS_IN_A_ROW:
                why = f"{aborted} runs in a row were aborted: mend what ended them, then start again"
            if why:
                waiting.clear()
            while waiting and len(running) < campaign.instances:
                slot = min(set(range(campaign.instances)) - set(running))
                name = waiting.pop(0)
                _set_aside(campaign.out, name)
                seed = _clock_seed(seeds)
                seeds.add(seed)
                running[slot] = name, _start(campaign, name, slot, seed, locks)
                told = f"{name} of {campaign.runs} starts, seed {seed}"
                console.print(told if campaign.instances == 1 else f"{told}, output in {name}.out")
            if not running:
                return why
            time.sleep(0.1)
            for slot, (name, process) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[slot]
                made = read(campaign, name)
                aborted = aborted + 1 if made.state == "aborted" else 0
                console.print(Text(f"{name}: {made.state}" + (f": {made.why}" if made.why else "")))
                everything = _as_it_stands(campaign, names, [name for name, _ in running.values()])
                save(campaign, everything, score_of(campaign, everything), why)
    finally:
        end([process for _, process in running.values()], GRACE_S)
    return ""


def _as_it_stands(campaign: Campaign, ours: Sequence[str], running: Sequence[str] = ()) -> list[Made]:
    """All runs: of ``ours`` those in ``running`` are going on; the others may be made by other tasks of a job
    array."""
    return [
        read(campaign, name, name in running if name in ours else is_locked(campaign.out, name))
        for name in campaign.names
    ]


def _hopeless(campaign: Campaign) -> str:
    """Why no score can come of the runs any more: one may miss the target, as the slowest (MLPerf training
    rules, "Benchmark Results")."""
    missed = [name for name in campaign.names if read(campaign, name).state == "missed"]
    if len(missed) < 2:
        return ""
    return f"{' and '.join(missed)} missed the target; one may, so no score can come of these runs"


# One run.


def _start(campaign: Campaign, name: str, slot: int, seed: int, locks: list[int]) -> subprocess.Popen[bytes]:
    words = [
        *(campaign.run.benchmark, *campaign.words, "--data", str(campaign.data)),
        *("--out", str(campaign.out / name), "--seed", str(seed), "--evict"),
        *(["--stage", str(campaign.stage)] if campaign.stage else []),
    ]
    output = campaign.out / f"{name}.out" if campaign.instances > 1 else None
    if in_slurm(os.environ):
        step = _step(campaign, slot, os.environ)
        return start(words, ranks=campaign.ranks, step=step, output=output, keep=locks)
    env, cores = _gpus_of(campaign, slot), _cores_of(campaign, slot)
    return start(words, ranks=campaign.ranks, output=output, env=env, cores=cores, keep=locks)


def _step(campaign: Campaign, slot: int, env: Mapping[str, str]) -> list[str]:
    """What tells srun where an instance runs: on nodes of its own; where there are more instances than nodes,
    on its own part of a node."""
    if campaign.instances == 1:
        return [f"--ntasks={campaign.ranks}"] if campaign.ranks else []
    hosts = expand_hosts(env["SLURM_JOB_NODELIST"])
    share = max(1, len(hosts) // campaign.instances)
    mine = [hosts[(slot * share + i) % len(hosts)] for i in range(share)]
    whole = campaign.instances <= len(hosts)
    # Without --ranks, what the allocation has for these nodes.
    tasks = campaign.ranks or max(1, int(env.get("SLURM_NTASKS", len(hosts))) * share // len(hosts))
    words = [f"--nodes={share}", f"--ntasks={tasks}", f"--nodelist={','.join(mine)}", "--exact"]
    if not whole and env.get("SLURM_GPUS_ON_NODE", "0") not in ("", "0"):
        words.append(f"--gres=gpu:{tasks}")
    return words


def _cores_of(campaign: Campaign, slot: int) -> set[int]:
    """The cores of an instance on this machine; empty where there are not enough to give each its own."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // campaign.instances
    return set(cores[slot * share : (slot + 1) * share]) if campaign.instances > 1 else set()


def _gpus_of(campaign: Campaign, slot: int) -> dict[str, str]:
    """The GPUs of an instance on this machine, one a rank, where there are GPUs."""
    if campaign.instances == 1:
        return {}
    gpus, ranks = _visible_gpus(), max(1, campaign.ranks)
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[slot * ranks : (slot + 1) * ranks])} if gpus else {}


def _visible_gpus() -> list[str]:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [gpu for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
    return [str(i) for i in range(len(accelerators()))]


def _clock_seed(taken: set[int]) -> int:
    """A seed from the clock that no run of the campaign has (MLPerf training rules, "Random numbers")."""
    while (seed := time.time_ns() // 1000 % (2**31 - 1) + 1) in taken:
        time.sleep(1e-5)
    return seed


def _set_aside(out: Path, name: str) -> None:
    """What an attempt left that came to no end is kept, where nobody takes it for a run."""
    if (out / name).exists():
        (out / ".aborted").mkdir(exist_ok=True)
        (out / name).rename(out / ".aborted" / f"{name}-{attempts(out, name) + 1}")


# Before the first run.


def _check_launcher(campaign: Campaign) -> None:
    check_alone("campaigns")
    for option, value in (("--runs", campaign.runs), ("--instances", campaign.instances)):
        if value < 1:
            raise UserError(f"{option} {value}: give 1 or more")
    if campaign.ranks < 0:
        raise UserError(f"--ranks {campaign.ranks}: give a number of ranks of 1 or more")
    if campaign.runs < campaign.instances:
        raise UserError(
            f"--instances {campaign.instances} at a time of --runs {campaign.runs} in all; give as many runs"
        )
    if in_slurm(os.environ):
        if campaign.instances < campaign.nodes and campaign.nodes % campaign.instances:
            raise UserError(
                f"--instances {campaign.instances} cannot share {count(campaign.nodes, 'node')} equally; "
                "take a number that divides them"
            )
    elif campaign.instances > 1 and (gpus := len(_visible_gpus())):
        ranks = max(1, campaign.ranks)
        if gpus < campaign.instances * ranks:
            raise UserError(
                f"{campaign.instances} instances of {count(ranks, 'rank')} want a GPU a rank, and there "
                f"{'is' if gpus == 1 else 'are'} {gpus}; start fewer, or set CUDA_VISIBLE_DEVICES= to use "
                "none"
            )


def _known(campaign: Campaign) -> rules.RunContext:
    """What the rules can know of the campaign before its first run. The manifest is read here, by a process
    that is no run; the runs themselves open it inside their clocks."""
    places = RunPaths(data=campaign.data, stage=campaign.stage, out=campaign.out, resume=None)
    made = [read(campaign, name) for name in campaign.names]
    return replace(
        context_of(campaign.run, places, evict=True),
        facts=_facts_of_data(campaign),
        runs=campaign.runs,
        seeds=[m.seed for m in made if m.seed is not None],
    )


def _facts_of_data(campaign: Campaign) -> dict[str, Any] | None:
    """What the manifest says; None without one. Raises UserError where every run would: for no data set, an
    empty one, a broken manifest, or one of too few samples."""
    data, wanted = campaign.data, campaign.run.data.train_samples
    if (data / manifest.NAME).exists():
        found = manifest.load(data)
        if "train" in found.facts.get("samples", {}):
            manifest.take(found, train=wanted)
        return found.facts
    make = f"make one: mlhpc data make {campaign.run.benchmark} --preset {campaign.run.preset}"
    try:
        files = any(not entry.name.startswith(".") for entry in os.scandir(data))
    except OSError as error:
        raise UserError(f"--data {data}: {error.strerror}; give the data set's folder, or {make}") from None
    if not files:
        raise UserError(f"--data {data}: holds no file; give the data set's folder, or {make}")
    return None


def _check_settings(campaign: Campaign) -> None:
    """The runs of a score have one configuration."""
    wanted = tomllib.loads(load.dumps(campaign.run))
    for name in campaign.names:
        path = campaign.out / name / "config.toml"
        if not path.exists():
            continue
        try:
            found = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {error}; move {path.parent} away") from None
        if found != wanted:
            a, b = _flat(found), _flat(wanted)
            key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
            raise UserError(
                f"{path.parent} was run with {key} = {a.get(key)!r}, not {b.get(key)!r}; choose another --out"
            )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
