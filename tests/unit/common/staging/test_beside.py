"""Staging during training: files that have arrived are read from the target, others from the source."""

import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.thread_world import ThreadWorld, on_ranks

from mlhpc.common.data.assign import assign_samples
from mlhpc.common.data.manifest import Manifest, index
from mlhpc.common.data.partition import Mode
from mlhpc.common.data.verify import verify
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging import beside
from mlhpc.common.staging.beside import stage_beside
from mlhpc.common.staging.copier import copy_all
from mlhpc.common.staging.stage import remove, stage
from mlhpc.errors import UserError


@pytest.fixture
def source(tmp_path: Path) -> Manifest:
    root, rng = tmp_path / "source", np.random.default_rng(3)
    for folder, files in (("train", 12), ("validation", 4)):
        (root / folder).mkdir(parents=True)
        for i in range(files):
            (root / folder / f"{i:02d}.tfrecord").write_bytes(rng.bytes(1000 + i))
    return index(root, {"benchmark": "b"}, Solo(), workers=1)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No file is copied before it is set."""
    opened = threading.Event()

    def wait_and_copy(*arguments):
        assert opened.wait(60)
        return copy_all(*arguments)

    monkeypatch.setattr(beside, "copy_all", wait_and_copy)
    return opened


def samples_of(source: Manifest, target: Path, world, mode: Mode):
    samples = assign_samples(source, target, mode, world, train_samples=12, eval_samples=4)
    return samples.arriving(target, source.root)


@pytest.mark.parametrize("mode", ["replicate", "shard"])
def test_samples_are_read_from_the_source_until_they_have_arrived(source, tmp_path, gate, mode):
    arrived = threading.Barrier(4)

    def work(world: ThreadWorld):
        target = tmp_path / f"node{world.node}"
        with stage_beside(source, target, world, mode) as finish:
            samples = samples_of(source, target, world, mode)
            before = list(samples.train)
            arrived.wait(60)
            gate.set()
            report = finish()
            return before, list(samples.train), samples.evaluation[1:3], report

    for rank, (before, after, evaluated, report) in enumerate(on_ranks(2, 2, work)):
        target = tmp_path / f"node{rank // 2}"
        assert all(path.is_relative_to(source.root) for path in before)
        assert all(path.is_relative_to(target) for path in [*after, *evaluated])
        assert [p.relative_to(source.root) for p in before] == [p.relative_to(target) for p in after]
        assert [p.read_bytes() for p in before] == [p.read_bytes() for p in after]
        assert report.overlapped and report.verified and report.waited_s >= 0
        assert report.source_bytes == source.bytes * (2 if mode == "replicate" else 1)
        assert report.shuffle_scope == ("sample" if mode == "replicate" else "node")


def test_what_is_staged_beside_is_what_is_staged_before(source, tmp_path):
    with stage_beside(source, tmp_path / "beside", Solo(), "replicate") as finish:
        one = finish()
    other = stage(source, tmp_path / "before", Solo(), "replicate")
    assert (one.files, one.bytes, one.kept) == (other.files, other.bytes, other.kept)
    assert verify(tmp_path / "beside", workers=1) == []
    remove(tmp_path / "beside")
    assert not (tmp_path / "beside").exists()


def test_a_damaged_source_file_ends_all_ranks_with_the_same_line(source, tmp_path):
    path = source.root / "train" / "05.tfrecord"
    path.write_bytes(b"?" * path.stat().st_size)

    def work(world: ThreadWorld):
        with stage_beside(source, tmp_path / f"node{world.node}", world, "shard") as finish:
            finish()

    errors = on_ranks(2, 1, work)
    assert all(isinstance(error, UserError) for error in errors)
    assert "05.tfrecord: checksum" in str(errors[0]) and not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("raises", [True, False])
def test_copying_is_abandoned_when_training_ends_before_it(source, tmp_path, gate, raises):
    target = tmp_path / "target"

    def train():
        with stage_beside(source, target, Solo(), "replicate"):
            threading.Timer(0.05, gate.set).start()
            if raises:
                raise UserError("training failed")

    if raises:
        with pytest.raises(UserError, match="training failed"):
            train()
    else:
        train()
    assert not list(target.rglob("*.tfrecord")) and not list(target.rglob("*.part"))
    report = stage(source, target, Solo(), "replicate")  # nobody holds its lock
    assert report.files == 16 and verify(target, workers=1) == []
