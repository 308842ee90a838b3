"""Errors that are the user's to mend: one line, no traceback. And the end of a run from outside."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something outside the program is wrong: a file, a flag, a machine.

    The message is one line that says what is wrong, where, and what to do. The command line prints it
    after ``mlhpc: `` and exits with status 2; ``--debug`` adds the traceback.
    """


class AlreadyReported(UserError):
    """A ``UserError`` that all ranks raise alike, on a rank that leaves it to rank 0 to print it."""


class Ended(BaseException):
    """The run is ended from outside. Like KeyboardInterrupt it passes what catches exceptions: mlperf-logging
    catches those of a record that is being written, and would let the run go on."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown ``word``: the nearest known one, or all of them."""
    options = sorted(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"choose from: {', '.join(options)}"


def count(number: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``: of nouns that take an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
