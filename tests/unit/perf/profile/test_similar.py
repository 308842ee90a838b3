"""A step predicted from other sizes, with times from a law that the method does not know."""

import pytest
from helpers.similar import StandIn, predict_step

from mlhpc.common.timing.profile import Profile, Work
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.networks.builder import Builder, Window

PEAKS = Ceilings("toy", tensor=1e11, float32=1e11, bandwidth=2e10)
MODULES = ("first", "norm", "second", "dense")


def network(side, filters, kernel=3):
    net = Builder("small", (side, side, 3))
    x = net.convolution("first", net.input, filters, 3)
    x = net.batch_norm("norm", x, relu=True)
    x = net.convolution("second", x, 2 * filters, kernel)
    net.cross_entropy(net.dense("dense", net.mean_pool("mean", x), 10), labels=1)
    return net.network()


def measured(side, filters, batch, slowed=1.0):
    """A machine whose efficiency grows with the size of a layer, with a cost of every call. ``slowed``: what the
    profiler does to all times."""
    net = network(side, filters)
    work, total = [], 0.0
    for layer in net:
        if layer.name not in MODULES:
            continue
        for direction in ("forward", "backward"):
            passes = [p for p in layer.passes if (p.name == "forward") == (direction == "forward")]
            flops, moved = batch * sum(p.flops for p in passes), batch * sum(4 * p.elements for p in passes)
            seconds = 2e-5 + 3 * (flops / 1e11) ** 0.9 + moved / 1e10
            work.append(Work(direction, layer.name, "op", slowed * seconds, 1.0))
            total += seconds
    update = 1e-4 + 12 * net.parameters / 2e10
    work.append(Work("optimizer", "", "sgd", slowed * update, 1.0))
    total += update
    profile = Profile("toy", batch, 1, slowed * total, MODULES, tuple(work), plain=total)
    return StandIn(profile, net, "float32")


SIZES = [(24, 10, 20), (48, 14, 6), (40, 24, 8)]


@pytest.mark.parametrize(("side", "filters", "batch"), [(32, 16, 16), (40, 12, 10), (28, 20, 12)])
def test_a_step_between_the_sizes_measured_is_within_a_tenth(side, filters, batch):
    truth = measured(side, filters, batch).profile.plain
    step = predict_step([measured(*size) for size in SIZES], network(side, filters), "float32", batch, PEAKS)
    assert step.seconds == pytest.approx(truth, rel=0.1)
    assert (step.bare, step.bare_seconds) == ((), 0.0)


def pyramid(side, filters, batch):
    """Four convolutions of equal FLOPs, each with four times the weights and a quarter of the pixels of the one
    before, on a machine that rearranges weights in every call."""
    net = Builder("pyramid", (side, side, 3))
    x = net.convolution("1", net.input, filters, 3)
    for number in range(2, 6):
        x = net.convolution(f"{number}", x, filters * 2 ** (number - 1), Window(3, stride=2))
    net.cross_entropy(net.dense("6", net.mean_pool("mean", x), 10), labels=1)
    network, work, total = net.network(), [], 0.0
    for layer in (layer for layer in network if layer.parameters):
        for direction in ("forward", "backward"):
            passes = [p for p in layer.passes if (p.name == "forward") == (direction == "forward")]
            flops, weights = batch * sum(p.flops for p in passes), sum(p.weights for p in passes)
            seconds = 2e-5 + flops / 1e11 + weights * 2e-8
            work.append(Work(direction, layer.name, "op", seconds, 1.0))
            total += seconds
    profile = Profile("toy", batch, 1, total, tuple("123456"), tuple(work), plain=total)
    return StandIn(profile, network, "float32")


@pytest.mark.parametrize("batch", [7, 8, 9])
def test_layers_with_many_weights_and_few_pixels_are_predicted_from_their_like(batch):
    stand_ins = [pyramid(*size) for size in [(48, 16, 12), (80, 16, 5), (48, 32, 8)]]
    target = pyramid(64, 16, batch)
    step = predict_step(stand_ins, target.network, "float32", batch, PEAKS)
    assert step.seconds == pytest.approx(target.profile.plain, rel=0.1)


def test_layers_that_no_stand_in_has_are_named():
    """The second convolution is 1 x 1, another kind, in the target, and 3 x 3 in all stand-ins."""
    stand_ins = [measured(*size) for size in SIZES]
    target = network(32, 16, kernel=1)
    step = predict_step(stand_ins, target, "float32", 16, PEAKS)
    assert step.bare == ("second, forward", "second, backward")
    (second,) = (layer for layer in target if layer.name == "second")
    bound = sum(
        max(
            16 * sum(p.flops for p in passes) / 1e11,
            16 * sum(p.traffic("float32", 16) for p in passes) / 2e10,
        )
        for passes in ([p for p in second.passes if (p.name == "forward") == f] for f in (True, False))
    )
    assert step.bare_seconds == pytest.approx(bound)
    assert step.seconds > step.bare_seconds


def test_the_profilers_slowness_is_taken_out():
    plain, slow = (
        predict_step(
            [measured(*size, slowed=slowed) for size in SIZES], network(32, 16), "float32", 16, PEAKS
        ).seconds
        for slowed in (1.0, 3.0)
    )
    assert slow == pytest.approx(plain, rel=0.01)


def test_one_size_is_too_few():
    with pytest.raises(UserError, match="two other sizes"):
        predict_step([measured(*SIZES[0])], network(32, 16), "float32", 16, PEAKS)
