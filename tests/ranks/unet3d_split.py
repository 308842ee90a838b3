"""One rank of a test: the U-Net of ``examples/unet3d`` on slabs, against the same network on whole volumes.

``python unet3d_split.py D H W``: D x H x W slabs, as many as there are ranks.
"""

import sys

import torch
from mlhpc_unet3d.data import CLASSES
from mlhpc_unet3d.metric import counts, mean_dice, voxel_loss
from mlhpc_unet3d.model import UNet

from mlhpc.common.data.slabs import plan_slabs
from mlhpc.common.pytorch.batchnorm import group_batchnorm
from mlhpc.common.pytorch.spatial import SpatialGroup, spatial_group
from mlhpc.common.pytorch.step import wrap_ddp
from mlhpc.common.ranks import launch
from mlhpc.common.ranks.world import Solo


def seeded(group: SpatialGroup | None) -> UNet:
    torch.manual_seed(5)
    return UNet(4, 2, CLASSES, group).double()


def main() -> None:
    depth, rows, columns = map(int, sys.argv[1:])
    world = launch.connect("torch")
    side = 8 * max(depth, rows, columns)
    plan = plan_slabs((side, side, side), (depth, rows, columns), 2, 3)
    group = spatial_group(plan, world)

    whole, split = (seeded(members) for members in (None, group))
    group_batchnorm(split, world, plan.size)
    x, y = torch.randn(2, side, side, side).double(), torch.randint(CLASSES, (2, side, side, side)).byte()
    logits = whole(x)
    expected = voxel_loss(logits, y)
    expected.backward()

    own = (slice(None), *plan.slab(world.rank))
    wrapped = wrap_ddp(split, world)  # gradients are averaged as long as it lives
    own_logits = wrapped(x[own])
    loss = voxel_loss(own_logits, y[own])
    loss.backward()

    close = torch.testing.assert_close
    close(own_logits, logits[(slice(None), *own)], rtol=1e-9, atol=1e-9)
    close(float(world.sum(loss.item())) / world.size, expected.item(), rtol=1e-6, atol=0)
    for (name, ours), theirs in zip(split.named_parameters(), whole.parameters(), strict=True):
        error = (ours.grad - theirs.grad).norm() / theirs.grad.norm()
        assert error < 1e-5, f"{name}: off by {error:.1e} of its norm"  # the loss is computed in float32
    for ours, theirs in zip(split.buffers(), whole.buffers(), strict=True):
        close(ours, theirs, rtol=1e-9, atol=1e-9)
    together = mean_dice([counts(own_logits, y[own])], CLASSES, world)
    assert together == mean_dice([counts(logits, y)], CLASSES, Solo())
    world.close()


if __name__ == "__main__":
    main()
