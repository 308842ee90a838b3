"""Training steps that are replayed from graphs of the device: forward and backward pass,
all-reduce, and optimizer in one launch. A comparison with eager steps, before the clock starts, decides whether a
run replays its steps."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mlhpc.benchmarks.schema import Run
from mlhpc.common.pytorch.devices import (
    GRAPHS,
    Capture,
    Fill,
    Replay,
    Work,
    capture_on,
    filler,
    forget_peak,
    release_memory,
    without_graphs,
)
from mlhpc.common.pytorch.loading import TensorPair
from mlhpc.common.pytorch.state import preserve_state, tensors_of
from mlhpc.common.pytorch.step import Captured, Measured, State, Steps, WarmUpSizes, set_rate, warm_up
from mlhpc.common.ranks.collectives import raise_any
from mlhpc.common.ranks.world import World
from mlhpc.common.timing.runlog import RunLog
from mlhpc.errors import UserError

ByKind = Mapping[str, list[Tensor]]

WARM_UP = 11
"""Number of eager steps that DistributedDataParallel needs before a capture (``devices.without_graphs``)."""

TRIALS = ((1.0, 2.0**8), (0.5, 2.0**127), (0.25, 2.0**9))
"""For each step of a trial: the factor on the learning rate, and the loss scale; one of the scales overflows."""


def obstacle(run: Run, device: torch.device, world: World) -> str:
    """Why steps of ``run`` cannot be replayed from graphs on ``device``; empty if they can."""
    return run.uncapturable() or without_graphs(device, world.size)


def require_graphs(run: Run, device: torch.device, world: World) -> None:
    """Raise UserError if graphs are set to ``on`` and there is an ``obstacle``."""
    if run.graphs == "on" and (why := obstacle(run, device, world)):
        raise _refused(why)


def start_steps(
    run: Run,
    make: Callable[[Captured | None], Steps[Measured]],
    state: State,
    zeros: Callable[[int], TensorPair],
    sizes: WarmUpSizes,
    log: RunLog,
) -> tuple[Steps[Measured], "Graphs | None"]:
    """Create steps with ``make`` and warm them up unless they are emulated. Returns the steps, and their graphs if
    they are to be replayed (see ``Graphs.objection``). Called by all ranks, before the clock starts; ``zeros`` and
    ``sizes`` as for ``warm_up``. Raises UserError if graphs are set to ``on`` but the steps cannot be replayed."""
    if run.emulation.enabled:
        return make(None), None
    device, world, wanted = next(state[0].parameters()).device, state[3], run.graphs
    why = "" if wanted == "off" else obstacle(run, device, world)
    graphs = Graphs(capture_on(device), device) if wanted != "off" and not why else None
    steps = make(graphs.for_new_steps() if graphs else None)
    warm_up(*state, steps, zeros, sizes._replace(accumulate=WARM_UP) if graphs else sizes)
    if graphs and (why := graphs.objection(steps, state, batches(zeros, sizes, world), wanted == "auto")):
        if wanted == "on":
            raise_any(world, _refused(why))
        graphs = None
        steps = make(None)  # a failed capture leaves DistributedDataParallel in the middle of a step
        warm_up(*state, steps, zeros, sizes)
    if graphs is None:  # a capture does so itself
        forget_peak(device)  # while cuDNN compares convolutions, it takes more memory than they do later
    if wanted != "off" and device.type != "cpu":
        log.note("graphs", replayed=graphs is not None, reason=why)
        if why:
            log.say(f"{GRAPHS}=auto: steps run eagerly, because {why}")
    return steps, graphs


class Replayed:
    """Calls ``work``. While ``active``, ``work`` is captured after ``WARM_UP`` calls and then replayed for batches
    of the largest size seen so far, which ``fill`` copies into ``inputs``; other batches run eagerly.
    ``evaluation``: see ``Captured``."""

    def __init__(
        self,
        work: Work,
        capture: Capture,
        device: torch.device,
        fill: Fill,
        active: bool,
        evaluation: bool = False,
    ) -> None:
        self.work, self.active = work, active
        self._capture, self._device, self._fill, self._evaluation = capture, device, fill, evaluation
        self._calls = 0
        self.inputs: tuple[Tensor, ...] = ()  # without memory until the capture
        self.passed: tuple[Tensor, ...] = ()
        self.replay: Replay | None = None

    def __call__(self, *batch: Tensor) -> Tensor:
        samples = len(batch[0])
        if not self.inputs or (self.replay is None and samples > len(self.inputs[0])):
            self.inputs = tuple(torch.empty_like(part, device="meta") for part in batch)
        whole = len(self.inputs[0])
        if self.active and (samples == whole or (self._evaluation and samples < whole)):
            if self.replay is None and self._calls >= WARM_UP:
                capture_all([self], self._capture, self._device)
            if self.replay is not None:
                self._fill(self.inputs, self.passed, batch)
                result = self.replay()
                return result if self._evaluation else result.clone()
        self._calls += 1
        result = self.work(*batch)
        if self._calls == 1:  # DistributedDataParallel makes its final buckets next, in what activations left
            release_memory(self._device)
        return result


class Graphs:
    """The graphs of a run's training and evaluation step."""

    def __init__(self, capture: Capture, device: torch.device) -> None:
        self._capture, self._device, self._fill = capture, device, filler(device)
        self._active = False
        self._parts: list[Replayed] = []

    def for_new_steps(self) -> Captured:
        """Returns the function that captures the parts of new steps, and drops the captures of the old steps,
        which freezing weights has invalidated. If the old steps were replayed, so are the new ones, after
        ``WARM_UP`` eager calls."""
        self._parts.clear()
        return self._replayed

    def _replayed(self, work: Work, *, evaluation: bool = False) -> Work:
        part = Replayed(work, self._capture, self._device, self._fill, self._active, evaluation)
        self._parts.append(part)
        return part

    def objection(self, steps: Steps[Any], state: State, trial: Sequence[TensorPair], compared: bool) -> str:
        """Capture the steps and have them replayed, unless a rank objects. Returns the objection, the same on all
        ranks, or an empty string.

        All values that change between steps must be on the device. If ``compared``, the steps on ``trial``, whose
        last batch is for the evaluation, are run twice eagerly and once replayed, from the same state. In weights,
        statistics, losses, loss scale and optimizer state, the replayed steps may differ from the eager ones by at
        most twice as much as the eager ones differ from each other.
        """
        _, optimizer, scaler, world = state
        take = partial(_trial, steps, state, trial)
        before = on_host(optimizer, self._device)
        first = take()
        why = frozen(before, on_host(optimizer, self._device))
        if scaler.is_enabled() and not getattr(optimizer, "_step_supports_amp_scaling", False):
            why = "whether a step is skipped is decided on the host"
        second = take() if compared else first
        why = _vote(world, why) or _vote(world, self.captured())
        if not why:
            self.set_active(True)
            if compared:
                why = _vote(world, difference(first, second, take()))
                self.set_active(not why)
                release_memory(self._device)  # what the trial kept besides
        return why

    def captured(self) -> str:
        """Capture the steps. Returns why the capture failed, or an empty string."""
        try:
            # The evaluation comes first: its few large tensors leave room for the many of training.
            capture_all(self._parts[::-1], self._capture, self._device, compact=True)
        except (RuntimeError, UserError) as failure:
            error: BaseException = failure
            while error.__context__ is not None:  # the last error only says that the capture is broken
                error = error.__context__
            return f"a step cannot be captured ({str(error).partition(chr(10))[0]})"
        return ""

    def set_active(self, active: bool) -> None:
        """Set whether steps are replayed from now on."""
        self._active = active
        for part in self._parts:
            part.active = active


