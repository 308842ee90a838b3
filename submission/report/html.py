"""Pieces of HTML that the sections of a page are made of. Each escapes its text, but for table cells."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from mlhpc import __version__


def document(title: str, body: str, foot: str) -> str:
    """A whole page, its style sheet inside: no script, no network, no file beside it. ``body``, ``foot``
    are HTML."""
    style = resources.files("mlhpc.submission.report").joinpath("report.css").read_text("utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
{body}
<footer>
<p>{foot} Made by mlhpc {escape(__version__)}. MLPerf is a trademark of MLCommons;
nothing here is verified by MLCommons.</p>
</footer>
</main>
</body>
</html>
"""


def section(title: str, about: str, body: str) -> str:
    paragraph = f"<p>{escape(about)}</p>" if about else ""
    return f"<section><h2>{escape(title)}</h2>{paragraph}{body}</section>\n"


def pair(*sections: str) -> str:
    shown = [section for section in sections if section]
    return f'<div class="two">{"".join(shown)}</div>\n' if len(shown) > 1 else "".join(shown)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], foot: Sequence[str] = (), numbers_from: int = 1
) -> str:
    """``rows`` hold HTML; columns from ``numbers_from`` on are figures and stand to the right."""

    def cells(values: Sequence[str], scope: str) -> str:
        out = []
        for index, value in enumerate(values):
            kind = ' class="n"' if index >= numbers_from else ""
            tag = f'th scope="{scope}"' if index == 0 or scope == "col" else "td"
            out.append(f"<{tag}{kind}>{value}</{tag[:2]}>")
        return f"<tr>{''.join(out)}</tr>"

    body = "".join(cells(row, "row") for row in rows)
    end = f"<tfoot>{cells(foot, 'row')}</tfoot>" if foot else ""
    return (
        f'<div class="scroll" tabindex="0"><table><thead>{cells(head, "col")}</thead>'
        f"<tbody>{body}</tbody>{end}</table></div>"
    )


def definitions(facts: Mapping[str, Any]) -> str:
    items = []
    for key, value in facts.items():
        text = ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
        name = escape(key).replace("_", "_<wbr>")
        items.append(f"<dt>{name}</dt><dd>{escape(text)}</dd>")
    return f"<dl>{''.join(items)}</dl>"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
