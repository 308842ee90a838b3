"""The sections of a page that tell what a run ran with and on: staging, settings, machines, versions."""

from collections.abc import Sequence
from html import escape
from typing import Any

from mlhpc.benchmarks import load, registry
from mlhpc.errors import count
from mlhpc.submission.logs.run_directory import RunDirectory, Staging
from mlhpc.submission.report.html import definitions, section, table
from mlhpc.submission.report.summary import duration, packages_of, size


def staging(run: RunDirectory) -> str:
    if not run.result:
        return ""
    staging = run.result.staging
    if staging is None:
        cold = "It was dropped from the page cache before the run."
        warm = "It was not evicted first: the page cache may have held it."
        evicted = _said(run.result.source_evicted, cold, warm)
        return section(
            "Staging", f"Nothing was staged: training read the data set where it lies. {evicted}", ""
        )
    return section(
        "Staging",
        "Inside the clock, up to the slowest rank.",
        definitions(
            {
                "files": f"{staging.files:,}".replace(",", " "),
                "bytes": size(staging.bytes),
                "time": duration(staging.seconds),
                "rate": size(staging.bytes / staging.seconds, "/s") if staging.seconds else "not known",
                "slowest rank": _slowest(staging),
                "mode": f"{staging.mode or 'not known'}{', packed on the way' if staging.packed else ''}",
                "target file system": staging.target_filesystem or "not known",
                "target is RAM": _said(
                    staging.target_is_ram, "yes: staged files take memory from training", "no"
                ),
                "source": _said(
                    run.result.source_evicted,
                    "evicted: no page of it was in memory before the run",
                    "not known to be cold: the page cache may have held it",
                ),
                "checksums": _said(staging.verified, "every file verified", "the data set has none"),
                "there before the run": count(staging.kept, "file"),
            }
        ),
    )


def _slowest(staging: Staging) -> str:
    if staging.slowest_rank is None:
        return "not known"
    times = staging.rank_seconds
    spread = f", {duration(max(times))}; the fastest took {duration(min(times))}" if len(times) > 1 else ""
    return f"{staging.slowest_rank}{spread}"


def _said(fact: bool | None, yes: str, no: str) -> str:
    return "not known" if fact is None else yes if fact else no


def hyperparameters(run: RunDirectory) -> str:
    if run.config:
        values = run.config.hyperparameters.logged()
        training = run.config.training.model_dump()
    elif run.log:
        # The union of all benchmarks' keys: what this log's has no record of is left out below.
        keys = [key for known in registry.benchmarks() for key in load.hyperparameter_keys(known)]
        values = {key: run.log.value(key) for key in dict.fromkeys(keys)}
        training = {}
    else:
        return ""
    facts = {key: value for key, value in {**values, **training}.items() if value is not None}
    about = (
        "Names are those of the MLPerf logging rules."
        if run.config
        else "From the log; config.toml is missing."
    )
    return section("Hyperparameters", about, definitions(facts)) if facts else ""


def hardware(run: RunDirectory) -> str:
    machines = [node for node in run.env.get("nodes") or [] if isinstance(node, dict)]
    if not machines and run.env.get("hostname"):
        machines = [run.env]
    if not machines:
        return ""
    names: dict[tuple[str, ...], list[str]] = {}
    for machine in machines:
        memory = machine.get("memory_gib")
        kind = (
            str(machine.get("cpu") or "not known"),
            str(machine.get("cores") or "not known"),
            f"{memory:g} GiB" if isinstance(memory, int | float) else "not known",
            _grouped(machine.get("accelerators") or []),
        )
        names.setdefault(kind, []).append(str(machine.get("hostname", "?")))
    rows = [[escape(_some(hosts)), *map(escape, kind)] for kind, hosts in names.items()]
    about = f"{count(len(machines), 'node')}; equal ones share a row. Cores are those this run may use."
    drawn = table(["node", "processor", "cores", "memory", "accelerators"], rows, numbers_from=9)
    return section("Hardware", about, drawn)


def _grouped(names: Sequence[Any]) -> str:
    counts: dict[str, int] = {}
    for name in names:
        counts[str(name)] = counts.get(str(name), 0) + 1
    return ", ".join(f"{count} × {name}" for name, count in counts.items()) or "none"


def _some(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{hosts[0]} … {hosts[-1]} ({len(hosts)} nodes)"


def provenance(run: RunDirectory) -> str:
    env, result = run.env, run.result
    commit = env.get("commit")
    changed = " with uncommitted changes" if env.get("dirty") else ""
    command = env.get("command")
    packages = packages_of(run.benchmark, env.get("packages"))
    facts: dict[str, Any] = {
        "commit": f"{commit}{changed}" if commit else None,
        "date": env.get("date"),
        "command": " ".join(map(str, command)) if isinstance(command, list) else command,
        "seed": result.seed if result else None,
        "launcher": result.launcher if result else None,
        "ranks": result.ranks if result else None,
        "samples": _samples(run),
        "operating system": env.get("os"),
        "python": env.get("python"),
        "packages": ", ".join(f"{k} {v}" for k, v in packages.items()) if packages else None,
        "mlhpc of the run": result.mlhpc if result else None,
    }
    known = {key: value for key, value in facts.items() if value is not None}
    return section("Provenance", "", definitions(known)) if known else ""


def _samples(run: RunDirectory) -> str | None:
    if not run.result:
        return None
    samples = run.result.samples
    return f"{samples.train} to train, {samples.eval} to evaluate, each {' × '.join(map(str, samples.shape))}"
