"""One rank of a test: connects, runs every collective, and ends as the command line says.

``python program.py HOW [RANK]``, HOW one of well, absent, loading, kill, raise, leave, midway, gradients. RANK
(default 1) does it; the others wait for it in a collective. loading: killed before it has loaded its framework.
midway: killed while a collective carries data, and the roll call of the others hears of it after the collective
failed. FRAMEWORK is horovod (default) or torch; ROLL_CALL_S is the time of the roll call in seconds.
"""

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from mlhpc.common.ranks import environment, launch
from mlhpc.common.ranks.socket_world import Tree
from mlhpc.common.ranks.world import Loss, World
from mlhpc.errors import UserError

FRAMEWORK: Any = os.environ.get("FRAMEWORK", "horovod")


def main(how: str, who: int = 1) -> int:
    if how == "absent" and environment.identify(os.environ).rank == who:
        return 0
    if how == "loading" and environment.identify(os.environ).rank == who:
        tree: Any = Tree
        tree.grow = die_afterwards(Tree.grow)
    try:
        world = launch.connect(FRAMEWORK, timeout_s=float(os.environ.get("ROLL_CALL_S", "60")))
    except UserError as error:
        print(f"mlhpc: {error}", file=sys.stderr)
        return 2
    try:
        work(world, how, who)
    except Exception as error:
        world.fail(f"{type(error).__name__}: {error}")
        raise
    world.close()
    print(f"rank {world.rank}/{world.size} node {world.node}/{world.nodes} by {world.launcher} is done")
    return 0


def die_afterwards(grow: Any) -> Any:
    def grown(*words: Any) -> None:
        grow(*words)
        time.sleep(1.0)  # the others wait for this rank by now
        os.kill(os.getpid(), signal.SIGKILL)

    return grown


def work(world: Any, how: str, who: int) -> None:
    world.on_loss(note)
    check_collectives(world)
    if how == "gradients":
        check_groups(world) if FRAMEWORK == "torch" else check_gradients(world)
    world.enter("epoch 2")
    world.barrier()
    if world.rank == who:
        match how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise ValueError("sample 7 is not finite")
            case "leave":
                sys.exit(3)
            case "midway":
                threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if how == "midway":
        roll_call = world.roll_call
        lose = roll_call._lose

        def lose_late(*lost: object) -> None:
            time.sleep(1.0)
            lose(*lost)

        roll_call._lose = lose_late
        while True:
            world.sum(np.ones(1 << 22))  # 32 MiB: almost all the time is spent in here
    world.barrier()  # without the lost rank this never returns


def note(loss: Loss) -> None:
    """What the run log would write."""
    sys.stdout.write(f"callback: {loss}\n")


def check_collectives(world: World) -> None:
    rank, size = world.rank, world.size
    assert world.broadcast({"rank": rank}) == {"rank": 0}
    assert world.gather((rank, "x" * rank)) == [(r, "x" * r) for r in range(size)]
    # float32 anywhere on the way would lose the ones.
    wide = world.sum([2.0**52 if rank == 0 else 1.0, rank])
    assert wide.tolist() == [2.0**52 + size - 1, sum(range(size))], wide
    assert float(world.sum(0.5)) == 0.5 * size
    # The next number after 2**53 needs float64.
    most = world.max([[float(rank), -rank], [2.0**53 + 2 * rank, 7.0]])
    assert most.tolist() == [[size - 1, 0], [2.0**53 + 2 * (size - 1), 7.0]], most


def check_gradients(world: World) -> None:
    import tensorflow as tf

    from mlhpc.common.ranks.horovod_world import average_gradients, broadcast_variables

    @tf.function
    def average(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        return average_gradients(gradients)

    # Of unlike sizes: a fused buffer that mixed them up would show.
    shapes = [(3,), (2, 5), (), (1000,)]
    averaged = average([tf.fill(shape, float(10 * i + world.rank)) for i, shape in enumerate(shapes)])
    for i, (shape, tensor) in enumerate(zip(shapes, averaged, strict=True)):
        assert tensor.shape == shape and (tensor.numpy() == 10 * i + (world.size - 1) / 2).all(), tensor
    variables = [tf.Variable(float(world.rank)), tf.Variable([world.rank, 7 + world.rank])]
    broadcast_variables(variables)
    assert variables[0].numpy() == 0 and variables[1].numpy().tolist() == [0, 7]


def check_groups(world: Any) -> None:
    import torch
    import torch.distributed as dist

    assert (world.group([0]) is None) == (
        world.rank > 0
    )  # from here on rank 0 is in more groups than the others
    # Groups of one: a sum in them is this rank's own; in the group of all, everyone's.
    alone = [world.group([rank]) for rank in range(world.size)][world.rank]
    everyone = world.group(range(world.size))
    for group, total in ((alone, world.rank), (everyone, sum(range(world.size)))):
        tensor = torch.full((1000,), float(world.rank))
        dist.all_reduce(tensor, group=group)
        assert (tensor == total).all(), tensor


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
