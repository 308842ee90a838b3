"""A short run of every fuzzer; ``python tests/fuzz/run.py`` is the long one."""

import pytest
from fuzz.readers import READERS
from fuzz.run import fuzz


@pytest.mark.parametrize("name", READERS)
def test_a_reader_reads_or_refuses_damaged_input(name: str) -> None:
    outcome = fuzz(READERS[name], inputs=150, seconds=5, seed=1)
    assert outcome.inputs and not outcome.failures, outcome.failures[0][1]


def test_the_inputs_of_a_seed_are_the_same() -> None:
    from random import Random

    for reader in READERS.values():
        assert reader.make_input(Random(3)) == reader.make_input(Random(3))
