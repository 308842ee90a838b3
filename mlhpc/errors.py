"""Errors that the user can fix: one line, no traceback. And the termination of a run by a signal."""

import contextlib
import difflib
import os
import reprlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


class UserError(Exception):
    """An error outside the program: a file, a flag, a machine.

    The message is one line: what is wrong, where, and what to do. The command line prints it
    after ``mlhpc: `` and exits with status 2; ``--debug`` adds the traceback.
    """


class AlreadyReported(UserError):
    """A ``UserError`` printed by another rank: by rank 0 if all ranks raise it, otherwise by the rank that
    reports this one as lost."""


MISSED = 3
"""Exit status of a run, and of a campaign, that ended as it should but without its target: 1 is also that of a
process that fails, which a batch system has to tell apart."""


class DeviceLost(UserError):
    """The device of this process has failed. What is left on it cannot be freed: destructors would abort."""


class Terminated(BaseException):
    """A signal ends the run; ``status`` is the exit status, 128 plus the signal's number.

    Like KeyboardInterrupt it is not an Exception: mlperf-logging catches those raised while it writes a record,
    and would let the run continue.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


EXTRAS = {
    "submission": ("mlperf_logging", "scipy"),
    "pages": ("altair", "jinja2", "vl_convert"),
    "samples": ("matplotlib",),
    "tune": ("optuna",),
}
"""The extras that are not a benchmark's, and the packages, by the names that are imported, which commands import
where they use them. What is in install_requires is everywhere."""


def missing_package(error: ModuleNotFoundError, what: str, extra: str = "") -> str:
    """What to install where ``what`` (a command, a benchmark) could not import something. ``extra``: of the
    benchmark that it is about."""
    package = (error.name or "").partition(".")[0]
    extra = next((name for name, packages in EXTRAS.items() if package in packages), extra)
    if not extra or package == "horovod":  # which no extra can install
        page = "docs/reference/dependencies.md"
        return f"{what} needs the package {package}, which is not installed here; see {page}"
    return f"{what} needs mlhpc[{extra}]: {install(extra)}"


def install(extra: str) -> str:
    """The command that adds ``extra`` to this mlhpc. It is on no package index, so the command names what it was
    installed from: its checkout, or the wheel that pip has noted in direct_url.json (PEP 610)."""
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
"""Environment variable set by ``mlhpc --quiet``: only results and errors, on all ranks."""


def say_at_once(line: str) -> None:
    """Write ``line`` directly to standard error, because another thread may have locked ``sys.stderr``.
    Errors are ignored: the terminal or the reader of a pipe may be closed."""
    with contextlib.suppress(OSError):
        os.write(2, f"mlhpc: {line}\n".encode())


MANY = 16
"""Choices in a message of one short line."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The end of a message about an unknown ``word``: the nearest of ``choices``, or all of them; of more than
    ``MANY`` dotted ones their tables."""
    options = sorted(choices)
    bare = {option.lstrip("-"): option for option in options}  # the dashes of all options make none alike
    near = difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.5)
    if near:
        return f"did you mean {bare[near[0]]!r}?"
    if len(options) > MANY:
        options = sorted({table + ".*" * bool(dot) for table, dot, _ in (o.partition(".") for o in options)})
    return f"choose from: {few(options, MANY)}"


class _Short(reprlib.Repr):
    """Looks at a few parts of a value, at most two levels deep: aliases can make it larger than memory."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 2, 200, 200

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else f"an integer of {x.bit_length()} bits"


def shown(value: object) -> str:
    """``repr`` of a value from a file, for a message: of any value at most a few hundred characters."""
    return _Short().repr(value)


def few(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """The first ``most`` of ``texts`` and the number of the others: ``A, B, C and 997 more``."""
    more = len(texts) - most
    return between.join(texts[:most]) + (f" and {more:,} more" if more > 0 else "")
