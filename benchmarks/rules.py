"""The rules that a closed run is held to, one short function each: most before it starts.

The official checker reads logs: it speaks when the machine's hours are spent, and never of what no log says.
The numbers stand in the benchmark's TOML file (``closed_fixes``, ``closed_free``, ``closed_data``,
``closed_results``). ``docs/rules.md`` is made from this file: the first paragraph of a docstring says what a
rule asks, the line ``Source:`` where it stands. "HPC rules" are the MLPerf HPC training rules 3.0, "training
rules" the MLPerf training rules that they build on (both mlcommons/training_policies).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mlhpc.benchmarks.findings import Finding, Severity
from mlhpc.benchmarks.load import definition_of, toml_value
from mlhpc.benchmarks.schema import Run
from mlhpc.errors import UserError

When = Literal["before the run", "when the data set is opened", "after the run", "in a campaign"]

INIT_LIMIT_S = 30 * 60
"""Training rules, section "Run Results"; mlperf-logging, hpc_*/common.yaml, init_stop."""
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_OF_ONE_NODE = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay"})
_LARGE_BATCH, _LARS_MOMENTUM = 32768, 0.9
_OPEN = "run with --set division=open"


@dataclass(frozen=True)
class RunContext:
    """What is known of a run when it is held to the rules. None: not known yet, and rules on it are silent.

    ``ruleset``: None is the newest that times staging, the strictest. ``data_on``: type of the file system
    that the data set lies on. ``staged_before``: the staging target holds files of an earlier run. ``facts``:
    those of the data set's manifest. ``evicted``: page caches dropped before the run. ``init_s``: seconds of
    init. ``seeds`` and ``runs``: the seeds of a campaign's runs, and how many runs it is to make.
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


def findings(known: RunContext) -> list[Finding]:
    """What the rules have against a run of the closed division, so far as is known; the open division's are
    held to none of them."""
    if known.run.division != "closed":
        return []
    return [
        replace(finding, rule=f"rules/{name_of(rule)}")
        for rules in RULES.values()
        for rule in rules
        for finding in rule(known)
    ]


def enforce(known: RunContext) -> list[Finding]:
    """Nothing is called closed that is not. Returns the warnings; raises UserError for the first error."""
    found = findings(known)
    errors = [finding for finding in found if finding.severity == "error"]
    if errors:
        first, more = errors[0], len(errors) - 1
        others = (
            f" (and {more} more: mlhpc rules {known.run.benchmark} with the same options)" if more else ""
        )
        raise UserError(f"not a closed run: {sentence(first)}{others}")
    return found


def sentence(finding: Finding) -> str:
    """A finding in one line."""
    return f"{finding.where}: {finding.expected}, not {finding.actual}; {finding.remedy}"


def submission_warning(run: Run) -> str:
    """A closed run whose log will not say who submits it, and on what: the entries are part of the log, which must
    not be edited afterwards. Empty where both are set.

    Source: MLPerf submission rules (mlcommons/policies, submission_rules.adoc).
    """
    unnamed = [key for key in ("org", "platform") if getattr(run.submission, key) == "unnamed"]
    if run.division != "closed" or not unnamed:
        return ""
    keys = " and ".join(f"submission.{key}" for key in unnamed)
    return (
        f"{keys} {'is' if len(unnamed) == 1 else 'are'} 'unnamed', submission.status is "
        f"'{run.submission.status}'; set them before the first run (--set submission.{unnamed[0]}=...), a log "
        "must not be edited afterwards"
    )


def runs_needed(benchmark: str) -> int:
    """How many runs one score is made from."""
    return int(definition_of(benchmark)["closed_results"]["runs"])


# Before the run: the settings.


def target(known: RunContext) -> Iterator[Finding]:
    """The run ends at the official quality.

    Source: HPC rules, "Benchmarks".
    """
    yield from _fixed(known, "target.")


def training_set(known: RunContext) -> Iterator[Finding]:
    """The official training set, all of it.

    Source: HPC rules, "Closed Division"; for DeepCAM also mlperf-logging, hpc_2.0.0/closed_deepcam.yaml.
    """
    yield from _fixed(known, "data.train_samples", "data.official", "loading.broken_images")


