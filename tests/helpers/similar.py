"""Predicts a training step from profiles of the same code at other sizes on the same machine.

Published efficiencies do not reflect a machine's libraries. Short profiles of stand-ins (the network at other
widths, input sizes and batches, so that no layer has the shape of the one predicted) give the efficiency of
each kind of layer and direction by size: the roofline's time over the measured time. The target's layers get
the mean of the nearest ones by FLOPs, bytes and weights; those with a kind and direction missing in the
stand-ins get the plain roofline's time, and are named. Other parts (optimizer, loss, copies, waiting) are
scaled with their sizes. This interpolates; far from the stand-ins it is no better than the roofline.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from mlhpc.common.timing.profile import Profile
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.networks.layer import Network, Precision
from mlhpc.perf.profile.layers import LayerTime, by_layer, by_part

NEAREST = 4


class StandIn(NamedTuple):
    """One measured size: its profile, of which the ``plain`` time is used, and its network."""

    profile: Profile
    network: Network
    precision: Precision


class Point(NamedTuple):
    """A layer's work in one direction: FLOPs, bytes, elements of weights, and measured seconds."""

    flops: float
    bytes: float
    weights: float
    seconds: float

    def distance(self, other: "Point") -> float:
        """Distance in the logarithms of all three. Layers with equal FLOPs and bytes differ if one has many
        weights and few pixels: libraries rearrange weights in every call, and divide the work by pixels."""
        return math.hypot(
            math.log((1 + self.flops) / (1 + other.flops)),
            math.log(self.bytes / other.bytes),
            math.log((1 + self.weights) / (1 + other.weights)),
        )

    def bound(self, ceilings: Ceilings) -> float:
        """Seconds of the roofline."""
        return max(self.flops / ceilings.tensor, self.bytes / ceilings.bandwidth)


class Predicted(NamedTuple):
    """``seconds`` of a step. ``bare``: its layers, "NAME, DIRECTION", whose kind and direction is missing in
    all stand-ins, and ``bare_seconds``: the roofline's time for them, far too short."""

    seconds: float
    bare: tuple[str, ...]
    bare_seconds: float


def predict_step(
    stand_ins: Sequence[StandIn], network: Network, precision: Precision, batch: int, ceilings: Ceilings
) -> Predicted:
    """A step of ``batch`` samples of ``network``, which has the layers of the stand-ins in other sizes. Raises
    UserError without at least two stand-ins."""
    if len(stand_ins) < 2:
        raise UserError("predicting a step requires at least two other sizes of its network")
    points: dict[tuple[str, str], list[Point]] = {}
    for each in stand_ins:
        for time in _layers(each):
            points.setdefault((time.kind, time.direction), []).append(_point(time))
    # The framework fuses the same layers at every size.
    shape = stand_ins[0].profile
    unit = Profile(shape.device, batch, 1, 0.0, shape.modules, shape.work)
    seconds, bare, bare_seconds = 0.0, [], 0.0
    for time in by_layer(unit, network, precision):
        if not time.bytes:
            continue
        wanted = _point(time)
        if measured := points.get((time.kind, time.direction)):
            seconds += _seconds(measured, wanted, ceilings)
        else:
            bare.append(f"{time.name}, {time.direction}")
            bare_seconds += wanted.bound(ceilings)
    rest = _rest(stand_ins, network, precision, batch)
    return Predicted(seconds + bare_seconds + rest, tuple(bare), bare_seconds)


def _scale(each: StandIn) -> float:
    """The profiler slows a step: the times of a step without it are divided by the shares of the profile."""
    return each.profile.plain / sum(by_part(each.profile).values())


def _layers(each: StandIn) -> list[LayerTime]:
    scale = _scale(each)
    times = by_layer(each.profile, each.network, each.precision)
    return [time._replace(seconds=time.seconds * scale) for time in times if time.bytes and time.seconds]


def _point(time: LayerTime) -> Point:
    return Point(time.product_flops + time.other_flops, time.bytes, time.weights, time.seconds)


def _seconds(measured: Sequence[Point], wanted: Point, ceilings: Ceilings) -> float:
    """The roofline's seconds over the efficiency of the nearest, weighted by closeness."""
    nearest = sorted(measured, key=wanted.distance)[:NEAREST]
    weights = [1 / (0.05 + wanted.distance(point)) for point in nearest]
    logs = [math.log(point.bound(ceilings) / point.seconds) for point in nearest]
    mean = sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights)
    return wanted.bound(ceilings) / math.exp(mean)


def _rest(stand_ins: Sequence[StandIn], network: Network, precision: Precision, batch: int) -> float:
    """Seconds of other parts: the optimizer by the number of parameters, everything else by the bytes moved
    by the layers, each as a line through the logarithms with a slope between 0 and 1."""
    optimizer, other = [], []
    for each in stand_ins:
        scale, parts = _scale(each), by_part(each.profile)
        update = scale * parts.get("optimizer", 0.0)
        layers = sum(time.seconds for time in _layers(each))
        moved = each.profile.samples * each.network.traffic(precision)
        optimizer.append((each.network.parameters, update))
        other.append((moved, max(0.0, each.profile.plain - layers - update)))
    return _on_line(optimizer, network.parameters) + _on_line(other, batch * network.traffic(precision))


def _on_line(measured: Sequence[tuple[float, float]], wanted: float) -> float:
    points = [(math.log(x), math.log(y)) for x, y in measured if y > 0]
    if not points:
        return 0.0
    x_mean, y_mean = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0
    return math.exp(y_mean + min(1.0, max(0.0, slope)) * (math.log(wanted) - x_mean))
