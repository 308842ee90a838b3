"""docs/reference/record.md is what the models of a run's files say, and its examples are what they write."""

import json

import pytest
from helpers.record_page import FILES, PAGE, RUN, page

from mlhpc.record.fields import Fields


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python tests/helpers/record_page.py"


@pytest.mark.parametrize("name", [name for name in FILES if (RUN / name).exists()])
def test_an_example_is_read_and_written_unchanged(name: str, tmp_path) -> None:
    model = FILES[name]
    assert issubclass(model, Fields)
    read = model.read(RUN / name)
    assert not read.model_extra
    read.write(tmp_path / name)
    assert json.loads((tmp_path / name).read_text()) == json.loads((RUN / name).read_text())
