"""The page and the preset of a closed search."""

import json
import re
from pathlib import Path

import pytest

from mlhpc import cli

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
