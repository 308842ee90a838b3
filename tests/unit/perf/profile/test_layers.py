"""A profile by layer and its hardware efficiency, from work written down by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.common.timing.profile import Exchange, Profile, Reading, Work
from mlhpc.errors import UserError
from mlhpc.perf.accelerator.roofline import Ceilings
from mlhpc.perf.networks.builder import Builder
from mlhpc.perf.profile.layers import LayerTime, by_layer, by_operation, by_part, histogram, of_step

PEAKS = Ceilings("toy", tensor=1000.0, float32=100.0, bandwidth=10.0)


def small():
    """Two convolutions of 8 x 8 images, batch norm with a ReLU in place, one dense layer."""
    net = Builder("small", (8, 8, 2))
    x = net.convolution("first", net.input, 4, 3)
    x = net.batch_norm("norm", x, relu=True)
    x = net.convolution("second", x, 4, 1)
    net.cross_entropy(net.dense("dense", net.mean_pool("mean", x), 10), labels=1)
    return net.network()


MODULES = ("block.a", "block.n", "block.b", "head")


def profiled(*work):
    return Profile("a device", 2, 1, 1.0, MODULES, tuple(Work(*item, 1.0) for item in work))


def test_forward_and_backward_work_comes_with_the_flops_of_the_batch():
    times = by_layer(
        profiled(
            ("forward", "block.a", "conv", 0.1),
            ("backward", "block.a", "conv_backward", 0.2),
            ("backward", "block.a", "copy", 0.1),
        ),
        small(),
        "float32",
    )
    forward, backward = times
    assert (forward.name, forward.direction, forward.seconds) == ("first", "forward", 0.1)
    assert (backward.direction, backward.seconds) == ("backward", pytest.approx(0.3))
    products = 2 * 8 * 8 * 9 * 2 * 4
    # It gets the network's input: no input gradient.
    assert (forward.product_flops, backward.product_flops) == (2 * products, 2 * products)
    # Two samples of 128 numbers in and 256 out, and the 72 weights, 4 bytes each.
    assert forward.bytes == 4 * (2 * (128 + 256) + 72)


def test_a_step_of_several_backward_passes_has_the_flops_of_all():
    """Each pass reads the weights again."""
    once = profiled(("forward", "block.a", "conv", 0.1))
    (one,), (three,) = (by_layer(replace(once, passes=passes), small(), "float32") for passes in (1, 3))
    assert (three.product_flops, three.bytes) == (3 * one.product_flops, 3 * one.bytes)


def test_a_relu_in_place_goes_with_its_batch_norm():
    (norm,) = by_layer(profiled(("forward", "block.n", "batch_norm", 0.1)), small(), "float32")
    assert (norm.name, norm.kind) == ("norm", "batch norm")
    assert norm.other_flops == 2 * 256 * (5 + 1)


def test_a_module_that_computes_for_those_inside_gets_their_flops():
    times = by_layer(
        profiled(("forward", "block", "fused", 0.3), ("forward", "block.n", "batch_norm", 0.1)),
        small(),
        "float32",
    )
    fused = next(time for time in times if time.kind != "batch norm")
    assert fused.kind == "convolution + pointwise convolution"
    assert fused.product_flops == 2 * sum(layer.forward_flops for layer in small() if layer.name != "dense")


def test_work_of_no_layer_has_no_flops():
    (other,) = by_layer(profiled(("forward", "elsewhere", "add", 0.1)), small(), "float32")
    assert (other.name, other.kind, other.product_flops, other.bytes) == ("elsewhere", "other", 0, 0.0)


def test_parts_add_up_to_the_step():
    profile = profiled(
        ("forward", "head", "mm", 0.2), ("backward", "head", "mm", 0.4), ("optimizer", "", "update", 0.1)
    )
    parts = by_part(profile)
    assert parts == {"forward": 0.2, "backward": 0.4, "optimizer": 0.1, "wait": pytest.approx(0.3)}
    assert by_operation(profile)[0] == ("mm", pytest.approx(0.6), 2)


def test_parts_add_up_to_the_step_whatever_runs_side_by_side():
    """Two threads: 1.3 s of operations in a step of 0.8 s, of which 0.2 s are a measured wait."""
    profile = profiled(
        ("forward", "head", "mm", 0.4), ("backward", "head", "mm", 0.8), ("optimizer", "", "update", 0.1)
    )
    profile = replace(profile, wall=0.8, reading=Reading(0.2, 1.0, 1.0))
    assert sum(by_part(profile).values()) == pytest.approx(1.5)
    parts = of_step(profile)
    assert list(parts) == list(by_part(profile))
    assert parts["input wait"] == pytest.approx(0.2) and parts["wait"] == 0
    assert parts["forward"] == pytest.approx(0.6 * 4 / 13) and parts["backward"] == pytest.approx(
        0.6 * 8 / 13
    )
    assert sum(parts.values()) == pytest.approx(profile.wall)


@given(
    wall=st.floats(1e-4, 10),
    work=st.lists(st.tuples(st.sampled_from(["forward", "backward", "communication", "other"]),
                            st.floats(0, 20)), max_size=6),
    waited=st.floats(0, 1),
    exposed=st.none() | st.floats(0, 1),
)  # fmt: skip
def test_parts_are_never_more_or_less_than_the_step(wall, work, waited, exposed):
    profile = replace(
        profiled(*((part, "", "", seconds) for part, seconds in work)),
        wall=wall, reading=Reading(waited * wall, 1.0, 1.0), exchange=Exchange((), exposed, None),
    )  # fmt: skip
    parts = of_step(profile)
    assert sum(parts.values()) == pytest.approx(wall)
    assert min(parts.values()) >= 0


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        (MODULES[:-1], "3 modules.* 4 layers.*layer 'dense' is the first without a module"),
        ((*MODULES, "extra"), "5 modules.* 4 layers.*module 'extra' is the first without a layer"),
    ],
)
def test_another_number_of_modules_names_the_network_and_the_layer(modules, says):
    profile = Profile("a device", 2, 1, 1.0, modules, ())
    with pytest.raises(UserError, match=f"^network small: .*{says}") as refused:
        by_layer(profile, small(), "float32")
    assert "\n" not in str(refused.value)


def time(seconds, products=0, others=0, moved=0.0):
    return LayerTime("layer", "convolution", "forward", seconds, products, others, moved)


@pytest.mark.parametrize(
    ("layer", "efficiency"),
    [
        (time(2.0, products=1000), 0.5),
        (time(2.0, products=1000, others=150), 0.75),
        (time(2.0, products=1000, moved=18.0), 0.9),
        (time(0.5, products=1000), 1.0),  # faster than the lower limit of its traffic or the peak
        (time(1.0), 0.0),
    ],
)
def test_efficiency_is_the_largest_share_of_a_peak(layer, efficiency):
    """Ibrahim et al. 2021, section V-B: tensor cores, float32 units or memory bandwidth, whichever is used
    most."""
    assert layer.efficiency(PEAKS) == pytest.approx(efficiency)


def test_histogram_has_all_time_once_and_what_full_efficiency_would_leave():
    times = [time(2.0, products=1000), time(1.0, products=1000), time(4.0, products=200), time(1.0)]
    bins = histogram(times, PEAKS)
    assert len(bins) == 10
    assert {b.low: b.seconds for b in bins if b.seconds} == {0.0: 5.0, 0.5: 2.0, 0.9: 1.0}
    assert sum(b.potential for b in bins) == pytest.approx(1.0 + 1.0 + 0.2)
    assert sum(b.layers for b in bins) == 4
