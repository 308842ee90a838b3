"""Text from logs and result files, made safe for one line of a terminal or a page."""

import math
import re

from mlhpc.common.files import untrusted

_LENGTH = 2000


def printable(value: object, most: int = _LENGTH) -> str:
    """``value`` as text of one line: line breaks and tabs become spaces, other non-printable characters
    (terminal escapes, lone surrogates, marks that change the direction of writing) are written as ``\\x1b``.
    Text of more than ``most`` characters is truncated with an ellipsis."""
    text = str(value)
    text = text if len(text) <= most else text[: most - 1] + "…"
    return untrusted.printable(text.translate({ord(c): " " for c in "\n\r\t"}))


def slug(text: str) -> str:
    """``text`` as a file name or an anchor: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def decimals(value: float) -> int:
    """Number of decimals that shows ``value`` with about four digits."""
    return 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 3


def plain(value: float | None) -> str:
    """About four digits, never in powers of ten."""
    if value is None or not math.isfinite(value):
        return ""
    if 0 < value < 0.001:
        return "< 0.001"
    if -0.0005 < value < 0:  # time that clocks do not resolve
        value = 0.0
    return f"{value:,.{decimals(value)}f}".replace(",", "\xa0")
