"""Judges whether finished jobs meet a tender's requirements, by ratios of times and their weighted geometric mean.

The metric is NERSC's Scalable System Improvement (nersc.gov/research-and-development/apex/apex-benchmarks/ssi):
the geometric mean, with weights w, of c · U · S over all jobs, where c is the capability factor of a job, S =
t_ref / t is its speedup, and U = (n_ref / n) · (N / N_ref) is the ratio of utilizations if the job runs on n of
the system's N nodes. S must be at least 1.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from mlhpc.benchmarks.load import differing, load
from mlhpc.benchmarks.registry import logged_name
from mlhpc.benchmarks.schema import Run
from mlhpc.common.energy.counters import NAMES
from mlhpc.common.files.untrusted import printable
from mlhpc.errors import UserError, few
from mlhpc.perf.machines import Machine
from mlhpc.perf.movement import required_bandwidth
from mlhpc.perf.prediction.model import Model, trained, with_batch
from mlhpc.perf.prediction.result import NO_EPOCHS
from mlhpc.perf.profile.host import another_device
from mlhpc.perf.scaling import Triple
from mlhpc.quantities import count, duration_text
from mlhpc.submission.acceptance.tender import Job, Tender
from mlhpc.submission.check.check import SetCheck
from mlhpc.submission.findings import verdict
from mlhpc.submission.result_set import environment_of, named
from mlhpc.submission.score.score import Strong
from mlhpc.submission.score.set_score import division_of, scored_joules, target_of

COLUMNS = ("offered", "predicted", "measured")
_NOT_WHOLE = ("log/resumed", "log/emulated", "run/resumed", "run/status", "set/machine")
"""Rules that no tier may break: the clock covers a whole training, and all trainings ran on one machine."""
_MODEL = re.compile(r"(?!0x|aarch64|x86_64|.*\bMI200\b)(?=[^,]*\d\d)(.+?)(?:, (\d+) MiB)?", re.IGNORECASE)
"""The name of one model of device, and its memory; not NVIDIA GPU, an ID on the PCI bus, or the series that early
ROCm names."""


@dataclass(frozen=True)
class Time:
    """Time to train in ``seconds`` on ``nodes`` nodes. ``scaled``: the size at which the time was measured, if it
    was scaled from a different size by the ratio of predictions; otherwise empty."""

    seconds: float
    nodes: int
    source: str
    scaled: str = ""


@dataclass(frozen=True)
class Judged:
    """The verdict on a job on ``nodes`` nodes. ``times`` and ``improvements`` (c · U · S): by column, where known;
    ``unknown``: the reason if there is no prediction. ``predicted_s``: the predicted time with its interval.
    ``joules``: energy per training run, from the kind of counter that the job specifies. ``notes``: remarks that
    do not affect the verdict. ``bandwidths``: required and offered, in bytes/s per node. ``command``: the command
    that runs the job."""

    name: str
    nodes: int
    reference: Time | None
    times: dict[str, Time]
    predicted_s: Triple | None
    unknown: str
    joules: float | None
    improvements: dict[str, float]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    bandwidths: dict[str, float | None]
    command: str

    @property
    def is_scaled(self) -> bool:
        """Whether the job was measured only at a different size, which is not sufficient for a verdict."""
        return "measured" in self.times and bool(self.times["measured"].scaled)

    @property
    def verdict(self) -> str:
        """One of "passes", "fails", "missing" and "scaled"."""
        if self.problems or "measured" not in self.times:
            return "fails" if self.problems else "missing"
        return "scaled" if self.is_scaled else "passes"


@dataclass(frozen=True)
class Acceptance:
    """The verdicts on all jobs of ``tender``."""

    tender: Tender
    machine: Machine
    jobs: tuple[Judged, ...]

    @property
    def improvements(self) -> dict[str, float]:
        """The metric, for each column in which every job with a reference has a time."""
        weights = {name: job.weight for name, job in self.tender.jobs.items()}
        jobs = [(each.improvements, weights[each.name]) for each in self.jobs if each.reference]
        return {
            column: geometric_mean((own[column], weight) for own, weight in jobs)
            for column in COLUMNS
            if jobs and all(column in own for own, _ in jobs)
        }

    @property
    def is_scaled(self) -> bool:
        """Whether a time in the measured improvement was scaled, so that the improvement decides nothing."""
        return any(each.reference and each.is_scaled for each in self.jobs)

    @property
    def status(self) -> int:
        """The exit status: 0 if accepted, 1 if not, 3 if undecided because jobs are missing or were measured at a
        different size."""
        required, reached = self.tender.required_improvement or 0.0, self.improvements.get("measured")
        verdicts = {judged.verdict for judged in self.jobs}
        if "fails" in verdicts or (reached is not None and reached < required and not self.is_scaled):
            return 1
        return 0 if verdicts == {"passes"} and (not required or reached is not None) else 3

    @property
    def content(self) -> dict[str, Any]:
        """The verdicts as JSON (docs/reference/json.md)."""
        return {
            "tender": self.tender.model_dump(mode="json"),
            "status": self.status,
            "improvements": self.improvements,
            "jobs": [{**asdict(each), "verdict": each.verdict} for each in self.jobs],
        }


def geometric_mean(weighted: Iterable[tuple[float, float]]) -> float:
    """The weighted geometric mean of pairs (value above 0, weight)."""
    values, weights = zip(*weighted, strict=True)
    return math.exp(fmean(map(math.log, values), weights))


def judge(tender: Tender, machine: Machine, sets: Sequence[SetCheck], root: Path) -> Acceptance:
    """Judge the jobs of ``tender`` by their finished runs, which are among ``sets``, found below ``root``. Raises
    UserError if two sets fit the same job equally well."""
    jobs = tuple(_judged(tender, machine, name, sets, root) for name in tender.jobs)
    return Acceptance(tender, machine, jobs)


def _judged(tender: Tender, machine: Machine, name: str, sets: Sequence[SetCheck], root: Path) -> Judged:
    job = tender.jobs[name]
    run, nodes, predicted_s, unknown = job.run, tender.nodes_of(job), None, ""
    times = {"offered": Time(job.offered, nodes, "offered")} if job.offered else {}
    try:
        predicted_s = predicted(machine, run, nodes)
        times["predicted"] = Time(predicted_s[0], nodes, "mlhpc predict")
    except UserError as error:
        unknown = str(error)
    reference = _reference(job, run) if job.reference else None
    problems, notes, joules = list[str](), list[str](), None
    if checked := _of_job(job, run, nodes, sets):
        problems += _against_tier(job, run, machine, checked)
        for fails, line in (*_against_machine(machine, checked), *_against_set(job, run, checked)):
            (problems if fails else notes).append(line)
        joules = scored_joules(checked.score).get(job.energy_of)
        try:
            times["measured"] = _measured(machine, run, nodes, checked, root)
        except UserError as error:
            problems.append(str(error))
    factor = job.capability * tender.system.nodes / tender.reference_nodes
    improvements = {
        column: factor * (reference.nodes / time.nodes) * (reference.seconds / time.seconds)
        for column, time in times.items()
        if reference
    }
    judged = Judged(name, nodes, reference, times, predicted_s, unknown, joules, improvements, (), tuple(notes),
                    _bandwidths(machine, run, nodes), _command(job, name, nodes, machine))  # fmt: skip
    return replace(judged, problems=(*problems, *_against_requirements(job, judged)))


def predicted(machine: Machine, run: Run, nodes: int) -> Triple:
    """The predicted time to train in seconds, with its interval. Raises UserError if nothing is known about the
    convergence of ``run`` to its target."""
    total = Model(machine, run).at(nodes).total_s
    if total is None:
        raise UserError(f"{run.benchmark}: {NO_EPOCHS}")
    return total


def _scaled(time: Time, machine: Machine, measured: Run, run: Run, nodes: int) -> Time:
    """``time`` of the run ``measured``, scaled to ``run`` on ``nodes`` by the ratio of the two runs' predicted
    times."""
    batch = measured.hyperparameters.global_batch_size
    if time.nodes == nodes and batch == run.hyperparameters.global_batch_size:
        return time
    ratio = predicted(machine, run, nodes)[0] / predicted(machine, measured, time.nodes)[0]
    return Time(time.seconds * ratio, nodes, time.source, f"{count(time.nodes, 'node')}, batch {batch}")


def _reference(job: Job, run: Run) -> Time:
    """The time of the published reference set. If the job sets ``reference_nodes``, the time is scaled to that
    number of nodes and to the batch size of ``run``, assuming staging.mode=shard."""
    row = job.published
    time = Time(row.total_s or 0.0, row.nodes, row.name)
    if job.reference_nodes is None:
        return time
    own = load(row.benchmark, row.preset, [f"training.precision={row.precision}", "staging.mode=shard"])
    wanted = with_batch(own, run.hyperparameters.global_batch_size)
    return _scaled(time, row.machine, with_batch(own, row.batch), wanted, job.reference_nodes)


def _of_job(job: Job, run: Run, nodes: int, sets: Sequence[SetCheck]) -> SetCheck | None:
    """The job's finished time-to-solution set that is nearest in size. Raises UserError if two sets are equally
    near."""
    distances: dict[float, list[SetCheck]] = {}
    for each in sets:
        of, size = each.results, _logged(each, "number_of_nodes")
        is_own = of.benchmark == logged_name(job.benchmark) and of.preset in (None, run.preset)
        if is_own and of.metric == "strong" and each.copy_of is None:
            distances.setdefault(abs(math.log(size / nodes)) if size else math.inf, []).append(each)
    nearest = distances[min(distances)] if distances else [None]
    if len(nearest) > 1:
        paths = few([str(each.results.path) for each in nearest if each], 3)
        raise UserError(
            f"{job.benchmark} has {count(len(nearest), 'set')} of the same size ({paths}); keep one"
        )
    return nearest[0]


def _logged(checked: SetCheck, key: str) -> int | None:
    logs = checked.results.condensed
    value = logs[0].value(key) if logs else None
    return value if isinstance(value, int) and value > 0 else None


def _measured(machine: Machine, run: Run, nodes: int, checked: SetCheck, root: Path) -> Time:
    """The score of a set as a time, scaled to ``nodes`` and the batch size of ``run`` if the set has a different
    size. Raises UserError if the set has no score, or if its logs do not state its size."""
    where = checked.results.path.relative_to(root).as_posix()
    if not isinstance(checked.score, Strong) or checked.score.minutes is None:
        raise UserError(f"{where} has no score: {checked.score.why}")
    size, batch = _logged(checked, "number_of_nodes"), _logged(checked, "global_batch_size")
    if size is None or batch is None:
        raise UserError(f"{where}: its logs lack number_of_nodes or global_batch_size")
    return _scaled(Time(checked.score.minutes * 60, size, where), machine, with_batch(run, batch), run, nodes)


def _against_tier(job: Job, run: Run, machine: Machine, checked: SetCheck) -> Iterable[str]:
    """Yield the problems of a set: violations of the job's tier, and evidence that it was not measured on this
    machine or with this data set."""
    errors = [each for each in checked.findings if each.severity == "error"]
    if job.tier == "optimized":
        errors = [each for each in errors if each.rule in _NOT_WHOLE]
    if errors:
        yield f"tier {job.tier}: the check {verdict(checked.findings)}; {errors[0].rule}: {errors[0].actual}"
    facts = {"train_samples": run.data.train_samples, "eval_samples": run.data.eval_samples}
    if not machine.is_cpu:
        facts["accelerators_per_node"] = machine.per_node
    if job.tier == "closed" and (division := division_of(checked.results)) != run.division:
        yield f"tier closed: division {division or 'not known'}, not {run.division}"
    target = target_of(checked.results)
    if target is None or target[0].value != run.target.value:
        yield f"target {target[0].value if target else 'not known'}, not {run.target.value}"
    yield from _against_network(job, run, checked)
    for key, samples in facts.items():
        logged = _logged(checked, key)
        if logged is None or abs(logged - samples) > 0.01 * samples:  # some submitters log whole batches only
            yield f"{key} {logged}, not {samples}"


def _against_machine(machine: Machine, checked: SetCheck) -> Iterator[tuple[bool, str]]:
    """Compare the accelerators of a set with those of ``machine``; on a CPU-only machine, the processors. Yields
    (True, difference) for each mismatch, or one (False, reason) if the models are unknown, as in most published
    logs."""
    envs = [environment_of(log) for log in checked.results.condensed]
    described = checked.results.system_json or {}
    stated = [env.cpu for env in envs] + [described.get("host_processor_model_name")]
    if not machine.is_cpu:
        models = (model for env in envs for node in (env, *env.nodes) for model in node.accelerators)
        stated = [*models, described.get("accelerator_model_name")]
    seen = list(dict.fromkeys(printable(name) for value in stated if (name := named(value))))
    known = list(filter(None, map(_MODEL.fullmatch, seen)))
    for match in known:
        if other := another_device(machine, match[1], int(match[2] or 0)):
            yield True, f"measured on {other}"
    if not known:
        wanted, found = machine.facts["accelerator.model"], few(seen, 3) or "its runs record no model"
        yield False, f"not known whether it was measured on {wanted}: {found}"


def _against_set(job: Job, run: Run, checked: SetCheck) -> Iterator[tuple[bool, str]]:
    """Yield the settings named in ``job.set`` that the runs have otherwise, with True in the closed tier, since
    the others may change them; or one line with False if no run states its settings. Division, target and batch
    size are judged elsewhere."""
    elsewhere = {"division", "target.value", "hyperparameters.global_batch_size"}
    keys = {setting.partition("=")[0].strip() for setting in job.set} - elsewhere
    if keys and not checked.results.configurations:
        yield False, f"not known whether its runs had the tender's {', '.join(sorted(keys))}"
    wanted, below = run.model_dump(mode="json"), tuple(f"{key}." for key in keys)
    lines = (
        f"{key} {own}, not {asked}"
        for each in checked.results.configurations.values()
        for key, (asked, own) in differing(wanted, each.model_dump(mode="json")).items()
        if f"{key}.".startswith(below)
    )
    yield from ((job.tier == "closed", line) for line in dict.fromkeys(lines))


def _against_network(job: Job, run: Run, checked: SetCheck) -> Iterable[str]:
    """Yield the settings of the samples' shape and, unless the tier allows it, of the network that differ from
    those of ``run``. No log states them, so they are known only for run folders."""
    wanted = trained(run)
    lines = (
        f"{key} {own.get(key)}, not {wanted.get(key)}"
        for own in map(trained, checked.results.configurations.values())
        for key in wanted | own
        if own.get(key) != wanted.get(key)
        and (key == "data.sample_shape" or (key.startswith("network.") and job.tier != "optimized"))
    )
    yield from dict.fromkeys(lines)


def _against_requirements(job: Job, judged: Judged) -> Iterable[str]:
    time = judged.times.get("measured")
    if time is None or time.scaled:
        return
    reached = judged.improvements.get("measured")
    if job.required_time and time.seconds > job.required_time:
        yield f"{duration_text(time.seconds)}, required {duration_text(job.required_time)}"
    if job.required_improvement and reached is not None and reached < job.required_improvement:
        yield f"improvement {reached:.3g}, required {job.required_improvement:.3g}"
    if judged.reference and judged.reference.seconds < time.seconds:
        yield f"slower than the reference, {duration_text(judged.reference.seconds)}: S is below 1"
    if job.required_joules and (judged.joules is None or judged.joules > job.required_joules):
        measured = "no complete figure" if judged.joules is None else f"{judged.joules:.4g} J"
        yield f"energy of {NAMES[job.energy_of]}: {measured}, required {job.required_joules:.4g} J per training"


def _bandwidths(machine: Machine, run: Run, nodes: int) -> dict[str, float | None]:
    """Bandwidths in bytes/s per node (Ibrahim et al. 2021, section VII): those required for samples and memory
    traffic at the accelerators' peak and for files at the predicted rate, and those that the machine offers; None
    if not known."""
    model, precision = Model(machine, run), run.training.precision
    peak, flops = machine.peak(precision)[0] * machine.per_node, model.network.training_flops
    link, shared = machine.get("links.host"), machine.get("storage.shared_read")
    rate = None
    with suppress(UserError):
        rate = model.at(nodes).samples_per_s[0]
    return {
        "samples": required_bandwidth(flops, model.bytes.received, peak),
        "link": link and link * machine.per_node,
        "memory": required_bandwidth(flops, model.network.traffic(precision), peak),
        "memory_of_machine": machine.figures["accelerator.bandwidth"] * machine.per_node,
        "files": rate and rate * machine.per_node * model.bytes.stored,
        "file_system": shared and shared / nodes,
        "local": machine.get("storage.local_read"),
    }


def _command(job: Job, name: str, nodes: int, machine: Machine) -> str:
    """The command that runs the job under Slurm."""
    batch = [f"hyperparameters.global_batch_size={job.batch}"] if job.batch else []
    words = "".join(f" --set '{setting}'" for setting in (*job.set, *batch))
    return (
        f"BENCHMARK={job.benchmark} PRESET={job.preset} OUT=results/{name} sbatch -N {nodes} "
        f"--ntasks-per-node={machine.per_node} run_scripts/campaign.sbatch{words}"
    )
