"""Errors that are the user's to mend: one line, no traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something outside the program is wrong: a file, a flag, a machine.

    The message is one line that says what is wrong, where, and what to do. The command line prints it
    after ``mlhpc: `` and exits with status 2; ``--debug`` adds the traceback.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown ``word``: the nearest known one, or all of them."""
    options = sorted(known)
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"choose from: {', '.join(options)}"
