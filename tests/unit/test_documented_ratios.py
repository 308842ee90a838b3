"""Ratios in the documentation: quotients of the rates beside them, or said to be medians of ratios."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/reference/performance.md"
SAID = "the median of the ratios of the rounds"
CLOSE = 0.03  # of rates that are printed with three digits


def tables(section: str) -> list[list[list[str]]]:
    """The cells of each table."""
    found: list[list[list[str]]] = [[]]
    for line in section.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip(" *") for cell in line.strip("|\n ").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def leading(cell: str) -> float | None:
    match = re.match(r"[0-9.]+", cell)
    return float(match[0]) if match else None


def quotients(table: list[list[str]]) -> list[tuple[float, float]]:
    """(printed ratio, quotient of the rates beside it): of a column "ratio" the rate before it to that of the
    reference in the same row; of a column "to cp" the rate before it to that of the first row."""
    head, _, *rows = table
    pairs = []
    rate = None
    for at, name in enumerate(head):
        if "samples/s" in name or "MB/s" in name or "as delivered" in name or name.startswith("ours, log"):
            rate = at
        base = {"ratio": 1, "to cp": None}.get(name, -1)
        if base == -1 or rate is None:
            continue
        for row in rows:
            printed, own = leading(row[at]), leading(row[rate])
            reference = leading(row[1] if base == 1 else rows[0][rate])
            if printed and own and reference:
                pairs.append((printed, own / reference))
    return pairs


@pytest.mark.parametrize("heading", ["Input pipeline, 128³ × 4", "Staging"])
def test_a_ratio_is_that_of_the_rates_beside_it_or_a_median_of_ratios(heading: str) -> None:
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (section,) = [text for text in sections if text.startswith(heading)]
    pairs = [pair for table in tables(section) for pair in quotients(table)]
    assert len(pairs) >= 4, "the tables are found"
    off = [(printed, quotient) for printed, quotient in pairs if abs(printed / quotient - 1) > CLOSE]
    assert not off or SAID in " ".join(section.split()), off
