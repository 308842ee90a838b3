"""One rank of a test: loss and gradients of CosmoFlow with volumes cut into slabs, against the unsplit network,
and the bytes that it sends and keeps, against those that ``mlhpc predict`` counts.

``python cosmoflow_spatial.py SIDE LEVELS KERNEL D H W``: a cube of SIDE voxels, LEVELS blocks, D x H x W slabs;
the ranks beyond one group are further groups, with samples of their own.
"""

import sys
from collections.abc import Callable

import torch

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.common.data.slabs import plan_slabs
from mlhpc.common.pytorch.spatial import spatial_group
from mlhpc.common.pytorch.step import wrap_ddp
from mlhpc.common.ranks import launch
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.perf.networks import cosmoflow
from mlhpc.perf.spatial import exchange, saved_bytes


def main() -> None:
    side, levels, kernel, depth, rows, columns = map(int, sys.argv[1:])
    world = launch.connect("torch")
    network = Network(conv_layers=levels, conv_filters=4, conv_kernel=kernel, dense_units=(8, 6))
    sides = (side, side, side)
    plan = plan_slabs(sides, (depth, rows, columns), levels, kernel)
    group = spatial_group(plan, world)
    groups, number = world.size // plan.size, world.rank // plan.size

    torch.manual_seed(5)
    whole = CosmoFlowNet(network, (*sides, 4), dropout=0)
    for bias in (b for name, b in whole.named_parameters() if name.endswith("bias")):
        torch.nn.init.normal_(bias, std=0.1)  # zero at first, which would hide where they are added
    x = torch.poisson(torch.exp(torch.randn(groups, *sides, 4))).to(torch.int16)
    y = torch.rand(groups, 4)
    expected = training_loss(whole(x), y, model=whole, weight_decay=0.01)
    expected.backward()

    split = CosmoFlowNet(network, (*sides, 4), dropout=0, group=group)
    split.load_state_dict(whole.state_dict())
    mine = x[number : number + 1][(slice(None), *plan.slab(world.rank % plan.size))]
    wrapped = wrap_ddp(split, world)
    group.traffic.take()
    loss = training_loss(wrapped(mine), y[number : number + 1], model=split, weight_decay=0.01)
    loss.backward()
    sent = float(world.sum(group.traffic.bytes))

    total = float(world.sum(loss.item()))
    torch.testing.assert_close(total / world.size, expected.item(), rtol=1e-6, atol=0)
    for (name, ours), theirs in zip(split.named_parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        error = (ours.grad - theirs.grad).norm() / theirs.grad.norm()
        assert error < 1e-4, f"{name}: off by {error:.1e} of its norm"

    counted = cosmoflow.layers(network, (*sides, 4), keeps="indices")
    assert sent == groups * exchange(counted, plan, kernel).bytes("float32", training=True) > 0
    model = CosmoFlowNet(network, (*sides, 4), dropout=0.5, group=group)
    kept = bytes_kept(model, lambda: training_loss(model(mine), y[:1], model=model, weight_decay=0.01))
    assert kept == saved_bytes(counted, plan, kernel, world.rank % plan.size, "float32"), kept
    world.close()


def bytes_kept(model: CosmoFlowNet, forward: Callable[[], torch.Tensor]) -> int:
    """What autograd keeps for the backward pass, each memory once, without weights."""
    own = {weight.untyped_storage()._cdata for weight in model.parameters()}
    kept: dict[int, torch.Tensor] = {}  # holds the tensors: the memory of one that is gone could be another's

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(tensor.untyped_storage().nbytes() for memory, tensor in kept.items() if memory not in own)


if __name__ == "__main__":
    main()
