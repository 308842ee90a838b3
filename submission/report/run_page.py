"""The report of a run as one self-contained HTML page. The order and text of the sections are in
``templates/run.html``."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from mlhpc.benchmarks import load, registry
from mlhpc.benchmarks.findings import Finding
from mlhpc.common.pages.blocks import Banner, Block, Cell, Details, Facts, Grid, Table, number, table
from mlhpc.common.pages.html import render
from mlhpc.perf.what_if import WhatIf
from mlhpc.quantities import bytes_text, count, duration_text, four_digits, whole
from mlhpc.record.energy import energy_table
from mlhpc.record.environment import Machine, RankBinding, bindings_table, packages_of, shared_cores
from mlhpc.record.rank_table import RankTable, read_rank_table
from mlhpc.record.result import Epoch, Result
from mlhpc.record.run_directory import RunDirectory, running
from mlhpc.submission.findings import findings_table, passes, verdict
from mlhpc.submission.report import run_charts, summary
from mlhpc.submission.report.predicted import Beside, predicted_table, what_if_table
from mlhpc.submission.report.summary import Part

PROBLEMS_LISTED = 20
_SLOWEST = 10


def page(
    run: RunDirectory,
    findings: Sequence[Finding],
    ruleset: str | None,
    predicted: Beside | None = None,
    changed: WhatIf | None = None,
) -> str:
    """The HTML of the page. Parts without data are omitted, and a separate section lists them."""
    result, active = run.result, running(run)
    ranks = read_rank_table(run.path, result.ranks if result else len(run.env.bindings))
    machines, bindings = run.env.machines, run.env.bindings
    heading, preset = registry.title(run.benchmark), f"preset {run.preset}" if run.preset else ""
    clock_s = run.log.time_to_train_s if run.log else None
    return render(
        template="mlhpc.submission.report:run.html",
        title=", ".join(filter(None, (heading, preset))),
        heading=heading,
        subtitle=preset,
        meta=" · ".join(_meta(run)),
        # Values for the template's text.
        run=run,
        result=result,
        summary=summary,
        running=active,
        reasons=summary.no_score(run, findings),
        clock_s=clock_s,
        rules=summary.rules_text(run, ruleset),
        verdict=verdict(findings),
        passes=passes(findings),
        ranks=len(ranks.ranks),
        left_out=ranks.left_out,
        slow_ranks=summary.slow_ranks(run),
        slow_epochs=summary.slow_epochs(run),
        machines=count(len(machines), "node"),
        shared_cores=shared_cores(bindings),
        predicted=predicted,
        notes=changed.notes if changed else (),
        unlisted=len(run.problems) - PROBLEMS_LISTED,
        # The sections.
        missing=None if active else _missing(run.problems[:PROBLEMS_LISTED]),
        breakdown=_breakdown(summary.parts(run)),
        energy=energy_table(
            result.energy if result else None, clock_s, result.trained_samples if result else 0
        ),
        prediction=[Banner(predicted.words), predicted_table(predicted)] if predicted else None,
        what_if=what_if_table(changed) if changed else None,
        training=Grid(run_charts.training(run, ranks)),
        processes=_processes(ranks, bindings),
        spatial=_spatial(result.epochs) if result else None,
        staging=_staging(result) if result else None,
        hyperparameters=_hyperparameters(run),
        hardware=[_nodes(machines), bindings_table(bindings)] if machines else None,
        provenance=_provenance(run),
        check=None if active else [findings_table([("", f) for f in findings])],
        epochs=_epochs(result) if result and result.epochs else None,
    )


def _meta(run: RunDirectory) -> list[str]:
    result, log = run.result, run.log
    meta = [str(log.value(k)) for k in ("submission_org", "submission_platform") if log and log.value(k)]
    meta = [value for value in dict.fromkeys(meta) if value != "unnamed"]
    if result:
        on = f" on {count(result.nodes, 'node')}" if result.nodes else ""
        meta.append(count(result.ranks, "rank") + on)
        if result.data and result.data.codec:
            meta.append(f"data by {result.data}")
    if run.env.date:
        meta.append(run.env.date.replace("T", " ").replace("+00:00", " UTC"))
    return meta


def _missing(problems: Sequence[tuple[str, str]]) -> Table:
    columns = {"file": lambda problem: problem[0], "problem": lambda problem: problem[1]}
    return table("missing", problems, columns, text_columns=2)


def _breakdown(parts: Sequence[Part]) -> list[Block] | None:
    drawn = [run_charts.breakdown(parts)] if any(part.seconds for part in parts) else []
    return [*drawn, breakdown_table(parts)] if parts else None


def breakdown_table(parts: Sequence[Part]) -> Table:
    """The table of the parts of the time to train, with each part's fraction of the total."""
    total = sum(part.seconds or 0.0 for part in parts)
    return table(
        "breakdown",
        parts,
        {
            "part": lambda part: Cell(part.label, (part.what,), part.label, swatch=part.key),
            "seconds": lambda part: number(part.seconds, "{:.2f}".format, none=part.unknown),
            "share": lambda part: Cell("" if part.seconds is None else f"{part.share:.1%}", value=part.share),
        },
        foot=(Cell("Sum"), Cell(f"{total:.2f}"), Cell("100.0%")),
    )


