"""Tables in a terminal: at most as wide as it is, without losing digits."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from mlhpc.common.pages.blocks import Cell, Table
from mlhpc.common.pages.terminal import print_facts, print_table, print_texts

NUMBERS = [str(1234567890 + n) for n in range(8)]


def printed(table: Table, width: int) -> str:
    file = io.StringIO()
    print_table(table, Console(file=file, width=width))
    return file.getvalue()


def wide(text: str = "first") -> Table:
    head = ("run", *(f"seed {n}" for n in range(8)))
    return Table("runs", head, ((Cell(text), *map(Cell, NUMBERS)),), foot=(Cell("sum"), *map(Cell, NUMBERS)))


@pytest.mark.parametrize("text", ["first", "computing", "a path/of/a/run/" + "x" * 100])
def test_no_table_is_wider_than_the_terminal_and_nothing_is_cut(text: str) -> None:
    for width in range(20, 140):
        lines = printed(wide(text), width).splitlines()
        assert max(map(len, lines)) <= width
        for number in NUMBERS:
            assert sum(number in line for line in lines) == 2, "in the row and in the sum"
        letters = "".join(c for c in "".join(lines) if c.isalpha())
        assert letters.count("x") == text.count("x") and ("computing" in letters) == (text == "computing"), (
            width
        )


def test_columns_that_may_be_missing_are_left_out_first() -> None:
    file = io.StringIO()
    print_table(wide(), Console(file=file, width=80), optional=4)
    shown = [number in file.getvalue() for number in NUMBERS]
    assert shown[0] and not shown[-1] and sorted(shown, reverse=True) == shown
    named = file.getvalue().partition("not shown in 80 columns: ")[2].strip()
    assert named == ", ".join(f"seed {n}" for n in range(8) if not shown[n])
    file = io.StringIO()
    print_table(wide(), Console(file=file, width=200), optional=4)
    assert "not shown" not in file.getvalue()


def test_numbers_are_below_each_other_where_there_is_room() -> None:
    head, _, row, *_ = [line for line in printed(wide(), 120).splitlines() if line.strip()]
    assert head.split() == ["run", *" ".join(f"seed {n}" for n in range(8)).split()]
    assert row.split() == ["first", *NUMBERS]


def test_blanks_inside_a_number_do_not_break() -> None:
    table = Table("t", ("a long text", "value"), ((Cell("word " * 30), Cell("12 345 ± 67")),))
    assert "12 345 ± 67" in printed(table, 40)


def test_text_is_neither_markup_nor_an_escape() -> None:
    text = printed(Table("t", ("[b]head", "value"), ((Cell("[red]\x1b[2J"), Cell("1")),)), 80)
    assert "[b]head" in text and r"[red]\x1b[2J" in text and "\x1b" not in text


def test_a_value_that_is_not_known_is_left_out_of_a_narrow_terminal() -> None:
    table = Table("t", ("name", *map(str, range(9))), ((Cell("n"), *[Cell()] * 8, Cell("123456")),))
    assert printed(table, 20).split() == ["name", "n", "8:", "123456"]


KEYS = ("evaluation-frequency", "hpc_2.0.0/closed_deepcam_lamb.yaml", "submission.platform=NAME:")


def test_keys_are_not_broken_where_there_is_room_for_them() -> None:
    row = (Cell(KEYS[0]), Cell("as often as in the reference " * 5), Cell(f"rules, {KEYS[1]}"))
    table = Table("t", ("rule", "requirement", "source"), (row,), text_columns=3)
    for width in range(74, 140):
        text = printed(table, width)
        assert KEYS[0] in text and KEYS[1] in text and max(map(len, text.splitlines())) <= width, width
    assert KEYS[0] in printed(table, 54), "the short one stays whole where the long one cannot"


def test_findings_are_lines_where_their_keys_do_not_fit_side_by_side() -> None:
    rows = [
        [
            Text(f"error {KEYS[0]}\nrun.log\n{KEYS[1]}"),
            Text("a value " * 9),
            Text("x"),
            Text(f"set {KEYS[2]} now"),
        ]
    ]
    for width in range(40, 140):
        file = io.StringIO()
        print_texts(("finding", "expected", "found", "what to do"), rows, Console(file=file, width=width))
        assert all(key in file.getvalue() for key in KEYS), width
        assert max(map(len, file.getvalue().splitlines())) <= width


def test_no_letter_of_a_fact_is_left_out_of_a_narrow_terminal() -> None:
    commit = "2901d8688a4da11721678d2963b28fc5766daba8"
    file = io.StringIO()
    print_facts(
        [("intersection over union", "0.5"), (Text("commit"), f"[b]{commit}")], Console(file=file, width=40)
    )
    assert f"[b]{commit}" in "".join(file.getvalue().split())
    assert max(map(len, file.getvalue().splitlines())) <= 40
