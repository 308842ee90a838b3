"""The rules of the closed division about the conduct of runs: where the data set is at the start, caches,
initialisation, seeds and number of runs. Each rule is a short function (``benchmarks/rules.py``)."""

from collections import Counter
from collections.abc import Iterator

from mlhpc.benchmarks.findings import Finding
from mlhpc.benchmarks.load import definition_of, runs_of_a_score
from mlhpc.benchmarks.rule_context import OPEN, RunContext, violation
from mlhpc.quantities import duration_text

INIT_LIMIT_S = 30 * 60
"""Maximum seconds of initialisation (training rules, section "Run Results"; mlperf-logging, hpc_*/common.yaml,
init_stop)."""
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NODE_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay"})


# Rules that are checked before the run: the location of the data.


def data_not_in_memory(context: RunContext) -> Iterator[Finding]:
    """The data set is not in memory at the start.

    Source: training rules, "Data State at Start of Run" (explicitly excludes RAM).
    """
    if context.data_on in _MEMORY:
        remedy = f"keep it on durable storage and use --stage; or {OPEN}"
        yield violation("--data", "a durable file system", f"{context.data_on}", remedy)


def staging_is_timed(context: RunContext) -> Iterator[Finding]:
    """Up to ruleset 2.0.0 the data set is on a shared file system at the start, and copying it to the nodes
    is timed. Submitters may choose how the data set is copied, including which node reads it (`staging.read_once`)
    and whether nodes exchange their shards between epochs (`staging.exchange`), provided that the clock is
    running.

    Source: HPC rules of rounds 0.7 to 2.0, "Data State at Start of Run"; lifted in 3.0.
    """
    if not context.staging_is_timed:
        return
    if context.staged_before:
        remedy = "empty it: files of an interrupted run were not copied inside this run's clock"
        yield violation("--stage", "an empty staging target", "one with staged files", remedy)
    if context.data_on in _NODE_LOCAL:
        remedy = "if this is node-local storage, start from shared storage and use --stage"
        yield violation("--data", "a shared file system", f"{context.data_on}", remedy, "warning")


def caches(context: RunContext) -> Iterator[Finding]:
    """The page caches of the nodes are dropped before every run.

    Source: HPC rules of rounds 0.7 to 2.0 and training rules, "Data State at Start of Run".
    """
    if context.evicted is False:
        remedy = "use --evict, or drop the caches before the run"
        yield violation("--evict", "caches dropped", "caches as they were", remedy, "warning")


# Rules that are checked when the data set is opened, while the clock runs.


def data_of_benchmark(context: RunContext) -> Iterator[Finding]:
    """The data set is the published one, not a simulated one.

    Source: HPC rules, "Benchmarks" and "Data Set".
    """
    facts = context.facts or {}
    if facts.get("benchmark", context.run.benchmark) != context.run.benchmark:
        actual = f"of {facts['benchmark']}"
        yield violation("manifest.json", "the published data set", actual, "pass the right --data")
    if facts.get("simulation"):
        actual = "made by mlhpc data make"
        yield violation("manifest.json", "the published data set", actual, f"or {OPEN}")


def codec(context: RunContext) -> Iterator[Finding]:
    """Samples contain the published values: a different layout or a lossless codec is allowed, a lossy codec is
    not.

    Source: training rules, "Data State at Start of Run" (reformatting may not change the information).
    """
    facts = context.facts or {}
    remedy = f"convert it losslessly, or {OPEN}"
    for name, value in definition_of(context.run.benchmark).get("closed_data", {}).items():
        if facts.get(name, value) != value:
            yield violation("manifest.json", f"{name} {value}", f"{facts[name]}", remedy)
    if facts.get("lossy"):
        yield violation("manifest.json", "lossless data", f"{facts.get('codec', 'lossy')}", remedy)


# Rules that are checked after the run.


def init_time(context: RunContext) -> Iterator[Finding]:
    """Initialisation takes less than 30 minutes.

    Source: training rules, "Run Results"; mlperf-logging, hpc_2.0.0/common.yaml, init_stop.
    """
    if context.init_s is not None and context.init_s >= INIT_LIMIT_S:
        remedy = "the official checker rejects the log: shorten warm-up or use a compilation cache"
        yield violation(
            "init", f"less than {duration_text(INIT_LIMIT_S)}", duration_text(context.init_s), remedy
        )


# Rules that are checked in a campaign.


def seeds(context: RunContext) -> Iterator[Finding]:
    """Every run of a score has a different seed.

    Source: training rules, "Random numbers"; HPC rules, "Throughput" (equal seeds are pruned).
    """
    repeated = [seed for seed, count in Counter(context.seeds or ()).items() if count > 1]
    for seed in repeated:
        actual = f"{seed} in {Counter(context.seeds)[seed]} runs"
        yield violation("seed", "a different seed for every run", actual, "repeat those runs")


def number_of_runs(context: RunContext) -> Iterator[Finding]:
    """A score requires a fixed number of runs; throughput requires at least that number.

    Source: HPC rules, "Benchmark Results".
    """
    needed = runs_of_a_score(context.run.benchmark)
    if context.runs is not None and context.runs < needed:
        remedy = "a score requires all of them; to continue, run the campaign again with more --runs"
        yield violation("--runs", f"{needed} runs", f"{context.runs}", remedy, "warning")