def capture_all(
    parts: Sequence[Replayed], capture: Capture, device: torch.device, *, compact: bool = False
) -> None:
    """Capture ``parts``, all of which get their ``x`` in the same memory. ``compact``: see ``Capture``."""
    release_memory(device)
    inputs = [part.inputs for part in parts]
    held, passed = _on_device(inputs, device), _on_device(inputs, device)
    replays = capture([(part.work, read) for part, read in zip(parts, held, strict=True)], compact)
    for part, read, through, replay in zip(parts, held, passed, replays, strict=True):
        part.inputs, part.passed, part.replay = read, through, replay


def _on_device(inputs: Sequence[Sequence[Tensor]], device: torch.device) -> list[tuple[Tensor, ...]]:
    """Memory for each of ``inputs``; their first tensors, whose samples are of one shape, share theirs."""
    like = partial(torch.empty_like, device=device)
    x = like(max((first for first, *_ in inputs), key=len))
    return [(x[: len(first)], *map(like, rest)) for first, *rest in inputs]


def on_host(optimizer: torch.optim.Optimizer, device: torch.device) -> list[tuple[str, object]]:
    """Names and values of the optimizer's settings and state that are not tensors on ``device``. A graph would
    always use the values from the time of its capture."""
    values: list[tuple[str, object]] = []
    for owner in (*optimizer.param_groups, *optimizer.state.values()):
        for name, value in owner.items():
            if isinstance(value, Tensor):
                if value.device != device:
                    values.append((name, value.tolist()))
            elif name != "params":
                values.append((name, value))
    return values


