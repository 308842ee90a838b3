"""Runs the commands of a figure, and stores the values that its expressions compute from the commands' JSON
output."""

import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mlhpc import __version__
from mlhpc.common.files import atomic
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.untrusted import read_text
from mlhpc.common.host.provenance import commit, machine
from mlhpc.common.ranks.local import output_of
from mlhpc.errors import MISSED, UserError
from mlhpc.papers.expressions import evaluate
from mlhpc.papers.registry import Figure, Number, name_of
from mlhpc.papers.verdict import Measured

CLONE = "git clone https://github.com/mlcommons/hpc_results_v0.7"
"""The command that downloads the results of round 0.7, which are not part of this project."""
SHIPPED = "results.json"


class Stored(BaseModel):
    """The contents of the file of measured values that is shipped with the suite."""

    figures: list[Measured]


class Runner:
    """Runs figures one after the other. ``out``: the folder for the measured values and for temporary files of the
    commands; ``logs``: a clone of the results of round 0.7. A command that several figures use to read these logs
    runs only once."""

    def __init__(self, out: Path, logs: Path) -> None:
        self.out, self.logs = out, logs.absolute()
        self._read: dict[str, Any] = {}

    def measure(self, figure: Figure, advance: Callable[[int], None]) -> Measured:
        """Run the commands of ``figure``, calling ``advance(1)`` after each, and store the figure's values. Raises
        UserError if a command fails, an expression has no value, or required logs are missing."""
        if figure.logs and not self.logs.is_dir():
            raise UserError(f"no folder {self.logs}; {CLONE}, and pass it with --logs")
        with as_user_error(self.out, "cannot be written", "choose another --out"):
            self.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".work-", dir=self.out) as work:
                names: dict[str, Any] = {"given": figure.given}
                for name, command in figure.run.items():
                    names[name] = self._result(command, Path(work))
                    advance(1)
            measured = _evaluated(figure, names)
            text = measured.model_dump_json(indent=1) + "\n"
            atomic.write_bytes(self.out / f"{figure.name}.json", text.encode())
        return measured

    def _result(self, command: str, work: Path) -> Any:
        if command not in self._read or "{logs}" not in command:  # others read files of their own figure
            words = [word.replace("{logs}", str(self.logs)) for word in shlex.split(command)]
            self._read[command] = _json_of(words, work)
        return self._read[command]


def _json_of(words: list[str], work: Path) -> Any:
    """The parsed JSON output of a command of the suite; None for a command without ``--json``. Raises UserError if
    the command fails; an exit status of 1 (a negative result) or MISSED is not a failure."""
    output = output_of(words[1:], shlex.join(words), (0, 1, MISSED), work)
    if "--json" not in words:
        return None
    try:
        return json.loads(output)
    except ValueError:
        raise UserError(f"{shlex.join(words)} printed no JSON") from None


def _evaluated(figure: Figure, names: dict[str, Any]) -> Measured:
    try:
        for name, text in figure.let.items():
            names[name] = evaluate(text, names)
        numbers = {number.name: _value(number, names) for number in figure.number if number.ours}
        trends = {trend.says: bool(evaluate(trend.test, names)) for trend in figure.trend}
        curves = {name: evaluate(points, names) for name, points in figure.curves.items()}
        today, origin = time.strftime("%Y-%m-%d", time.gmtime()), commit()["commit"] or f"mlhpc {__version__}"
        where = f"{machine()['cpu']}, {today}, {origin[:16]}"
        return Measured(paper=figure.paper, label=figure.label, basis=figure.basis, numbers=numbers, trends=trends,
                        curves=curves, where=where)  # fmt: skip
    except ValueError as error:
        raise UserError(f"{figure.label} has an invalid value: {error}") from None


def _value(number: Number, names: Mapping[str, Any]) -> float | None:
    """This suite's value of ``number``, to six digits; None if it is not finite."""
    value = float(evaluate(number.ours, names))
    return float(f"{value:.6g}") if math.isfinite(value) else None


def stored(out: Path) -> dict[str, Measured]:
    """Stored values by the name of their figure: from ``out`` or, for figures without a file there, from the
    values shipped with the suite. Unreadable files are reported on standard error."""
    shipped = resources.files("mlhpc.papers").joinpath(SHIPPED)
    known = Stored.model_validate_json(shipped.read_text("utf-8")).figures if shipped.is_file() else []
    found = list(known)
    for path in sorted(out.glob("*.json")):
        try:
            found.append(Measured.model_validate_json(read_text(path)))
        except (OSError, ValueError):  # including pydantic's ValidationError
            sys.stderr.write(f"mlhpc: {path}: no stored values of a figure, ignored; remove it\n")
    return {name_of(each.paper, each.label): each for each in found}
