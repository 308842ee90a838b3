"""The blocks of the sections of a run's page, None for omitted sections.

``templates/run.html`` has the order of the sections and their text.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from mlhpc.benchmarks import load, registry
from mlhpc.common.pages.blocks import Cell, Details, Facts, Table, number, table
from mlhpc.common.pages.charts import Figure
from mlhpc.errors import count
from mlhpc.submission.logs.bindings import RankBinding, bindings_table
from mlhpc.submission.logs.findings import Finding
from mlhpc.submission.logs.ranks import RankTimes
from mlhpc.submission.logs.run_directory import Epoch, Result, RunDirectory, Staging
from mlhpc.submission.report import run_charts
from mlhpc.submission.report.summary import data_rates, digits, duration, packages_of, size


def epoch_table(run: RunDirectory) -> Details | None:
    if not (run.result and run.result.epochs):
        return None
    metric, rates = run.result.target.metric, data_rates(run)
    epochs = table(
        "epochs",
        run.result.epochs,
        {
            "epoch": lambda e: number(e.epoch, str),
            metric: lambda e: number(e.quality(metric), digits),
            "training loss": lambda e: number(e.train_loss, digits),
            "learning rate": lambda e: number(e.learning_rate, digits),
            "training, s": lambda e: number(e.train_s, digits),
            "data wait, s": lambda e: number(e.data_wait_s, digits),
            "steps, s": lambda e: number(e.step_s, digits),
            "evaluation, s": lambda e: number(e.eval_s, digits),
            "samples": lambda e: "" if e.samples is None else str(e.samples),
            "samples/s": lambda e: number(e.samples_per_s, digits),
            "data rate": lambda e: number(rates.get(e.epoch), partial(size, per="/s")),
        },
    )
    return Details(f"{count(len(epochs.rows), 'epoch')} in numbers", (epochs,))


def processes(ranks: Sequence[RankTimes]) -> list[Table | Figure] | None:
    """Start-up, staging, waiting and memory of the ranks; their spread if there are several."""
    quantities: dict[str, tuple[Callable[[RankTimes], float | None], Callable[[float], str]]] = {
        "start-up (init)": (lambda r: r.init_s, duration),
        "staging": (lambda r: r.staging_s, duration),
        "training": (lambda r: r.train_s, duration),
        "data wait": (lambda r: r.data_wait_s, duration),
        "longest single wait": (lambda r: r.longest_wait_s, duration),
        "evaluation": (lambda r: r.eval_s, duration),
        "peak memory of the process": (lambda r: r.peak_bytes, size),
        "peak memory of the accelerator": (lambda r: r.device_peak_bytes, size),
    }
    rows = []
    for name, (of_rank, write) in quantities.items():
        if measured := sorted((value, r.rank) for r in ranks if (value := of_rank(r)) is not None):
            spread = measured[0][0], median(value for value, _ in measured), measured[-1][0]
            figures = (number(value, write) for value in spread)
            rows.append((Cell(name), *figures, number(measured[-1][1], str)))
    if not rows:
        return None
    if len(ranks) == 1:
        return [Table("process", ("of the one rank", "value"), tuple(row[:2] for row in rows))]
    head = ("over the ranks", "fastest or least", "median", "slowest or most", "on rank")
    chart = run_charts.rank_spread(ranks)
    return [Table("ranks", head, tuple(rows)), *filter(None, [chart])]


def spatial(epochs: Sequence[Epoch]) -> Table:
    """Exchanges of ranks that share samples, by epoch."""
    return table(
        "spatial",
        [e for e in epochs if e.halo_bytes is not None],
        {
            "epoch": lambda e: number(e.epoch, str),
            "halos sent": lambda e: number(e.halo_bytes, size),
            "waiting for halos, s": lambda e: number(e.halo_seconds, digits),
            "of steps and evaluation": lambda e: number(_waiting(e), "{:.0%}".format),
            "samples shared": lambda e: number(e.slab_bytes, size),
            "waiting for samples, s": lambda e: number(e.slab_seconds, digits),
        },
    )


def _waiting(epoch: Epoch) -> float | None:
    """The share of steps and evaluation in which rank 0 waited for halos."""
    busy = (epoch.step_s or 0.0) + (epoch.eval_s or 0.0)
    return epoch.halo_seconds / busy if busy and epoch.halo_seconds is not None else None


def staging(result: Result) -> Facts:
    staging = result.staging
    if staging is None:
        return Facts(_format_facts(result))
    facts = {
        "files": f"{staging.files:,}".replace(",", " "),
        "bytes": size(staging.bytes),
        "time": duration(staging.seconds),
        "rate": size(staging.bytes / staging.seconds, "/s") if staging.seconds else "not known",
        "slowest rank": _slowest(staging),
        "mode": f"{staging.mode or 'not known'}{', packed during the copy' if staging.packed else ''}",
        "first epoch": _overlap(staging),
        "read from the source": _source_bytes(staging),
        **_format_facts(result),
        **_exchanged(result),
        "target file system": staging.target_filesystem or "not known",
        "target is RAM": _yes_no(staging.target_is_ram, "yes: staged files take memory from training", "no"),
        "source": _yes_no(
            result.source_evicted,
            "evicted: no page was in memory before the run",
            "may have been in the page cache",
        ),
        "checksums": _yes_no(staging.verified, "every file verified", "the data set has no checksums"),
        "already in place": count(staging.kept, "file"),
    }
    return Facts(facts)


_SCOPES = {
    "sample": "the whole data set, sample by sample",
    "node": "the samples of each node, fixed for the run",
    "global": "node shards, redivided before every epoch",
}


def _format_facts(result: Result) -> dict[str, str]:
    """The scope of the shuffle, and whether samples are in archives."""
    data = result.data
    scope = (
        (data and data.shuffle_scope) or (result.staging.shuffle_scope if result.staging else "sample") or ""
    )
    if scope == "global" and not (result.staging and result.staging.mode == "shard"):
        scope = "sample"  # its name in early versions
    facts = {"shuffled over": _SCOPES.get(scope, "not known")}
    if data and data.samples_per_archive:
        facts["archives"] = f"of {count(data.samples_per_archive, 'sample')}, packed before the clock started"
    return facts


def _exchanged(result: Result) -> dict[str, str]:
    """The exchange of samples between nodes before epochs."""
    sent = [epoch.exchange_bytes for epoch in result.epochs if epoch.exchange_bytes is not None]
    if not sent:
        return {}
    spent = (result.breakdown_s or {}).get("exchange")
    took = f" in {duration(spent)}" if spent else ""
    return {
        "exchanged between epochs": f"{count(len(sent), 'time')}, {size(sum(sent))} sent by all nodes{took}"
    }


def _overlap(staging: Staging) -> str:
    if not staging.overlapped:
        return "read the staged files"
    waited = f"waited {duration(staging.waited_s)} at its end"
    return f"read staged files, or the source until a file was staged; {waited}"


def _source_bytes(staging: Staging) -> str:
    if staging.source_bytes is None:
        return "not known"
    how = ", once: nodes forwarded files to each other" if staging.read_once else ""
    if staging.overlapped:
        how = " by staging; training read more during the copy"
    return f"{size(staging.source_bytes)}{how}"


def _slowest(staging: Staging) -> str:
    if staging.slowest_rank is None:
        return "not known"
    times = staging.rank_seconds
    spread = f", {duration(max(times))}; the fastest took {duration(min(times))}" if len(times) > 1 else ""
    return f"{staging.slowest_rank}{spread}"


def _yes_no(fact: bool | None, yes: str, no: str) -> str:
    return "not known" if fact is None else yes if fact else no


def hyperparameters(run: RunDirectory) -> Facts | None:
    values: dict[str, Any] = {}
    if run.config:
        values = run.config.hyperparameters.logged() | run.config.training.applicable()
    elif run.log:
        # The keys of all benchmarks: those missing in this log are omitted below.
        keys = (key for name in registry.benchmarks() for key in load.hyperparameter_keys(name))
        values = {key: run.log.value(key) for key in keys}
    return _known(values)


def _known(values: Mapping[str, Any]) -> Facts | None:
    facts = {key: _list(value) for key, value in values.items() if value is not None}
    return Facts(facts) if facts else None


def _list(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def hardware(machines: Sequence[Mapping[str, Any]], bindings: Sequence[RankBinding]) -> list[Table] | None:
    """The nodes, one row for identical ones, and the cores of their ranks."""
    hosts: dict[tuple[str, ...], list[str]] = {}
    for machine in machines:
        memory = machine.get("memory_gib")
        kind = (
            str(machine.get("cpu") or "not known"),
            str(machine.get("cores") or "not known"),
            f"{memory:g} GiB" if isinstance(memory, int | float) else "not known",
            _grouped(machine.get("accelerators")),
        )
        hosts.setdefault(kind, []).append(str(machine.get("hostname", "?")))
    rows = tuple((Cell(_some(names)), *map(Cell, kind)) for kind, names in hosts.items())
    head = ("node", "processor", "cores", "memory", "accelerators")
    return [Table("hardware", head, rows, text_columns=5), bindings_table(bindings)] if machines else None


def machines_of(env: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The nodes of a run."""
    nodes = env.get("nodes")
    listed = nodes if isinstance(nodes, list) else []
    machines: list[Mapping[str, Any]] = [node for node in listed if isinstance(node, dict)]
    return machines or ([env] if env.get("hostname") else [])


