"""The report's numbers, its honesty about what is no score, and its HTML and SVG."""

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from golden.make_run import START_MS, make_run
from rich.console import Console

from mlhpc.errors import UserError
from mlhpc.submission.report import charts
from mlhpc.submission.report.report import report
from mlhpc.submission.report.summary import duration, size

VOID = {"meta", "link"}


class Page(HTMLParser):
    """Reads a page strictly: tags close in order. Keeps the attributes and the text of each element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html.replace("<wbr>", ""))
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def told(run: Path) -> tuple[Page, str]:
    """The page and the terminal's text of a run."""
    out = StringIO()
    path = report(run, Console(file=out, width=200))
    assert path == run / "report.html"
    return Page(path.read_text("utf-8")), " ".join(out.getvalue().split())


def test_a_good_run_shows_its_numbers(tmp_path: Path) -> None:
    page, terminal = told(make_run(tmp_path / "run"))
    for text in (page.text, terminal):
        assert "93.2 s" in text  # 93 246 ms from run_start to run_stop
        assert "90.1 s" in text  # less 3 100 ms of staging
        assert "not a closed-division result" in text
        assert "54.3 MB/s" in text  # 536 870 912 bytes in 9.88 s, the median epoch
        assert "128 MB" in text and "41.4 MB/s" in text
        assert "0123456789abcdef0123456789abcdef01234567 with uncommitted changes" in text
        assert "passes (1 expected finding)" in text
        assert "Intel(R) Xeon(R) Processor <test & quote>" in text  # escaped, not swallowed
        assert "No score" not in text and "no score" not in text
    assert "mlhpc run cosmoflow --preset smoke --stage /tmp/stage" in page.text


def test_the_breakdown_adds_up_to_the_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page, _ = told(run)
    rows = re.findall(r"(\d+\.\d\d) (\d+\.\d)%", page.text.partition("Where the time went")[2])
    *parts, whole = [(float(seconds), float(share)) for seconds, share in rows]
    assert len(parts) == 6
    assert whole == (93.25, 100.0)
    assert sum(p[0] for p in parts) == pytest.approx(93.246, abs=0.03)
    assert sum(p[1] for p in parts) == pytest.approx(100, abs=0.3)
    bar = [a for tag, a in page.elements if tag == "rect"][:6]
    assert sum(float(str(a["width"]).rstrip("%")) for a in bar) == pytest.approx(100, abs=0.05)
    assert [a["class"] for a in bar][:2] == ["staging", "first_epoch_excess"]


def test_a_run_of_resnet_is_said_to_be_held_to_the_rules_of_training(tmp_path: Path) -> None:
    def of_resnet(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if line["key"] == "submission_benchmark")["value"] = "resnet"

    run = make_run(tmp_path / "run", log=of_resnet, result=lambda told: told.update(benchmark="resnet50"))
    for text in told(run):
        text = text if isinstance(text, str) else text.text
        assert "training 4.0.0" in text and "hpc 2.0.0" not in text and "MLPerf HPC training" not in text
    page, terminal = told(make_run(tmp_path / "other"))
    assert "hpc 2.0.0" in terminal and "hpc 2.0.0" in page.text


def aborted(result: dict[str, Any]) -> None:
    result.update(
        status="aborted", time_to_train_s=None, time_to_train_without_staging_s=None, breakdown_s=None
    )
    result["target"]["reached"] = False


def contradiction(result: dict[str, Any]) -> None:
    result["time_to_train_s"] += 0.5


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"status": "failed"}, "the target was not met (best 0.339, target ≤ 0.3)"),
        ({"resumed": True}, "the run was resumed from a checkpoint"),
        ({"result": aborted}, "the run was aborted"),
        ({"result": contradiction}, "the check does not pass (run/time"),
        (
            {"preset": "closed", "settings": ["network.conv_kernel=2"]},
            "the check does not pass (run/division)",
        ),
    ],
)
def test_what_is_no_score_shows_no_time_as_one(made: dict[str, Any], why: str, tmp_path: Path) -> None:
    page, terminal = told(make_run(tmp_path / "run", **made))
    assert f"No score: {why}" in page.text
    assert f"no score: {why}" in terminal
    assert "Time to train No score" in page.text
    assert "Time to train, staging included" not in page.text
    assert "without staging" not in page.text + terminal


