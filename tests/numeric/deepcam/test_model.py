"""DeepCAM's network: against its published list of layers, and against itself written out in plain functions."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F

from mlhpc.benchmarks.deepcam import Network
from mlhpc.deepcam.cpu.convolution import (
    CpuConv3x3,
    CpuDeconvolution,
    CpuDepthwise,
    CpuPointwise,
    CpuSeparable,
)
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.cpu.winograd import winograd
from mlhpc.deepcam.model import build_model, current_name

SMALL = Network(width=0.125, middle_blocks=2)

# The layers of DeepLabv3+ with the modified Xception encoder (Chen et al. 2018, figure 4), with 16 channels in,
# 3 classes out and the deconvolutional decoder of Kurth et al. 2018: weights of convolutions as
# (kernel side, in, out), of separable ones as (3, in) and (1, in, out), of batch norm as channels.


def plain(side, inputs, outputs, norm=True):
    return side * side * inputs * outputs + (2 * outputs if norm else 0)


def separable(inputs, outputs, norm=True):
    return 9 * inputs + plain(1, inputs, outputs, norm)


PUBLISHED = {
    "stem": plain(3, 16, 32) + plain(3, 32, 64),
    "entry block 1": separable(64, 128)
    + separable(128, 128)
    + separable(128, 128, False)
    + plain(1, 64, 128),
    "entry block 2": separable(128, 256)
    + separable(256, 256)
    + separable(256, 256, False)
    + plain(1, 128, 256),
    "entry block 3": separable(256, 728)
    + separable(728, 728)
    + separable(728, 728, False)
    + plain(1, 256, 728),
    "middle flow": 16 * 3 * separable(728, 728),
    "exit block": separable(728, 728)
    + separable(728, 1024)
    + separable(1024, 1024, False)
    + plain(1, 728, 1024),
    "exit flow": separable(1024, 1536) + separable(1536, 1536) + separable(1536, 2048),
    "pyramid": plain(1, 2048, 256) + 3 * plain(3, 2048, 256) + (2048 * 256 + 2 * 256) + plain(1, 1280, 256),
    "decoder": plain(1, 128, 48)
    + 2 * plain(3, 256, 256)
    + plain(3, 304, 256)
    + plain(3, 256, 256)
    + (256 * 256 + 256)
    + plain(3, 256, 256)
    + plain(3, 256, 3, False),
}


def count(*modules):
    return sum(weight.numel() for module in modules for weight in module.parameters())


def test_every_layer_of_the_reference_network_is_accounted_for():
    assert sum(PUBLISHED.values()) == 56_454_720
    with torch.device("meta"):
        model = build_model(Network(), 16)
    coarse = list(model.encoder)
    assert len(coarse) == 2 + 16 + 1 + 3
    assert {
        "stem": count(model.stem),
        "entry block 1": count(model.entry_block1),
        "entry block 2": count(coarse[0]),
        "entry block 3": count(coarse[1]),
        "middle flow": count(*coarse[2:18]),
        "exit block": count(coarse[18]),
        "exit flow": count(*coarse[19:]),
        "pyramid": count(model.aspp),
        "decoder": count(model.decoder),
    } == PUBLISHED
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("rows, columns", [(32, 32), (48, 80), (64, 96)])
def test_logits_have_the_sides_of_the_input_for_any_multiple_of_sixteen(rows, columns):
    model = build_model(SMALL, 5)
    assert model(torch.randn(2, 5, rows, columns)).shape == (2, 3, rows, columns)


def functional(weights, x, middle_blocks):
    """The network as the reference's source reads, layer after layer, in training mode."""
    weights = iter(weights)

    def conv(x, **options):
        return F.conv2d(x, next(weights), **options)

    def norm(x):
        weight, bias, *_running = (next(weights) for _ in range(5))
        mean = x.mean((0, 2, 3), keepdim=True)
        var = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
        return (x - mean) / (var + 1e-5) ** 0.5 * weight[:, None, None] + bias[:, None, None]

    def sep(x, stride=1, dilation=1):
        return conv(conv(x, stride=stride, padding=dilation, dilation=dilation, groups=x.shape[1]))

    def block(x, convolutions, stride=1, closing=False, shortcut=True, relu=True):
        y = x
        for number in range(convolutions):
            y = norm(sep(F.relu(y) if number else y))
        if closing:
            y = sep(y, stride=stride)
        y = y + (norm(conv(x, stride=stride)) if shortcut else x)
        return F.relu(y) if relu else y

    x = F.relu(norm(conv(x, stride=2, padding=1)))
    x = F.relu(norm(conv(x, padding=1)))
    fine = x = block(x, 2, stride=2, closing=True)
    x = block(x, 2, stride=2, closing=True)
    x = block(x, 2, stride=2, closing=True)
    for _ in range(middle_blocks):
        x = block(x, 3, shortcut=False)
    x = block(x, 2, closing=True, relu=False)
    for _ in range(3):
        x = F.relu(norm(sep(x, dilation=2)))
    levels = [F.relu(norm(conv(x)))]
    for rate in (6, 12, 18):
        levels.append(F.relu(norm(conv(x, padding=rate, dilation=rate))))
    mean = conv(x.mean((2, 3), keepdim=True))
    factor, offset = next(weights), next(weights)
    levels.append(F.relu(factor * mean + offset).expand_as(levels[0]))
    x = F.relu(norm(conv(torch.cat(levels, 1))))

    def double(x):
        return F.conv_transpose2d(x, next(weights), stride=2, padding=1, output_padding=1)

    fine = F.relu(norm(conv(fine)))
    x = F.relu(norm(double(x)))
    x = F.relu(norm(double(x)))
    x = F.relu(norm(conv(torch.cat((x, fine), 1), padding=1)))
    x = F.relu(norm(conv(x, padding=1)))
    weight, bias = next(weights), next(weights)
    x = F.conv2d(x, weight, bias)
    x = F.relu(norm(double(x)))
    return double(x)