def _epochs(result: Result) -> Details:
    metric, rates = result.target.metric, summary.data_rates(result.epochs)
    epochs = table(
        "epochs",
        result.epochs,
        {
            "epoch": lambda e: number(e.epoch, str),
            metric: lambda e: number(e.quality(metric), four_digits),
            "training loss": lambda e: number(e.train_loss, four_digits),
            "learning rate": lambda e: number(e.learning_rate, four_digits),
            "training, s": lambda e: number(e.train_s, four_digits),
            "data wait, s": lambda e: number(e.data_wait_s, four_digits),
            "steps, s": lambda e: number(e.step_s, four_digits),
            "evaluation, s": lambda e: number(e.eval_s, four_digits),
            "its data wait, s": lambda e: number(e.eval_data_wait_s, four_digits),
            "samples": lambda e: "" if e.samples is None else str(e.samples),
            "samples/s": lambda e: number(e.samples_per_s, four_digits),
            "data rate": lambda e: number(rates.get(e.epoch), partial(bytes_text, per="/s")),
        },
    )
    return Details(f"{count(len(epochs.rows), 'epoch')} in numbers", (epochs,))


def _processes(ranks: RankTable, bindings: Sequence[RankBinding]) -> list[Block | None] | None:
    """Tables and charts of start-up, staging, waiting and memory of the ranks; for several ranks, the spread over
    ranks and the slowest ranks."""
    quantities: dict[str, tuple[str, Callable[[float], str]]] = {
        "start-up (init)": ("init_s", duration_text),
        "staging": ("staging_s", duration_text),
        "training": ("train_s", duration_text),
        "its own data wait": ("data_wait_s", duration_text),
        "longest single wait": ("longest_wait_s", duration_text),
        "evaluation": ("eval_s", duration_text),
        "peak memory of the process": ("peak_bytes", bytes_text),
        "peak memory of the accelerator": ("device_peak_bytes", bytes_text),
    }
    rows = []
    for name, (field, write) in quantities.items():
        if measured := ranks.of(field):
            values = list(measured.values())
            figures = (number(value, write) for value in (values[0], median(values), values[-1]))
            rows.append((Cell(name), *figures, number(max(measured, key=measured.__getitem__), str)))
    if len(ranks.ranks) == 1:
        one = Table("process", ("of the one rank", "value"), tuple(row[:2] for row in rows))
        return [one] if rows else None
    head = ("over the ranks", "fastest or least", "median", "slowest or most", "on rank")
    spread = run_charts.rank_spread(ranks)
    return [Table("ranks", head, tuple(rows)), spread, _slowest(ranks, bindings)] if rows else None


def _slowest(ranks: RankTable, bindings: Sequence[RankBinding]) -> Table | None:
    """A table of the ranks that waited longest for their own data; None if the chart shows every rank."""
    waits = ranks.of("data_wait_s")
    if len(waits) <= run_charts.MOST_COLUMNS:
        return None
    hosts = {each.rank: each.hostname for each in bindings}
    longest, training = ranks.of("longest_wait_s"), ranks.of("train_s")
    return table(
        "slowest",
        list(waits)[: -_SLOWEST - 1 : -1],
        {
            "rank with most data wait": str,
            "node": lambda rank: hosts.get(rank, "not known"),
            "its own data wait": lambda rank: number(waits[rank], duration_text),
            "longest single wait": lambda rank: number(longest.get(rank), duration_text),
            "training": lambda rank: number(training.get(rank), duration_text),
        },
        text_columns=2,
    )


def _spatial(epochs: Sequence[Epoch]) -> Table:
    """The table, by epoch, of data exchanged between ranks that share samples."""
    return table(
        "spatial",
        [e for e in epochs if e.halo_bytes is not None],
        {
            "epoch": lambda e: number(e.epoch, str),
            "halos sent": lambda e: number(e.halo_bytes, bytes_text),
            "waiting for halos, s": lambda e: number(e.halo_seconds, four_digits),
            "of steps and evaluation": lambda e: number(_waiting(e), "{:.0%}".format),
            "samples shared": lambda e: number(e.slab_bytes, bytes_text),
            "waiting for samples, s": lambda e: number(e.slab_seconds, four_digits),
        },
    )


def _waiting(epoch: Epoch) -> float | None:
    """The fraction of the time of steps and evaluation in which rank 0 waited for halos."""
    busy = (epoch.step_s or 0.0) + (epoch.eval_s or 0.0)
    return epoch.halo_seconds / busy if busy and epoch.halo_seconds is not None else None