def frozen(before: Sequence[tuple[str, object]], after: Sequence[tuple[str, object]]) -> str:
    """An objection naming the values on the host (``on_host``) that steps have changed; empty if there are
    none."""
    changed = {name for (name, old), (_, new) in zip(before, after, strict=True) if old != new}
    return f"a graph would freeze optimizer state kept on the host: {', '.join(sorted(changed))}" * bool(
        changed
    )


def batches(zeros: Callable[[int], TensorPair], sizes: WarmUpSizes, world: World) -> list[TensorPair]:
    """A random batch for each step of a trial and one for its evaluation, different on each rank: floating-point
    tensors are normally distributed, int16 tensors contain counts, and others labels 0 and 1."""
    generator = torch.Generator().manual_seed(world.rank)
    made = [zeros(size) for size in (*[sizes.train] * len(TRIALS), sizes.evaluation)]
    for tensor in (tensor for batch in made for tensor in batch):
        if tensor.is_floating_point():
            tensor.normal_(generator=generator)
        else:
            tensor.random_(300 if tensor.dtype == torch.int16 else 2, generator=generator)
    return made


def _trial(steps: Steps[Any], state: State, trial: Sequence[TensorPair]) -> dict[str, list[Tensor]]:
    """Run the steps, each with a different learning rate and loss scale, and an evaluation before the last one.
    Returns the resulting tensors by kind, on the host, and restores the previous state."""
    model, optimizer, scaler, _ = state
    rate, scale = float(optimizer.param_groups[0]["lr"]), scaler.state_dict()
    losses: list[Tensor] = []
    scales: list[Tensor] = []
    with preserve_state(model, optimizer, scaler):
        for batch, (factor, chosen) in zip(trial, TRIALS, strict=False):
            if len(losses) == len(TRIALS) - 1:
                measured = steps.evaluate(*trial[-1])
                losses.append(measured[0] if isinstance(measured, tuple) else measured)
            set_rate(optimizer, rate * factor)
            scaler.load_state_dict(scale | {"scale": chosen})
            losses.append(steps.train(*batch))
            scales.append(torch.tensor([scaler.get_scale(), scaler.state_dict().get("_growth_tracker", 0)]))
        left: dict[str, list[Tensor]] = {
            "weights": [*model.parameters()],
            "statistics": [*model.buffers()],
            "losses": losses,
        }
        left |= {"loss scale": scales, "optimizer": tensors_of(optimizer)}
        result = {
            kind: [each.detach().to("cpu", copy=True) for each in found] for kind, found in left.items()
        }
    return result


def difference(first: ByKind, second: ByKind, replayed: ByKind) -> str:
    """Compare tensors from the same steps, run eagerly twice (``first``, ``second``) and replayed. Returns an
    objection naming the first kind of tensors for which ``replayed`` is more than twice as far from ``first`` as
    ``second`` is; empty if there is none."""
    for kind, values in first.items():
        own, other = _distance(values, second[kind]), _distance(values, replayed[kind])
        if not other <= 2 * own:
            return (
                f"{kind} differ by {other:.2g} between replayed and eager steps, "
                f"and by {own:.2g} between two eager runs"
            )
    return ""


def _distance(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """The norm of the differences; infinities and NaN are equal to themselves."""
    squares = 0.0
    for a, b in zip(first, second, strict=True):
        same = (a == b) | (a.isnan() & b.isnan())
        squares += float(torch.where(same, 0.0, a.double() - b.double()).square().sum())
    return math.sqrt(squares)


def _vote(world: World, why: str) -> str:
    """The objection of the lowest rank that has one, with that rank's number, the same on all ranks; empty if
    there is none."""
    objections = [f"{each} (rank {rank})" for rank, each in enumerate(world.gather(why)) if each]
    return objections[0] if objections else ""


def _refused(why: str) -> UserError:
    return UserError(f"{GRAPHS}=on: {why}; set it to auto or off")
