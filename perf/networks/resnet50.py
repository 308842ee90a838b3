"""ResNet-50 v1.5 (He et al. 2015), and the other networks for scaling studies, as lists of layers."""

from collections.abc import Sequence

from mlhpc.benchmarks import resnet50
from mlhpc.perf.networks.builder import Builder, Tensor, Window
from mlhpc.perf.networks.layer import Network

BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
EXPANSION = 4


def layers(network: resnet50.Network, sample_shape: Sequence[int], *, fused: bool = False) -> Network:
    """The layers for images [side, side, 3] with sides of at least 32 (AlexNet: 63). ``fused``: as computed by the
    suite's GPU kernels."""
    if network.name == "lenet":
        return _lenet(network, sample_shape)
    if network.name == "alexnet":
        return _alexnet(network, sample_shape)
    net = Builder("ResNet-50" if network.name == "resnet50" else "ResNet-101", sample_shape, fused=fused)
    x = net.convolution("conv 1", net.input, 64, Window(7, stride=2, padding=3))
    x = net.batch_norm("conv 1 norm", x, relu=True)
    x = net.max_pool("pool", x, 3, stride=2, padding=1)
    for stage, blocks in enumerate(network.blocks or BLOCKS[network.name]):
        # torchvision's width_per_group, which build_model computes from ``width``.
        inside = int(64 * 2**stage * (max(1, round(64 * network.width)) / 64))
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = _bottleneck(net, f"{stage + 2}.{block + 1}", x, inside, 64 * 2**stage * EXPANSION, stride)
    x = net.mean_pool("mean", x)
    x = net.dense("dense", x, network.classes)
    net.cross_entropy(x, labels=1)
    return net.network()


def _bottleneck(net: Builder, name: str, x: Tensor, inside: int, outputs: int, stride: int) -> Tensor:
    """Convolutions of 1 x 1, 3 x 3 (with the stride, which makes it "v1.5") and 1 x 1, plus the shortcut."""
    y = net.batch_norm(f"{name} a norm", net.convolution(f"{name} a", x, inside, 1), relu=True)
    y = net.convolution(f"{name} b", y, inside, Window(3, stride=stride, padding=1))
    y = net.batch_norm(f"{name} b norm", y, relu=True)
    y = net.convolution(f"{name} c", y, outputs, 1)
    if stride > 1 or x.channels != outputs:
        shortcut = net.convolution(f"{name} shortcut", x, outputs, Window(1, stride=stride))
        x = net.batch_norm(f"{name} shortcut norm", shortcut)
    y = net.batch_norm(f"{name} c norm", y)
    return net.relu(f"{name} ReLU", net.add(f"{name} sum", y, x))


def _lenet(network: resnet50.Network, sample_shape: Sequence[int]) -> Network:
    net = Builder("LeNet-5", sample_shape)
    x = net.input
    for number, filters in enumerate((6, 16), 1):
        x = net.convolution(f"conv {number}", x, filters, Window(5, padding=0), bias=True)
        x = net.max_pool(f"pool {number}", net.relu(f"conv {number} ReLU", x), 2, stride=2)
    x = net.mean_pool("mean", x, (5, 5))
    for number, units in enumerate((120, 84), 1):
        x = net.relu(f"dense {number} ReLU", net.dense(f"dense {number}", x, units))
    net.cross_entropy(net.dense("dense 3", x, network.classes), labels=1)
    return net.network()


def _alexnet(network: resnet50.Network, sample_shape: Sequence[int]) -> Network:
    """AlexNet as in torchvision (Krizhevsky 2014, arXiv:1404.5997)."""
    net = Builder("AlexNet", sample_shape)
    x = net.convolution("conv 1", net.input, 64, Window(11, stride=4, padding=2), bias=True)
    x = net.max_pool("pool 1", net.relu("conv 1 ReLU", x), 3, stride=2)
    x = net.convolution("conv 2", x, 192, 5, bias=True)
    x = net.max_pool("pool 2", net.relu("conv 2 ReLU", x), 3, stride=2)
    for number, filters in enumerate((384, 256, 256), 3):
        x = net.relu(f"conv {number} ReLU", net.convolution(f"conv {number}", x, filters, 3, bias=True))
    x = net.max_pool("pool 5", x, 3, stride=2)
    x = net.mean_pool("mean", x, (6, 6))
    for number in (1, 2):
        x = net.dense(f"dense {number}", net.dropout(f"dropout {number}", x), 4096)
        x = net.relu(f"dense {number} ReLU", x)
    net.cross_entropy(net.dense("dense 3", x, network.classes), labels=1)
    return net.network()
