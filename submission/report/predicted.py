"""Predicted and measured times of each part of a run, their ratio, and the limiting factor of training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mlhpc.common.pages.blocks import Cell, Table, number, table
from mlhpc.errors import UserError
from mlhpc.perf.machines import Machine
from mlhpc.perf.prediction.model import Model
from mlhpc.perf.prediction.result import NO_INTERVAL, Prediction
from mlhpc.perf.scaling import Triple, added
from mlhpc.perf.staging import staging_seconds
from mlhpc.perf.what_if import WhatIf
from mlhpc.quantities import digits, duration_text
from mlhpc.record.breakdown import PARTS
from mlhpc.record.result import Result
from mlhpc.record.run_directory import RunDirectory
from mlhpc.submission.report.summary import parts

_SLOWED = 0.05
"""Fraction of data wait in the training time above which the report names the input path as the limit."""


@dataclass(frozen=True)
class PredictedPart:
    """One part of a run in seconds: the measured time (None if it is not known), and the predicted time with its
    interval (None if there is no model)."""

    label: str
    measured: float | None
    predicted: Triple | None

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None if either is missing or zero."""
        if not self.predicted or not self.measured or self.predicted[0] <= 0:
            return None
        return self.measured / self.predicted[0]


@dataclass(frozen=True)
class Beside:
    """Measured and predicted parts of a run. ``measured`` and ``predicted``: sentences about what limits training.
    ``machine``: the machine of the prediction."""

    parts: tuple[PredictedPart, ...]
    measured: str
    predicted: str
    machine: str
    notes: tuple[str, ...]

    @property
    def words(self) -> str:
        """Sentences about what limits training according to the measurement and to the prediction."""
        return f"Measured: {self.measured}. Predicted: {self.predicted}."


def beside(run: RunDirectory, machine: Machine) -> Beside:
    """The measured parts of ``run``, and those predicted on ``machine`` for the run's nodes, epochs and samples,
    with one GPU per rank, or all of the node's processors for all of its ranks.

    Raises UserError if the run has no result and configuration, or is impossible on that machine.
    """
    result, config = run.result, run.config
    if result is None or config is None or not result.epochs or not result.ranks:
        if problem := dict(run.problems).get("config.toml"):
            raise UserError(f"{run.path / 'config.toml'}: {problem}; --machine requires the run's settings")
        raise UserError(f"{run.path}: --machine requires a run with config.toml and epochs in result.json")
    nodes = result.nodes or 1
    per_node = machine.per_node if machine.is_cpu else max(1, result.ranks // nodes)
    facts = {**machine.facts, "accelerator.per_node": per_node}
    staging = result.staging
    model = Model(replace(machine, facts=facts), config, staged=staging is not None)
    prediction, measured = model.at(nodes), parts(run)
    apart = any(part.key == "first_epoch_excess" and part.seconds is not None for part in measured)
    predicted = _predicted(model, prediction, result, apart)
    rows = [PredictedPart(part.label, part.seconds, predicted.get(part.key)) for part in measured]
    names = (*prediction.notes, f"efficiency: {prediction.efficiency.how}")
    return Beside(tuple(rows), _measured_words(run), prediction.binding, machine.title, names)


def _predicted(model: Model, p: Prediction, result: Result, apart: bool) -> dict[str, Triple]:
    """The prediction by part, for the epochs that were trained. ``apart``: whether the measurement has the first
    epoch's excess as a separate part, not contained in waits and steps."""
    trained = sum(e.samples or model.run.data.train_samples for e in result.epochs) / p.batch
    spread = [end / p.step_s.value for end in p.step_s.ends]
    # If not every epoch ends with an evaluation, those that do have a whole one.
    evaluated = sum(1 for e in result.epochs if e.eval_s) / min(1.0, p.run.evaluations_per_epoch)
    nothing = (0.0, 0.0, 0.0)
    cold = nothing if result.staging else p.staging_s  # the first epoch's reads from the file system
    within = nothing if apart else cold
    predicted = {
        "step": _times(p.step.busy * trained, spread),
        "data_wait": added(_times(p.step.wait * trained, (1, 1, 1)), within),
        # an aborted run has only the sum of steps and waits
        "training": added(_times(p.step_s.value * trained, spread), within),
        "evaluation": _times(1.0, [evaluated * end for end in p.eval_s]),
    }
    if p.moved and (once := model.exchange(p.nodes, p.tier)) is not None:
        predicted["exchange"] = _times(once * (len(result.epochs) - 1), (1, 1, 1))
    if apart and cold[0] > 0:
        predicted["first_epoch_excess"] = cold
    if result.staging and not result.staging.overlapped:  # only the part not hidden by training was measured
        size, received = result.staging.bytes / p.nodes, 0.0
        if result.staging.read_once and result.staging.source_bytes is not None:
            received = (result.staging.bytes - result.staging.source_bytes) / p.nodes
        predicted["staging"] = staging_seconds(model.machine, size, p.nodes, p.tier, received)
        rates = [model.machine.get(f"storage.local_{way}") for way in ("read", "write")]
        if predicted["staging"][0] == 0 and (positive := [r for r in rates if r]):
            # Copied from one local folder to another.
            predicted["staging"] = _times(size / min(positive), (1, 1, 1))
    return predicted


def _times(value: float, ends: Sequence[float]) -> Triple:
    return value * ends[0], value * ends[1], value * ends[2]


def _measured_words(run: RunDirectory) -> str:
    seconds = {part.key: part.seconds or 0.0 for part in parts(run)}
    step, wait = seconds.get("step", 0.0), seconds.get("data_wait", 0.0)
    samples = sum(e.samples or 0 for e in run.result.epochs) if run.result else 0
    if not step:
        return "not known: the run has no step and wait times"
    if samples and step > 0 and wait / (step + wait) >= _SLOWED:
        return (
            f"the input path limits: {digits(samples / (step + wait))} of {digits(samples / step)} samples/s"
        )
    return "the training step limits: the input path keeps up"


def predicted_table(comparison: Beside) -> Table:
    """A table of the parts of a run's time, measured and predicted."""

    def interval(part: PredictedPart) -> str:
        if not part.predicted:
            return ""
        _, low, high = part.predicted
        return f"{duration_text(low)} – {duration_text(high)}" if low < high else NO_INTERVAL

    return table(
        "predicted",
        comparison.parts,
        {
            "part": lambda part: part.label,
            "measured": lambda part: number(part.measured, duration_text),
            "predicted": lambda part: number(
                part.predicted and part.predicted[0], duration_text, none="no model"
            ),
            "interval": interval,
            "measured / predicted": lambda part: number(part.ratio or None, "{:.2f}".format),
        },
    )


def what_if_table(answer: WhatIf) -> Table:
    """A table of the parts of a run's time, measured and recomputed with a change."""
    columns = (answer.measured, *answer.cases)
    keys = [key for key in PARTS if key in answer.measured.parts]
    rows = [(PARTS[key][0], [column.parts[key] for column in columns]) for key in keys]
    rows.append(("Sum", [column.total_s for column in columns]))

    def seconds(place: int) -> Callable[[tuple[str, list[float | None]]], Cell]:
        return lambda row: number(row[1][place], "{:.2f}".format)

    titles = {f"{column.title}, s": seconds(place) for place, column in enumerate(columns)}
    return table("what_if", rows, {"part": lambda row: Cell(row[0]), **titles})
