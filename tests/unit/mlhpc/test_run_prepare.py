"""What is refused before a run has a folder."""

import os
from pathlib import Path

import pytest

from mlhpc.benchmarks import load
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.run import RunPaths, prepare


@pytest.mark.parametrize("kind", ["FIFO", "file", "link to nothing", "folder that others may write to"])
def test_a_stage_that_cannot_be_one_leaves_no_folder(tmp_path: Path, kind: str) -> None:
    stage, data, out = tmp_path / "stage", tmp_path / "data", tmp_path / "out"
    data.mkdir()
    match kind:
        case "FIFO":
            os.mkfifo(stage)
        case "file":
            stage.touch()
        case "link to nothing":
            stage.symlink_to("nowhere")
        case _:
            stage.mkdir()
            stage.chmod(0o777)
    paths = RunPaths(data=data, stage=stage, out=out, resume=None)
    with pytest.raises(UserError, match=r"stage: .*--stage$"):
        prepare(load.load("deepcam", "smoke", []), paths, 7, False, Solo())
    assert not out.exists()