def test_outputs_and_gradients_equal_an_explicit_implementation():
    torch.manual_seed(1)
    model = build_model(SMALL, 4).double().to(memory_format=torch.channels_last)
    use_cpu_kernels(model)
    for norm in model.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(norm.bias, std=0.5)  # otherwise the effect of a shift would be invisible
    x = torch.randn(2, 4, 64, 96, dtype=torch.float64)
    copies = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in model.state_dict().values()]
    expected = functional(copies, x, middle_blocks=2)
    logits = model(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(logits, expected)

    target = torch.randn_like(expected)
    (logits * target).sum().backward()
    (expected * target).sum().backward()
    names = list(model.state_dict())
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    for name, copy in zip(names, copies, strict=True):
        if name in gradients:
            torch.testing.assert_close(gradients[name], copy.grad, rtol=1e-7, atol=1e-7, msg=name)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize(
    "case",
    [
        "depthwise",
        "stride 2",
        "dilated",
        "dilated, odd side",
        "pointwise, stride 2",
        "deconvolution",
        "dense",
        "dense, dilated",
        "dense, dilated, odd side",
    ],
)
def test_a_convolution_and_its_gradients_equal_pytorchs_in_float64(case, dtype, tolerance):
    torch.manual_seed(2)
    rows, columns = (7, 10) if "odd" in case else (6, 10)
    stride, dilation = (2 if "stride 2" in case else 1), (2 if "dilated" in case else 1)
    if case == "deconvolution":
        layer = CpuDeconvolution(24, 16)
    elif "dense" in case:
        dilation = 6 if "odd" in case else dilation  # further apart than some of the sides are long
        layer = CpuConv3x3(24, 16, dilation=dilation)
    elif "pointwise" in case:
        layer = CpuPointwise(24, 16, stride=2)
    else:
        layer = CpuDepthwise(24, stride=stride, dilation=dilation)
    layer = layer.to(dtype)
    x = torch.randn(2, 24, rows, columns).to(dtype).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    y = layer(x)
    target = torch.randn_like(y)
    gradients = torch.autograd.grad((y * target).sum(), (x, layer.weight))

    exact_x, exact_weight = (t.detach().double().contiguous().requires_grad_() for t in (x, layer.weight))
    if case == "deconvolution":
        exact = F.conv_transpose2d(exact_x, exact_weight, None, 2, 1, 1)
    elif "pointwise" in case:
        exact = F.conv2d(exact_x, exact_weight, None, 2)
    else:
        groups = 1 if "dense" in case else 24
        exact = F.conv2d(exact_x, exact_weight, None, stride, dilation, dilation, groups)
    expected = torch.autograd.grad((exact * target.double()).sum(), (exact_x, exact_weight))
    for ours, theirs in zip((y, *gradients), (exact, *expected), strict=True):
        assert (ours.double() - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, True), (True, False, False)], ids=str)
def test_a_separable_convolution_recomputes_its_intermediate_tensor(dilation, wanted):
    torch.manual_seed(6)
    layer = CpuSeparable(24, 16, dilation=dilation).double()
    x = torch.randn(2, 24, 6, 10, dtype=torch.float64)
    tensors = (x, *layer.parameters())
    for tensor, wants in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(wants)
    y, target = layer(x), torch.randn(2, 16, 6, 10, dtype=torch.float64)
    exact = F.conv2d(F.conv2d(x, tensors[1], None, 1, dilation, dilation, 24), tensors[2])
    torch.testing.assert_close(y, exact)
    inputs = [tensor for tensor in tensors if tensor.requires_grad]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        layer(x)
    assert (2, 24, 6, 10) in kept and len(kept) == 3  # the input and the weights, and nothing between
    expected = torch.autograd.grad(exact, inputs, target)
    torch.testing.assert_close(torch.autograd.grad(y, inputs, target), expected)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("batch, rows, columns", [(1, 16, 20), (2, 13, 18), (2, 13, 502)])
