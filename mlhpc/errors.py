"""Errors that the user can fix, reported in one line without a traceback, and the termination of a run by a
signal."""

import contextlib
import difflib
import os
import reprlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


class UserError(Exception):
    """An error whose cause is outside the program: a file, an option, or the machine.

    The message is one line: what is wrong, where, and what to do. The command line prints it
    after ``mlhpc: `` and exits with status 2; ``--debug`` adds the traceback.
    """


class AlreadyReported(UserError):
    """A ``UserError`` that another rank prints: rank 0 if all ranks raise the error, otherwise the rank that
    reports this rank as lost."""


MISSED = 3
"""Exit status of a run or campaign that ended normally but missed its target. It differs from 1, the status of a
failed process, so that batch systems can tell the two apart."""


class DeviceLost(UserError):
    """Raised when the device of this process has failed. Objects that remain on the device cannot be freed,
    because their destructors would abort."""


class Terminated(BaseException):
    """Raised when a signal ends the run; ``status`` is the exit status, 128 plus the signal's number.

    Like KeyboardInterrupt, this class is not a subclass of Exception: mlperf-logging catches every Exception
    raised while it writes a record, and the run would continue.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def reason_of(error: BaseException) -> str:
    """The reason that ``error`` gives for the end of a run, in one line."""
    if isinstance(error, UserError | Terminated):
        return str(error)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"


EXTRAS = {
    "submission": ("mlperf_logging", "scipy"),
    "pages": ("altair", "jinja2", "vl_convert"),
    "samples": ("matplotlib",),
    "tune": ("optuna",),
}
"""The extras that do not belong to a benchmark, each with the import names of packages that commands import only
when they use them. Packages in install_requires are always installed."""


def missing_package(error: ModuleNotFoundError, what: str, extra: str = "") -> str:
    """A message that says what to install if ``what`` (a command or a benchmark) could not import a package.
    ``extra``: the extra of the benchmark in question."""
    package = (error.name or "").partition(".")[0]
    extra = next((name for name, packages in EXTRAS.items() if package in packages), extra)
    if not extra or package == "horovod":  # no extra can install it
        page = "docs/reference/dependencies.md"
        return f"{what} needs the package {package}, which is not installed here; see {page}"
    return f"{what} needs mlhpc[{extra}]: {install(extra)}"


def install(extra: str) -> str:
    """The pip command that adds ``extra`` to this installation. mlhpc is on no package index, so the command names
    the source of the installation: the checkout, or the wheel that pip recorded in direct_url.json (PEP 610)."""
    import json
    import shlex
    import shutil
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    def shown(path: Path) -> str:
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)

    python = Path(sys.executable)
    here = shutil.which("pip") == str(python.with_name("pip"))
    pip = "pip install" if here else f"{shlex.quote(shown(python))} -m pip install"
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "setup.cfg").exists():
        return f"{pip} -e {shlex.quote(f'{shown(checkout)}[{extra}]')}"
    try:
        noted = metadata.distribution("mlhpc").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        noted = None
    source = Path(unquote(urlsplit(json.loads(noted or "{}").get("url", "")).path))
    if source.is_absolute() and source.exists():
        return f"{pip} {shlex.quote(f'{shown(source)}[{extra}]')}"
    return f"{pip} '.[{extra}]' in a checkout of mlhpc"


QUIET = "MLHPC_QUIET"
"""Environment variable set by ``mlhpc --quiet``: all ranks print only results and errors."""


def say_at_once(line: str) -> None:
    """Write ``line`` directly to standard error, because another thread may have locked ``sys.stderr``.
    Errors are ignored, since the terminal or the reader of a pipe may be gone."""
    with contextlib.suppress(OSError):
        os.write(2, f"mlhpc: {line}\n".encode())


MANY = 16
"""Maximum number of choices that a message lists."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint for a message about an unknown ``word``: the most similar of ``choices``, or all choices. If there
    are more than ``MANY``, dotted names are grouped by table."""
    options = sorted(choices)
    bare = {option.lstrip("-"): option for option in options}  # common dashes do not make options similar
    if near := difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.5):
        return f"did you mean {bare[near[0]]!r}?"
    if len(options) > MANY:
        options = sorted({table + ".*" * bool(dot) for table, dot, _ in (o.partition(".") for o in options)})
    return f"choose from: {few(options, MANY)}"


class _Short(reprlib.Repr):
    """A ``repr`` that shows only a few parts of a value, at most two levels deep, because a value with aliases may
    be larger than memory when written out."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 2, 200, 200

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else f"an integer of {x.bit_length()} bits"


def shown(value: object) -> str:
    """The ``repr`` of a value from a file, limited to a few hundred characters, for use in a message."""
    return _Short().repr(value)


def few(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """The first ``most`` of ``texts`` and the number of remaining ones: ``A, B, C and 997 more``."""
    more = len(texts) - most
    return between.join(texts[:most]) + (f" and {more:,} more" if more > 0 else "")
