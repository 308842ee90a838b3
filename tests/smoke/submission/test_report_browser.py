"""Pages in a browser: numbers visible, charts drawn, no overflow, no network access, complete prints."""

import html
import json
import os
import re
import shutil
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from golden.make_run import make_run
from golden.make_tree import make_set
from helpers.report_runs import with_events
from rich.console import Console

from mlhpc.quantities import duration_text
from mlhpc.submission.report.report import report, report_on

pytestmark = pytest.mark.system

# Looks at the page from inside a frame of the given width: headless windows have a least width of their own.
PROBE = """<!doctype html><meta charset="utf-8">
<iframe id="f" style="width:{width}px; height:900px; border:0" srcdoc="{page}"></iframe><pre id="out"></pre>
<script>
document.getElementById("f").onload = async function () {{
  const view = this.contentWindow, page = this.contentDocument;
  page.querySelectorAll("details").forEach(d => d.open = true);
  const all = [...page.querySelectorAll(".chart")];
  for (let n = 0; n < 200 && all.some(c => !c.view); n++) await new Promise(done => setTimeout(done, 50));
  const out = [...page.querySelectorAll("body *")].filter(e => {{
    const box = e.getBoundingClientRect();
    const folded = e.closest(".scroll, title, .vega-actions");
    return !folded && box.width > 0 && (box.left < -0.5 || box.right > {width} + 0.5);
  }}).map(e => e.tagName + " " + (e.textContent || "").slice(0, 40));
  const text = [...page.querySelectorAll(".live svg text")];
  const visible = e => e.checkVisibility({{visibilityProperty: true}});
  const saved = all.length ? await all[0].view.toSVG() : "";
  // Clicks the first entry of each legend, and counts the marks that fade.
  const marks = ".live :is(.mark-symbol, .mark-rect, .mark-line, .mark-rule).role-mark > *";
  const faded = c => [...c.querySelectorAll(marks)].filter(e => view.getComputedStyle(e).opacity < 0.5).length;
  const picked = [];
  for (const c of all.filter(c => c.querySelectorAll(".live .role-legend-symbol > *").length > 1)) {{
    const before = faded(c);
    const click = new view.MouseEvent("click", {{bubbles: true}});
    c.querySelector(".live .role-legend-symbol > *").dispatchEvent(click);
    await c.view.runAsync();
    picked.push([c.dataset.name, before, faded(c)]);
  }}
  document.getElementById("out").textContent = "JSON" + JSON.stringify({{
    picked, out, scroll: page.documentElement.scrollWidth, text: page.body.innerText,
    big: [...page.querySelectorAll(".big")].filter(visible).map(e => e.innerText),
    font: Math.min(...text.map(e => parseFloat(view.getComputedStyle(e).fontSize))),
    fetched: view.performance.getEntriesByType("resource").map(e => e.name),
    charts: all.length, drawn: all.filter(c => c.view && c.querySelector(".live svg") &&
      !visible(c.querySelector(".static"))).length,
    menus: all.map(c => [...c.querySelectorAll(".vega-actions a")].map(a => a.textContent)),
    saved: saved.slice(0, 4), attacked: view.attacked === true,
  }}) + "END";
}};
</script>"""


@pytest.fixture(scope="session")
def chromium() -> str:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not browser and os.environ.get("CI"):
        pytest.fail("no chromium on PATH; in CI this test must run: apt-get install chromium")
    if not browser:
        pytest.skip("no chromium on PATH: apt-get install chromium")
    return str(browser)


def browse(chromium: str, profile: Path, page: Path, *flags: str) -> str:
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-quic",
        "--disable-extensions", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", *flags, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def probe(chromium: str, folder: Path, page: str, width: int) -> dict[str, Any]:
    wrapper = folder / f"probe-{width}.html"
    wrapper.write_text(PROBE.format(width=width, page=html.escape(page)), encoding="utf-8")
    dom = browse(
        chromium,
        folder / "profile",
        wrapper,
        "--window-size=1600,1000",
        "--virtual-time-budget=20000",
        "--dump-dom",
    )
    match = re.search(r"JSON(\{.*\})END</pre>", dom, re.DOTALL)
    assert match, dom[-2000:]
    seen: dict[str, Any] = json.loads(html.unescape(match[1]))
    return seen


