"""Two nodes of one rank each, on this machine: ranks whose launcher says that they are on different nodes."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path


def as_torchrun(*words: object, stage: Path | None = None) -> list[subprocess.CompletedProcess[str]]:
    """Python with these words on both nodes, as torchrun starts it; each with a ``stage`` of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, words), *(["--stage", f"{stage}{node}"] if stage else [])],
            env=os.environ
            | shared
            | {"MLHPC_TOKEN": "of this test", "RANK": str(node), "GROUP_RANK": str(node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    return [
        subprocess.CompletedProcess(process.args, process.wait(), *output)
        for process, output in [(process, process.communicate(timeout=300)) for process in started]
    ]


def with_horovodrun(*words: object, stage: Path) -> subprocess.CompletedProcess[str]:
    """Python with these words on both nodes, started by horovodrun under two names of this machine; each with a
    ``stage`` of its own. With torchrun's variables Horovod would count two ranks of the host as one node's."""
    command = shlex.join([sys.executable, *map(str, words)])
    return subprocess.run(
        [
            *(
                Path(sys.executable).with_name("horovodrun"),
                "--gloo",
                "-np",
                "2",
                "-H",
                "localhost:1,127.0.0.1:1",
            ),
            *("sh", "-c", f"exec {command} --stage {shlex.quote(str(stage))}$HOROVOD_RANK"),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
    )
