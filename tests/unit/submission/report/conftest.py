"""A comparison of several machines, as data, page and text."""

from io import StringIO

import pytest
from golden.make_run import make_run
from golden.make_tree import make_set
from helpers.compare_logs import scaling_tree
from rich.console import Console

from mlhpc.submission.report.compare import Comparison, compare
from mlhpc.submission.report.report import report_on


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, str, str]:
    """Two sets of CosmoFlow, one of DeepCAM without staging keys, runs of a small preset."""
    top = tmp_path_factory.mktemp("whole")
    scaling_tree(top / "tree")
    make_set(top / "tree" / "other", "deepcam", system="cold start", staging_minutes=0.0)
    make_run(top / "mine" / "1")
    out, terminal = top / "page.html", StringIO()
    paths = [top / "tree", top / "mine"]
    assert report_on(paths, Console(file=terminal, width=100), out) == out
    return compare(paths), out.read_text("utf-8"), terminal.getvalue()
