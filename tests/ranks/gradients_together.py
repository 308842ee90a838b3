"""One rank of a test: steps whose gradients are cast and delivered together, as on GPUs, against plain ones."""

from copy import deepcopy
from unittest.mock import patch

import torch
from torch import nn

from mlhpc.common.pytorch import step as steps
from mlhpc.common.pytorch.step import averages_buckets, make_scaler, make_train_step, wrap_ddp
from mlhpc.common.ranks import launch
from mlhpc.common.ranks.world import World


def trained(model: nn.Module, world: World, precision: str, *, together: bool) -> nn.Module:
    with patch.object(steps, "on_cpu", lambda tensor: not together):
        train(model, world, precision, together)
    return model


def train(model: nn.Module, world: World, precision: str, together: bool) -> None:
    wrapped = wrap_ddp(model, world, bucket_cap_mib=0.001)
    in_place = averages_buckets(wrapped)
    assert in_place == together
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = make_scaler("float32", torch.device("cpu"))
    loss = nn.functional.mse_loss
    step = make_train_step(wrapped, loss, optimizer, scaler, precision, in_place=in_place)
    drawn = torch.Generator().manual_seed(world.rank)
    for _ in range(5):
        step(torch.randn(2, 3, 8, 8, generator=drawn), torch.randn(2, 4, 8, 8, generator=drawn))


def main() -> None:
    world = launch.connect("torch")
    torch.manual_seed(5)
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 1)
    network = nn.Sequential(*layers)
    layers[1].bias.requires_grad_(False)  # frozen
    steps.TOGETHER = 1000  # bytes: several groups
    for precision in ("float32", "mixed_bfloat16"):
        plain, together = (
            trained(deepcopy(network), world, precision, together=together) for together in (False, True)
        )
        for ours, theirs in zip(together.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    world.close()


if __name__ == "__main__":
    main()
