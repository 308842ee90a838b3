"""The rules of the closed division, one short function each; most are checked before a run starts.

The official checker reads logs: it reports after the machine's hours are spent, and only what logs record.
The numbers are in the benchmark's TOML file (``closed_fixes``, ``closed_free``, ``closed_data``,
``closed_results``). ``docs/rules.md`` is generated from this file: the first paragraph of a docstring is the
requirement, the line ``Source:`` says where it is stated. "HPC rules" are the MLPerf HPC training rules 3.0,
"training rules" the MLPerf training rules that they build on (both mlcommons/training_policies).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.benchmarks.load import definition_of, runs_of_a_score, toml_value
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError

When = Literal["before the run", "when the data set is opened", "after the run", "in a campaign"]

INIT_LIMIT_S = 30 * 60
"""Training rules, section "Run Results"; mlperf-logging, hpc_*/common.yaml, init_stop."""
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NODE_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay"})
_LARGE_BATCH, _LARS_MOMENTUM = 32768, 0.9
_NO_RULESETS: dict[str, Any] = {"rulesets": [], "staging_timed": []}
_OPEN = "run with --set division=open"


@dataclass(frozen=True)
class RunContext:
    """What is known about a run when the rules are checked. None: not known yet, and rules about it are skipped.

    ``ruleset``: None means the newest that times staging, the strictest. ``data_on``: type of the file system
    that holds the data set. ``staged_before``: the staging target holds files of an earlier run. ``facts``:
    those of the data set's manifest. ``evicted``: page caches dropped before the run. ``init_s``: seconds of
    init. ``seeds`` and ``runs``: the seeds of a campaign's runs, and their planned number.
    """

    run: Run
    ruleset: str | None = None
    resumed: bool | None = None
    data_on: str | None = None
    staged_before: bool | None = None
    facts: Mapping[str, Any] | None = None
    evicted: bool | None = None
    init_s: float | None = None
    seeds: Sequence[int] | None = None
    runs: int | None = None


Rule = Callable[[RunContext], Iterator[Finding]]


def findings(context: RunContext) -> list[Finding]:
    """Violations of the rules by a run of the closed division, as far as is known; none apply to open runs."""
    if context.run.division != "closed":
        return []
    return [
        replace(finding, rule=f"rules/{name_of(rule)}")
        for rules in RULES.values()
        for rule in rules
        for finding in rule(context)
    ]


def enforce(context: RunContext) -> list[Finding]:
    """Raises UserError for the first error, since the run is not a closed one; returns the warnings."""
    violations = findings(context)
    errors = [finding for finding in violations if finding.severity == "error"]
    if errors:
        first, more = errors[0], len(errors) - 1
        others = (
            f" (and {more} more: mlhpc rules {context.run.benchmark} with the same options)" if more else ""
        )
        raise UserError(f"not a closed run: {sentence(first)}{others}")
    return violations


def sentence(finding: Finding) -> str:
    """A finding in one line."""
    return f"{finding.where}: {finding.expected}, not {finding.actual}; {finding.remedy}"


# Before the run: the settings.


def closed_division(context: RunContext) -> Iterator[Finding]:
    """The benchmark has a closed division.

    Source: training rules, "Divisions".
    """
    if "closed_fixes" not in definition_of(context.run.benchmark):
        actual = f"closed, which {context.run.benchmark} does not have"
        yield _violation("division", "open", actual, _OPEN)


def submitter(context: RunContext) -> Iterator[Finding]:
    """Logs name the submitting organization and its platform: logs may not be edited afterwards.

    Source: training rules, "Submission"; mlperf-logging, hpc_2.0.0/common.yaml, submission_org.
    """
    for name in ("org", "platform"):
        if getattr(context.run.submission, name) == "unnamed":
            remedy = f"set it now with --set submission.{name}=NAME: logs may not be edited later"
            yield _violation(f"submission.{name}", "the submitter's", "unnamed", remedy, "warning")


def target(context: RunContext) -> Iterator[Finding]:
    """The run ends at the official quality.

    Source: HPC rules, "Benchmarks".
    """
    yield from _fixed(context, "target.")


def training_set(context: RunContext) -> Iterator[Finding]:
    """The official training set, all of it.

    Source: HPC rules, "Closed Division"; for DeepCAM also mlperf-logging, hpc_2.0.0/closed_deepcam.yaml.
    """
    yield from _fixed(context, "data.train_samples", "data.official", "loading.broken_images")


def evaluation_set(context: RunContext) -> Iterator[Finding]:
    """The quality is measured on the whole evaluation set.

    Source: training rules, "Quality measure" (at least as thoroughly as the reference).
    """
    yield from _fixed(context, "data.eval_samples")


def evaluation_frequency(context: RunContext) -> Iterator[Finding]:
    """The quality is measured as often as in the reference: after every epoch, of ResNet-50 every fourth.

    Source: training rules, "Quality measure" (at the same frequency as the reference).
    """
    yield from _fixed(context, "training.eval_steps", "training.epochs_between_evals")


def sample(context: RunContext) -> Iterator[Finding]:
    """Samples have the size of the reference's.

    Source: training rules, "Data Representation".
    """
    yield from _fixed(context, "data.sample_shape")


def network(context: RunContext) -> Iterator[Finding]:
    """The reference's network; its number of parameters is compared again once it is built.

    Source: training rules, "Graph Definition".
    """
    yield from _fixed(context, "network.", exclude=_PREPROCESSING)


def preprocessing(context: RunContext) -> Iterator[Finding]:
    """The reference's preprocessing: no crops, resizing, standardisation or augmentation of the submitter's own.

    Source: training rules, "Preprocessing During the Run".
    """
    yield from _fixed(context, *_PREPROCESSING)


_PREPROCESSING = ("network.input_mean", "training.augment", "training.preprocessing")


def optimizer(context: RunContext) -> Iterator[Finding]:
    """The optimizer of the reference, unless the rules leave a choice.

    Source: HPC rules, "Hyperparameters and Optimizer"; training rules, "Hyperparameters".
    """
    yield from _fixed(context, "hyperparameters.opt_name", "training.sgd")


def momentum(context: RunContext) -> Iterator[Finding]:
    """SGD has the momentum of the reference. The official checker does not check this.

    Source: HPC rules, "Hyperparameters and Optimizer" (sgd_opt_momentum); training rules, "Hyperparameters"
    (that of LARS is free from batches of 32768 on).
    """
    yield from _fixed(context, "hyperparameters.opt_momentum", "hyperparameters.sgd_opt_momentum")
    chosen = context.run.hyperparameters
    lars = getattr(chosen, "lars_opt_momentum", None) if chosen.global_batch_size < _LARGE_BATCH else None
    if lars not in (None, _LARS_MOMENTUM):
        where = "hyperparameters.lars_opt_momentum"
        yield _violation(
            where,
            f"{_LARS_MOMENTUM}",
            f"{lars}",
            f"do not change it below batches of {_LARGE_BATCH}, or {_OPEN}",
        )


def epsilon(context: RunContext) -> Iterator[Finding]:
    """The epsilon of Adam and of LARS is that of the reference.

    Source: HPC rules, "Hyperparameters and Optimizer"; mlperf-logging, hpc_2.0.0/closed_deepcam.yaml and
    training_4.0.0/closed_resnet_lars.yaml.
    """
    yield from _fixed(context, "hyperparameters.opt_eps", "hyperparameters.lars_epsilon")


def lamb(context: RunContext) -> Iterator[Finding]:
    """LAMB corrects bias, averages gradients and clips their norm as the reference does.

    Source: mlperf-logging, hpc_2.0.0/closed_deepcam_lamb.yaml.
    """
    yield from _fixed(
        context,
        "hyperparameters.opt_bias_correction",
        "hyperparameters.opt_grad_averaging",
        "hyperparameters.opt_max_grad_norm",
    )


def schedule(context: RunContext) -> Iterator[Finding]:
    """The learning rate follows the schedule of the reference, unless the rules leave a choice.

    Source: HPC rules, "Hyperparameters and Optimizer"; mlperf-logging, training_4.0.0/closed_resnet_*.yaml.
    """
    yield from _fixed(
        context,
        "hyperparameters.opt_learning_rate_schedule",
        "hyperparameters.sgd_opt_end_learning_rate",
        "hyperparameters.sgd_opt_learning_rate_decay_poly_power",
        "hyperparameters.lars_opt_end_learning_rate",
        "hyperparameters.lars_opt_learning_rate_decay_poly_power",
    )


def training_method(context: RunContext) -> Iterator[Finding]:
    """The training method of the reference: every weight updated in every step.

    Source: HPC rules, "Closed Division".
    """
    yield from _fixed(context, "training.freeze_below")


def free_hyperparameters(context: RunContext) -> Iterator[Finding]:
    """What may be chosen stays within its bounds, and nothing else is chosen.

    Source: HPC rules, "Hyperparameters and Optimizer"; training rules, "Hyperparameters" (label
    smoothing 0 or 0.1); mlperf-logging, hpc_2.0.0/closed_*.yaml.
    """
    definition = definition_of(context.run.benchmark)
    if "closed_free" not in definition:
        return
    fixes, free = definition["closed_fixes"], definition["closed_free"]
    settings = context.run.model_dump(mode="json")
    # A key of closed_free with a table's name is a free setting that logs do not record.
    chosen = {key: settings[key.split(".")[0]][key.split(".")[1]] for key in free if "." in key}
    for name, value in (settings["hyperparameters"] | chosen).items():
        where = name if name in chosen else f"hyperparameters.{name}"
        if where in fixes:
            continue
        if name not in free:
            remedy = f"{_OPEN}, or add it to closed_free in benchmarks/{context.run.benchmark}.toml"
            yield _violation(where, "what the rules name", toml_value(value), remedy)
        elif not all(_within(each, free[name]) for each in (value if isinstance(value, list) else [value])):
            expected, remedy = bounds(free[name]), f"choose one within, or {_OPEN}"
            yield _violation(where, expected, toml_value(value), remedy)


def from_the_start(context: RunContext) -> Iterator[Finding]:
    """A run goes from its first step to the target in one piece.

    Source: training rules, "Run Results" (the clock may not be paused).
    """
    if context.resumed:
        yield _violation("--resume", "a run from the start", "a resumed one", _OPEN)
    yield from _fixed(context, "study.")


# Before the run: where the data is.


def data_not_in_memory(context: RunContext) -> Iterator[Finding]:
    """The data set does not start in memory.

    Source: training rules, "Data State at Start of Run" (explicitly excludes RAM).
    """
    if context.data_on in _MEMORY:
        remedy = f"keep it on durable storage, and give --stage; or {_OPEN}"
        yield _violation("--data", "a durable file system", f"{context.data_on}", remedy)


def staging_is_timed(context: RunContext) -> Iterator[Finding]:
    """Up to ruleset 2.0.0 data starts on a shared file system, and copying it to the nodes is timed.

    Source: HPC rules of rounds 0.7 to 2.0, "Data State at Start of Run"; lifted in 3.0.
    """
    if (context.ruleset or default_ruleset(context.run.benchmark)) not in _results(context)["staging_timed"]:
        return
    if context.staged_before:
        remedy = "empty it: files of an interrupted run were not copied inside this run's clock"
        yield _violation("--stage", "an empty staging target", "one with staged files", remedy)
    if context.data_on in _NODE_LOCAL:
        remedy = "if that is node-local storage, start from shared storage and give --stage"
        yield _violation("--data", "a shared file system", f"{context.data_on}", remedy, "warning")


def caches(context: RunContext) -> Iterator[Finding]:
    """The page caches of the nodes are dropped before every run.

    Source: HPC rules of rounds 0.7 to 2.0 and training rules, "Data State at Start of Run".
    """
    if context.evicted is False:
        remedy = "give --evict, or drop the caches before the run"
        yield _violation("--evict", "caches dropped", "caches as they were", remedy, "warning")


# When the data set is opened, inside the clock.


def data_of_benchmark(context: RunContext) -> Iterator[Finding]:
    """The published data set, not a simulated one.

    Source: HPC rules, "Benchmarks" and "Data Set".
    """
    facts = context.facts or {}
    if facts.get("benchmark", context.run.benchmark) != context.run.benchmark:
        actual = f"of {facts['benchmark']}"
        yield _violation("manifest.json", "the published data set", actual, "give the right --data")
    if facts.get("simulation"):
        actual = "made by mlhpc data make"
        yield _violation("manifest.json", "the published data set", actual, f"or {_OPEN}")


def codec(context: RunContext) -> Iterator[Finding]:
    """Samples hold the numbers that were published: another layout or a lossless codec is allowed, a lossy
    one is not.

    Source: training rules, "Data State at Start of Run" (reformatting may not change the information).
    """
    facts = context.facts or {}
    remedy = f"convert it losslessly, or {_OPEN}"
    for name, value in definition_of(context.run.benchmark).get("closed_data", {}).items():
        if facts.get(name, value) != value:
            yield _violation("manifest.json", f"{name} {value}", f"{facts[name]}", remedy)
    if facts.get("lossy"):
        yield _violation("manifest.json", "lossless data", f"{facts.get('codec', 'lossy')}", remedy)


# After the run.


def init_time(context: RunContext) -> Iterator[Finding]:
    """Init stays under 30 minutes.

    Source: training rules, "Run Results"; mlperf-logging, hpc_2.0.0/common.yaml, init_stop.
    """
    if context.init_s is not None and context.init_s >= INIT_LIMIT_S:
        remedy = (
            "the official checker rejects the log: shorten warm-up or use a compilation cache, and run again"
        )
        yield _violation(
            "init", f"less than {INIT_LIMIT_S // 60} min", f"{context.init_s / 60:.1f} min", remedy
        )


# In a campaign.


def seeds(context: RunContext) -> Iterator[Finding]:
    """Every run of a score has its own seed.

    Source: training rules, "Random numbers"; HPC rules, "Throughput" (equal seeds are pruned).
    """
    repeated = [seed for seed, count in Counter(context.seeds or ()).items() if count > 1]
    for seed in repeated:
        actual = f"{seed} in {Counter(context.seeds)[seed]} runs"
        yield _violation("seed", "a different seed for every run", actual, "repeat those runs")


def number_of_runs(context: RunContext) -> Iterator[Finding]:
    """A score is computed from a fixed number of runs, throughput from at least that number.

    Source: HPC rules, "Benchmark Results".
    """
    needed = runs_of_a_score(context.run.benchmark)
    if context.runs is not None and context.runs < needed:
        remedy = "a score needs them all; a second campaign with more --runs continues from here"
        yield _violation("--runs", f"{needed} runs", f"{context.runs}", remedy, "warning")


RULES: dict[When, tuple[Rule, ...]] = {
    "before the run": (
        closed_division,
        submitter,
        target,
        training_set,
        evaluation_set,
        evaluation_frequency,
        sample,
        network,
        preprocessing,
        optimizer,
        momentum,
        epsilon,
        lamb,
        schedule,
        training_method,
        free_hyperparameters,
        from_the_start,
        data_not_in_memory,
        staging_is_timed,
        caches,
    ),
    "when the data set is opened": (data_of_benchmark, codec),
    "after the run": (init_time,),
    "in a campaign": (seeds, number_of_runs),
}


def requirement(rule: Rule) -> str:
    """The requirement of a rule, in a sentence or two."""
    return _paragraphs(rule)[0]


def source(rule: Rule) -> str:
    """Where a rule is stated."""
    return _paragraphs(rule)[1].removeprefix("Source: ").removesuffix(".")


def default_ruleset(benchmark: str) -> str:
    """The newest ruleset that times staging: what passes it passes the others."""
    results = definition_of(benchmark).get("closed_results", _NO_RULESETS)
    return str((results["staging_timed"] or results["rulesets"] or ["none"])[-1])


def bounds(condition: Mapping[str, Any]) -> str:
    """A condition of ``closed_free`` in words and symbols."""
    if "one_of" in condition:
        return " or ".join(map(str, condition["one_of"]))
    return " and ".join(_SIGNS[name].format(limit) for name, limit in condition.items()) or "any value"


def name_of(rule: Rule) -> str:
    """The name under which a rule is reported."""
    return rule.__name__.replace("_", "-")


_SIGNS = {
    "at_least": "≥ {:g}",
    "above": "> {:g}",
    "at_most": "≤ {:g}",
    "below": "< {:g}",
    "multiple_of": "a multiple of {:g}",
    "power_of_two_times": "{:g} · 2ⁿ",
}
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "at_most": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
    "multiple_of": lambda value, unit: _is_whole(value / unit),
    "power_of_two_times": lambda value, unit: value > 0 and _is_whole(math.log2(value / unit)),
    "one_of": lambda value, options: value in options,
}


def _is_whole(number: float) -> bool:
    """Whether ``number`` is whole, up to the rounding of a division."""
    return math.isclose(number, round(number), rel_tol=1e-9, abs_tol=1e-9)


def _within(value: Any, condition: Mapping[str, Any]) -> bool:
    return all(_HOLDS[name](value, limit) for name, limit in condition.items())


def _fixed(context: RunContext, *keys: str, exclude: Sequence[str] = ()) -> Iterator[Finding]:
    """Settings under ``keys`` that differ from ``closed_fixes``; a key that ends in a dot is a whole table."""
    settings = context.run.model_dump(mode="json")
    for key, value in definition_of(context.run.benchmark).get("closed_fixes", {}).items():
        table, _, name = key.partition(".")
        if key in exclude or not any(
            key == each or (each.endswith(".") and key.startswith(each)) for each in keys
        ):
            continue
        if (actual := settings[table][name]) != value:
            yield _violation(key, toml_value(value), toml_value(actual), f"do not change it, or {_OPEN}")


def _violation(where: str, expected: str, actual: str, remedy: str, severity: Severity = "error") -> Finding:
    return Finding("", severity, where, expected, actual, remedy)


def _results(context: RunContext) -> dict[str, Any]:
    results: dict[str, Any] = definition_of(context.run.benchmark).get("closed_results", _NO_RULESETS)
    return results


def _paragraphs(rule: Rule) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in (rule.__doc__ or "").split("\n\n")]