def evaluation_set(known: RunContext) -> Iterator[Finding]:
    """The quality is measured on the whole evaluation set.

    Source: training rules, "Quality measure" (at least as thoroughly as the reference).
    """
    yield from _fixed(known, "data.eval_samples")


def evaluation_frequency(known: RunContext) -> Iterator[Finding]:
    """The quality is measured as often as in the reference: after every epoch, of ResNet-50 every fourth.

    Source: training rules, "Quality measure" (at the same frequency as the reference).
    """
    yield from _fixed(known, "training.eval_steps", "training.epochs_between_evals")


def sample(known: RunContext) -> Iterator[Finding]:
    """Samples have the size of the reference's.

    Source: training rules, "Data Representation".
    """
    yield from _fixed(known, "data.sample_shape")


def network(known: RunContext) -> Iterator[Finding]:
    """The reference's network; the number of its parameters is compared again with what was built.

    Source: training rules, "Graph Definition".
    """
    yield from _fixed(known, "network.", but=_PREPROCESSING)


def preprocessing(known: RunContext) -> Iterator[Finding]:
    """The reference's preprocessing: no standardisation or augmentation of one's own.

    Source: training rules, "Preprocessing During the Run".
    """
    yield from _fixed(known, *_PREPROCESSING)


_PREPROCESSING = ("network.input_mean", "training.augment")


def optimizer(known: RunContext) -> Iterator[Finding]:
    """The optimizer of the reference, where the rules leave no choice.

    Source: HPC rules, "Hyperparameters and Optimizer".
    """
    yield from _fixed(known, "hyperparameters.opt_name")


def momentum(known: RunContext) -> Iterator[Finding]:
    """SGD has the momentum of the reference. The official checker does not ask for it.

    Source: HPC rules, "Hyperparameters and Optimizer" (sgd_opt_momentum); training rules, "Hyperparameters"
    (that of LARS is free from batches of 32768 on).
    """
    yield from _fixed(known, "hyperparameters.opt_momentum", "hyperparameters.sgd_opt_momentum")
    chosen = known.run.hyperparameters
    lars = getattr(chosen, "lars_opt_momentum", None) if chosen.global_batch_size < _LARGE_BATCH else None
    if lars not in (None, _LARS_MOMENTUM):
        where = "hyperparameters.lars_opt_momentum"
        yield _against(
            where, f"{_LARS_MOMENTUM}", f"{lars}", f"leave it below batches of {_LARGE_BATCH}, or {_OPEN}"
        )


def epsilon(known: RunContext) -> Iterator[Finding]:
    """The epsilon of Adam and of LARS is that of the reference.

    Source: HPC rules, "Hyperparameters and Optimizer"; mlperf-logging, hpc_2.0.0/closed_deepcam.yaml and
    training_4.0.0/closed_resnet_lars.yaml.
    """
    yield from _fixed(known, "hyperparameters.opt_eps", "hyperparameters.lars_epsilon")


def lamb(known: RunContext) -> Iterator[Finding]:
    """LAMB corrects bias, averages gradients and clips their norm as the reference does.

    Source: mlperf-logging, hpc_2.0.0/closed_deepcam_lamb.yaml.
    """
    yield from _fixed(
        known,
        "hyperparameters.opt_bias_correction",
        "hyperparameters.opt_grad_averaging",
        "hyperparameters.opt_max_grad_norm",
    )


def schedule(known: RunContext) -> Iterator[Finding]:
    """The learning rate goes as in the reference, where the rules leave no choice.

    Source: HPC rules, "Hyperparameters and Optimizer"; mlperf-logging, training_4.0.0/closed_resnet_*.yaml.
    """
    yield from _fixed(
        known,
        "hyperparameters.opt_learning_rate_schedule",
        "hyperparameters.sgd_opt_end_learning_rate",
        "hyperparameters.sgd_opt_learning_rate_decay_poly_power",
        "hyperparameters.lars_opt_end_learning_rate",
        "hyperparameters.lars_opt_learning_rate_decay_poly_power",
    )


def training_method(known: RunContext) -> Iterator[Finding]:
    """The training method of the reference: its loss, and every weight updated in every step.

    Source: HPC rules, "Closed Division"; training rules, "Loss function".
    """
    yield from _fixed(known, "training.freeze_below", "training.label_smoothing")


