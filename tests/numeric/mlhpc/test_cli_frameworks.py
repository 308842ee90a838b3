"""Mistakes in commands that import PyTorch before they notice."""

import pytest

from mlhpc import cli


@pytest.mark.parametrize(
    "argv",
    [
        ["data", "show", "resnet50", "nowhere"],
        ["data", "convert", "resnet50", "nowhere", "out", "--codec", "lmdb"],
        ["data", "bench", "resnet50", "nowhere"],
    ],
)
def test_a_missing_folder_is_a_one_line_error_with_status_2(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("mlhpc: ") and error.count("\n") == 1 and "nowhere" in error
    assert list(tmp_path.iterdir()) == []
