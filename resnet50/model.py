"""The networks: ResNet-50 v1.5, which is the benchmark's, and three others for scaling studies."""

import math

import torch
from torch import Tensor, nn
from torchvision.models import alexnet
from torchvision.models.resnet import Bottleneck, ResNet

from mlhpc.benchmarks.resnet50 import Network
from mlhpc.common.pytorch.batchnorm import BatchNorm

BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}


def build_model(network: Network) -> nn.Module:
    """A network, made of torchvision's layers, that maps images ``[b, 3, side, side]`` to logits ``[b, classes]``,
    for sides of at least 32 (AlexNet: 63). ResNet-50 with all its blocks, ``width`` 1 and 1000 classes has
    25,557,032 parameters; "v1.5" means that the 3 x 3 convolution of a stage's first block has stride 2. The
    initial weights are drawn from torch's random state.
    """
    if network.name == "lenet":
        return lenet(network.classes)
    if network.name == "alexnet":
        other: nn.Module = alexnet(num_classes=network.classes)
        return other
    blocks = list(network.blocks or BLOCKS[network.name])
    model: nn.Module = ResNet(
        Block,
        blocks,
        num_classes=network.classes,
        width_per_group=max(1, round(64 * network.width)),
        norm_layer=BatchNorm,
    )
    assert isinstance(model.bn1, BatchNorm)
    model.bn1.relu, model.relu = True, nn.Identity()
    initialise(model)
    return model


class Block(Bottleneck):
    """torchvision's block with the sum and the ReLUs in its batch norms, which on a GPU compute them too."""

    def forward(self, x: Tensor) -> Tensor:
        """As torchvision's: maps ``x`` [b, channels, h, w] to [b, 4 · width, h / stride, w / stride]."""
        y = self.bn1(self.conv1(x), relu=True)
        y = self.conv3(self.bn2(self.conv2(y), relu=True))
        shortcut = x if self.downsample is None else self.downsample(x)
        z: Tensor = self.bn3(y, added=shortcut, relu=True)
        return z


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Initialise the weights as in the MLPerf reference: for convolutions, with He's normal distribution (He et
    al. 2015, section 2.2: variance 2 / fan-in) truncated at two standard deviations; for dense layers, with a
    normal distribution with standard deviation 0.01, and zero biases. Batch norm starts with weight 1 and bias
    0."""
    # A normal distribution truncated at two standard deviations has a standard deviation of 0.8796.
    truncated = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            deviation = math.sqrt(2 / module.weight[0].numel()) / truncated
            nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)


def lenet(classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998, section II.B) with three colours, ReLU and max pooling. For images larger than
    LeNet-5's 32 x 32, adaptive average pooling reduces the features to 5 x 5, the input of the first dense
    layer."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(5),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(inplace=True),
        nn.Linear(120, 84),
        nn.ReLU(inplace=True),
        nn.Linear(84, classes),
    )
