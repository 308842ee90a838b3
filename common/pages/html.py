"""Pages, rendered by Jinja2 templates that escape all text.

Packages build ``Section`` objects (``blocks.py``) and call ``render``. For a page with much text they write a
template with that text and the order of the sections. The result is one self-contained file with styles, scripts
(vega, vega-lite, vega-embed) and data; nothing is fetched. Its content security policy allows only the two scripts
that are inserted here, by their hashes.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mlhpc import __version__, quantities
from mlhpc.common.files.atomic import write_bytes
from mlhpc.common.files.filesystem import as_user_error
from mlhpc.common.files.regular import open_regular
from mlhpc.common.pages import charts, library
from mlhpc.common.pages.text import printable, slug
from mlhpc.errors import UserError


def render(template: str = "mlhpc.common.pages:page.html", **content: Any) -> str:
    """The whole HTML text of a page.

    ``template``: "package:name" of a template in that package's folder ``templates/``. It extends ``page.html``,
    may contain the page's text, and lays out the sections in ``content``. ``page.html`` itself shows these values
    of ``content``: ``heading``, and if present ``title`` (of the browser's window), ``eyebrow`` (a line above the
    heading), ``subtitle`` and ``meta`` (next to the heading and below it), ``pills`` (short facts as (text,
    tone)), ``banners``, ``hero`` (the headline numbers as (label, number, text below)), ``blocks`` (the sections;
    None is skipped) and ``foot``.
    """
    package, _, name = template.partition(":")
    return _environment(package).get_template(name).render(contents=[], **content)


def write(path: Path, html: str) -> None:
    """Write a page to a file. Only pages are overwritten: raises UserError if ``path`` is another file or cannot
    be written."""
    with as_user_error(path, "cannot be written", "choose another --out FILE.html"):
        # An existing file may be another user's, such as a link to a FIFO or to a device.
        if path.exists() and not (path.is_file() and _begins(path) == html[:15].encode()):
            raise UserError(f"{path} exists and is not an HTML page; choose another --out FILE.html")
        write_bytes(path, html.encode())


def _begins(path: Path) -> bytes:
    with open(open_regular(path), "rb") as file:
        return file.read(15)


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("mlhpc.common.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["slug"] = slug
    environment.globals |= {
        "version": __version__,
        "quantities": quantities,
        "style": Markup(_style()),
        "dark": charts.DARK,
        "scripts_of": _scripts,
        "policy_of": _policy,
    }
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment


def _finalize(value: Any) -> Any:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _scripts(content: str) -> tuple[Markup, ...]:
    """The scripts of a page with charts."""
    return (Markup(library.script()), Markup(_resource("page.js"))) if '<div class="chart"' in content else ()


@cache
def _resource(name: str) -> str:
    return resources.files("mlhpc.common.pages").joinpath("templates", name).read_text("utf-8")


def _style() -> str:
    """The style sheet, with the charts' palette as CSS variables."""
    names = {"ink": charts.INK, "soft": charts.SOFT, "line": charts.LINE, "card": charts.CARD}
    names |= {"accent": charts.ACCENT, "bad": charts.BAD}
    names |= charts.PARTS | {f"c{n}": pair for n, pair in enumerate(charts.SERIES)}
    light, dark = (" ".join(f"--{name}: {pair[n]};" for name, pair in names.items()) for n in (0, 1))
    return _resource("page.css").replace("/*LIGHT*/", light).replace("/*DARK*/", dark)


def _policy(scripts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
