"""Tables of campaigns and studies in the output of batch jobs."""

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from mlhpc.run_processes import table_console


def test_a_table_in_a_file_keeps_every_digit_where_80_columns_would_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    numbers = [str(1234567890 + n) for n in range(8)]
    table = Table(*(f"seed {n}" for n in range(8)))
    table.add_row(*numbers)
    narrow, wide = StringIO(), StringIO()
    Console(file=narrow).print(table)
    assert not all(number in narrow.getvalue() for number in numbers), "else this test shows nothing"
    table_console(Console(file=wide)).print(table)
    assert all(number in wide.getvalue() for number in numbers)