def test_a_closed_run_says_what_it_is(tmp_path: Path) -> None:
    page, _ = told(make_run(tmp_path / "run", preset="closed"))
    assert "Closed division, one run" in page.text
    assert "Not verified by MLCommons" in page.text
    assert "not a closed-division result" not in page.text


@pytest.mark.parametrize("name", ["run.log", "result.json", "config.toml", "env.json", "events.rank0.jsonl"])
def test_a_missing_piece_is_named_and_the_rest_is_told(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / name).unlink()
    page, terminal = told(run)
    assert f"{name} is missing" in page.text
    assert f"{name} is missing" in terminal
    assert "Time to train No score" in page.text  # the evidence is not whole
    assert ("2048 to train" in page.text) == (name != "result.json")
    assert "opt_momentum" in page.text  # from config.toml, or from the log
    assert "CosmoFlow preset smoke" in page.text
    assert "Learning curve" in page.text  # the log or the result has the values, the configuration the target
    assert ("tensorflow-cpu 2.18.1" in page.text) == (name != "env.json")


def test_a_killed_run_still_shows_what_it_learnt(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", log=lambda lines: lines.pop())
    (run / "result.json").unlink()
    page, _ = told(run)
    assert "No score: there is no readable result.json" in page.text
    assert "The clock ran" not in page.text  # nobody knows how long
    assert sum(tag == "circle" for tag, _ in page.elements) == 8


@pytest.mark.parametrize("time_ms", [0, START_MS + 4010])
def test_a_clock_that_was_set_back_draws(time_ms: int, tmp_path: Path) -> None:
    def set_back(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["key"] == "eval_error":
                line["time_ms"] = time_ms

    page, _ = told(make_run(tmp_path / "run", log=set_back))
    assert sum(tag == "circle" for tag, _ in page.elements) == 8


def test_nothing_staged_and_too_few_epochs(tmp_path: Path) -> None:
    def unknown(result: dict[str, Any]) -> None:
        result["breakdown_s"]["step"] += result["breakdown_s"]["first_epoch_excess"]
        result["breakdown_s"]["first_epoch_excess"] = None

    page, terminal = told(make_run(tmp_path / "run", staged=False, epochs=2, result=unknown))
    for text in (page.text, terminal):
        assert "Staging" in text and "nothing staged" in text
        assert "too few epochs to know" in text


@pytest.mark.parametrize("epochs", [1, 2, 3, 128])
def test_any_number_of_epochs_draws(epochs: int, tmp_path: Path) -> None:
    page, _ = told(make_run(tmp_path / "run", epochs=epochs))
    assert sum(tag == "circle" for tag, _ in page.elements) == epochs


def test_values_that_are_not_finite_are_left_out_of_the_curve(tmp_path: Path) -> None:
    def diverged(lines: list[dict[str, Any]]) -> None:
        evaluations = [line for line in lines if line["key"] == "eval_error"]
        evaluations[2]["value"], evaluations[3]["value"] = math.nan, math.inf

    def nan(result: dict[str, Any]) -> None:
        result["epochs"][2]["eval_error"] = math.nan

    page, _ = told(make_run(tmp_path / "run", log=diverged, result=nan))
    assert sum(tag == "circle" for tag, _ in page.elements) == 6
    assert "nan%" not in json.dumps(page.elements).lower()


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page, _ = told(run)
    assert not {"script", "iframe", "img", "object"} & {tag for tag, _ in page.elements}
    links = [
        a.get(key) for _, a in page.elements for key in ("src", "href", "xlink:href", "srcset") if a.get(key)
    ]
    assert links == ["data:,"]
    style = (run / "report.html").read_text("utf-8").partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert ":root" in style


def test_pictures_and_tables_can_be_read_aloud(tmp_path: Path) -> None:
    page, _ = told(make_run(tmp_path / "run"))
    pictures = [a for tag, a in page.elements if tag == "svg"]
    assert len(pictures) == 5
    assert all(a["role"] == "img" and a["aria-label"] for a in pictures)
    assert "mean absolute error: 0.4016 at epoch 1, 0.291 at epoch 8; target ≤ 0.3" in {
        a["aria-label"] for a in pictures
    }
    headers = [a.get("scope") for tag, a in page.elements if tag == "th"]
    assert headers and set(headers) == {"row", "col"}


def test_what_a_run_says_is_text_and_never_markup(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>&'
    page, _ = told(
        make_run(
            tmp_path / "run",
            result=lambda result: result.update(preset=evil, launcher=evil, status=evil),
            env=lambda env: env.update(command=evil, os=evil, commit=evil, date=evil, hostname=evil),
            log=lambda lines: lines[3].update(value=evil),
        )
    )
    assert "script" not in {tag for tag, _ in page.elements}
    assert page.text.count(evil) >= 7


def test_equal_nodes_share_a_row(tmp_path: Path) -> None:
    def nodes(env: dict[str, Any]) -> None:
        env["nodes"] = [
            {**env["nodes"][0], "hostname": f"n{i}", "accelerators": ["A100, 40 GiB"] * 4} for i in range(6)
        ]

    page, _ = told(make_run(tmp_path / "run", env=nodes))
    assert "n0 … n5 (6 nodes)" in page.text
    assert "4 × A100, 40 GiB" in page.text


def test_a_report_is_written_over_by_the_next_and_leaves_no_scraps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    told(run)
    first = sorted(path.name for path in run.iterdir())
    told(run)
    assert sorted(path.name for path in run.iterdir()) == first
    assert "report.html" in first and not [name for name in first if name.endswith(".part")]


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "no run directory"), (tmp_path / "none", "no such directory")):
        with pytest.raises(UserError, match=message):
            report(path, Console(file=StringIO()))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.3156, "0.32 s"),
        (93.246, "93.2 s"),
        (599.94, "599.9 s"),
        (1546.87, "25 min 46.9 s"),
        (719.96, "12 min 0.0 s"),
        (19_620.0, "5 h 27 min"),
        (None, "not known"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1234, "1.23 kB"),
        (41_435_664, "41.4 MB"),
        (999_900_000, "1000 MB"),
        (5.1e12, "5.1 TB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 93, [0, 50]),
        (0, 10, [0, 5, 10]),
        (0.28, 0.41, [0.3, 0.35, 0.4]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert charts.ticks(low, high) == pytest.approx(expected)


def test_a_curve_stands_where_its_numbers_say() -> None:
    points = [
        charts.Point(0, 4.0, "1", "a"),
        charts.Point(5, 2.0, "2", "b"),
        charts.Point(10, 0.0, "3", "c"),
    ]
    write: Callable[[float], str] = "{:g}".format
    svg = charts.curve(points, "says", target=2.0, target_label="t", x_label=write, x_ticks=[0, 10])
    page = Page(svg)
    circles = [(a["cx"], float(str(a["cy"]))) for tag, a in page.elements if tag == "circle"]
    assert [x for x, _ in circles] == ["0.00%", "50.00%", "100.00%"]
    top, middle, bottom = (y for _, y in circles)
    assert top < middle < bottom
    assert middle - top == pytest.approx(bottom - middle, abs=0.11)  # equal steps
    (target,) = [a for tag, a in page.elements if tag == "line" and a.get("class") == "target"]
    assert float(str(target["y1"])) == middle
