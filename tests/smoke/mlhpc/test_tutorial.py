"""The commands of the tutorial run as shown, and print what it shows."""

import json
from pathlib import Path

from helpers.tutorial import BLOCK, CHECKOUT, PAGE, commands, run, shape


def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(CHECKOUT / "examples")
    blocks = BLOCK.findall(PAGE.read_text())
    assert blocks
    for command, shown in (pair for block in blocks for pair in commands(block)):
        assert shape(run(command, tmp_path)) == shape(shown), command
    # The injected delay at least: opening and reading 4,608 files at 10 ms each, by two ranks of 8 workers.
    slow = json.loads((tmp_path / "results/slow/result.json").read_text())
    assert slow["breakdown_s"]["staging"] >= 4608 * 2 * 0.010 / 16


def test_another_word_or_exit_status_is_another_shape_and_another_number_is_not() -> None:
    assert shape("Staging  2.38 s\n ── \n") == shape("Staging 12.4 s\n────")
    assert shape("Staging 2.38 s") != shape("Data wait 2.38 s")
    assert shape("exit status 1") != shape("exit status 0")
