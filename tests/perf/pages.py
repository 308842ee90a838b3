"""How large pages are, and how long headless Chromium takes to draw them.

    python tests/perf/pages.py [--sets 100] [--runs 1000] [--results TREE] [--copies 12] [--repeats 3] [--keep DIR]

Measures the page of a run of 100 epochs on 8 ranks; of a comparison of ``--sets`` of 10 logs; of one of ``--runs``
of this suite, each a set of its own; and, with ``--results`` (the published sets of MLPerf HPC, say), of that tree
as often as ``--copies`` says, each copy by another submitter and at another time. Goals: a run page below 2 MB, a
comparison of 1 000 logs below 5 MB, both drawn within 2 s.

The time is the browser's own (``performance.now``), real and not virtual, from the start of the page's loading
until every chart has been drawn. Run it on an idle machine.
"""

import argparse
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.make_run import make_run
from golden.make_tree import make_set
from rich.console import Console

from mlhpc.submission.report.report import report, report_on

WATCH = """<!doctype html><iframe id="f" style="width:1400px; height:900px" src="page.html"></iframe><script>
const frame = document.getElementById("f");
const look = () => {
  const page = frame.contentDocument, all = [...page.querySelectorAll(".chart")];
  if (page.readyState !== "complete" || all.some(chart => !chart.view)) return setTimeout(look, 5);
  const paint = frame.contentWindow.performance.getEntriesByName("first-contentful-paint")[0];
  fetch("/", {method: "POST", body: JSON.stringify({
    drawn: frame.contentWindow.performance.now(), charts: all.length, paint: paint ? paint.startTime : null})});
};
frame.onload = look;
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and takes one result."""

    figures: dict[str, Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.figures.update(json.loads(body))

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path, figures: dict[str, Any]) -> Iterator[str]:
    handler = type("Receiver", (Handler,), {"figures": figures})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/watch.html"
    finally:
        server.shutdown()


def drawn(page: Path) -> dict[str, Any]:
    """``drawn`` and ``paint`` in milliseconds, and the number of ``charts``."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, served(Path(name), figures) as address:
        shutil.copy(page, Path(name) / "page.html")
        (Path(name) / "watch.html").write_text(WATCH)
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--window-size=1500,1000", "--remote-debugging-port=0",
                 f"--user-data-dir={name}/profile")  # fmt: skip
        browser = subprocess.Popen(
            [chromium, *flags, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until = time.monotonic() + 120
            while not figures and time.monotonic() < until:
                time.sleep(0.05)
        finally:
            browser.terminate()
            browser.wait()
    return figures


def measure(what: str, page: Path, took_s: float, repeats: int) -> None:
    times = [drawn(page) for _ in range(repeats)]
    ms = statistics.median(each.get("drawn", float("nan")) for each in times)
    paint = statistics.median(each.get("paint") or float("nan") for each in times)
    print(
        f"{what}: {page.stat().st_size / 1e6:.2f} MB, {times[0].get('charts')} charts; first painted after "
        f"{paint:.0f} ms, all drawn after {ms:.0f} ms; made in {took_s:.1f} s",
        flush=True,
    )


def copied(tree: Path, out: Path, copies: int) -> None:
    """The logs of ``tree`` as those of other submitters a day later each."""
    for n in range(copies):
        for org in sorted({path.parent for path in tree.glob("*/*/results")}):
            to = out / f"copy{n}" / org.parent.name / f"{org.name}{n}"
            shutil.copytree(org, to)
            for log in to.rglob("result_*.txt"):
                log.write_text(_later(log.read_text(errors="replace"), n * 86_400_000))


def _later(text: str, ms: int) -> str:
    return re.sub(r'("time_ms": )(\d+)', lambda match: f"{match[1]}{int(match[2]) + ms}", text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--copies", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder to copy the pages to")
    options = parser.parse_args()
    quiet = Console(file=io.StringIO())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        make_run(scratch / "run", epochs=100, ranks=8)
        for n in range(options.sets):
            minutes = [10.0 + n / 10 + i / 100 for i in range(10)]
            make_set(
                scratch / "sets" / f"org{n}", minutes=minutes, nodes=2 ** (n % 8), system=f"system{n % 8}"
            )
        for n in range(options.runs):

            def later(lines: list[dict[str, Any]], n: int = n) -> None:
                for line in lines:
                    line["time_ms"] += n * 86_400_000

            make_run(
                scratch / "runs" / f"{n}" / "1",
                epochs=4 + n % 9,
                settings=[f"loading.workers={1 + n % 4}"],
                log=later,
            )
        sets, runs = options.sets, options.runs
        pages = {
            "a run": lambda out: report(scratch / "run", quiet, out=out),
            f"{10 * sets} logs in {sets} sets": lambda out: report_on([scratch / "sets"], quiet, out),
            f"{runs} logs in {runs} sets": lambda out: report_on([scratch / "runs"], quiet, out),
        }
        if options.results:
            copied(options.results, scratch / "copies", options.copies)
            logs = len(list((scratch / "copies").rglob("result_*.txt")))
            pages[f"{logs} published logs"] = lambda out: report_on([scratch / "copies"], quiet, out)
        for what, make in pages.items():
            out = scratch / f"{what.replace(' ', '-')}.html"
            begin = time.perf_counter()
            make(out)
            measure(what, out, time.perf_counter() - begin, options.repeats)
            if options.keep:
                options.keep.mkdir(exist_ok=True)
                shutil.copy(out, options.keep)


if __name__ == "__main__":
    main()