def test_minimal_filtering_equals_the_convolution_and_its_gradients(batch, rows, columns, layout):
    torch.manual_seed(4)
    x = torch.randn(batch, 11, rows, columns, dtype=torch.float64).contiguous(memory_format=layout)
    weight = torch.randn(7, 11, 3, 3, dtype=torch.float64).contiguous(memory_format=layout)
    x.requires_grad_(), weight.requires_grad_()
    exact, ours = F.conv2d(x, weight, None, 1, 1), winograd(x, weight)
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)
    target = torch.randn_like(exact)
    expected = torch.autograd.grad(exact, (x, weight), target)
    torch.testing.assert_close(torch.autograd.grad(ours, (x, weight), target), expected, rtol=1e-9, atol=1e-9)
    alone = torch.autograd.grad(winograd(x.detach(), weight), weight, target)
    torch.testing.assert_close(alone, expected[1:], rtol=1e-9, atol=1e-9)


def test_minimal_filtering_in_float32_rounds_a_few_times_as_much_as_the_direct_sum():
    """And a decoder layer of the real network uses it."""
    torch.manual_seed(5)
    layer = CpuConv3x3(128, 128).to(memory_format=torch.channels_last)
    x = torch.rand(1, 48, 72, 128).permute(0, 3, 1, 2).requires_grad_()
    target = torch.randn(1, 48, 72, 128).permute(0, 3, 1, 2)

    def with_gradients(y, x, weight):
        return y, *torch.autograd.grad(y, (x, weight), target.to(y.dtype))

    direct = with_gradients(F.conv2d(x, layer.weight, None, 1, 1), x, layer.weight)
    ours = with_gradients(layer(x), x, layer.weight)
    exact_x, exact_weight = (t.detach().double().requires_grad_() for t in (x, layer.weight))
    exact = with_gradients(F.conv2d(exact_x, exact_weight, None, 1, 1), exact_x, exact_weight)
    for our, plain, true in zip(ours, direct, exact, strict=True):
        error = (our - true).norm()
        assert 0 < error <= 10 * (plain - true).norm()
        assert error <= 1e-5 * true.norm()
        assert not torch.equal(our, plain)


def test_bfloat16_stays_close_to_float32():
    torch.manual_seed(3)
    model = build_model(SMALL, 16).eval().to(memory_format=torch.channels_last)
    use_cpu_kernels(model)
    x = torch.rand(2, 64, 96, 16).permute(0, 3, 1, 2)
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(x)
    assert rounded.dtype == torch.bfloat16
    assert (rounded - exact).norm() < 0.05 * exact.norm()


def test_the_cpu_kernels_compute_the_plain_network():
    """One setting turns them off; names and weights are the same, results are up to rounding."""
    torch.manual_seed(5)
    model = build_model(Network(width=0.1, middle_blocks=1), 16).double()
    fast = deepcopy(model)
    use_cpu_kernels(fast)
    assert not any(type(module).__module__.startswith("mlhpc.deepcam.cpu") for module in model.modules())
    assert any(isinstance(module, CpuSeparable) for module in fast.modules())
    assert model.state_dict().keys() == fast.state_dict().keys()
    x, results = torch.randn(2, 16, 32, 48, dtype=torch.float64), []
    for network in (model, fast):
        y = network(x)
        y.square().mean().backward()
        results.append([y, [weight.grad for weight in network.parameters()]])
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


def test_weights_of_version_0_1_checkpoints_map_to_the_network():
    """Their names as they were in checkpoints then."""
    old = [
        "stem.0.weight", "fine.layers.0.0.weight", "fine.shortcut.1.running_mean",
        "coarse.0.layers.0.1.weight", "coarse.5.1.num_batches_tracked", "pyramid.levels.1.0.weight",
        "pyramid.mean.1.bias", "pyramid.join.0.weight", "decoder.reduce.0.weight", "decoder.rise.0.weight",
        "decoder.blend.2.weight", "decoder.finish.2.weight",
    ]  # fmt: skip
    names = build_model(Network(width=0.1, middle_blocks=1), 16).state_dict().keys()
    assert [name for name in map(current_name, old) if name not in names] == []
    assert all(current_name(name) == name for name in names)
