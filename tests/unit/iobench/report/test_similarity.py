from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlhpc.iobench.report.similarity import FACTORS, compare, cosine

# Fig. 8 of the paper: the differences in the order of FACTORS, and the similarity printed with them.
FIG_8 = {
    "Imagenet": ((0.18, 0.07, -0.01, -0.01, 0.00, 0.00, -0.65, -0.53), 0.96),
    "Cosmic Tagger": ((-0.05, 0.00, 0.15, 0.13, -0.38, 0.31, 0.32, 0.42), 0.97),
    "Cosmoflow": ((-0.10, -0.34, 0.37, 0.27, 0.00, 0.71, 0.00, 0.26), 0.95),
    "FFN": ((-0.07, 0.00, 0.03, 0.09, -0.29, -0.40, 0.00, -0.10), 0.94),
    "CANDEL": ((-0.19, 0.00, -0.06, -0.06, 0.00, -0.40, -0.07, -0.68), 0.97),
    "FRNN": ((-0.15, 0.02, -0.13, -0.13, -0.37, -0.02, 0.03, -0.08), 0.94),
}
POSITIVE = st.lists(st.floats(0.01, 1e9), min_size=8, max_size=8)


def of(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(FACTORS, values, strict=True))


@given(POSITIVE, POSITIVE)
def test_the_cosine_is_the_papers_formula(a, b):
    a_bar, b_bar = (np.array(x) / np.maximum(a, b) for x in (a, b))
    expected = a_bar @ b_bar / (np.linalg.norm(a_bar) * np.linalg.norm(b_bar))
    assert compare(of(a), of(b)).cosine == pytest.approx(expected)


def test_the_rows_of_the_papers_figure():
    """Four of six follow from the printed differences, within a unit of the last digit; FFN and FRNN do not."""
    cosines = {name: cosine(of(row)) for name, (row, _) in FIG_8.items()}
    computed = {name: round(value, 3) for name, value in cosines.items()}
    assert computed == {
        "Imagenet": 0.950, "Cosmic Tagger": 0.964, "Cosmoflow": 0.937,
        "FFN": 0.985, "CANDEL": 0.964, "FRNN": 0.991,
    }  # fmt: skip
    off = {name for name, (_, printed) in FIG_8.items() if abs(cosines[name] - printed) > 0.0151}
    assert off == {"FFN", "FRNN"}


def test_an_error_of_all_factors_is_seen_by_the_difference_alone():
    values = [3.0, 5.0, 0.9, 0.8, 100.0, 120.0, 1e6, 2e6]
    similarity = compare(of(values), of([0.3 * value for value in values]))
    assert similarity.cosine == pytest.approx(1.0)
    assert similarity.largest[1] == pytest.approx(0.7)
    assert not similarity.alike


def test_equal_runs_are_alike_and_zeros_are_left_out():
    similarity = compare(
        of([1.0, 2.0, 0.0, 0.0, 5.0, 6.0, 7.0, 8.0]), of([1.0, 2.0, 0.0, 0.0, 5.0, 6.0, 7.0, 8.0])
    )
    assert similarity.alike and len(similarity.differences) == 6
    with pytest.raises(ValueError, match="no factor"):
        cosine({})
