"""Reads a page strictly, and what its charts show."""

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link"}


class Page(HTMLParser):
    """Tags close in order. Keeps the attributes of each element, the text outside of pictures, and the data of the
    charts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.alt_texts: list[str] = []
        self.feed(html.replace("<wbr>", ""))
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "script":
            self.scripts.append((attributes.get("type"), ""))
        if attributes.get("role") == "img":
            self.alt_texts.append(str(attributes["aria-label"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            kind, before = self.scripts[-1]
            self.scripts[-1] = (kind, before + data)
        elif self.open and self.open[-1] not in ("style", "title") and "svg" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def charts(self) -> list[dict[str, Any]]:
        """The Vega-Lite specifications, in order."""
        return [json.loads(text) for kind, text in self.scripts if kind and "$schema" in text]

    def rows(self, alt_text: str) -> list[dict[str, Any]]:
        """The data of the chart whose alternative text begins so; of a layered chart those of the first layer with
        rows."""
        (chart,) = [c for c in self.charts if str(c["description"]).startswith(alt_text)]
        return rows_of(chart)


def rows_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of data in a specification, of all its layers."""
    inline = [chart.get("data", {}), *(layer.get("data", {}) for layer in chart.get("layer", []))]
    named = chart.get("datasets", {}).values()
    return [row for rows in [*(d.get("values", []) for d in inline), *named] for row in rows]
