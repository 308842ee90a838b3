"""What an aborted run leaves on its node."""

from pathlib import Path

import pytest

from mlhpc.common.data.manifest import index, save
from mlhpc.common.ranks.world import Solo
from mlhpc.common.staging.stage import stage
from mlhpc.run import removed_on_abort


@pytest.mark.parametrize(("name", "stays"), [("mlhpc-4711", False), ("mlhpc", True), ("mlhpc-47110", True)])
def test_a_stage_named_after_the_job_does_not_outlive_an_aborted_run(tmp_path, monkeypatch, name, stays):
    """Nothing could reuse it; under another name the next run resumes from it."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    source = tmp_path / "data"
    (source / "train").mkdir(parents=True)
    (source / "train" / "a.bin").write_bytes(b"abc")
    dataset = index(source, {}, Solo(), workers=1)
    save(dataset)
    target = tmp_path / name
    with pytest.raises(RuntimeError, match="the run failed"), removed_on_abort(target, Solo()):
        stage(dataset, target, Solo(), "replicate")
        assert (target / "train" / "a.bin").exists()
        raise RuntimeError("the run failed")
    assert target.exists() is stays


def test_without_a_stage_there_is_nothing_to_remove(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), removed_on_abort(None, Solo()):
        raise RuntimeError
