"""The command line. Modules are imported only when their command runs, so that ``--help`` is fast."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from mlhpc import __version__
from mlhpc.benchmarks.registry import BUILT_IN, load_object
from mlhpc.commands import data, history, io, models, observe, papers, preflight, results, training
from mlhpc.commands.parser import Parser, print_help
from mlhpc.errors import (
    QUIET,
    AlreadyReported,
    DeviceLost,
    Terminated,
    UserError,
    did_you_mean,
    missing_package,
)

LONGEST = 8000
"""Maximum characters of a message."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 for success, 1 for a negative result (findings), 2 for a user
    error, 3 for a missed target, and 128 plus the signal's number after a signal."""
    is_program = argv is None  # not a call from Python code, which owns its process
    argv = list(sys.argv[1:] if argv is None else argv)
    quiet_before = os.environ.get(QUIET)
    options = argparse.Namespace()
    if is_program:
        _prepare_output()
    try:
        _parse(argv, options)
        options.argv, options.is_program = argv, is_program
        if options.quiet:
            os.environ[QUIET] = "1"  # in the environment, so that it reaches all ranks
        command = options.command
        status: int = (load_object(command) if isinstance(command, str) else command)(options)
        sys.stdout.flush()  # in this block, which handles a closed pipe
        return status
    except (Exception, KeyboardInterrupt, Terminated) as error:
        known = _reported(error, options)
        if known is None:
            raise
        if is_program and any(isinstance(each, DeviceLost) for each in (error, error.__cause__)):
            sys.stdout.flush()
            os._exit(known)
        return known
    finally:
        if quiet_before is None:
            os.environ.pop(QUIET, None)  # --quiet applies to this call only


def _parse(argv: Sequence[str], options: argparse.Namespace) -> None:
    """Parse the command line ``argv`` into ``options``. Raises UserError for an unknown argument or an invalid
    value."""
    _, unknown = _parser().parse_known_args([word for word in argv if word != "--debug"], options)
    if unknown and hasattr(options, "parse_rest"):
        unknown = options.parse_rest(options, unknown)
    if unknown:
        flags = [flag for action in options.parser._actions for flag in action.option_strings]
        near = did_you_mean(unknown[0].partition("=")[0], flags)
        hint = f"; {near}" if unknown[0].startswith("-") else ""
        raise UserError(f"unknown argument {unknown[0]!r}{hint}")


def _reported(error: BaseException, options: argparse.Namespace) -> int | None:
    """Print a message about ``error`` and return the command's exit status. None if the command should end with a
    traceback: for unexpected errors and, with --debug, for user errors."""
    status = 2
    debug = "--debug" in getattr(options, "argv", ())  # the traceback of a command-line error is not useful
    match error:
        case Terminated():
            message, status = str(error), error.status
        case KeyboardInterrupt():
            from mlhpc.common.ranks.local import status_of

            message, status = "interrupted", status_of(error)
        case _ if debug:
            return None
        case AlreadyReported():
            return 2
        case UserError():
            message = _message(error)
        case MemoryError():
            detail = f" ({_message(error)})" if str(error) else ""
            message = f"not enough memory{detail}; {_INPUTS}"
        case RecursionError():
            message = f"an input is nested too deeply; {_INPUTS}"
        case ModuleNotFoundError() if (error.name or "mlhpc").partition(".")[0] != "mlhpc":
            what, benchmark = options.parser.prog.removeprefix("mlhpc "), getattr(options, "benchmark", None)
            extra = next((b.default_extra for b in BUILT_IN if b.name == benchmark), "")
            message = missing_package(error, what, extra)
        case OSError():
            return _reported_os_error(error)
        case _:
            return None
    sys.stderr.write(f"mlhpc: {message}\n")
    return status


_INPUTS = "check the inputs, or locate the error with --debug"


def _reported_os_error(error: OSError) -> int | None:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not (full or error.errno == errno.EPIPE or error.filename):
        return None
    # The reader may have closed our output, or the disk may be full; Python flushes the buffer again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return 1
    remedy = "free some space, or write elsewhere" if full else "--debug shows where it was needed"
    sys.stderr.write(f"mlhpc: {_message(error)}; {remedy}\n")
    return 2


def _prepare_output() -> None:
    """Ensure that no command fails because of its output: characters that cannot be encoded are replaced, and a
    closed stream becomes the null device instead of the next file that is opened."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(null)
    for name in ("stdout", "stderr"):
        if stream := getattr(sys, name):
            stream.reconfigure(errors="replace")
        else:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))


STAGES = {
    "run": ("doctor", "data", "presets", "run"),
    "look": ("watch", "report"),
    "measure": ("study", "profile", "predict", "io"),
    "submit": ("campaign", "check", "score", "pack"),
}
"""The commands that a new user needs, at most 14, grouped in the order of work. New commands belong in
``MORE``."""
MORE = {
    "settings": ("list", "rules", "scripts"),
    "of a run": ("diff", "trace", "export", "weights"),
    "other": ("tune", "history", "papers", "unpack", "completion"),
}


class Overview(Parser):
    """The parser of ``mlhpc`` itself. Its help groups the commands by ``STAGES``."""

    def format_help(self) -> str:
        """The help text: commands by stage, then the commands in ``MORE`` by name, then the options."""
        (commands,) = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        summaries = {choice.dest: choice.help for choice in commands._choices_actions}
        lines = [self.format_usage(), self.description or ""]
        for stage, names in STAGES.items():
            lines += ["", f"{stage}:", *(f"  {name:<10}  {summaries[name]}" for name in names)]
        lines += ["", "more:", *(f"  {group:<10}  {', '.join(names)}" for group, names in MORE.items())]
        options = self._get_formatter()
        options.start_section("options")
        options.add_arguments(self._optionals._group_actions)
        options.end_section()
        hint = "mlhpc COMMAND --help shows its options; mlhpc completion bash completes them."
        return "\n".join([*lines, "", options.format_help(), hint, ""])


def _message(error: BaseException) -> str:
    """The text of ``error``, which may quote a file, made printable and limited in length."""
    from mlhpc.common.files.untrusted import printable

    text = str(error)
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)", "\n\t")


def _parser() -> Parser:
    parser = Overview(
        prog="mlhpc",
        description="Training benchmarks for HPC systems: time to train, including data staging.",
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"mlhpc {__version__}")
    parser.add_flag("--debug", "show the traceback of errors")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only results and errors")
    parser.set_defaults(parser=parser, root=parser, command=print_help)
    commands = parser.add_subparsers(metavar="COMMAND", prog=parser.prog, parser_class=Parser)
    for group in (training, observe, data, io, preflight, models, results, history, papers):
        group.add(commands)
    return parser