def free_hyperparameters(known: RunContext) -> Iterator[Finding]:
    """What may be chosen stays within its bounds, and nothing else is chosen.

    Source: HPC rules, "Hyperparameters and Optimizer"; mlperf-logging, hpc_2.0.0/closed_*.yaml.
    """
    definition = definition_of(known.run.benchmark)
    fixes, free = definition["closed_fixes"], definition["closed_free"]
    for name, value in known.run.hyperparameters.model_dump(mode="json").items():
        where = f"hyperparameters.{name}"
        if where in fixes:
            continue
        if name not in free:
            remedy = f"{_OPEN}, or add it to closed_free in benchmarks/{known.run.benchmark}.toml"
            yield _against(where, "what the rules name", toml_value(value), remedy)
        elif not all(_within(each, free[name]) for each in (value if isinstance(value, list) else [value])):
            expected, remedy = bounds(free[name]), f"choose one within, or {_OPEN}"
            yield _against(where, expected, toml_value(value), remedy)


def from_the_start(known: RunContext) -> Iterator[Finding]:
    """A run goes from its first step to the target in one piece.

    Source: training rules, "Run Results" (the clock may not be paused).
    """
    if known.resumed:
        yield _against("--resume", "a run from the start", "a resumed one", _OPEN)
    yield from _fixed(known, "study.")


# Before the run: where the data is.


def data_not_in_memory(known: RunContext) -> Iterator[Finding]:
    """The data set does not start in memory.

    Source: training rules, "Data State at Start of Run" (explicitly excludes RAM).
    """
    if known.data_on in _MEMORY:
        remedy = f"keep it on durable storage, and give --stage; or {_OPEN}"
        yield _against("--data", "a durable file system", f"{known.data_on}", remedy)


def staging_is_timed(known: RunContext) -> Iterator[Finding]:
    """Up to ruleset 2.0.0 data starts on a shared file system, and its way to the nodes is inside the clock.

    Source: HPC rules of rounds 0.7 to 2.0, "Data State at Start of Run"; lifted in 3.0.
    """
    if (known.ruleset or default_ruleset(known.run.benchmark)) not in _results(known)["staging_timed"]:
        return
    if known.staged_before:
        remedy = "empty it: what an interrupted run left was not copied inside this run's clock"
        yield _against("--stage", "an empty staging target", "one with staged files", remedy)
    if known.data_on in _OF_ONE_NODE:
        remedy = "where that is storage of one node, start from the shared one and give --stage"
        yield _against("--data", "a shared file system", f"{known.data_on}", remedy, "warning")


def caches(known: RunContext) -> Iterator[Finding]:
    """The page caches of the nodes are dropped before every run.

    Source: HPC rules of rounds 0.7 to 2.0 and training rules, "Data State at Start of Run".
    """
    if known.evicted is False:
        remedy = "give --evict, or drop the caches before the run"
        yield _against("--evict", "caches dropped", "caches as they were", remedy, "warning")


# When the data set is opened, inside the clock.


def data_of_benchmark(known: RunContext) -> Iterator[Finding]:
    """The published data set, not one of simulations made here.

    Source: HPC rules, "Benchmarks" and "Data Set".
    """
    facts = known.facts or {}
    if facts.get("benchmark", known.run.benchmark) != known.run.benchmark:
        actual = f"of {facts['benchmark']}"
        yield _against("manifest.json", "the published data set", actual, "give its --data")
    if facts.get("simulation"):
        actual = "made by mlhpc data make"
        yield _against("manifest.json", "the published data set", actual, f"or {_OPEN}")


def codec(known: RunContext) -> Iterator[Finding]:
    """Samples hold the numbers that were published: another layout or a lossless codec is allowed, one that
    rounds is not.

    Source: training rules, "Data State at Start of Run" (reformatting may not change the information).
    """
    facts = known.facts or {}
    remedy = f"convert it without loss, or {_OPEN}"
    for name, value in definition_of(known.run.benchmark)["closed_data"].items():
        if facts.get(name, value) != value:
            yield _against("manifest.json", f"{name} {value}", f"{facts[name]}", remedy)
    if facts.get("lossy"):
        yield _against("manifest.json", "data without loss", f"{facts.get('codec', 'lossy')}", remedy)


