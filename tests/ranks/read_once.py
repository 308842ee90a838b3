"""One rank that stages with each byte read once: ``read_once.py SOURCE FOLDER [RANK]``, each node to a folder of
its own in FOLDER. Prints the bytes that this rank read from the source. RANK is killed while it receives a
file."""

import os
import signal
import sys
from pathlib import Path

from mlhpc.common.data import manifest
from mlhpc.common.ranks import launch
from mlhpc.common.staging import copier, transfer
from mlhpc.common.staging.stage import stage

source, folder, victim = Path(sys.argv[1]), Path(sys.argv[2]), int((*sys.argv, "-1")[3])
read_from_source = 0
read, pieces = copier._read, transfer._pieces


def counted(reader, *more):
    global read_from_source
    count = read(reader, *more)
    read_from_source += count
    return count


def ended_halfway(connection, size, *more):
    for piece in pieces(connection, size, *more):
        yield piece
        if size > len(piece):
            os.kill(os.getpid(), signal.SIGKILL)


copier._read = counted
with launch.joined("sockets") as world:
    if world.rank == victim:
        transfer._pieces = ended_halfway
    world.enter("staging")
    dataset = manifest.describe(source, world)
    report = stage(dataset, folder / f"node{world.node}", world, "replicate", workers=1, read_once=True)
    sys.stdout.write(f"{read_from_source} of {report.source_bytes}\n")
