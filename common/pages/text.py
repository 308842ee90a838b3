"""Text from logs and result files, made safe to print and to put into a page."""

import unicodedata

# Control characters, formatting characters (they can reverse the direction of text), lone surrogates.
_UNPRINTABLE = {"Cc", "Cf", "Cs"}
_LENGTH = 2000


def printable(value: object) -> str:
    """``value`` as text without terminal escapes or anything that UTF-8 cannot hold.

    Line breaks and tabs become spaces; other control characters are written as ``\\x1b``. Text of more than
    2000 characters is cut, and ends in an ellipsis.
    """
    text = str(value)
    text = text if len(text) <= _LENGTH else text[: _LENGTH - 1] + "…"
    if text.isprintable():
        return text
    return "".join(map(_character, text))


def _character(character: str) -> str:
    if character in "\n\r\t":
        return " "
    if unicodedata.category(character) in _UNPRINTABLE:
        return character.encode("unicode_escape", "backslashreplace").decode("ascii")
    return character
