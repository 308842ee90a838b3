"""The page and the preset of a closed search."""

import json
import re
from pathlib import Path

import pytest

from mlhpc import cli
from mlhpc.tune.model import Outcome
from mlhpc.tune.result import Result, configurations
from mlhpc.tune.space import Axes, Space

SURFACES = Path(__file__).parents[3] / "data/tune"


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("closed")
    surface = folder / "surface.toml"
    text = (SURFACES / "large_batches.toml").read_text().replace("rate_batch = 16.0", "rate_batch = 64.0")
    names = "".join(f', "closed-{n}" = 1.0' for n in (32, 64, 128, 512, 1024))
    surface.write_text(text.replace('"1.4" = 1.6', f'"1.4" = 1.6{names}'))
    words = ["tune", "cosmoflow", "--preset", "closed", "--ranks", "16", "--surface", surface]
    assert cli.main([str(word) for word in [*words, "--budget", "6", "--out", folder / "out"]]) == 0
    return folder / "out"


def test_the_seconds_of_an_epoch_are_those_of_completed_ones():
    """Of 20 and 5 s, by geometric mean 10 s. One stopped after 55 s of its first epoch tells nothing."""
    space = Space("resnet50", "smoke", (), Axes((32, 64), (1, 2)))
    done = [
        Outcome(space.default, "converged", 100.0, 5, 20.0),
        Outcome(space.default, "stopped", 55.0, 2, 5.0),
        Outcome(space.default, "stopped", 55.0, 1, 55.0),
        Outcome(space.default, "aborted", 30.0, why="out of memory"),
        Outcome(space.default._replace(batch=64), "aborted", 30.0, why="out of memory"),
        Outcome(space.default._replace(ranks=2), "stopped", 55.0, 1, 55.0),
    ]
    shown = configurations(Result(space, done, space.default, [], None))
    at = shown.head.index("epoch")
    assert [row[at].text for row in shown.rows] == ["10 s", "", ""]


def test_a_tuned_closed_preset_is_accepted_by_the_rules(closed, capsys):
    assert cli.main(["rules", "cosmoflow", "--config", str(closed / "best.toml")]) == 0
    assert "passes" in capsys.readouterr().out
    assert "mlhpc campaign cosmoflow --preset closed --ranks 16 --set" in (closed / "best.toml").read_text()


def test_a_preset_that_was_changed_is_not_accepted(closed, tmp_path, capsys):
    changed = tmp_path / "changed.toml"
    changed.write_text((closed / "best.toml").read_text().replace("opt_momentum = 0.9", "opt_momentum = 0.8"))
    assert cli.main(["rules", "cosmoflow", "--config", str(changed)]) == 1
    assert "hyperparameters.opt_momentum" in capsys.readouterr().out.replace("\n", "")


def test_the_page_has_time_and_epochs_over_the_batch_with_the_reference_points(closed):
    page = (closed / "tune.html").read_text()
    record = json.loads((closed / "tune.json").read_text())
    for title in ("Time to train", "Epochs to the target"):
        assert re.search(rf"{title}\. fastest at its batch size, batch \d+", page)
    assert "reference, batch 512: " in page
    assert record["winner"]["schedule"] in page and "95% interval" in page
