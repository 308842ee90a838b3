"""A private Slurm of two nodes on this machine, for the time of the tests."""

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest
from ranks.need import need, search_path
from smoke.conftest import climate, tiny_data

__all__ = ["climate", "tiny_data"]  # the fixtures of the smoke tests

# linuxproc, and the task plugins none and affinity: what needs neither root's cgroups nor a second kernel.
# AuthInfo and the ports keep it apart from a Slurm that this machine may belong to. Nodes without names in any
# name service, as on many a cloud: the roll call has to find rank 0 nevertheless.
CONF = """\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{tasks}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=all Nodes=n0,n1 Default=YES State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A running cluster; ``env`` is what its clients need."""

    folder: Path
    env: dict[str, str]

    def run(self, *command: object, timeout: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
        """A client command to its end, with ``more`` in its environment."""
        words, env = [str(word) for word in command], self.env | more
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    yield from _cluster(tasks="none", cpus=4)


@pytest.fixture(scope="module")
def binding_slurm() -> Iterator[Slurm]:
    """One that binds tasks to the cores that this machine has."""
    yield from _cluster(tasks="affinity", cpus=os.cpu_count() or 1)


def _cluster(**settings: object) -> Iterator[Slurm]:
    need("slurmctld", "slurmd", "munged", "srun", "sbatch")
    # Not in pytest's folder: the path of a socket has 108 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    try:
        yield from _started(folder, settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path, settings: Mapping[str, object]) -> Iterator[Slurm]:
    folder.chmod(0o755)
    for name in ("state", "spool.n0", "spool.n1"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(
        CONF.format(
            folder=folder,
            cluster=f"test{os.getpid()}",
            host=socket.gethostname(),
            user=getuser(),
            ports=_free_ports(3),
            **settings,
        )
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI", "OMPI_"))}
    clean["MLHPC_TOKEN"] = "of these tests"  # as a job script draws one
    path = f"{Path(sys.executable).parent}:{search_path()}"
    slurm = Slurm(folder, clean | {"SLURM_CONF": str(conf), "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"})

    munge = [
        f"--{what}={folder}/munge.{what.split('-')[0]}"
        for what in ("socket", "key-file", "log-file", "pid-file")
    ]
    daemons = [["munged", "--foreground", "--force", *munge, f"--seed-file={folder}/munge.seed"]]
    daemons += [["slurmctld", "-D"], ["slurmd", "-D", "-N", "n0"], ["slurmd", "-D", "-N", "n1"]]
    running: list[subprocess.Popen[Any]] = []
    try:
        for daemon in daemons:
            running.append(
                subprocess.Popen(daemon, env=slurm.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            if daemon[0] == "munged":
                _wait_for("munged", lambda: (folder / "munge.socket").exists(), slurm)
        _wait_for(
            "two idle nodes",
            lambda: slurm.run("sinfo", "-hN", "-o", "%T").stdout.split() == ["idle"] * 2,
            slurm,
        )
        yield slurm
        slurm.run("scancel", "--user", getuser())
        _wait_for("the last job's end", lambda: not slurm.run("squeue", "-h").stdout, slurm)
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_ports(count: int) -> list[int]:
    """Free ports that nothing else gets until the daemons take them: Linux gives outgoing connections ports
    from 32768 on, and launch has its own from 20000 to 32000."""
    ports: list[int] = []
    for port in random.sample(range(10_000, 20_000), 1000):
        with suppress(OSError):
            socket.create_server(("", port)).close()
            ports.append(port)
        if len(ports) == count:
            return ports
    pytest.fail(f"no {count} free ports below 20000")


def _wait_for(what: str, arrived: Any, slurm: Slurm) -> None:
    deadline = time.monotonic() + 60
    while not arrived():
        if time.monotonic() > deadline:
            logs = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in slurm.folder.glob("*.log"))
            pytest.fail(f"this Slurm has no {what} after a minute\n{logs}")
        time.sleep(0.2)
