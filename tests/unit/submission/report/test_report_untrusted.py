"""Reports of runs with hostile text and impossible numbers."""

import math
import re
from pathlib import Path
from typing import Any

from golden.make_run import make_run
from helpers.report_runs import report_of

EVIL = '<script>alert("x")</script>&'


def evil_keys(result: dict[str, Any]) -> None:
    """Markup in every string of a result, and in keys that a page may show."""
    result.update(preset=EVIL, launcher=EVIL, status=EVIL, mlhpc=EVIL)
    result["target"].update(label=EVIL)
    for epoch in result["epochs"]:
        epoch[EVIL] = epoch.pop("eval_error")
    result["target"]["metric"] = EVIL
    result["breakdown_s"][EVIL] = 5.0


def test_text_of_a_run_is_never_markup(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        result=evil_keys,
        env=lambda env: env.update(command=EVIL, os=EVIL, commit=EVIL, date=EVIL, hostname=EVIL),
        log=lambda lines: lines[3].update(value=EVIL),
    )
    page, _ = report_of(run)
    # Scripts: the data of the charts, the dark colours, the library, the page's own.
    assert len(page.scripts) == len(page.charts) + 3
    assert page.text.count(EVIL) >= 6
    assert "alert(" not in "".join(text for kind, text in page.scripts[-2:])


def test_unknown_keys_are_left_out_of_the_breakdown(tmp_path: Path) -> None:
    page, terminal = report_of(
        make_run(tmp_path / "run", result=lambda r: r["breakdown_s"].update(lunch=5.0))
    )
    assert "lunch" not in page.text and "lunch" not in terminal
    assert "93.25 100.0%" in page.text


def test_escapes_and_markup_do_not_reach_the_terminal(tmp_path: Path) -> None:
    text = "\x1b[2J\u202e[red]n0[/red] \ud800"
    run = make_run(
        tmp_path / "run",
        env=lambda env: env.update(cpu=text, commit=text),
        result=lambda result: result.update(launcher=text.replace("\ud800", "")),
    )
    page, terminal = report_of(run)
    for shown in (page.text, terminal):
        assert "\x1b" not in shown and "\u202e" not in shown
        assert r"\x1b[2J\u202e[red]n0[/red] \ud800" in shown


def odd_numbers(result: dict[str, Any]) -> None:
    result["time_to_train_s"] = math.inf
    result["breakdown_s"] = dict.fromkeys(result["breakdown_s"], math.inf)
    for epoch in result["epochs"]:
        epoch.update(train_s=math.inf, samples_per_s=math.inf, train_loss=math.nan, learning_rate=math.inf)


def test_numbers_that_are_not_finite_are_shown_as_not_known(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", result=odd_numbers, env=lambda env: env.update(nodes=5, accelerators=3))
    page, terminal = report_of(run)
    shown = page.text.partition("Check mlperf-logging")[0] + terminal  # the check names what it found
    assert re.findall(r"\b(inf|nan)\b", shown) == []
    assert "Learning curve" in page.text