def _staging(result: Result) -> Facts:
    staging = result.staging
    if staging is None:
        return Facts(_format_facts(result))
    times, read, waited = staging.rank_seconds, staging.source_bytes, duration_text(staging.waited_s)
    spread = (
        f", {duration_text(max(times))}; the fastest took {duration_text(min(times))}"
        if len(times) > 1
        else ""
    )
    how = ", once: nodes forwarded files to each other" if staging.read_once else ""
    if staging.overlapped:
        how = " by staging; training read more during the copy"
        first = f"read each file at its source until it was staged; waited {waited} at the end"
    else:
        first = "read the staged files"
    unknown = "not known"

    def said(fact: bool | None, yes: str, no: str) -> str:
        return unknown if fact is None else yes if fact else no

    evicted = "evicted: no page was in memory before the run"
    facts = {
        "files": whole(staging.files),
        "bytes": bytes_text(staging.bytes),
        "time": duration_text(staging.seconds),
        "rate": bytes_text(staging.bytes / staging.seconds, "/s") if staging.seconds else unknown,
        "slowest rank": unknown if staging.slowest_rank is None else f"{staging.slowest_rank}{spread}",
        "mode": f"{staging.mode or unknown}{', packed during the copy' if staging.packed else ''}",
        "first epoch": first,
        "read from the source": unknown if read is None else bytes_text(read) + how,
        **_format_facts(result),
        **_exchanged(result),
        "target file system": staging.target_filesystem or unknown,
        "target is RAM": said(staging.target_is_ram, "yes: staged files take memory from training", "no"),
        "source": said(result.source_evicted, evicted, "may have been in the page cache"),
        "checksums": said(staging.verified, "every file verified", "the data set has no checksums"),
        "already in place": count(staging.kept, "file"),
    }
    return Facts(facts)


_SCOPES = {
    "sample": "the whole data set, sample by sample",
    "node": "the samples of each node, fixed for the run",
    "global": "node shards, redivided before every epoch",
}


def _format_facts(result: Result) -> dict[str, str]:
    """Facts about the data format: the scope of the shuffle, and whether samples are in archives."""
    data = result.data
    scope = (
        (data and data.shuffle_scope) or (result.staging.shuffle_scope if result.staging else "sample") or ""
    )
    if scope == "global" and not (result.staging and result.staging.mode == "shard"):
        scope = "sample"  # the key's name in early versions
    facts = {"shuffled over": _SCOPES.get(scope, "not known")}
    if data and data.samples_per_archive:
        facts["archives"] = f"of {count(data.samples_per_archive, 'sample')}, packed before the clock started"
    return facts


def _exchanged(result: Result) -> dict[str, str]:
    """Facts about the exchange of samples between nodes before epochs; empty if there was none."""
    sent = [epoch.exchange_bytes for epoch in result.epochs if epoch.exchange_bytes is not None]
    if not sent:
        return {}
    spent = (result.breakdown_s or {}).get("exchange")
    took = f" in {duration_text(spent)}" if spent else ""
    return {
        "exchanged between epochs": f"{count(len(sent), 'time')}, {bytes_text(sum(sent))} sent by all nodes{took}"
    }


def _hyperparameters(run: RunDirectory) -> Facts:
    if run.config:
        return Facts(run.config.hyperparameters.logged() | run.config.training.applicable())
    # The keys of all benchmarks; keys that this log lacks have no value.
    keys = (key for name in registry.benchmarks() for key in load.hyperparameter_keys(name))
    return Facts({key: run.log.value(key) for key in keys} if run.log else {})


def _nodes(machines: Sequence[Machine]) -> Table:
    """A table of the nodes, with one row for identical nodes."""
    hosts: dict[tuple[str, ...], list[str]] = {}
    for machine in machines:
        accelerators = Counter(machine.accelerators)
        kind = (
            machine.cpu or "not known",
            str(machine.cores or "not known"),
            summary.memory_text(machine.memory_gib),
            ", ".join(f"{n} × {name}" for name, n in accelerators.items()) or "none",
        )
        hosts.setdefault(kind, []).append(machine.hostname or "?")
    rows = tuple((Cell(_some(names)), *map(Cell, kind)) for kind, names in hosts.items())
    return Table("hardware", ("node", "processor", "cores", "memory", "accelerators"), rows, text_columns=5)


def _some(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{hosts[0]} … {hosts[-1]} ({len(hosts)} nodes)"


def _provenance(run: RunDirectory) -> Facts:
    env, result = run.env, run.result
    packages = packages_of(run.benchmark, run.framework, env.packages)
    samples = result.samples if result else None
    sizes = samples and f"{samples.train} for training, {samples.eval} for evaluation"
    facts = {
        "commit": summary.commit(env),
        "date": env.date,
        "command": env.command,
        "seed": result and result.seed,
        "launcher": result and result.launcher,
        "ranks": result and result.ranks,
        "samples": samples and f"{sizes}, each {' × '.join(map(str, samples.shape))}",
        "operating system": env.os,
        "python": env.python,
        "packages": [f"{name} {version}" for name, version in packages.items()] or None,
        "mlhpc of the run": result and result.mlhpc,
    }
    return Facts(facts)
