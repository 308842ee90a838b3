"""One rank that stages its node's shard and exchanges it: ``exchange_shards.py SOURCE FOLDER EPOCHS [RANK]``, each
node in a folder of its own in FOLDER. RANK is killed in the last exchange, while it receives a file."""

import os
import signal
import sys
from pathlib import Path

from mlhpc.common.data import manifest
from mlhpc.common.data.partition import Shards, balance
from mlhpc.common.ranks import launch
from mlhpc.common.staging import transfer
from mlhpc.common.staging.exchange import exchange
from mlhpc.common.staging.stage import stage

source, folder, epochs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
victim = int((*sys.argv, "-1")[4])
pieces = transfer._pieces


def ended_halfway(connection, size, *more):
    for piece in pieces(connection, size, *more):
        yield piece
        if size > len(piece):
            os.kill(os.getpid(), signal.SIGKILL)


with launch.joined("sockets") as world:
    world.enter("staging")
    dataset = manifest.describe(source, world)
    target = folder / f"node{world.node}"
    stage(dataset, target, world, "shard", workers=1)
    files = dataset.folder("train")
    shards = Shards(balance([file.size for file in files], world.nodes), seed=1)
    for epoch in range(1, epochs):
        if epoch == epochs - 1 and world.rank == victim:
            transfer._pieces = ended_halfway
        world.enter(f"exchange of epoch {epoch + 1}")
        moved = exchange(files, shards, epoch - 1, epoch, target, world, most=3_000_000)
    if world.rank == 0:
        sys.stdout.write(f"{moved.bytes}\n")
