"""Every number as text and every text as number."""

import contextlib
import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlhpc import quantities
from mlhpc.quantities import (
    binary_text,
    bytes_text,
    count,
    digits,
    duration_text,
    four_digits,
    joules_text,
    parse_quantity,
    plain,
    seconds_text,
    size_unit,
    text_of,
    whole,
)

AMOUNTS = st.one_of(st.just(0.0), st.floats(1e-9, 1e24), st.integers(0, 10**24).map(float))
DIMENSIONS = ("bytes", "bytes/s", "FLOP/s", "s", "a share")
PRINTERS = (
    bytes_text, binary_text, seconds_text, duration_text, digits, four_digits, whole, plain, joules_text
)  # fmt: skip


@given(AMOUNTS, st.sampled_from(DIMENSIONS))
def test_a_text_means_the_number_to_three_digits(value, dimension):
    text = text_of(value, dimension)
    again = parse_quantity(text.replace(",", ""), dimension)
    assert again == pytest.approx(value, rel=5.0001e-3, abs=1e-300)
    assert text_of(again, dimension) == text


@given(AMOUNTS)
def test_a_binary_size_means_the_number_to_three_digits(value):
    again = parse_quantity(binary_text(value).replace(",", ""), "bytes")
    assert again == pytest.approx(value, rel=5.0001e-3)


@example(999_600.0)
@example(999_999_999.0)
@given(AMOUNTS)
def test_no_text_has_a_power_of_ten_and_none_reaches_the_next_unit(value):
    for printer in PRINTERS:
        assert not re.search(r"\de[+-]?\d", printer(value)), printer
    if value < 0.9995e21:
        number = bytes_text(value).split()[0].replace(",", "")
        assert float(number) < 1000


@given(AMOUNTS, AMOUNTS)
def test_a_larger_number_never_looks_smaller(one, other):
    low, high = sorted((one, other))
    for printer, dimension in ((bytes_text, "bytes"), (binary_text, "bytes"), (seconds_text, "s")):
        small, large = (parse_quantity(printer(each).replace(",", ""), dimension) for each in (low, high))
        assert small <= large, (printer, low, high)


@given(st.floats(0, 1e9))
def test_a_duration_is_right_to_a_tenth_of_a_second_or_a_minute(seconds):
    numbers = re.findall(r"([\d.,]+) (\w+)", duration_text(seconds))
    shown = sum(parse_quantity(f"{number} {unit}".replace(",", ""), "s") for number, unit in numbers)
    off = 0.0501 if seconds < 7200 else 30.01 if seconds < 172_800 else 1800.01
    assert abs(shown - seconds) <= max(off, 5.0001e-3 * seconds * (seconds < 100))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (999_600, "1 MB"),
        (999_999_999, "1 GB"),
        (41_435_664, "41.4 MB"),
        (999_900_000, "1 GB"),
        (5.1e12, "5.1 TB"),
        (1e19, "10 EB"),
        (1e24, "1,000,000 EB"),
        (None, "not known"),
        (math.nan, "not known"),
    ],
)
def test_sizes_are_in_si_units(size, text):
    assert bytes_text(size) == text
    assert bytes_text(size, "/s") == (text if text == "not known" else f"{text}/s")


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 B"), (1 << 20, "1 MiB"), (3 << 19, "1.5 MiB"), (1023 << 20, "1,023 MiB"), (1 << 30, "1 GiB")],
)
def test_binary_units_are_powers_of_1024(size, text):
    assert binary_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [
        (0.0, "0 s", "0 s"),
        (0.3156, "316 ms", "316 ms"),
        (0.00862, "8.62 ms", "8.62 ms"),
        (93.246, "93.2 s", "93.2 s"),
        (299.96, "300 s", "5 min"),
        (371.0, "6.18 min", "6 min 11 s"),
        (599.94, "10 min", "9 min 59.9 s"),
        (719.96, "12 min", "12 min"),
        (1546.87, "25.8 min", "25 min 46.9 s"),
        (7200.0, "2 h", "2 h"),
        (19_620.0, "5.45 h", "5 h 27 min"),
        (273_600.0, "3.17 d", "3 d 4 h"),
        (-2.0, "-2 s", "-2 s"),
        (None, "not known", "not known"),
        (math.inf, "not known", "not known"),
    ],
)
def test_times_have_one_unit_or_two(seconds, short, long):
    assert seconds_text(seconds) == short
    assert duration_text(seconds) == long


