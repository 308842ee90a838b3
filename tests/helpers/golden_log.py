"""A good log, and changes to it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

GOOD = Path(__file__).parents[1] / "golden" / "good.log"

Lines = list[str]


def line_of(lines: Lines, key: str) -> int:
    """The index of the first line of ``key``."""
    return next(i for i, line in enumerate(lines) if f'"key": "{key}"' in line)


def changed(key: str, old: str, new: str) -> Callable[[Lines], Lines]:
    def edit(lines: Lines) -> Lines:
        at = line_of(lines, key)
        assert old in lines[at]
        return [*lines[:at], lines[at].replace(old, new), *lines[at + 1 :]]

    return edit


def written(tmp_path: Path, edit: Callable[[Lines], Lines]) -> Path:
    path = tmp_path / "result_1.txt"
    path.write_text("".join(edit(GOOD.read_text().splitlines(keepends=True))))
    return path


def official_verdict(log: Path, ruleset: str) -> bool:
    """The verdict of mlperf-logging's command line, in a separate process and folder."""
    scratch = log.parent / "official"
    scratch.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "mlperf_logging.compliance_checker",
        "--usage",
        "hpc",
        "--ruleset",
        ruleset,
    ]
    return subprocess.run([*command, str(log)], cwd=scratch, capture_output=True, check=False).returncode == 0
