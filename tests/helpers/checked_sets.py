"""Broken sets of runs, and the findings on them."""

import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from golden.make_tree import Records, make_set, records, write_log
from rich.console import Console

from mlhpc.submission.check.check import SetCheck, check_sets


def only(path: Path, ruleset: str | None = None) -> SetCheck:
    (checked,) = check_sets(path, ruleset)
    return checked


def rules(checked: SetCheck, severity: str = "error") -> set[str]:
    return {f.rule for f in checked.findings if f.severity == severity}


def package_checker(tree: Path, usage: str = "hpc", version: str = "2.0.0") -> str:
    """The output of its command line; its exit status is always 0, and it writes into ``tree``."""
    scratch = tree.parent / "official"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mlperf_logging.package_checker", str(tree), usage, version]
    return subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False).stderr


def key(made: Records, name: str) -> dict[str, Any]:
    return next(record for record in made if record["key"] == name)


def in_run(number: int, change: Callable[[Records], object]) -> Callable[[int, Records], None]:
    def edit(n: int, made: Records) -> None:
        if n == number:
            change(made)

    return edit


def says(name: str, value: Any) -> Callable[[Records], object]:
    return lambda made: key(made, name).update(value=value)


def twice(tree: Path) -> None:
    folder = make_set(tree, "deepcam")
    write_log(folder / "result_4.txt", records("deepcam", seed=4))
    write_log(folder / "result_5.txt", records("deepcam", seed=5))


def printed(path: Path, show: Callable[[Path, str | None, Console], int]) -> tuple[int, str]:
    out = StringIO()
    return show(path, None, Console(file=out, width=250)), out.getvalue()