def made(folder: Path, **how: Any) -> Path:
    return report(make_run(folder / "run", **how), Console(file=StringIO()))


@pytest.mark.parametrize("width", [400, 1400])
def test_numbers_are_visible_and_nothing_overflows(chromium: str, width: int, tmp_path: Path) -> None:
    page = made(tmp_path, epochs=40)
    seen = probe(chromium, tmp_path, page.read_text("utf-8"), width)
    total = json.loads((page.parent / "result.json").read_text())["time_to_train_s"]
    assert 300 < total < 600  # shown in minutes and tenths of a second
    assert seen["big"] == [duration_text(total)]
    for text in (
        f"without staging: {duration_text(total - 3.1)}",
        "100.0%",
        "not a closed-division result",
        "MB/s",
        "Training loss",
        "Learning rate",
    ):
        assert text in seen["text"]
    assert seen["out"] == []
    assert seen["scroll"] <= width
    assert seen["font"] >= 12  # px: letters of pictures do not shrink with the page
    assert seen["fetched"] == []
    assert seen["drawn"] == seen["charts"] == 7
    assert seen["menus"] == [["Save as SVG", "Save as PNG"]] * 7
    assert seen["saved"] == "<svg"


def test_an_injected_script_does_not_run(chromium: str, tmp_path: Path) -> None:
    """The second line of defence: if text ever became markup, the page's policy would stop it."""
    page = made(tmp_path).read_text("utf-8")
    attack = '<script>window.attacked = true</script><img src="x" onerror="window.attacked = true">'
    seen = probe(chromium, tmp_path, page.replace("</main>", f"{attack}</main>"), 1400)
    assert not seen["attacked"] and seen["drawn"] == 7
    policy = re.search(r"<meta http-equiv.*?>", page)
    assert policy
    open_page = page.replace(policy[0], "").replace("</main>", f"{attack}</main>")
    assert probe(chromium, tmp_path, open_page, 1300)["attacked"], "the probe sees an attack"


def test_a_failed_run_with_findings_fits_a_phone(chromium: str, tmp_path: Path) -> None:
    page = made(tmp_path, status="failed", log=lambda lines: lines.pop(0))
    seen = probe(chromium, tmp_path, page.read_text("utf-8"), 400)
    assert seen["big"] == ["No score"]
    assert "hpc_2.0.0/cache_clear" in seen["text"]
    assert (seen["out"], seen["fetched"]) == ([], [])


@pytest.mark.parametrize("width", [400, 1400])
def test_a_comparison_fits_and_fetches_nothing(chromium: str, width: int, tmp_path: Path) -> None:
    for nodes in (2, 8):
        make_set(
            tmp_path / "tree" / "a_submitter_of_a_long_name", nodes=nodes, system=f"system_of_{nodes}_nodes"
        )
    make_run(tmp_path / "mine" / "1")
    page = report_on([tmp_path / "tree", tmp_path / "mine"], Console(file=StringIO()), tmp_path / "page.html")
    assert page
    seen = probe(chromium, tmp_path, page.read_text("utf-8"), width)
    for text in ("14.5000", "Not the official data set.", "no score", "b) Epoch scaling", "Predictions"):
        assert text in seen["text"]
    assert (seen["out"], seen["fetched"]) == ([], [])
    assert seen["scroll"] <= width
    assert seen["font"] >= 12
    assert seen["drawn"] == seen["charts"] == 12


def test_a_click_in_a_legend_picks_out_its_marks(chromium: str, tmp_path: Path) -> None:
    """In the four planes too, where sets of several machines are drawn."""
    for n, nodes in enumerate((2, 4, 8)):
        minutes = [10.0 + n + i / 10 for i in range(10)]
        make_set(tmp_path / "tree" / f"org{n}", minutes=minutes, nodes=nodes, system=f"system{n}")
    page = report_on([tmp_path / "tree"], Console(file=StringIO()), tmp_path / "page.html")
    assert page
    picked = probe(chromium, tmp_path, page.read_text("utf-8"), 1400)["picked"]
    planes = ["a-choice-of-the-batch-size", "b-epoch-scaling", "c-throughput-scaling", "d-time-to-compute"]
    assert [name for name, *_ in picked] == ["absolute", "relative", *planes]
    assert all(before == 0 < after for _, before, after in picked), picked


