"""The sections of a run's page about staging, ranks, settings, hardware and provenance."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from mlhpc.benchmarks import load, registry
from mlhpc.common.pages.blocks import Cell, Details, Facts, Section, Table, number, table
from mlhpc.errors import count
from mlhpc.submission.logs.bindings import bindings_table, read_bindings, shared_cores
from mlhpc.submission.logs.findings import Finding, verdict
from mlhpc.submission.logs.ranks import RankTimes
from mlhpc.submission.logs.run_directory import Epoch, Result, RunDirectory, Staging
from mlhpc.submission.report import run_charts
from mlhpc.submission.report.summary import data_rates, digits, duration, packages_of, size


def epoch_table(run: RunDirectory) -> Section | None:
    if not (run.result and run.result.epochs):
        return None
    metric, rates = run.result.target.metric, data_rates(run)
    epochs = table(
        "epochs",
        run.result.epochs,
        {
            "epoch": lambda e: Cell(str(e.epoch), value=e.epoch),
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
    return Section("Epochs", "", (Details(f"{count(len(epochs.rows), 'epoch')} in numbers", (epochs,)),))


def processes(run: RunDirectory, ranks: Sequence[RankTimes]) -> Section | None:
    """Start-up, staging, waiting and memory of the ranks; their spread if there are several."""
    quantities: list[tuple[str, list[float | None], Callable[[float], str]]] = [
        ("start-up (init)", [r.init_s for r in ranks], duration),
        ("staging", [r.staging_s for r in ranks], duration),
        ("training", [r.train_s for r in ranks], duration),
        ("data wait", [r.data_wait_s for r in ranks], duration),
        ("longest single wait", [r.longest_wait_s for r in ranks], duration),
        ("evaluation", [r.eval_s for r in ranks], duration),
        ("peak memory of the process", [r.peak_bytes for r in ranks], size),
        ("peak memory of the accelerator", [r.device_peak_bytes for r in ranks], size),
    ]
    rows = [row for name, values, write in quantities if (row := _spread(name, ranks, values, write))]
    if not rows:
        return None
    if len(ranks) == 1:
        listed = Table("process", ("of the one rank", "value"), tuple((row[0], row[1]) for row in rows))
        return Section("Start-up, waiting and memory", "Start-up is before run_start.", (listed,), half=True)
    head = ("over the ranks", "fastest or least", "median", "slowest or most", "on rank")
    chart = run_charts.rank_spread(ranks)
    about = f"Spread over {count(len(ranks), 'rank')}. Start-up is before run_start."
    return Section("Ranks", about, (Table("ranks", head, tuple(rows)), *filter(None, (chart,))))


def _spread(
    name: str, ranks: Sequence[RankTimes], values: Sequence[float | None], write: Callable[[float], str]
) -> tuple[Cell, ...] | None:
    measured = [(value, rank.rank) for value, rank in zip(values, ranks, strict=True) if value is not None]
    if not measured:
        return None
    least, most = min(measured)[0], max(measured)
    figures = (least, median(value for value, _ in measured), most[0])
    return (
        Cell(name),
        *(number(value, write) for value in figures),
        Cell(str(most[1]), value=most[1]),
    )


def spatial(run: RunDirectory) -> Section | None:
    """What ranks that share samples have exchanged, by epoch; None for a run whose samples are whole."""
    epochs = [e for e in (run.result.epochs if run.result else ()) if e.halo_bytes is not None]
    if not epochs:
        return None
    rows = table(
        "spatial",
        epochs,
        {
            "epoch": lambda e: Cell(str(e.epoch), value=e.epoch),
            "halos sent": lambda e: number(e.halo_bytes, size),
            "waiting for halos, s": lambda e: number(e.halo_seconds, digits),
            "of steps and evaluation": lambda e: number(_waiting(e), "{:.0%}".format),
            "samples shared": lambda e: number(e.slab_bytes, size),
            "waiting for samples, s": lambda e: number(e.slab_seconds, digits),
        },
    )
    cut = getattr(run.config.training, "spatial", None) if run.config else None
    parts = " × ".join(map(str, cut)) + " parts" if cut else "parts"
    about = (
        f"Each sample is cut into {parts} for a group of ranks. Bytes are those of all ranks, of the epoch and "
        "its evaluation; times are those that the host of rank 0 waited: for halos within the steps and the "
        "evaluation, for samples within the data wait."
    )
    return Section("Spatial parallelism", about, (rows,))


def _waiting(epoch: Epoch) -> float | None:
    """The share of steps and evaluation in which rank 0 waited for halos."""
    busy = (epoch.step_s or 0.0) + (epoch.eval_s or 0.0)
    return epoch.halo_seconds / busy if busy and epoch.halo_seconds is not None else None


def staging(run: RunDirectory) -> Section | None:
    if not run.result:
        return None
    staging = run.result.staging
    if staging is None:
        cold = "The data set was dropped from the page cache before the run."
        warm = "The data set was not dropped from the page cache: memory may have held it."
        evicted = _yes_no(run.result.source_evicted, cold, warm)
        in_place = f"Nothing was staged: training read the data set in place. {evicted}"
        return Section("Staging", in_place, (Facts(_format_facts(run.result)),), half=True)
    facts = {
        "files": f"{staging.files:,}".replace(",", " "),
        "bytes": size(staging.bytes),
        "time": duration(staging.seconds),
        "rate": size(staging.bytes / staging.seconds, "/s") if staging.seconds else "not known",
        "slowest rank": _slowest(staging),
        "mode": f"{staging.mode or 'not known'}{', packed on the way' if staging.packed else ''}",
        "first epoch": _overlap(staging),
        "read from the source": _source_bytes(staging),
        **_format_facts(run.result),
        "target file system": staging.target_filesystem or "not known",
        "target is RAM": _yes_no(staging.target_is_ram, "yes: staged files take memory from training", "no"),
        "source": _yes_no(
            run.result.source_evicted,
            "evicted: no page of it was in memory before the run",
            "not known to be cold: the page cache may have held it",
        ),
        "checksums": _yes_no(staging.verified, "every file verified", "the data set has none"),
        "already in place": count(staging.kept, "file"),
    }
    about = "Inside the clock, until the slowest rank has finished."
    if staging.overlapped:
        about = (
            "Inside the clock, beside the first epoch: the time of staging is only what training did not hide, "
            "and the rest of its cost is in a longer first epoch. Not comparable with runs that stage first."
        )
    return Section("Staging", about, (Facts(facts),), half=True)


_SCOPES = {
    "sample": "the whole data set, sample by sample",
    "node": "the samples of each node, which stay there",
    "global": "the whole data set",  # what "sample" was called at first
}


def _format_facts(result: Result) -> dict[str, str]:
    """What the samples are shuffled among, and whether they lie in archives."""
    data = result.data
    scope = (
        (data and data.shuffle_scope) or (result.staging.shuffle_scope if result.staging else "sample") or ""
    )
    facts = {"shuffled over": _SCOPES.get(scope, "not known")}
    if data and data.samples_per_archive:
        facts["archives"] = f"of {count(data.samples_per_archive, 'sample')}, packed before the clock started"
    return facts


def _overlap(staging: Staging) -> str:
    if not staging.overlapped:
        return "read the staged files"
    waited = f"waited {duration(staging.waited_s)} at its end"
    return f"read what was staged by then, the rest from the source; {waited}"


def _source_bytes(staging: Staging) -> str:
    if staging.source_bytes is None:
        return "not known"
    how = ", once: nodes passed files on to each other" if staging.read_once else ""
    if staging.overlapped:
        how = " by staging, and more by training meanwhile"
    return f"{size(staging.source_bytes)}{how}"


def _slowest(staging: Staging) -> str:
    if staging.slowest_rank is None:
        return "not known"
    times = staging.rank_seconds
    spread = f", {duration(max(times))}; the fastest took {duration(min(times))}" if len(times) > 1 else ""
    return f"{staging.slowest_rank}{spread}"


def _yes_no(fact: bool | None, yes: str, no: str) -> str:
    return "not known" if fact is None else yes if fact else no


def hyperparameters(run: RunDirectory) -> Section | None:
    if run.config:
        values = run.config.hyperparameters.logged()
        training = run.config.training.applicable()
        source = run.config.hyperparameters_from
        about = "Names as in the MLPerf logging rules." + (f" Started from {source}." if source else "")
    elif run.log:
        # The keys of all benchmarks: those missing in this log are left out below.
        keys = [key for name in registry.benchmarks() for key in load.hyperparameter_keys(name)]
        values = {key: run.log.value(key) for key in dict.fromkeys(keys)}
        training = {}
        about = "From the log; config.toml is missing."
    else:
        return None
    facts = {key: _list(value) for key, value in {**values, **training}.items() if value is not None}
    return Section("Hyperparameters", about, (Facts(facts),), half=True) if facts else None


def _list(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def hardware(run: RunDirectory) -> Section | None:
    nodes = run.env.get("nodes")
    machines = [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    if not machines and run.env.get("hostname"):
        machines = [run.env]
    if not machines:
        return None
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
    about = f"{count(len(machines), 'node')}; identical ones share a row. Cores are those this run may use."
    head = ("node", "processor", "cores", "memory", "accelerators")
    bindings = read_bindings(run.env)
    about += f" {shared}" if (shared := shared_cores(bindings)) else ""
    tables = (Table("hardware", head, rows, text_columns=5), bindings_table(bindings))
    return Section("Hardware", about, tuple(filter(None, tables)))


def _grouped(names: object) -> str:
    counts: dict[str, int] = {}
    for name in names if isinstance(names, list) else ():
        counts[str(name)] = counts.get(str(name), 0) + 1
    return ", ".join(f"{times} × {name}" for name, times in counts.items()) or "none"


def _some(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{hosts[0]} … {hosts[-1]} ({len(hosts)} nodes)"


def provenance(run: RunDirectory) -> Section | None:
    env, result = run.env, run.result
    commit = env.get("commit")
    changed = " with uncommitted changes" if env.get("dirty") else ""
    command = env.get("command")
    packages = packages_of(run.benchmark, run.framework, env.get("packages"))
    facts: Mapping[str, Any] = {
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
    known_facts = {key: str(value) for key, value in facts.items() if value is not None}
    return Section("Provenance", "", (Facts(known_facts),)) if known_facts else None


def _samples(run: RunDirectory) -> str | None:
    if not run.result:
        return None
    samples = run.result.samples
    shape = " × ".join(map(str, samples.shape))
    return f"{samples.train} for training, {samples.eval} for evaluation, each {shape}"


def check(findings: Sequence[Finding], rules: str) -> Section:
    about = f"mlperf-logging, ruleset {rules}, and mlhpc's own rules: {verdict(findings)}."
    return Section("Check", about, (findings_table([("", f) for f in findings]),) if findings else ())


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
