"""One rank of a test: gradients over ranks that share batch norm, against one with the whole batch."""

import sys
from copy import deepcopy

import numpy as np
import torch

from mlhpc.benchmarks.deepcam import Network
from mlhpc.common.pytorch.batchnorm import group_batchnorm
from mlhpc.common.pytorch.step import average_statistics, wrap_ddp
from mlhpc.common.ranks import launch
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.model import build_model


def main() -> None:
    world = launch.connect("torch")
    torch.manual_seed(5)
    whole = build_model(Network(width=0.1, middle_blocks=1), channels=16).double()
    use_cpu_kernels(whole)
    x = torch.randn(2 * world.size, 16, 32, 48, dtype=torch.float64)
    mine = x[2 * world.rank : 2 * world.rank + 2]

    part = deepcopy(whole)
    group_batchnorm(part, world, world.size)
    # A loss that is not a mean over equal terms: every sample has a different weight.
    weights = torch.linspace(1, 2, len(x), dtype=torch.float64).view(-1, 1, 1, 1)
    (whole(x).square() * weights).mean().backward()
    network = wrap_ddp(part, world)
    if "compiled" in sys.argv:
        network.compile(backend="aot_eager")
    (network(mine).square() * weights[2 * world.rank : 2 * world.rank + 2]).mean().backward()
    for (name, ours), theirs in zip(part.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-10, msg=f"{name}: {{}}".format)
    for buffer, of_whole in zip(part.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(buffer, of_whole, rtol=1e-9, atol=1e-12)

    # Without groups statistics differ, until they are averaged.
    alone = build_model(Network(width=0.1, middle_blocks=1), channels=16)
    alone(mine.float())
    of_ranks = world.gather([b.clone().numpy() for name, b in alone.named_buffers() if "running" in name])
    average_statistics(alone, world)
    assert any(not np.array_equal(a, b) for a, b in zip(*of_ranks[:2], strict=True))
    for after, *before in zip(
        (b for n, b in alone.named_buffers() if "running" in n), *of_ranks, strict=True
    ):
        torch.testing.assert_close(after, torch.from_numpy(sum(before) / world.size))
    world.close()


if __name__ == "__main__":
    main()
