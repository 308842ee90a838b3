"""The report of a run as one self-contained HTML page. ``templates/run.html`` has the order of the sections and
their text."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from mlhpc.benchmarks import load, registry
from mlhpc.common.pages.blocks import Banner, Block, Cell, Details, Facts, Grid, Table, number, table
from mlhpc.common.pages.html import render
from mlhpc.errors import count
from mlhpc.submission.logs.bindings import bindings_table, read_bindings, shared_cores
from mlhpc.submission.logs.energy import energy_table
from mlhpc.submission.logs.findings import Finding, findings_table, passes, verdict
from mlhpc.submission.logs.ranks import RankTimes, read_ranks, running
from mlhpc.submission.logs.run_directory import Epoch, Result, RunDirectory, Samples, Staging
from mlhpc.submission.report import run_charts, summary
from mlhpc.submission.report.predicted import Beside, predicted_table, words
from mlhpc.submission.report.summary import Part, duration, rate, size

PROBLEMS_LISTED = 20


def page(
    run: RunDirectory, findings: Sequence[Finding], ruleset: str, predicted: Beside | None = None
) -> str:
    """The whole HTML text. Missing parts are left out, and listed in a separate section."""
    rules, ranks, result = summary.rules_text(run, ruleset), read_ranks(run.path), run.result
    machines, bindings = _machines(run.env), read_bindings(run.env)
    reasons = summary.no_score(run, findings)
    heading, preset = registry.title(run.benchmark), f"preset {run.preset}" if run.preset else ""
    ended, clock_s = not running(run), run.log.time_to_train_s if run.log else None
    return render(
        template="mlhpc.submission.report:run.html",
        title=", ".join(filter(None, (heading, preset))),
        heading=heading,
        subtitle=preset,
        meta=" · ".join(_meta(run)),
        pills=_pills(run, findings, rules) if ended else [("not ended", "")],
        banners=_banners(run, reasons),
        hero=_hero(run, reasons),
        # Values for the template's text.
        result=result,
        config=run.config,
        rules=rules,
        verdict=verdict(findings),
        ranks=len(ranks),
        machines=count(len(machines), "node"),
        shared_cores=shared_cores(bindings),
        predicted=predicted,
        unlisted=len(run.problems) - PROBLEMS_LISTED,
        # The sections.
        missing=_missing(run.problems[:PROBLEMS_LISTED]) if ended else None,
        breakdown=_breakdown(summary.parts(run)),
        energy=energy_table(result.energy if result else None, clock_s),
        prediction=[Banner(words(predicted)), predicted_table(predicted)] if predicted else None,
        training=Grid(drawn) if (drawn := run_charts.training(run, ranks)) else None,
        processes=_processes(ranks),
        spatial=_spatial(result.epochs) if result else None,
        staging=_staging(result) if result else None,
        hyperparameters=_hyperparameters(run),
        hardware=[_nodes(machines), bindings_table(bindings)] if machines else None,
        provenance=_provenance(run),
        check=[findings_table([("", f) for f in findings])] if ended else None,
        epochs=_epochs(result) if result and result.epochs else None,
    )


def _meta(run: RunDirectory) -> list[str]:
    result, log = run.result, run.log
    meta = [str(log.value(k)) for k in ("submission_org", "submission_platform") if log and log.value(k)]
    meta = [value for value in dict.fromkeys(meta) if value != "unnamed"]
    if result:
        meta.append(
            count(result.ranks, "rank") + (f" on {count(result.nodes, 'node')}" if result.nodes else "")
        )
    if result and result.data and result.data.codec:
        meta.append(f"data by {result.data}")
    if run.env.get("date"):
        meta.append(str(run.env["date"]).replace("T", " ").replace("+00:00", " UTC"))
    return meta


def _pills(run: RunDirectory, findings: Sequence[Finding], rules: str) -> list[tuple[str, str]]:
    """(text, tone) of the facts at the top of the page."""
    pills = []
    if run.result:
        pills.append((f"{run.result.division} division", ""))
        pills.append((run.result.status, "good" if run.result.status == "success" else "bad"))
        if run.result.resumed:
            pills.append(("resumed", "bad"))
    pills.append((f"{rules}: {verdict(findings)}", "good" if passes(findings) else "bad"))
    return pills


def _banners(run: RunDirectory, reasons: Sequence[str]) -> list[Banner]:
    banners = [Banner(summary.standing(run))]
    if reasons:
        strong, tone = ("No score yet:", "") if running(run) else ("No score:", "bad")
        banners.append(Banner(f"{'; '.join(reasons)}.", strong, tone))
    return banners


def _hero(run: RunDirectory, reasons: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """(label, number, text below, style) of the headline numbers."""
    result = run.result
    if reasons or result is None:
        ended = run.log.time_to_train_s if run.log else None
        also = f"The clock ran for {duration(ended)}; this is not a time to train." if ended else ""
        shown = "Not ended" if running(run) else "No score"
        cells = [("Time to train", shown, also, "big none" if shown == "No score" else "big")]
    else:
        also = f"without staging: {duration(result.time_to_train_without_staging_s)}"
        cells = [("Time to train, including staging", duration(result.time_to_train_s), also, "big")]
    if result:
        target = result.target
        best = "none" if target.best is None else f"{target.best:.4g}"
        also = f"best; target {summary.target_sign(target)} {target.value:g}, {count(len(result.epochs), 'epoch')}"
        cells.append((target.label.capitalize(), best, also, ""))
        if speed := summary.throughput(run):
            also = "samples/s, median epoch"
            if (read := summary.data_rate(run)) is not None:
                also += f"; reads {size(read, '/s')}"
            cells.append(("Training throughput", rate(speed), also, ""))
    return cells


def _missing(problems: Sequence[tuple[str, str]]) -> Table:
    columns = {"file": lambda problem: problem[0], "problem": lambda problem: problem[1]}
    return table("missing", problems, columns, text_columns=2)


def _breakdown(parts: Sequence[Part]) -> list[Block] | None:
    drawn = [run_charts.breakdown(parts)] if any(part.seconds for part in parts) else []
    return [*drawn, breakdown_table(parts)] if parts else None


def breakdown_table(parts: Sequence[Part]) -> Table:
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
    metric, rates, digits = result.target.metric, summary.data_rates(result.epochs), summary.digits
    epochs = table(
        "epochs",
        result.epochs,
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


def _processes(ranks: Sequence[RankTimes]) -> list[Block | None] | None:
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
    return [Table("ranks", head, tuple(rows)), run_charts.rank_spread(ranks)]


def _spatial(epochs: Sequence[Epoch]) -> Table:
    """Exchanges of ranks that share samples, by epoch."""
    return table(
        "spatial",
        [e for e in epochs if e.halo_bytes is not None],
        {
            "epoch": lambda e: number(e.epoch, str),
            "halos sent": lambda e: number(e.halo_bytes, size),
            "waiting for halos, s": lambda e: number(e.halo_seconds, summary.digits),
            "of steps and evaluation": lambda e: number(_waiting(e), "{:.0%}".format),
            "samples shared": lambda e: number(e.slab_bytes, size),
            "waiting for samples, s": lambda e: number(e.slab_seconds, summary.digits),
        },
    )


def _waiting(epoch: Epoch) -> float | None:
    """The share of steps and evaluation in which rank 0 waited for halos."""
    busy = (epoch.step_s or 0.0) + (epoch.eval_s or 0.0)
    return epoch.halo_seconds / busy if busy and epoch.halo_seconds is not None else None


def _staging(result: Result) -> Facts:
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


def _hyperparameters(run: RunDirectory) -> Facts:
    if run.config:
        return Facts(run.config.hyperparameters.logged() | run.config.training.applicable())
    # The keys of all benchmarks: those missing in this log have no value.
    keys = (key for name in registry.benchmarks() for key in load.hyperparameter_keys(name))
    return Facts({key: run.log.value(key) for key in keys} if run.log else {})


def _nodes(machines: Sequence[Mapping[str, Any]]) -> Table:
    """One row for identical nodes."""
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
    return Table("hardware", head, rows, text_columns=5)


def _machines(env: Mapping[str, Any]) -> list[Mapping[str, Any]]:
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


def _provenance(run: RunDirectory) -> Facts:
    env, result = run.env, run.result
    commit, command = env.get("commit"), env.get("command")
    changed = " with uncommitted changes" if env.get("dirty") else ""
    packages = summary.packages_of(run.benchmark, run.framework, env.get("packages"))
    facts = {
        "commit": f"{commit}{changed}" if commit else None,
        "date": env.get("date"),
        "command": " ".join(map(str, command)) if isinstance(command, list) else command,
        "seed": result and result.seed,
        "launcher": result and result.launcher,
        "ranks": result and result.ranks,
        "samples": result and _samples(result.samples),
        "operating system": env.get("os"),
        "python": env.get("python"),
        "packages": [f"{name} {version}" for name, version in packages.items()] or None,
        "mlhpc of the run": result and result.mlhpc,
    }
    return Facts(facts)


def _samples(samples: Samples) -> str:
    shape = " × ".join(map(str, samples.shape))
    return f"{samples.train} for training, {samples.eval} for evaluation, each {shape}"
