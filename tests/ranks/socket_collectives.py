"""One rank of a world without a framework: collectives whose results every rank can compute for itself."""

import sys

import numpy as np

from mlhpc.common.ranks import launch

with launch.joined("sockets") as world:
    everyone = list(range(world.size))
    assert world.gather(world.rank) == everyone
    assert world.gather({"rank": world.rank, "data": b"x" * world.rank}) == [
        {"rank": rank, "data": b"x" * rank} for rank in everyone
    ]
    assert world.broadcast([world.rank, "rank 0's"]) == [0, "rank 0's"]
    large = np.arange(1 << 18, dtype=np.float64) * (world.rank + 1)
    assert np.array_equal(world.broadcast(large), np.arange(1 << 18))
    assert np.array_equal(world.sum([world.rank, 1.0]), [sum(everyone), world.size])
    for turn in range(20):
        world.barrier()
        assert world.gather(turn) == [turn] * world.size
    assert (world.node, world.nodes) == (0, 1)
if world.rank == world.size - 1:
    sys.stderr.write("all agree\n")
