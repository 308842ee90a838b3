"""Staging on two nodes of a real Slurm, with nodes that forward to each other what one of them has read."""

import sys
from pathlib import Path

import numpy as np
import pytest
from smoke.conftest import climate_settings, result

from mlhpc.common.data.manifest import index
from mlhpc.common.data.verify import verify
from mlhpc.common.ranks.world import Solo

# One Slurm: its tests run one after the other in one worker, as `--dist loadfile` has the tests of a file.
pytestmark = [pytest.mark.system, pytest.mark.slow]

PROGRAM = Path(__file__).parents[1] / "ranks" / "read_once.py"
EXCHANGE = PROGRAM.with_name("exchange_shards.py")


@pytest.fixture
def source(tmp_path):
    root, rng = tmp_path / "source", np.random.default_rng(2)
    (root / "train").mkdir(parents=True)
    for i in range(40):
        (root / "train" / f"{i}.tfrecord").write_bytes(rng.bytes(500_000 + 1000 * i))
    return index(root, {"benchmark": "b"}, Solo(), workers=1)


def contents(root):
    files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(root)): path.read_bytes() for path in files if path.name != "manifest.json"}


@pytest.mark.parametrize("each", [1, 2])
def test_the_nodes_read_the_source_once_between_them(slurm, source, tmp_path, each):
    done = slurm.run(
        "srun", "-N2", f"--ntasks-per-node={each}", sys.executable, PROGRAM, source.root, tmp_path
    )
    assert done.returncode == 0, done.stderr
    read = [int(line.split()[0]) for line in done.stdout.splitlines()]
    assert len(read) == 2 * each and all(read)
    assert sum(read) == pytest.approx(source.bytes, rel=0.01)
    for node in ("node0", "node1"):
        assert contents(tmp_path / node) == contents(source.root)
        assert verify(tmp_path / node, workers=1) == []


@pytest.mark.parametrize("each", [1, 2])
def test_the_nodes_exchange_their_shards(slurm, source, tmp_path, each):
    done = slurm.run(
        "srun", "-N2", f"--ntasks-per-node={each}", sys.executable, EXCHANGE, source.root, tmp_path, 4
    )
    assert done.returncode == 0, done.stderr
    held = [contents(tmp_path / node) for node in ("node0", "node1")]
    assert held[0] | held[1] == contents(source.root) and not held[0].keys() & held[1].keys()
    assert len(held[0]) == len(held[1])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_lost_while_files_are_passed_on_is_one_line_and_no_file_is_half_written(
    slurm, source, tmp_path, victim
):
    command = ["srun", "-N2", "-n2", sys.executable, PROGRAM, source.root, tmp_path]
    done = slurm.run(*command, victim)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "mlhpc: " in line]
    assert lines == [
        f"mlhpc: rank {victim} on n{victim} was lost in phase 'staging': killed or crashed (connection closed)"
    ], done.stderr
    whole = contents(source.root)
    for node in ("node0", "node1"):
        assert contents(tmp_path / node).items() <= whole.items()
    again = slurm.run(*command)
    assert again.returncode == 0, again.stderr
    for node in ("node0", "node1"):
        assert contents(tmp_path / node) == whole
        assert not list((tmp_path / node).rglob("*.part"))


def test_a_run_trains_on_what_the_nodes_passed_on(slurm, climate, tmp_path):
    """Each node stages to its own folder; the losses equal those of the run that reads everything twice."""
    losses = {}
    for once in ("true", "false"):
        out = tmp_path / once
        options = climate_settings("target.value=1e-6", f"staging.read_once={once}")
        line = f'exec "$@" --stage {tmp_path}/stage-{once}-$SLURMD_NODENAME'
        run = [
            sys.executable,
            "-m",
            "mlhpc",
            "run",
            "deepcam",
            "--seed",
            "7",
            "--data",
            climate,
            "--out",
            out,
        ]
        done = slurm.run("srun", "-N2", "-n2", "bash", "-c", line, "run", *run, *options, timeout=300)
        assert done.returncode == 0, done.stderr
        record = result(out)
        losses[once] = [epoch["train_loss"] for epoch in record["epochs"]]
        staging = record["staging"]
        assert staging["read_once"] == (once == "true") and staging["verified"]
        assert staging["source_bytes"] * (2 if once == "true" else 1) == staging["bytes"]
    assert losses["true"] == losses["false"]