# After the run.


def init_time(known: RunContext) -> Iterator[Finding]:
    """Init stays under 30 minutes.

    Source: training rules, "Run Results"; mlperf-logging, hpc_2.0.0/common.yaml, init_stop.
    """
    if known.init_s is not None and known.init_s >= INIT_LIMIT_S:
        remedy = "the official checker rejects the log: less warm-up, or a compilation cache, and run again"
        yield _against("init", f"less than {INIT_LIMIT_S // 60} min", f"{known.init_s / 60:.1f} min", remedy)


# In a campaign.


def seeds(known: RunContext) -> Iterator[Finding]:
    """Every run of a score has a seed of its own.

    Source: training rules, "Random numbers"; HPC rules, "Throughput" (equal seeds are pruned).
    """
    twice = [seed for seed, count in Counter(known.seeds or ()).items() if count > 1]
    for seed in twice:
        actual = f"{seed} in {Counter(known.seeds)[seed]} runs"
        yield _against("seed", "a seed of its own for every run", actual, "make those runs again")


def number_of_runs(known: RunContext) -> Iterator[Finding]:
    """A score is made from so many runs, no more and no fewer; throughput from at least as many.

    Source: HPC rules, "Benchmark Results".
    """
    needed = _results(known)["runs"]
    if known.runs is not None and known.runs < needed:
        remedy = "a score needs them all; a second campaign with more --runs goes on from here"
        yield _against("--runs", f"{needed} runs", f"{known.runs}", remedy, "warning")


RULES: dict[When, tuple[Rule, ...]] = {
    "before the run": (
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


def asks(rule: Rule) -> str:
    """What a rule asks, in a sentence or two."""
    return _paragraphs(rule)[0]


def source(rule: Rule) -> str:
    """Where a rule stands."""
    return _paragraphs(rule)[1].removeprefix("Source: ").removesuffix(".")


def default_ruleset(benchmark: str) -> str:
    """The newest ruleset that times staging: what passes it passes the others."""
    results = definition_of(benchmark)["closed_results"]
    return str((results["staging_timed"] or results["rulesets"])[-1])


def bounds(condition: Mapping[str, Any]) -> str:
    """A condition of ``closed_free`` in words and signs."""
    if "one_of" in condition:
        return " or ".join(map(str, condition["one_of"]))
    return " and ".join(_SIGNS[name].format(limit) for name, limit in condition.items()) or "any value"


def name_of(rule: Rule) -> str:
    """The name under which a rule is told."""
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
    "multiple_of": lambda value, unit: _whole(value / unit),
    "power_of_two_times": lambda value, unit: value > 0 and _whole(math.log2(value / unit)),
    "one_of": lambda value, options: value in options,
}


def _whole(number: float) -> bool:
    """Whether it is a whole number, but for the rounding of a division."""
    return math.isclose(number, round(number), rel_tol=1e-9, abs_tol=1e-9)


def _within(value: Any, condition: Mapping[str, Any]) -> bool:
    return all(_HOLDS[name](value, limit) for name, limit in condition.items())


def _fixed(known: RunContext, *keys: str, but: Sequence[str] = ()) -> Iterator[Finding]:
    """What differs from ``closed_fixes`` under these keys; one that ends in a dot stands for all below it."""
    settings = known.run.model_dump(mode="json")
    for key, value in definition_of(known.run.benchmark)["closed_fixes"].items():
        table, _, name = key.partition(".")
        if key in but or not any(
            key == each or (each.endswith(".") and key.startswith(each)) for each in keys
        ):
            continue
        if (given := settings[table][name]) != value:
            yield _against(key, toml_value(value), toml_value(given), f"leave it, or {_OPEN}")


def _against(where: str, expected: str, actual: str, remedy: str, severity: Severity = "error") -> Finding:
    return Finding("", severity, where, expected, actual, remedy)


def _results(known: RunContext) -> dict[str, Any]:
    results: dict[str, Any] = definition_of(known.run.benchmark)["closed_results"]
    return results


def _paragraphs(rule: Rule) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in (rule.__doc__ or "").split("\n\n")]
