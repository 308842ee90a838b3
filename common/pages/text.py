"""Text from logs and result files, made safe for one line of a terminal or a page."""

import re

from mlhpc.common.files import untrusted

_LENGTH = 2000


def printable(value: object, most: int = _LENGTH) -> str:
    """``value`` as text in one line: line breaks and tabs become spaces, and other non-printable characters
    (terminal escapes, lone surrogates, marks that change the direction of writing) become escapes like ``\\x1b``.
    Text longer than ``most`` characters is truncated with an ellipsis."""
    text = str(value)
    text = text if len(text) <= most else text[: most - 1] + "…"
    return untrusted.printable(text.translate({ord(c): " " for c in "\n\r\t"}))


def slug(text: str) -> str:
    """``text`` as a file name or an anchor: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
