"""What is refused before a run has a folder."""

import json
import os
from pathlib import Path

import pytest

from mlhpc.benchmarks import load
from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.run import RunPaths, prepare


@pytest.mark.parametrize(
    "kind",
    ["FIFO", "file", "link to nothing", "folder that others may write to", "below a file", "below another's"],
)
def test_a_stage_that_cannot_be_one_leaves_no_folder(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, data, out = tmp_path / "stage", tmp_path / "data", tmp_path / "out"
    data.mkdir()
    match kind:
        case "FIFO":
            os.mkfifo(stage)
        case "file":
            stage.touch()
        case "link to nothing":
            stage.symlink_to("nowhere")
        case "below a file":
            (tmp_path / "file").touch()
            stage = tmp_path / "file" / "new" / "stage"
        case "below another's":
            stage = tmp_path / "new" / "stage"
            monkeypatch.setattr(os, "access", lambda *_: False)  # as for anyone but root
        case _:
            stage.mkdir()
            stage.chmod(0o777)
    paths = RunPaths(data=data, stage=stage, out=out, resume=None)
    with pytest.raises(UserError, match=r"stage:? .*--stage$"):
        prepare(load.load("deepcam", "smoke", []), paths, 7, False, Solo())
    assert not out.exists()


def failed_at(out: Path, *events: tuple[str, str], status: str = "aborted") -> None:
    """Complete the record of the run in ``out`` as one that ended after these events."""
    (out / "result.json").write_text(json.dumps({"status": status}))
    lines = [json.dumps({"t": n, "event": event, "name": name}) for n, (event, name) in enumerate(events)]
    (out / "events.rank0.jsonl").write_text("\n".join(lines))
    (out / "events.rank1.jsonl").write_text("\n".join(lines))
    (out / "run.log").write_text("of the first")


def test_a_corrected_command_may_use_the_folder_of_a_run_that_did_not_train(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    paths = RunPaths(data=data, stage=None, out=out, resume=None)
    run = load.load("deepcam", "smoke", [])

    def start() -> set[str]:
        prepare(run, paths, 7, False, Solo())
        return {path.name for path in out.iterdir()}

    fresh = start()
    with pytest.raises(UserError, match="another run"):
        start()  # it may be running
    failed_at(out, ("begin", "init"), ("end", "init"), ("begin", "run"), ("begin", "staging"), ("end", "run"))
    (out / "mine").touch()
    assert start() == fresh | {"mine"} and (out / "run.log").read_text() == ""
    failed_at(out, ("begin", "run"), ("begin", "epoch"), ("end", "run"))
    with pytest.raises(UserError, match="another run"):
        start()
    failed_at(out, ("begin", "run"), status="success")
    with pytest.raises(UserError, match="another run"):
        start()
    assert (out / "run.log").read_text() == "of the first"
