"""Pages: all text is escaped, scripts are those of the page, tables can be saved."""

import csv
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import altair as alt
import pytest
from helpers.page import Page

from mlhpc.common.pages import charts, library, plots
from mlhpc.common.pages.blocks import (
    Banner,
    Cell,
    Details,
    Facts,
    Grid,
    Legend,
    Section,
    Table,
    number,
    table,
)
from mlhpc.common.pages.html import render, write
from mlhpc.common.pages.text import printable
from mlhpc.errors import UserError

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\x1b[2J\ud800'


def rendered(*blocks: object, title: str = "Page") -> str:
    return render(heading=title, blocks=blocks, foot="Foot.")


def evil_page() -> str:
    rows = [{"x": 1, "y": 1.0, "series": EVIL, "says": EVIL}]
    base = charts.chart_of(rows, x=alt.X("x:Q", title=EVIL), y="y:Q")
    under = plots.limits([(1.0, EVIL)], alt.Y("y:Q"))
    figure = plots.lines(base, EVIL, series=[EVIL, "other"], under=under, title=EVIL, note=EVIL)
    table = Table("t", (EVIL,), ((Cell(EVIL, notes=(EVIL,), bold=EVIL),),), foot=(Cell(EVIL),))
    section = Section(
        EVIL, EVIL, (Facts({EVIL: EVIL}), table, Grid((figure,)), Legend(((0, EVIL, EVIL, True),)))
    )
    blocks = (section, Section("Rest", blocks=(Banner(EVIL, EVIL), Details(EVIL, (table,)))))
    head: dict[str, Any] = {"eyebrow": EVIL, "subtitle": EVIL, "meta": EVIL, "hero": [(EVIL,) * 3]}
    return render(heading=EVIL, blocks=blocks, foot=EVIL, banners=[Banner(EVIL)], **head)


def test_text_is_never_markup() -> None:
    html = evil_page()
    html.encode("utf-8")  # lone surrogates are gone
    assert "\x1b" not in html
    page = Page(html)
    kinds = [kind for kind, _ in page.scripts]
    assert kinds == ["application/json", "application/json", None, None]
    assert "img" not in {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert page.charts[0]["layer"][0]["mark"]["type"] == "rule"


def test_only_the_scripts_of_the_page_may_run_and_nothing_is_fetched() -> None:
    (policy,) = [a["content"] for tag, a in Page(evil_page()).elements if a.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    assert re.fullmatch(r"('sha256-[A-Za-z0-9+/]{43}=' ?){2}", rules["script-src"])


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the scripts are kept: in a new cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield library._kept()
    forget()


def forget() -> None:
    """As a new process has it."""
    for cached in (library.begin, library.script):
        cached.cache_clear()


def test_scripts_that_cannot_be_bundled_are_one_line(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match=r"vl-convert cannot bundle the scripts of charts \(status 1\)"):
        evil_page()
    assert not kept.exists()


def test_scripts_are_bundled_once(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    bundled = library.script()
    assert "vegaEmbed" in bundled and kept.read_text("utf-8").endswith(bundled)
    forget()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert library.script() == bundled


@pytest.mark.parametrize(
    "damage",
    ["empty", "binary", "truncated", "link to a FIFO", "linked", "others may write", "of another user"],
)
def test_scripts_that_this_user_has_not_kept_are_bundled_again(
    monkeypatch: pytest.MonkeyPatch, kept: Path, damage: str
) -> None:
    kept.parent.mkdir()
    whole = sha256(b"evil()").hexdigest().encode() + b"\nevil()"
    content = {"empty": b"", "binary": b"\xff", "truncated": whole[:-1]}.get(damage, whole)
    if damage == "link to a FIFO":
        os.mkfifo(kept.with_suffix(".fifo"))
        kept.symlink_to(kept.with_suffix(".fifo"))
    elif damage == "linked":
        kept.with_suffix(".own").write_bytes(content)
        kept.symlink_to(kept.with_suffix(".own"))
    else:
        kept.write_bytes(content)
    if damage == "others may write":
        kept.chmod(0o666)
    if damage == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: kept.stat().st_uid + 1)
    monkeypatch.setattr(library, "_BUNDLE", "print('window.bundled = 1')")
    assert library.script() == "window.bundled = 1\n"


def test_without_a_cache_scripts_are_bundled(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    kept.parent.touch()  # where its folder should be
    monkeypatch.setattr(library, "_BUNDLE", "print('window.bundled = 1')")
    assert library.script() == "window.bundled = 1\n"


def test_a_page_without_charts_has_no_script() -> None:
    page = Page(rendered(Section("One", "", (Facts({"a": "b"}),))))
    assert page.scripts == []
    assert "script-src 'none'" in json.dumps(page.elements)


def test_contents_name_the_sections_of_a_long_page() -> None:
    page = Page(rendered(*(Section(f"Part {n}") for n in range(4))))
    assert [a["href"] for tag, a in page.elements if tag == "a"] == [f"#part-{n}" for n in range(4)]
    assert {a.get("id") for tag, a in page.elements if tag == "section"} == {f"part-{n}" for n in range(4)}
    assert "nav" not in {tag for tag, _ in Page(rendered(Section("One"), Section("Two"))).elements}


def test_contents_name_each_title_once_and_as_it_is_written() -> None:
    titles = ["A & B", "<i>", "C", "D"]
    page = Page(rendered(*(Section(title) for title in titles)))
    assert page.text.startswith("Page " + " ".join(titles))


def test_a_table_has_a_column_for_each_title() -> None:
    made = table(
        "t",
        [1.5, None],
        {"known": lambda v: str(v is not None), "value": lambda v: number(v, "{:.2f}".format)},
    )
    assert made.head == ("known", "value")
    assert [[cell.text for cell in row] for row in made.rows] == [["True", "1.50"], ["False", ""]]
    assert made.records == [{"known": "True", "value": 1.5}, {"known": "False", "value": ""}]


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "page.html", rendered(title="old"))
    write(tmp_path / "page.html", rendered(title="new"))
    assert "<title>new</title>" in (tmp_path / "page.html").read_text("utf-8")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt exists and is not an HTML page"):
        write(tmp_path / "notes.txt", rendered())
    with pytest.raises(UserError, match="cannot be written"):
        write(tmp_path / "missing" / "page.html", rendered())
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("place", ["fifo", "/dev/zero", "folder"])
def test_what_is_no_file_in_place_of_a_page_is_refused_without_reading_it(place: str, tmp_path: Path) -> None:
    """As it may lie in a run folder of somebody else: reading it would wait or fill the memory."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "page.html").symlink_to(tmp_path / place)
    with pytest.raises(UserError, match=r"page\.html exists and is not an HTML page"):
        write(tmp_path / "page.html", rendered())


@pytest.fixture
def numbers() -> Table:
    rows = (
        (Cell("first", notes=("a note",)), Cell("12.3", value=12.3456)),
        (Cell("=HYPERLINK(0)"), Cell("", value=float("inf"))),
        (Cell("a, \"b\"\nc"), Cell("–", value="-1+1")),
    )  # fmt: skip
    return Table("numbers", ("name", "value, s"), rows)


def link(table: Table, ending: str) -> str:
    (href,) = [str(a["href"]) for _, a in Page(rendered(Section("S", "", (table,)))).elements
               if a.get("download") == f"numbers.{ending}"]  # fmt: skip
    return unquote(href.partition(",")[2])


def test_a_table_can_be_saved_as_json(numbers: Table) -> None:
    assert json.loads(link(numbers, "json")) == [
        {"name": "first", "value, s": 12.3456},
        {"name": "=HYPERLINK(0)", "value, s": None},
        {"name": 'a, "b" c', "value, s": "-1+1"},
    ]


def test_a_long_table_is_saved_completely() -> None:
    rows = tuple((Cell(f"row {n}"), Cell(str(n), value=n)) for n in range(1000))
    numbers = Table("numbers", ("name", "value"), rows)
    assert json.loads(link(numbers, "json"))[-1] == {"name": "row 999", "value": 999}
    assert len(list(csv.reader(io.StringIO(link(numbers, "csv"))))) == 1001


def test_a_table_can_be_saved_as_csv_without_formulas(numbers: Table) -> None:
    rows = list(csv.reader(io.StringIO(link(numbers, "csv"))))
    assert rows == [["name", "value, s"], ["first", "12.3456"], ["'=HYPERLINK(0)", ""], ['a, "b" c', "'-1+1"]]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Ångström − 3 × 10⁵ °C 日本", "Ångström − 3 × 10⁵ °C 日本"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("left\u202eright", r"left\u202eright"),
        ("\ud83d", r"\ud83d"),
        ("a\tb\nc\r\n", "a b c  "),
        ("x" * 3000, "x" * 1999 + "…"),
    ],
)
def test_text_is_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