def test_the_probe_detects_overflow(chromium: str, tmp_path: Path) -> None:
    bad = '<p style="width:900px">wide</p><img src="http://localhost:9/x.png">'
    seen = probe(chromium, tmp_path, bad, 400)
    assert seen["out"] and seen["out"][0].startswith("P wide")
    assert seen["scroll"] >= 900
    assert seen["fetched"] == ["http://localhost:9/x.png"]


def printed(chromium: str, folder: Path, page: Path) -> tuple[int, str]:
    """Pages of the printed page, and their text."""
    pdf = folder / "page.pdf"
    flags = ("--virtual-time-budget=20000", "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    browse(chromium, folder / "profile", page, *flags)
    if not shutil.which("pdftotext"):
        pytest.skip("no pdftotext on PATH: apt-get install poppler-utils")
    text = subprocess.run(
        ["pdftotext", "-layout", pdf, "-"], capture_output=True, text=True, check=True
    ).stdout
    info = subprocess.run(["pdfinfo", pdf], capture_output=True, text=True, check=True).stdout
    assert "A4" in info
    return int(re.search(r"Pages:\s+(\d+)", info)[1]), " ".join(text.split())  # type: ignore[index]


def with_gpu_packages(env: dict[str, Any]) -> None:
    """As PyTorch for CUDA brings them."""
    env["packages"] |= {"torch": "2.13.0+cu130", "torchvision": "0.28.0", "nvidia-dali-cuda130": "2.4.0"}
    env["packages"] |= {f"nvidia-library-{n}-cu13": f"13.{n}.0.{n}" for n in range(20)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_prints_on_two_pages_with_collapsed_parts_open(
    ranks: int, chromium: str, tmp_path: Path
) -> None:
    """One that failed, with its findings, too; and with a table and a chart of its ranks."""
    failed = make_run(
        tmp_path / "run",
        epochs=8,
        status="failed",
        settings=["training.framework=pytorch"],
        env=with_gpu_packages,
        ranks=ranks,
    )
    pages, text = printed(chromium, tmp_path, report(with_events(failed, ranks), Console(file=StringIO())))
    assert pages <= 2 and "nvidia-library-19-cu13" in text and "what to do" in text
    assert ("over the ranks" in text) == (ranks > 1)
    for shown in (
        "8 epochs in numbers",
        "Hyperparameters",
        "Provenance",
        "mean absolute error",
        "time since run_start",
    ):
        assert shown in text
    assert "CSV" not in text


def test_a_comparison_prints_whole_tables(chromium: str, tmp_path: Path) -> None:
    for nodes in (2, 8):
        make_set(
            tmp_path / "tree" / "a_submitter_of_a_long_name", nodes=nodes, system=f"system_of_{nodes}_nodes"
        )
    page = report_on([tmp_path / "tree"], Console(file=StringIO()), tmp_path / "page.html")
    assert page
    pages, text = printed(chromium, tmp_path, page)
    assert pages <= 5
    for last_column in ("budget", "efficiency", "from", "staging", "first-epoch"):
        assert last_column in text


def test_charts_follow_light_and_dark_mode(chromium: str, tmp_path: Path) -> None:
    page = made(tmp_path)
    brightness = {}
    for scheme, value in (("dark", 0), ("light", 1)):
        picture = tmp_path / f"{scheme}.png"
        flags = ("--window-size=1400,1000", f"--blink-settings=preferredColorScheme={value}")
        browse(chromium, tmp_path / "profile", page, *flags, f"--screenshot={picture}")
        pixels = matplotlib.image.imread(picture)[..., :3]
        assert pixels.shape[:2] == (1000, 1400)
        assert pixels.std() > 0.05  # not one flat colour
        brightness[scheme] = float(pixels.mean())
    assert brightness["dark"] < 0.3 < 0.7 < brightness["light"]