def _grouped(names: object) -> str:
    counts: dict[str, int] = {}
    for name in names if isinstance(names, list) else ():
        counts[str(name)] = counts.get(str(name), 0) + 1
    return ", ".join(f"{times} × {name}" for name, times in counts.items()) or "none"


def _some(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{hosts[0]} … {hosts[-1]} ({len(hosts)} nodes)"


def provenance(run: RunDirectory) -> Facts | None:
    env, result = run.env, run.result
    commit = env.get("commit")
    changed = " with uncommitted changes" if env.get("dirty") else ""
    command = env.get("command")
    packages = packages_of(run.benchmark, run.framework, env.get("packages"))
    facts = {
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
    return _known(facts)


def _samples(run: RunDirectory) -> str | None:
    if not run.result:
        return None
    samples = run.result.samples
    shape = " × ".join(map(str, samples.shape))
    return f"{samples.train} for training, {samples.eval} for evaluation, each {shape}"


def findings_table(findings: Sequence[tuple[str, Finding]]) -> Table:
    """A table of (path of the set or empty, finding) pairs."""
    columns: dict[str, Callable[[tuple[str, Finding]], Cell | str]] = {
        "finding": lambda row: _finding(*row),
        "expected": lambda row: row[1].expected,
        "found": lambda row: row[1].actual,
        "what to do": lambda row: row[1].remedy,
    }
    return table("findings", findings, columns, text_columns=4, style="findings")


def _finding(path: str, f: Finding) -> Cell:
    return Cell(f.rule, (f.where, path or f.source), tone=f.severity, bold=f.severity)