def test_counts_and_numbers_are_in_english_groups():
    assert [count(n, "rank") for n in (0, 1, 2, 1024)] == ["0 ranks", "1 rank", "2 ranks", "1,024 ranks"]
    assert whole(262_144) == "262,144" and whole(None) == whole(math.nan) == "not logged"
    assert [digits(x) for x in (3.617, 36.17, 361.7, 3617.4, 0.0001234)] == [
        "3.62", "36.2", "362", "3,617", "0.000123"
    ]  # fmt: skip
    assert four_digits(12345.6) == "12,346" and digits(None) == digits(math.nan) == ""
    assert [plain(x) for x in (0.308, 36.2, 361.66, 1024, 1e-5, -1e-4, None)] == [
        "0.308", "36.20", "361.7", "1,024", "< 0.001", "0.000", ""
    ]  # fmt: skip
    assert joules_text(81_234) == "81.23 kJ" and joules_text(None) == "incomplete"
    assert size_unit(5e6) == ("MB", 1e6) and size_unit(0.0) == ("B", 1.0)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("512G", "bytes", 512e9), ("512GiB", "bytes", 512 * 2**30), ("512Gi", "bytes", 512 * 2**30),
        ("2 TB", "bytes", 2e12), ("1.5kB", "bytes", 1500), ("16 KB", "bytes", 16e3), ("3k", "bytes", 3e3),
        ("7 B", "bytes", 7), ("1 gB", "bytes", 1e9), ("  16 GiB ", "bytes", 2**34), ("1e3 MB", "bytes", 1e9),
        ("900 GB/s", "bytes/s", 9e11), ("2 PFLOP/s", "FLOP/s", 2e15), ("0.31", "a share", 0.31),
        ("1.5 us", "s", 1.5e-6), ("1.5 µs", "s", 1.5e-6), ("12.3 min", "s", 738.0), ("2 h", "s", 7200.0),
    ],
)  # fmt: skip
def test_one_grammar_has_what_machine_files_workloads_and_options_had(text, dimension, value):
    assert parse_quantity(text, dimension) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "dimension", "problem"),
    [
        ("16", "bytes", "not a number with a unit"),
        ("nan GB", "bytes", "not a number with a unit"),
        ("1.2.3 GB", "bytes", "not a number with a unit"),
        ("", "bytes", "not a number with a unit"),
        ("16 GB/s", "bytes", "'GB/s' is not a unit of bytes"),
        ("16 Gbit", "bytes", "not a unit of bytes"),
        ("16 XB", "bytes", "not a unit of bytes"),
        ("1 S", "s", "not a unit of s"),
        ("1 Ms", "s", "not a unit of s"),
        ("1e999 GB", "bytes", "too large"),
    ],
)
def test_other_texts_are_refused_with_the_reason(text, dimension, problem):
    with pytest.raises(ValueError, match=problem):
        parse_quantity(text, dimension)


def test_a_bare_number_is_bytes_only_where_that_is_said():
    assert parse_quantity("7", "bytes", bare="B") == 7


@given(st.text(max_size=20), st.sampled_from(DIMENSIONS))
def test_any_text_is_a_finite_number_or_refused(text, dimension):
    with contextlib.suppress(ValueError):
        assert math.isfinite(parse_quantity(text, dimension))


def test_the_docstring_has_the_grammar():
    for unit in ("KiB", "512G", "FLOP/s", "µs", "min"):
        assert unit in (quantities.__doc__ or "")
